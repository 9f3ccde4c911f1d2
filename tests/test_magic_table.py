"""One table has all magics: what ``-h``, Tab and the reference tell of each is the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jupyter_dtrain.magics.completion import _Line, offers
from jupyter_dtrain.magics.parsing import MagicParser
from jupyter_dtrain.magics.table import CELL_MAGICS, verb_parser, verbs
from jupyter_dtrain.magics.transform import NAMES, RANK_NAMES, VERB_NAMES

REFERENCE = (Path(__file__).parents[1] / "docs" / "reference" / "magics.md").read_text()
PARSERS = {
    **{f"%%{magic.names[0]}": magic.parser for magic in CELL_MAGICS},
    **{f"%distributed {verb.name}": verb.parser for verb in verbs()},
}
OPTION = re.compile(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*")


def in_help(parser: MagicParser) -> set[str]:
    """The options in the left column of the text of ``-h``."""
    left = re.findall(r"^  (-.*?)(?:  |$)", parser.format_help(), re.MULTILINE)
    return {option for text in left for option in OPTION.findall(re.sub(r"\{.*?\}", "", text))} - {"-h", "--help"}


def in_reference(title: str) -> set[str]:
    """The options in the left columns of the reference's tables."""
    [section] = re.findall(rf"^## `{re.escape(title)}`\n(.*?)(?=^## |\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    left = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    return {option for text in left for option in OPTION.findall(text)}


def on_tab(parser: MagicParser) -> set[str]:
    """The options that Tab offers, each with words about it."""
    dash, dashes = offers(parser, " -")[1], offers(parser, " --")[1]
    assert all(words not in ("", "option") for _, words in [*dash, *dashes])
    return {text for text, _ in [*dash, *dashes]} - {"-h", "--help"}


def from_start(title: str) -> set[str]:
    """The options of ``start`` that a magic takes beside its own."""
    borrowed = in_reference("%distributed start") if title in ("%%distributed", "%%speedup") else set()
    return borrowed - in_reference(title)


@pytest.mark.parametrize("title", PARSERS)
def test_help_tab_and_the_reference_have_the_same_options(title):
    parser = PARSERS[title]()

    assert in_help(parser) == in_reference(title)
    assert on_tab(parser) - from_start(title) == in_reference(title)


@pytest.mark.parametrize("title", ["%%distributed", "%%speedup"])
def test_a_magic_that_takes_the_options_of_start_points_to_them(title):
    """Tab offers them there; ``-h`` and the reference name ``start``, whose list they do not repeat."""
    parser = PARSERS[title]()
    [section] = re.findall(rf"^## `{title}`\n(.*?)\n\|", REFERENCE, re.MULTILINE | re.DOTALL)

    assert {"--slurm", "--hosts", "--torch-backend"} <= on_tab(parser) & from_start(title)
    assert "%distributed start -h lists them" in parser.format_help()
    assert "%distributed start -h lists them" in " ".join(section.split())


def test_the_options_of_groups_and_of_sets_are_there():
    """They were in neither the reference nor Tab."""
    assert {"--global-batch", "--per-rank-batch"} <= in_reference("%%speedup")
    assert "not with --per-rank-batch" in REFERENCE
    assert {"--slurm", "--hosts", "--torch-backend"} <= in_reference("%distributed start")
    assert set(_Line(PARSERS["%%speedup"](), "").options) >= {"--global-batch", "--per-rank-batch"}


def test_the_list_of_verbs_has_each_once_below_its_heading():
    text = verb_parser().format_help()
    headings = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)

    assert headings[:6] == ["worlds", "cells", "data", "looking inside", "snapshots", "runs and jobs"]
    for name in [*(verb.name for verb in verbs()), *(f"%%{magic.names[0]}" for magic in CELL_MAGICS)]:
        assert len(re.findall(rf"^  {re.escape(name)} ", text, re.MULTILINE)) == 1, name


def test_what_changes_a_cells_text_knows_the_same_magics():
    assert sorted(NAMES) == sorted(name for magic in CELL_MAGICS for name in magic.names)
    assert set(VERB_NAMES) < set(RANK_NAMES) < set(NAMES)
