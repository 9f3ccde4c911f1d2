"""The documentation builds without a warning, its links lead somewhere, and its code is code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from jupyter_dtrain.magics.cells import cell_parser, rank_parser
from jupyter_dtrain.magics.table import verb_parser
from jupyter_dtrain.magics.transform import CellTransform
from tests.docs.blocks import ROOT, blocks, pages

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout with git")

LINK = re.compile(r"(?<!`)\[[^\]]*\]\((?!https?:|mailto:)([^)\s]*)\)")
PAGE = "https://github.com/jupyter-dtrain/jupyter-dtrain/blob/main/"
PICTURE = "https://raw.githubusercontent.com/jupyter-dtrain/jupyter-dtrain/main/"
LINES = re.compile(r"^(%%?\w+)[ \t]*(.*?)(?:[ \t]{2,}#.*)?$", re.MULTILINE)
"""The lines of magics, without comments behind them."""


def test_the_documentation_builds_without_a_warning(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )

    assert built.returncode == 0, built.stderr
    assert "losses of" in (tmp_path / "guide" / "losses.html").read_text()
    assert "Session.start" in (tmp_path / "reference" / "api.html").read_text()
    notebook = (tmp_path / "examples" / "02_when_a_rank_dies.html").read_text()
    assert "[0-3] undisturbed" in notebook
    assert re.search(r'<img[^>]*\.png"', notebook)


@pytest.mark.parametrize("script", ["scripts/reference_pages.py", "scripts/start_options.py"])
def test_what_is_made_of_parsers_settings_and_options_says_what_they_say(script):
    done = subprocess.run([sys.executable, script, "--check"], cwd=ROOT, check=False, timeout=60)

    assert done.returncode == 0, f"run python {script}"


@pytest.mark.parametrize("page", [page for page in pages() if page.suffix == ".md"], ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_files_and_headings(page):
    """Sphinx sees the links between the pages of docs; README and its like link into them."""
    for link in LINK.findall(re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if heading and target.suffix == ".md":
            assert heading in headings(target), f"{page.name} links to {link}"


def test_readme_has_addresses_that_hold_on_pypi():
    """They are absolute, lead to files and headings of this repository, and each name of a link has its address."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    addresses = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    named = re.findall(r"\]\[([^\]]+)\]|(?<!\])\[([^\]]+)\](?![\[(:])", text)
    used = {" ".join((first or second).split()) for first, second in named}
    direct = re.findall(r"\]\(([^)\s]*)\)", text)

    assert used == {*addresses}
    assert [address for address in direct if not address.startswith("https://")] == []
    for address in [*addresses.values(), *direct]:
        place, _, heading = address.partition("#")
        if not any(place.startswith(base) for base in (PAGE, PICTURE)):
            continue
        target = ROOT / place.removeprefix(PAGE).removeprefix(PICTURE)
        assert target.exists(), address
        assert not heading or heading in headings(target), address


def headings(page: Path) -> set[str]:
    """The headings of a page, as the ends of links."""
    found = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\s-]", "", words.lower()).replace(" ", "-") for words in found}


CODE = [block for page in pages() for block in blocks(page)]


def test_there_are_blocks_to_look_at():
    assert len([block for block in CODE if block.language == "python"]) > 20


@pytest.mark.parametrize(
    "block", [block for block in CODE if block.language == "python"], ids=lambda block: block.text.splitlines()[0][:40]
)
def test_a_block_of_python_is_python(block):
    """As IPython reads it, with its magics; a body of a cell magic, too."""
    manager = TransformerManager()
    manager.cleanup_transforms.append(CellTransform())
    first, _, body = block.text.partition("\n")
    code = body if first.startswith("%%") else block.text

    ast.parse(manager.transform_cell(code))


@pytest.mark.parametrize(
    "block",
    [
        block
        for block in CODE
        if re.search(r"^%%?(distributed|rank)\b", block.text, re.MULTILINE) and "▶" not in block.text
    ],
    ids=lambda block: block.text.splitlines()[0][:40],
)
def test_the_magics_in_a_block_have_these_options(block):
    for magic, line in LINES.findall(re.sub(r"\\\n *", "", block.text)):
        parser = {"%distributed": verb_parser, "%%distributed": cell_parser, "%%rank": rank_parser}.get(magic)
        if parser is not None:
            parser().parse_line(line or "status" if magic == "%distributed" else line)


def test_the_targets_of_make_in_the_pages_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {
        target
        for block in CODE
        for line in block.text.splitlines()
        if (found := re.match(r"(?:\$ )?make +([a-z0-9-]+)", line))
        for target in [found[1]]
    }

    assert asked
    assert asked <= targets
