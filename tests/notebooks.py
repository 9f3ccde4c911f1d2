"""Executes notebooks of ``examples/``, and keeps their outputs there: ``make examples``.

``DTRAIN_OUTPUTS`` names the folder for the notebooks with their outputs; without it they are executed all the same, and
nothing is kept. What is kept is what every viewer shows, GitHub's too: text, HTML tables, and PNG. GitHub's viewer puts
an SVG into its page without its styles (as nbconvert did, issue 1894) and takes one representation of an output, so a
saved panel is kept as two outputs: its words, and its picture.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.kernels import ThisPython

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PATIENCE = 300
KEPT_BYTES = 400_000
"""The most that a notebook with its outputs may have."""
COLOURS = 128
"""Of a kept picture: that is a third of the bytes, and no colour of a line changes visibly."""
WIDTH = 1200
"""Of the page in which pictures are drawn, in pixels of CSS."""
FINE = 2
"""Pixels of a picture for each of these."""
SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
MACHINE = re.compile(
    r"(?<![\w.:/~])/(?:home|root|Users|tmp|var|work|mnt|opt|usr(?!/bin/env)|private|dev/shm(?=/))\b[^\s'\"]*"
)
"""A path that says where somebody's files are."""
NO_COMPILER = re.compile(r"^\[[\d,-]+\] W\d{4} .*cpp_extension\.py.*\n", re.MULTILINE)
"""What PyTorch says of the compiler that a test takes away from DeepSpeed."""
OUTPUTS = "DTRAIN_OUTPUTS"


