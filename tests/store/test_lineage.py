"""Runs that go on with the training of others, and what differs between runs."""

from __future__ import annotations

import json
import sqlite3

import msgspec
import pytest

from jupyter_dtrain.core.events import Configured, Environment
from jupyter_dtrain.store import Comparison
from jupyter_dtrain.store.provenance import RunCommit
from jupyter_dtrain.store.run_page import about
from tests.store.conftest import drain, points


@pytest.fixture
def chain(store, db, make_world):
    """A training of steps 0 to 4, one that goes on at step 3, one that goes on with that at 5, and one beside it."""
    world = make_world()
    for number, first, values in ((1, 0, [9.0, 8, 7, 6, 5]), (2, 3, [4.0, 3, 2]), (3, 5, [1.0, 0]), (4, 0, [7.0])):
        world.begin(number, when=1000.0)
        world.say(number, 0, points("loss", values, first))
        if number == 1:
            world.say(number, 0, points("early", [1.0, 2, 3, 4, 5]))
        world.finish(number, when=1100.0)
    drain(world.writer, db)
    ids = dict(db.execute("SELECT number, id FROM runs").fetchall())
    db.execute("UPDATE runs SET resumes = ?, first_step = 3 WHERE number = 2", (ids[1],))
    db.execute("UPDATE runs SET resumes = ?, first_step = 5 WHERE number = 3", (ids[2],))
    return store


def test_a_chain_has_each_step_once(chain):
    """What an earlier run logged after the state from which a later one went on is left out; time is training alone."""
    beside, last, middle, first = chain.runs()

    assert [run.number for run in last.lineage] == [1, 2, 3]
    assert [run.number for run in middle.lineage] == [1, 2]
    assert [run.number for run in first.continued] == [2]
    assert [run.number for run in beside.lineage] == [4]
    whole = last.whole_metrics
    assert list(whole["loss"][0].steps) == [0, 1, 2, 3, 4, 5, 6]
    assert list(whole["loss"][0].values) == [9, 8, 7, 4, 3, 1, 0]
    assert list(whole["early"][0].steps) == [0, 1, 2]
    times = list(whole["loss"][0].times)
    assert times == sorted(times)
    assert times[0] == first.metrics["loss"][0].times[0]


def test_a_deleted_run_and_a_circle_end_no_page(chain, db):
    """The runs around it are there; a damaged file may have a circle."""
    _, last, middle, first = chain.runs()
    middle.delete()
    assert [run.number for run in last.lineage] == [1, 3]
    assert list(last.whole_metrics["loss"][0].steps) == [0, 1, 2, 3, 4, 5, 6]
    db.execute("UPDATE runs SET resumes = ? WHERE id = ?", (last.id, first.id))
    assert {run.number for run in last.lineage} == {1, 3}


def test_what_differs_between_runs(store, db, make_world):
    """Configuration, code, versions, commits and metrics; a value that one run lacks differs."""
    world = make_world()
    for number, (lr, torch) in enumerate(((0.1, "2.8"), (0.01, "2.9")), 1):
        world.begin(number, f"lr = {lr}\ntrain(<lr>)\n" + "x" * 5000)
        more = {"warm": None} if number == 1 else {}
        world.say(number, 0, Configured({"lr": lr, "batch": 8, **more}, "cell"))
        world.say(number, 0, Environment("3.11", {"some-package": torch}, ["a GPU"], memory=1 << 30))
        world.say(number, 0, points("loss", [lr]))
    drain(world.writer, db)
    for run, one in (
        (1, RunCommit("1a2b" * 10, "main", message="Add <b>", dirty=True, diff="+a")),
        (2, RunCommit("3c" * 20)),
    ):
        db.execute("INSERT INTO commits VALUES (?, ?)", (run, msgspec.json.encode(one)))
    second, first = store.runs()
    found = Comparison([first, second]).differences

    assert [(one.name, one.values) for one in found.config] == [("lr", [0.1, 0.01]), ("warm", ["None", None])]
    assert found.same == 1
    assert [(one.name, one.values) for one in found.versions] == [("some-package", ["2.8", "2.9"])]
    assert ("uncommitted changes", ["yes", "no"]) in [(one.name, one.values) for one in found.commits]
    (cell, patch) = found.code
    assert cell.diff.splitlines()[2:5] == ["@@ -1,3 +1,3 @@", "-lr = 0.1", "+lr = 0.01"]
    assert (cell.run, cell.title, patch.title) == (second.id, "cell", "uncommitted changes")
    assert ("lowest loss", [0.1, 0.01]) in [(one.name, one.values) for one in found.metrics]
    assert "&lt;lr&gt;" in found._repr_html_()
    assert "<lr>" not in found._repr_html_()
    told = about(first)
    assert "Commit: 1a2b1a2b1a2b on main, with uncommitted changes: Add <b>" in told["text/plain"]
    assert "<b>" not in told["text/html"]
    assert "What differs" in repr(Comparison([first, second]))


def test_runs_that_are_alike_have_no_differences(chain):
    beside, *_, first = chain.runs()
    found = Comparison([first, beside]).differences
    assert (found.config, found.versions, found.commits, found.code) == ([], [], [], [])
    assert repr(found) == "These runs have the same configuration, code and versions."


def test_a_damaged_commit_is_none(chain, db: sqlite3.Connection):
    db.execute("INSERT INTO commits VALUES (1, ?)", (json.dumps({"hash": 7}).encode(),))
    assert about(chain.run_with_id(1)) is None
