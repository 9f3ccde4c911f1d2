"""``%distributed info``: what the ranks see, in a notebook."""

from __future__ import annotations

import json

import pytest

SECRET = "hunter2"  # noqa: S105 — one to look for


@pytest.fixture(scope="module")
def given(notebook):
    """A notebook with a world of two ranks and a secret."""
    notebook.ok(f"%distributed start -n 2 --env DTRAIN_SECRET={SECRET}")
    return notebook


def test_variables_and_frameworks_are_tables_without_secrets(given):
    """It is text and HTML; the secret is in nothing that the notebook keeps."""
    cell = given.ok("%distributed info")
    [display] = cell.displays
    text = display["data"]["text/plain"]
    names = {line.split()[0] for line in text.splitlines() if line.strip()}

    assert text.startswith("World 'world': variables\n")
    assert {"RANK", "MASTER_PORT", "OMP_NUM_THREADS", "DTRAIN_SECRET", "processors", "MPI", "version"} <= names
    assert "rank 0: 0 / rank 1: 1" in text
    assert "<table>" in display["data"]["text/html"]
    assert "given by --env, hidden" in text
    kept = json.dumps(cell.of("display_data", "execute_result", "stream"))
    assert SECRET not in kept
    assert SECRET not in given.ok("import jupyter_dtrain; jupyter_dtrain.current().request").said


def test_it_answers_for_some_ranks_also_while_a_cell_runs(given):
    """It refuses ranks that are not there."""
    given.ok("%%distributed --no-wait\nimport pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)")
    cell = given.ok("%distributed info -r 1")
    given.ok("import pathlib; pathlib.Path('go').touch()")

    assert cell.display_texts[0].startswith("World 'world', rank 1: variables\n")
    assert "There is no rank 5" in given.run("%distributed info -r 5").said
    assert "-r" in given.complete("%distributed info -")
    assert given.complete("%distributed inf") == ["info"]


def test_a_rank_that_died_is_named(given):
    """The text says why it died; the other ranks answer."""
    given.ok("%distributed kill 1")
    text = given.ok("%distributed info").display_texts[0]

    assert text.startswith("World 'world', rank 0: variables\n")
    assert text.endswith("Rank 1: dead (rank 1 was killed (SIGKILL), by %distributed kill).")
