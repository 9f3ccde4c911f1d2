"""The store keeps where the time of a run's steps went, of runs that ended and of those that never do."""

from __future__ import annotations

import json

import pytest

from jupyter_dtrain.core.events import StepParts
from jupyter_dtrain.store import writer as writing
from jupyter_dtrain.view import stored as view
from tests.store.conftest import drain, points

USUAL = {"data": 0.05, "forward": 0.6, "communication": 0.35}
SLOW = {"data": 0.35, "forward": 0.6, "other": 0.05}


def train(fake, run, seconds, *, first=0):
    """Two ranks report for ``seconds``; rank 1 has a slow loader."""
    for rank, parts in enumerate((USUAL, SLOW)):
        if first == 0:
            fake.say(run, rank, StepParts(3.0, {"other": 3.0}, step=0))
        for second in range(first, first + seconds):
            calls = {"all_reduce": parts.get("communication", 0.0)}
            fake.say(run, rank, StepParts(1.0, parts, calls, step=10 * (second + 1), looks=50))


def test_a_run_has_its_shares_and_its_sentence(store, db, fake):
    fake.begin(1)
    train(fake, 1, 12)
    fake.say(1, 0, points("loss", [2.0, 1.0]))
    fake.finish(1)
    drain(fake.writer, db)
    (run,) = store.runs()

    assert run.step_time == {0: {**USUAL, "other": 0.0}, 1: {**SLOW, "communication": 0.0}}
    assert run.communication == {0: {"all_reduce": 0.35}, 1: {}}
    assert [one.kind for one in run.slow] == ["slow loader"]
    text = view.bundle(run)["text/plain"]
    assert "Rank 1 spends 35 % of a step in loading data" in text
    assert "rank 1  100 ms  loading data 35 %, forward pass 60 %, other code 5 %" in text
    assert "loading data 35 %" in view.bundle(run)["text/html"]
    assert view.picture(run).step_time == run.step_summary


def test_a_comparison_has_a_line_for_each_run(store, db, fake):
    for run in (1, 2):
        fake.begin(run)
        train(fake, run, 12)
        fake.say(run, 0, points("loss", [2.0, 1.0]))
        fake.finish(run)
    drain(fake.writer, db)
    text = view.comparison(store.runs())["text/plain"].replace("17 %", "18 %")
    assert "Time of a step, mean over ranks:" in text
    assert "world/1  100 ms  loading data 20 %, forward pass 60 %, communication 18 % (all_reduce)" in text


def test_a_run_that_never_ends_has_them_too(store, db, fake, monkeypatch):
    """Its steward may have no time for a last word."""
    monkeypatch.setattr(writing, "SUMMARY_PERIOD", 0.0)
    fake.begin(1)
    train(fake, 1, 12)
    drain(fake.writer, db)
    (run,) = store.runs()
    assert run.outcome == "running"
    assert run.step_time[1]["data"] == pytest.approx(0.35)


def test_a_steward_that_saw_only_the_end_does_not_replace_the_whole(store, db, fake, monkeypatch):
    """The writer that comes after a failure reads on where the one before it was."""
    monkeypatch.setattr(writing, "SUMMARY_PERIOD", 0.0)
    fake.begin(1)
    train(fake, 1, 12)
    drain(fake.writer, db)
    fake.writer.forget()
    train(fake, 1, 2, first=12)
    fake.finish(1)
    drain(fake.writer, db)
    (run,) = store.runs()
    assert run.outcome == "ok"
    assert [one.kind for one in run.slow] == ["slow loader"]


def test_a_run_of_an_earlier_version_has_no_calls(store, db, fake):
    """Its shares are read as they were."""
    fake.begin(1)
    train(fake, 1, 12)
    fake.finish(1)
    drain(fake.writer, db)
    (summary,) = db.execute("SELECT summary FROM step_times").fetchone()
    earlier = json.loads(summary)
    del earlier["calls"]
    earlier["ranks"] = [row[:3] for row in earlier["ranks"]]
    with db:
        db.execute("UPDATE step_times SET summary = ?", (json.dumps(earlier).encode(),))
    (run,) = store.runs()

    assert run.step_time[0]["communication"] == 0.35
    assert run.communication == {0: {}, 1: {}}
    assert "communication 35 %" in view.bundle(run)["text/plain"]


def test_a_run_without_steps_has_none_and_a_deleted_one_leaves_nothing(store, db, fake):
    for run in (1, 2):
        fake.begin(run)
        if run == 2:
            train(fake, run, 12)
        fake.finish(run)
    drain(fake.writer, db)
    second, first = store.runs()
    assert (first.step_time, first.slow, first.step_summary) == ({}, [], None)
    assert "Time of a step" not in view.bundle(first)["text/plain"]
    assert second.step_time
    second.delete()
    assert db.execute("SELECT count(*) FROM step_times").fetchone() == (0,)
