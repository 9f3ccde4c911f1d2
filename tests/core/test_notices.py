"""Each kind of notice is in the table, told by what the code says, and has its heading on the page."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import jupyter_dtrain
from jupyter_dtrain import NoWorld
from jupyter_dtrain.core import errors, snapshots
from jupyter_dtrain.core import notices as table
from jupyter_dtrain.core.notices import ADDRESS, anchor_of_error, anchor_of_reason, anchors_in, notices, pointer

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path: path.read_text()
    for path in Path(inspect.getfile(jupyter_dtrain)).parent.rglob("*.py")
    if path != Path(inspect.getfile(table))
}
TOLD = "\n".join(SOURCES.values())


def headings() -> set[str]:
    """The anchors that GitHub gives the headings of the page."""
    found = re.findall(r"^#+ (.*)$", (ROOT / "docs" / "notices.md").read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in found}


def test_each_row_is_a_heading_of_the_page_and_has_an_anchor_of_its_own():
    anchors = [row.anchor for row in notices()]

    assert len(set(anchors)) == len(anchors)
    assert set(anchors) <= headings()


@pytest.mark.parametrize("row", notices(), ids=lambda row: row.anchor)
def test_each_row_is_told_by_something_that_the_code_says(row):
    classes = [name for name in row.errors if f"class {name}(" in TOLD]
    reason = row.reason and f'"{row.reason}"' in SOURCES[Path(inspect.getfile(jupyter_dtrain.core.step_time))]

    assert all(part in TOLD for part in row.said)
    assert len(classes) == len(row.errors)
    assert row.said or row.errors or reason or row.anchor == table.DOCTOR


def test_each_error_of_ours_has_a_row():
    """The roots have none: what is raised by their name alone says all in its message."""
    roots = {errors.DtrainError, errors.WorldError, errors.RequestError, errors.RanksError}

    ours = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.DtrainError)]

    assert [one.__name__ for one in {*ours, snapshots.SnapshotRefused} - roots if not anchor_of_error(one)] == []


def test_each_reason_of_a_slow_step_has_a_row():
    text = SOURCES[Path(inspect.getfile(jupyter_dtrain.core.step_time))]
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    kinds = {
        node.args[0].value
        for node in calls
        if getattr(node.func, "id", "") == "SlowStep" and isinstance(node.args[0], ast.Constant)
    }

    assert len(kinds) > 10
    assert [kind for kind in kinds if not anchor_of_reason(kind)] == []
    assert anchor_of_reason("slow rank") == "slow-steps-slow-rank"  # as labextension/src/dom.ts makes it


def test_each_note_of_a_run_tells_its_kind():
    """What is shown with a run by the session itself, and not made of a rank's words alone."""
    said = []
    for path, text in SOURCES.items():
        for node in ast.walk(ast.parse(text)) if path.parent.name == "client" else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("note", "_say", "hear") and node.args:
                parts = [one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]
                words = "…".join(part for part in parts if isinstance(part, str))
                if len(words) > 20:
                    said.append(words)

    assert len(said) > 10
    assert [words for words in said if not anchors_in(words)] == []


def test_an_error_ends_with_its_address_in_a_cell_and_not_in_its_message():
    error = NoWorld("No world is running here.")
    *_, last = error._render_traceback_()

    assert str(error) == "No world is running here."
    assert f"{ADDRESS}#no-world" in last


def test_addresses_are_bounded_and_come_once():
    anchors = ["hang", "", "hang", "stop", "timeout", "still-busy", "world-lost"]

    assert pointer(anchors).count(ADDRESS) == table.MOST
    assert pointer([""]) == ""
