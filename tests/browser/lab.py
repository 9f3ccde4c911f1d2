"""JupyterLab with a real browser: a server of our own, notebooks in a folder, and what a person does with them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page

import jupyter_dtrain

PACKAGE = Path(jupyter_dtrain.__file__).parent
SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
PATIENCE = 60
"""Seconds after which a test gives up."""

BROWSER_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

READY = """async () => {
    await window.jupyterapp.restored;
    const session = window.jupyterapp.shell.currentWidget.sessionContext;
    await session.ready;
    await session.session.kernel.info;
}"""


END_KERNELS = """async () => {
    await window.jupyterapp.restored;
    for (const widget of window.jupyterapp.shell.widgets('main')) {
        const session = widget.sessionContext;
        if (session === undefined) continue;
        await session.ready;
        // A server that is told to end while a kernel starts waits for it; one whose cell goes on may never answer.
        const late = new Promise((done) => setTimeout(done, 20000));
        await Promise.race([session.session?.kernel?.info, late]);
        await session.shutdown();
    }
}"""


class Lab:
    """``jupyter lab`` in a folder, with our extension from the checkout."""

    def __init__(self, folder: Path, app: str = "lab", python: str = sys.executable, more: Sequence[str] = ()) -> None:
        """``python``: of the environment that JupyterLab is taken from; ``more``: folders with other extensions."""
        self.folder = folder / "notebooks"
        self.folder.mkdir(parents=True)
        self._place = folder
        self._token = secrets.token_hex(16)
        self._app = app
        self._python = python
        extensions = folder / "path" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "jupyter-dtrain").symlink_to(PACKAGE / "labextension")
        settings = {
            "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
            # JupyterLab drops completions that take longer, and a busy machine's do.
            "completer-extension/manager": {"providerTimeout": 60_000},
        }
        for name, values in settings.items():
            file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(values))
        self._path = ":".join([str(folder / "path"), *more])
        self._port = 0
        self._pages: list[Page] = []
        self._start()

    def _start(self) -> None:
        folder, app = self._place, self._app
        env = {
            **os.environ,
            "JUPYTER_PATH": self._path,
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        }
        expose = "LabApp" if app == "lab" else "JupyterNotebookApp"
        with (folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    *(self._python, "-m", "jupyterlab" if app == "lab" else "notebook"),
                    *("--allow-root", "--no-browser", "--ServerApp.ip=127.0.0.1"),
                    *([f"--ServerApp.port={self._port}"] if self._port else []),
                    *(f"--IdentityProvider.token={self._token}", f"--{expose}.expose_app_in_browser=True"),
                    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
                ],
                cwd=self.folder,
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        info = folder / "runtime" / f"jpserver-{self.process.pid}.json"
        deadline = time.monotonic() + PATIENCE
        while not (info.exists() and info.read_text()):
            assert time.monotonic() < deadline, (folder / "server.log").read_text()
            assert self.process.poll() is None, (folder / "server.log").read_text()
            time.sleep(0.05)
        self._port = int(json.loads(info.read_text())["port"])
        self.url = f"http://127.0.0.1:{self._port}"

    def crash(self) -> None:
        """Kill the server; its kernels end, their worlds go on."""
        self.process.kill()
        self.process.wait(30)

    def come_back(self) -> None:
        """Start it again where it was."""
        self._start()

    def write(self, name: str, *cells: str | Any) -> Path:
        """A notebook with these cells; text stands for a code cell."""
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.folder / name
        nbformat.write(notebook, path)
        return path

    def address(self, name: str) -> str:
        """The address of a notebook's page."""
        if self._app == "lab":
            return f"{self.url}/lab/tree/{name}?token={self._token}&reset"
        return f"{self.url}/notebooks/{name}?token={self._token}"

    def open(self, browser: Browser, name: str, *, kernel: bool = True, width: int = 1100, height: int = 900) -> Page:
        """Open a notebook, and wait for its kernel unless the caller objects."""
        page = browser.new_page(viewport={"width": width, "height": height})
        self._pages.append(page)
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(self.address(name))
        page.wait_for_selector(".jp-Notebook")
        if kernel:
            page.evaluate(READY)
        return page

    def leave(self, page: Page) -> None:
        """Close a page, and end its kernels with their worlds: the next test has the machine for itself."""
        page.evaluate(END_KERNELS)
        page.close()

    def close(self) -> None:
        """End the server and its kernels.

        Closed pages ask for nothing more. A request that still runs when the server's loop stops never ends, nor does
        its worker thread, for which Python waits at its exit (github.com/jupyterlab/jupyterlab/issues/10442). The
        server has ended its kernels by then, so it may be killed.
        """
        for page in self._pages:
            page.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            log = (self._place / "server.log").read_text()
            assert "Shutting down" in log, log
            self.process.kill()
            self.process.wait(10)


def execute(page: Page, command: str) -> None:
    """Have JupyterLab do something, and go on meanwhile."""
    page.evaluate("(id) => void window.jupyterapp.commands.execute(id)", command)


def run_cell(page: Page, index: int) -> None:
    """Run one cell, and go on while it runs."""
    page.evaluate("(at) => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = at; }", index)
    execute(page, "notebook:run-cell")


def shoot(page: Page, name: str) -> None:
    """A picture in light and one in dark, to be looked at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for kind in ("Dark", "Light"):
        theme(page, f"JupyterLab {kind}")
        page.wait_for_timeout(600)  # its style sheets come one after the other
        page.screenshot(path=SHOTS / f"{name}-{kind.lower()}.png")


def run_all(page: Page) -> None:
    """Run all cells, and go on while they run."""
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")


def save(page: Page) -> None:
    """Save the notebook."""
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")


def wait_idle(page: Page) -> None:
    """Wait until no cell runs or waits."""
    page.wait_for_function(
        """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].every(
            (prompt) => !prompt.textContent.includes('*'))"""
    )


def theme(page: Page, name: str) -> None:
    """Change JupyterLab's theme."""
    page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
    light = "false" if "Dark" in name else "true"
    page.wait_for_function("(light) => document.body.dataset.jpThemeLight === light", arg=light)
