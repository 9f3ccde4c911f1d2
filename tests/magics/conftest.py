"""Notebooks for the tests of the magics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.magics.notebook import Notebook


@pytest.fixture(scope="module")
def open_notebook(
    home: Path, long_hold: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Notebook]]:
    """Opens notebooks, ``open_notebook(**env)``; what a test leaves open is closed at the end of its module."""
    opened: list[Notebook] = []

    def make(**env: str) -> Notebook:
        notebook = Notebook(tmp_path_factory.mktemp("notebook"), **env)
        opened.append(notebook)
        return notebook

    yield make
    for notebook in opened:
        notebook.close()


@pytest.fixture(scope="module")
def notebook(open_notebook: Callable[..., Notebook]) -> Notebook:
    """A notebook with the extension, shared by the tests of a module. No world runs in it."""
    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain")
    return notebook


@pytest.fixture(scope="module")
def ranks(notebook: Notebook) -> Notebook:
    """The same notebook with a world of three ranks."""
    notebook.ok("%distributed start -n 3")
    return notebook
