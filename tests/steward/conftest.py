"""Homes and marks for the worlds of these tests, and notebooks whose kernels end in every way."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernels import Notebook


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A word in the environment of every process that is started from now on, however far down."""
    word = f"mark-{secrets.token_hex(8)}"
    monkeypatch.setenv("DTRAIN_TEST_MARK", word)
    return word


@pytest.fixture
def open_notebook(home: Path) -> Iterator[Callable[..., Notebook]]:
    """Opens a notebook's kernel: ``open_notebook(**env)``."""
    opened: list[Notebook] = []

    def make(**env: str) -> Notebook:
        opened.append(Notebook(env))
        return opened[-1]

    yield make
    for notebook in opened:
        notebook.close()
