"""The code of the pages that teach runs as it stands there, block after block, in a kernel of its own."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.magics.notebook import Notebook, plain

PAGES = (
    "README.md",
    "docs/start.md",
    "docs/guide/cells.md",
    "docs/guide/losses.md",
    "docs/guide/runs.md",
    "docs/coming-from/notebook-launcher.md",
    "docs/guide/elastic.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how-to").glob("*.md")),
)
MARKS = re.compile(r"^<!-- (slow|needs) ?([\w, .-]*)-->$", re.MULTILINE)
"""What a page says of its test: that it is a slow one, or which packages its code needs."""
NUMBER = re.compile(r"[0-9]+(?:[.,:][0-9]+)*(?:e[-+]?[0-9]+)?(?: (?:[kMG]?B|µs|ms|s|min)\b)?")
"""A number, with its unit: where one is 970 MB, another machine's is 1.1 GB."""
BEGIN = ("%load_ext jupyter_dtrain", "%distributed start -n 2")
START = "%%distributed -n "
END = "%distributed stop"
PATIENCE = 300.0
"""Seconds for a block; starting and importing PyTorch are the longest, on a busy machine."""


@pytest.fixture(scope="module")
def notebook(home, long_hold, tmp_path_factory):
    """One kernel for all pages; each has a world of its own."""
    opened = Notebook(tmp_path_factory.mktemp("pages"))
    yield opened
    opened.close()


def marked(page):
    """The page, with the marks that it asks for."""
    marks = []
    for kind, names in MARKS.findall((ROOT / page).read_text()):
        if kind == "slow":
            marks.append(pytest.mark.slow)
        marks += [
            pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")
            for name in (names.replace(",", " ").split() if kind == "needs" else [])
        ]
    return pytest.param(page, marks=marks)


def shown(text, varies):
    """The text without spaces at its lines' ends, and without its numbers where they vary."""
    lines = (re.sub(r" {2,}|[─━]+", " ", NUMBER.sub("#", line)) if varies else line for line in text.splitlines())
    return "\n".join(line.strip() if varies else line.rstrip() for line in lines)


def missing(text, said, varies):
    """The first part of ``text``, between its lines ``…``, that does not follow in what was ``said``; else empty."""
    rest = shown(said, varies)
    for part in filter(None, re.split(r"^…\n", text, flags=re.MULTILINE)):
        _, wanted, rest = rest.partition(shown(part, varies))
        if not wanted:
            return part
    return ""


def ever(cell):
    """What the displays of a cell have shown, also what has gone since."""
    texts = (content["data"].get("text/plain", "") for content in cell.of("display_data", "update_display_data"))
    return "\n".join(map(plain, [*texts, cell.said]))


def play(notebook, found):
    """Run the blocks of a page, and compare what they show."""
    said, cells = None, []
    for block in found:
        if block.meanwhile:
            text = block.text
            cells[-1].wait_for(lambda _, text=text: any(not missing(text, ever(one), True) for one in cells), PATIENCE)
            continue
        if block.language == "text":
            assert said is not None
            part = missing(block.text, said, block.varies)
            assert not part, f"{part}\nis not in\n{said}"
            continue
        if block.runs:
            commands = "\n".join(line.removeprefix("$ ") for line in block.text.splitlines())
            said = notebook.ok(f"%%bash\n{commands}", PATIENCE).said
            continue
        cell = notebook.run(block.text, PATIENCE)
        cells.append(cell)
        said = cell.said
        assert cell.reply["status"] == ("error" if block.fails or "raise " in block.text else "ok"), said


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_the_code_of_a_page_runs(notebook, page):
    """A block that raises on purpose fails, and one below ``<!-- fails -->``, all others do not.

    A block of ``text`` is what the one before it prints.

    A line ``…`` in such a text stands for lines that are left out. A text below ``<!-- shown meanwhile -->`` is one
    that a cell above it shows while it runs, or has shown. A block of a shell runs where a comment above it says so,
    without its prompts.
    """
    found = [block for block in blocks(ROOT / page) if not block.alone]
    found = [block for block in found if block.language in {"python", "text"} or block.runs]
    assert any(block.language != "text" for block in found)
    if not any("%distributed start" in block.text for block in found):
        # README's first cell starts its world.
        notebook.ok("\n".join(BEGIN[: 1 if START in found[0].text else 2]), PATIENCE)
    try:
        play(notebook, found)
    finally:
        notebook.run(END, PATIENCE)