def one(path: Path) -> pytest.MarkDecorator:
    """The notebook that a test executes, as its parameter ``path`` and in its name: ``pytest -k 07_losses``."""
    return pytest.mark.parametrize("path", [pytest.param(path, id=path.stem)])


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def execute(
    path: Path,
    folder: Path,
    *,
    change: Callable[[str], str] = lambda source: source,
    around: tuple[str, str] | None = None,
    kept: bool = True,
) -> list[NotebookNode]:
    """Run a notebook in ``folder``; its cells, with their outputs, which are kept if asked for, and if ``kept``.

    ``change``: gives the source of each cell as a stranger would change it. ``around``: cells that run before and after
    all others; the last of them comes at the end of the list.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.source = change(cell.source)
    if around is not None:
        before, after = map(nbformat.v4.new_code_cell, around)
        notebook.cells = [before, *notebook.cells, after]
    environ = dict(os.environ)
    if OUTPUTS in environ:
        # Runs are numbered from 1, and equal lines of ranks that a busy machine drives apart are merged.
        environ["JUPYTER_DTRAIN_STORE"] = str(folder / "store" / "runs.sqlite")
        environ["JUPYTER_DTRAIN_OUTPUT_DELAY"] = "2"
        (folder / "store").mkdir(exist_ok=True)
    client = NotebookClient(
        notebook, timeout=PATIENCE, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.km = AsyncKernelManager(kernel_spec_manager=ThisPython())
    client.execute(env=environ)
    if around is not None:
        notebook.cells = notebook.cells[1:]
    cells = code_cells(notebook)
    if kept:
        keep(path, cells if around is None else cells[:-1], folder)
    return cells


def said_in(cells: Sequence[NotebookNode]) -> str:
    """All text of the outputs."""
    outputs = [output for cell in cells for output in cell.outputs]
    return "\n".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in outputs)


def keep(path: Path, cells: Sequence[NotebookNode], folder: Path) -> None:
    """Write the notebook with the outputs of ``cells``, which ran in ``folder``, where ``DTRAIN_OUTPUTS`` says."""
    if not (kept := os.environ.get(OUTPUTS)):
        return
    notebook = nbformat.read(path, as_version=4)
    own = code_cells(notebook)
    assert len(own) == len(cells)
    for number, (cell, ran) in enumerate(zip(own, cells, strict=True), 1):
        cell.execution_count = number
        cell.outputs = [_without_places(output, folder) for output in _outputs(ran.outputs)]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
    notebook.metadata["dtrain"] = {"executed": fingerprint(notebook)}
    nbformat.validate(notebook)
    text = f"{nbformat.writes(notebook)}\n"
    assert len(text.encode()) <= KEPT_BYTES, f"{path.name} has {len(text.encode()):,} bytes with its outputs"
    (Path(kept) / path.name).write_text(text, encoding="utf-8")


def fingerprint(notebook: NotebookNode) -> str:
    """Tells whether the code is that which was executed."""
    return hashlib.sha256("\0".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()[:16]


def _outputs(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Those that are kept: streams in one piece, and each picture beside its words."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "error":
            kept.append(output)
        elif output.output_type == "stream":
            text = NO_COMPILER.sub("", output.text)
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text += text
            elif text:
                kept.append(nbformat.v4.new_output("stream", name=output.name, text=text))
        else:
            kept += _displays(output)
    return kept


def _displays(output: NotebookNode) -> list[NotebookNode]:
    """A display as its words and its picture; none where it shows nothing."""
    data, found = output.data, []
    text = data.get("text/plain", "")
    html = SVG.sub("", data.get("text/html", ""))
    picture, size = data.get("image/png"), {}
    if picture is None and (svg := data.get("image/svg+xml")):
        picture = picture_of(svg)
        size = {"image/png": {"width": int.from_bytes(base64.b64decode(picture)[16:20], "big") // FINE}}
    words = {kind: value for kind, value in (("text/html", html), ("text/plain", text)) if value}
    if words and (picture is None or "\n" in text):
        found.append(nbformat.v4.new_output(output.output_type, data=words))
    if picture is not None:
        title = text.splitlines()[0].strip("<>") if text else "a picture"
        shown = {"image/png": picture, "text/plain": f"<{title}>"}
        found.append(nbformat.v4.new_output("display_data", data=shown, metadata=size))
    return found


def picture_of(svg: str) -> str:
    """The picture as PNG, in base64."""
    with ThreadPoolExecutor(1) as thread:  # Playwright wants a thread without a loop
        drawn = thread.submit(_draw, svg[svg.index("<svg") :]).result()
    from PIL import Image

    file = io.BytesIO()
    plain = Image.open(io.BytesIO(drawn)).convert("RGB")
    few = plain.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _draw(svg: str) -> bytes:
    from playwright.sync_api import sync_playwright

    from tests.browser import chromium
    from tests.browser.lab import BROWSER_OPTIONS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=BROWSER_OPTIONS)
        page = browser.new_page(device_scale_factor=FINE, viewport={"width": WIDTH, "height": WIDTH})
        page.set_content(f"<body style='margin: 0'>{svg}")
        drawn: bytes = page.locator("svg").first.screenshot()
        browser.close()
    return drawn


def _without_places(output: NotebookNode, folder: Path) -> NotebookNode:
    """The same, with words for the places and the name of this machine."""
    places = {
        str(folder): ".",
        sys.prefix: "~/.venv",
        str(ROOT): "~/jupyter-dtrain",
        str(Path.home()): "~",
        tempfile.gettempdir(): "$TMPDIR",
        socket.gethostname(): "laptop",
    }

    def told(value: Any) -> Any:
        if isinstance(value, str):
            host = socket.gethostname()
            value = value.replace(f"{host}  ", f"{'laptop':{len(host)}}  ")  # in a column
            for place, word in places.items():
                # A path may follow a dash, as in ${PYTHON:-/usr/bin/python}; in a word, a host's name is another's.
                before = r"\w" if place.startswith("/") else r"\w-"
                value = re.sub(rf"(?<![{before}]){re.escape(place)}(?![\w-])", word, value)
            return value
        if isinstance(value, list):
            return [told(one) for one in value]
        return value

    for key in ("text", "ename", "evalue", "traceback"):
        if key in output:
            output[key] = told(output[key])
    for kind in ("text/plain", "text/html"):
        if kind in output.get("data", {}):
            output.data[kind] = told(output.data[kind])
    return output
