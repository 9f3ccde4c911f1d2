"""The code of the pages that teach runs as it stands there, block after block, in a kernel of its own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.magics.notebook import Notebook

PAGES = (
    "README.md",
    "docs/start.md",
    "docs/guide/cells.md",
    "docs/guide/losses.md",
    "docs/guide/runs.md",
    "docs/coming-from/notebook-launcher.md",
    pytest.param(
        "docs/guide/elastic.md",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(find_spec("torchft") is None, reason="torchft has no wheel for this machine"),
        ],
    ),
)
BEGIN = ("%load_ext jupyter_dtrain", "%distributed start -n 2")
START = "%%distributed -n "
END = "%distributed stop"
PATIENCE = 120.0
"""Seconds for a block; starting and importing PyTorch are the longest, on a busy machine."""


@pytest.fixture(scope="module")
def notebook(home, long_hold, tmp_path_factory):
    """One kernel for all pages; each has a world of its own."""
    opened = Notebook(tmp_path_factory.mktemp("pages"))
    yield opened
    opened.close()


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(notebook, page):
    """A block that raises on purpose fails, all others do not. A block of ``text`` is what the one before it prints."""
    found = [block for block in blocks(ROOT / page) if block.language in {"python", "text"} and not block.alone]
    assert found
    if not any("%distributed start" in block.text for block in found):
        # README's first cell starts its world.
        notebook.ok("\n".join(BEGIN[: 1 if START in found[0].text else 2]), PATIENCE)
    cell = None
    for block in found:
        if block.language == "text":
            assert cell is not None
            assert block.text in f"{cell.said}\n"
            continue
        cell = notebook.run(block.text, PATIENCE)
        assert cell.reply["status"] == ("error" if "raise " in block.text else "ok"), cell.said
    notebook.run(END, PATIENCE)
