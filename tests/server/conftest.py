"""A server with the extension for all tests here, and pages that look at it; for what needs no world, Jupyter's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("jupyter_server", reason="needs Jupyter Server: pip install jupyter_server")

from pytest_jupyter.jupyter_core import *  # noqa: F403 — its fixtures
from pytest_jupyter.jupyter_server import *  # noqa: F403

from tests.server.page import Page, Server


@pytest.fixture(scope="module")
def server(home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, for the tests of a module."""
    found = Server(tmp_path_factory.mktemp("server"))
    yield found
    found.close()


@pytest.fixture
def open_page(server: Server) -> Iterator[Callable[..., Page]]:
    """Opens pages of the server."""
    pages: list[Page] = []

    def make() -> Page:
        pages.append(Page(server))
        pages[-1].open()
        return pages[-1]

    yield make
    for page in pages:
        page.close()


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    """One page."""
    return open_page()
