"""One browser for all tests here, and a JupyterLab for each file; skipped, by name, where something is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs Playwright: pip install playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install jupyterlab")

from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.browser import chromium
from tests.browser.lab import BROWSER_OPTIONS, PACKAGE, PATIENCE, Lab

BUNDLE = [PACKAGE / "static" / "widget.js", PACKAGE / "labextension" / "package.json"]
STAGE = Path(__file__).with_name("stage.html")
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium."""
    found = chromium.find()
    if found is None:
        pytest.skip("needs Chromium: python -m tests.browser.chromium")
    if not all(path.exists() for path in BUNDLE):
        pytest.skip("needs the front end: install the package where there is Node, or run `make front-end`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=BROWSER_OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def patience() -> None:
    """``expect`` waits as long as everything else does here."""
    expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def own_store(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store with the runs of one file of tests alone, for its JupyterLab too: ask for it before that."""
    patch = pytest.MonkeyPatch()
    patch.setenv("JUPYTER_DTRAIN_STORE", str(tmp_path_factory.mktemp("store") / "runs.sqlite"))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def lab(browser: Browser, long_hold: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab, of one file of tests: it sees no worlds but theirs."""
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture
def stage(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages that have nothing but the widget, and a kernel's half of it that the test plays: ``window.stage``."""
    pages: list[Page] = []

    def serve(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        path = STAGE if name == STAGE.name else PACKAGE / "static" / name
        if path.exists():
            route.fulfill(path=path, content_type=KINDS[path.suffix])
        else:
            route.fulfill(status=404)

    def make(width: int = 1000, height: int = 900) -> Page:
        page = browser.new_page(viewport={"width": width, "height": height})
        pages.append(page)
        page.route("http://stage.test/**", serve)
        page.goto(f"http://stage.test/{STAGE.name}")
        page.wait_for_function("window.stage !== undefined")
        return page

    yield make
    for page in pages:
        page.close()
