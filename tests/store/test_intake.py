"""A steward stores its own runs and those of killed stewards, and removes old ones."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.core.events import Output
from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.store.intake import StoreIntake
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.store.writer import SKIPPED
from tests.store.conftest import FakeWorld, gone_process, points


def intake_of(world: FakeWorld, store, said: list[str], days: float = 365.0) -> StoreIntake:
    """The intake that the steward of ``world`` would have."""
    return StoreIntake(store.path, world.owner, SpoolFolder(world.folder, SKIPPED), days, said.append)


def poll_all(intake: StoreIntake) -> None:
    while intake.poll():
        pass


def test_the_next_steward_stores_the_rest_of_a_killed_one(store, make_world):
    """It stores the rest of the text, the points, and the end, as far as the spools have them."""
    killed, living, said = make_world(owner=gone_process()), make_world(name="world-2"), []
    killed.begin(1, when=100.0)
    killed.say(1, 0, points("loss", [1.0]), when=101.0)
    with closing(open_for_writing(store.path)) as db:
        killed.writer.poll(db)
    before = store.runs()[0].outcome, store.runs()[0].elapsed
    assert [len(store.runs(outcome=word)) for word in ("lost", "running", "ok")] == [1, 0, 0]
    killed.say(1, 0, points("loss", [2.0], 1), Output("stdout", "late\n"), when=105.0)
    killed.begin(2, ranks=[0], when=106.0)
    killed.finish(2, [0], when=107.0)
    intake = intake_of(living, store, said, days=1e6)
    poll_all(intake)
    intake.close("done")
    second, first = store.runs()

    assert before == ("lost", 1.0)
    assert said == []
    assert (first.number, first.outcome, first.elapsed) == (1, "lost", 5.0)
    assert list(first.metrics["loss"][0].values) == [1.0, 2.0]
    assert first.text(0) == "late\n"
    assert "its main process was killed" in first.parts[1].words
    assert (second.number, second.outcome) == (2, "ok")


def test_a_world_whose_steward_lives_is_not_touched(store, make_world):
    """Another steward only looks after the dead."""
    living, other, said = make_world(owner=own_process()), make_world(name="other"), []
    living.begin(1)
    with closing(open_for_writing(store.path)) as db:
        living.writer.poll(db)
    intake = intake_of(other, store, said)
    poll_all(intake)
    intake.close("done")

    assert store.runs()[0].outcome == "running"


def test_runs_are_kept_for_days_and_their_numbers_are_not_given_again(store, make_world):
    """A start removes what is older, with all that belongs to it."""
    world, said = make_world(), []
    now = time.time()
    for number, age in ((1, 400), (2, 366), (3, 364)):
        world.begin(number, when=now - age * 86400)
        world.say(number, 0, points("loss", [1.0]), Output("stdout", "x"))
        world.finish(number, when=now - age * 86400 + 1)
    first = intake_of(world, store, said)
    poll_all(first)
    first.close("done")
    assert len(store.runs()) == 3
    new = make_world(name="new")
    second = intake_of(new, store, said)
    poll_all(second)
    (left,) = store.runs()
    new.begin(1)
    poll_all(second)
    second.close("done")

    assert left.number == 3
    assert [run.id for run in store.runs()] == [4, 3]
    with closing(sqlite3.connect(store.path)) as db:
        belonging = "SELECT run FROM parts UNION SELECT run FROM series UNION SELECT run FROM texts"
        assert {run for (run,) in db.execute(belonging)} == {3, 4}
        assert db.execute("SELECT count(*) FROM blocks").fetchone() == (1,)
    assert said == []


def test_a_run_that_is_kept_stays_and_one_that_is_deleted_does_not_come_back(store, make_world):
    """Neither with age, nor with a writer that reads the spools again; a world goes with its last run."""
    world, said = make_world(), []
    for number in (1, 2, 3):
        world.begin(number, "x = 1", when=100.0)
        world.say(number, 0, points("loss", [1.0]), Output("stdout", "x"))
        world.finish(number, when=101.0)
    first = intake_of(world, store, said, days=1e6)
    poll_all(first)
    store.run(1).keep()
    with pytest.raises(BadRequest, match="is kept"):
        store.run(1).delete()
    store.run(3).edit(name="best", tags=["a", "a"], note="n\nm")
    store.run(2).delete()
    first.writer.forget()
    poll_all(first)
    with closing(open_for_writing(store.path)) as db:
        poll_all(intake_of(world, store, said, days=1e6))
        assert db.execute("SELECT DISTINCT run FROM parts ORDER BY 1").fetchall() == [(1,), (3,)]
        assert db.execute("SELECT count(*) FROM blocks").fetchone() == (2,)
    assert [(run.number, run.name, run.tags, run.note) for run in store.runs()] == [
        (3, "best", ["a"], "n\nm"),
        (1, "x = 1", [], ""),
    ]
    first.close("done")
    poll_all(intake_of(make_world(name="new"), store, said))

    assert [run.number for run in store.runs()] == [1]
    assert said == []


def test_a_store_that_fails_is_reported_once_and_written_when_it_can_be(store, fake, monkeypatch):
    """A file stands where its folder belongs, for some polls."""
    monkeypatch.setattr("jupyter_dtrain.store.intake.RETRY", 0.0)
    store.path.parent.touch()
    said: list[str] = []
    intake = intake_of(fake, store, said)
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0]))
    for _ in range(3):
        intake.poll()
    store.path.parent.unlink()
    fake.finish(1)
    poll_all(intake)
    intake.close("done")

    assert len(said) == 1
    assert "Not a directory" in said[0] or "File exists" in said[0]
    assert "Cells still run" in said[0]
    assert store.runs()[0].outcome == "ok"
    assert list(store.runs()[0].metrics["loss"][0].values) == [1.0]
