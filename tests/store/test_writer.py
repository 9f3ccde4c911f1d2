"""The store has each event of a world's spools once, in order, whatever happens between two polls."""

from __future__ import annotations

import random
import sqlite3

import pytest

from jupyter_dtrain.core.events import Display, Error, Finished, Frame, Gpu, Output, Result, Sample
from jupyter_dtrain.store.writer import MAX_JSON
from jupyter_dtrain.view import stored as view
from jupyter_dtrain.wire.spool import spool_path
from jupyter_dtrain.wire.steward_messages import Followed
from tests.store.conftest import FakeWorld, drain, points


def test_a_run_is_stored_as_its_ranks_report_it(store, db, fake):
    """Cell, ranks, outcomes, times, text, errors, results, metrics, resources."""
    fake.begin(7, "the cell", when=100.0)
    fake.say(7, 0, Output("stdout", "one\n"), Output("stderr", "two\n"), Display({"text/plain": "not kept"}))
    fake.say(
        7,
        0,
        points("loss", [3.0, 2.0]),
        Sample(50.0, 1 << 30, 1, Gpu(0, 90.0, 5, 10), disk_read=7, net_sent=0),
        Result({"text/plain": "42"}),
    )
    fake.say(
        7, 1, Error("ValueError", "bad", [Frame("c", 1, "f", "f()", cell=True)]), Finished("error", 2.5), when=103.0
    )
    fake.finish(7, [0], when=102.0)
    drain(fake.writer, db)
    (run,) = store.runs()

    assert (run.number, run.world, run.size, run.ranks) == (7, "world", 2, [0, 1])
    assert (run.source, run.outcome, run.started, run.ended, run.elapsed) == ("the cell", "error", 100.0, 103.0, 2.5)
    assert run.outcomes == {0: "ok", 1: "error"}
    assert {part.pid for part in run.parts.values()} == {100, 101}
    assert (run.text(0), run.text(0, "stderr"), run.text(1)) == ("one\ntwo\n", "two\n", "")
    assert list(run.metrics["loss"][0].values) == [3.0, 2.0]
    assert list(run.metrics["loss"][0].times) == [1000.0, 1001.0]
    assert {name: list(ranks[0].values) for name, ranks in run.resources.items()} == {
        "cpu": [50.0],
        "rss": [float(1 << 30)],
        "disk read": [7.0],
        "net sent": [0.0],
        "gpu utilisation": [90.0],
        "gpu used": [5.0],
        "gpu total": [10.0],
    }
    assert run.errors[1].evalue == "bad"
    assert run.results[0].data == {"text/plain": "42"}


def test_wherever_polls_fall_every_event_counts_once(store, db, fake, tmp_path):
    """The spool grows by pieces that respect no line; every third poll is a new writer's, as after a failure."""
    fake.begin(1)
    for index in range(40):
        fake.say(1, 0, Output("stdout", f"line {index} ä\n"), points("loss", [index * 0.5] * 20, index * 20))
    fake.finish(1, [0])
    whole = spool_path(fake.folder, 1, 0).read_bytes()
    grown = FakeWorld(tmp_path / "grown", size=1)
    path = spool_path(grown.folder, 1, 0)
    path.parent.mkdir(parents=True)
    chance, position = random.Random(3), 0  # noqa: S311 — the same cuts each time
    while position < len(whole):
        step = chance.randrange(1, 2000)
        with open(path, "ab") as file:
            file.write(whole[position : position + step])
        position += step
        grown.writer.poll(db)
        if chance.random() < 0.3:
            grown.writer = grown.new_writer()
    (run,) = store.runs()

    assert run.text(0) == "".join(f"line {index} ä\n" for index in range(40))
    assert list(run.metrics["loss"][0].steps) == list(range(800))
    assert list(run.metrics["loss"][0].values) == [index * 0.5 for index in range(40) for _ in range(20)]
    assert run.outcomes[0] == "ok"


def test_huge_errors_and_results_are_cut_to_their_essence(store, db, fake):
    """Name and beginning of the message; the text of the result."""
    frames = [Frame("file", line, "f", "source " * 50, cell=False) for line in range(500)]
    fake.begin(1)
    fake.say(
        1,
        0,
        Error("HugeError", "x" * 10_000_000, frames),
        Result({"text/plain": "y" * 1_000_000, "image/png": "z" * 9}),
    )
    drain(fake.writer, db)
    (run,) = store.runs()

    assert run.errors[0].ename == "HugeError"
    assert run.errors[0].evalue == "x" * 20_000
    assert 0 < len(run.errors[0].frames) < 500
    assert set(run.results[0].data) == {"text/plain"}
    assert max(db.execute("SELECT length(error), length(result) FROM parts WHERE rank = 0").fetchone()) <= MAX_JSON


def test_a_rank_that_died_without_a_word_is_lost(store, db, fake):
    """Its run ends when the others have; a run that it never began ends as well."""
    fake.begin(1)
    fake.finish(1, [0])
    drain(fake.writer, db)
    before = store.runs()[0].outcome
    fake.writer.rank_died(1, "rank 1 was killed (SIGKILL)")
    drain(fake.writer, db)
    fake.begin(2, ranks=[0, 1])
    spool_path(fake.folder, 2, 1).unlink()
    fake.finish(2, [0])
    drain(fake.writer, db)

    assert before == "running"
    assert [run.outcome for run in store.runs()] == ["lost", "lost"]
    assert [run.parts[1].words for run in store.runs()] == ["rank 1 was killed (SIGKILL)"] * 2


def test_a_lowest_rank_that_died_before_it_began_counts_as_one_of_the_run(store, db, fake):
    """The others name it as they begin."""
    fake.begin(1, ranks=[0, 1])
    spool_path(fake.folder, 1, 0).unlink()
    fake.finish(1, [1])
    fake.writer.rank_died(0, "rank 0 was killed (SIGKILL)")
    drain(fake.writer, db)
    (run,) = store.runs()

    assert (run.ranks, run.outcome, run.outcomes) == ([0, 1], "lost", {0: "lost", 1: "ok"})


@pytest.mark.parametrize("restarted", [False, True])
def test_an_elastic_run_ends_as_those_that_went_on_and_those_that_joined(store, db, fake, restarted):
    """The join ends later, or earlier; what the file says is enough, also for the next steward."""
    fake.begin(1, elastic=True)
    drain(fake.writer, db)
    fake.writer.rank_died(1, "rank 1 was killed (SIGKILL)")
    fake.finish(1, [0])
    drain(fake.writer, db)
    alone = view.listing(store.runs())["text/plain"]
    fake.writer.ranks_replaced([1])
    fake.begin(2, ranks=[1], joins=1)
    writer = fake.new_writer() if restarted else fake.writer
    drain(writer, db)
    fake.finish(2, [1])
    drain(fake.new_writer() if restarted else writer, db)
    joined = store.run(1)

    assert " ok, rank 1 was lost " in alone
    assert (joined.outcome, joined.remark) == ("ok", "rank 1 was replaced")
    assert joined.outcomes == {0: "ok", 1: "lost"}
    assert " ok, rank 1 was replaced " in view.listing(store.runs(outcome="ok"))["text/plain"]

    fake.begin(3, elastic=True)
    drain(writer, db)
    writer.rank_died(1, "rank 1 was killed (SIGKILL)")
    drain(writer, db)
    writer.ranks_replaced([1])
    fake.begin(4, ranks=[1], joins=3)
    fake.finish(4, [1], outcome="error")
    drain(writer, db)
    fake.finish(3, [0])
    drain(writer, db)

    assert (store.run(3).outcome, store.run(3).remark) == ("error", "")


def test_an_elastic_run_whose_world_ended_under_it_is_lost(store, db, make_world):
    """Whatever joined it. A run of a version before that knows no elastic runs stays as it was stored."""
    fake = make_world(size=3)
    fake.begin(1, elastic=True)
    fake.begin(2, ranks=[1], joins=1)
    fake.finish(1, [0])
    drain(fake.writer, db)
    fake.writer.close(db, "a client asked for it")
    db.execute("INSERT INTO runs (world, number, started, ended, outcome) VALUES (1, 3, 0, 1, 'lost')")

    assert [run.outcome for run in store.runs()] == ["lost"] * 3


def test_an_interrupted_elastic_run_stays_interrupted(store, db, fake):
    """Whatever its ranks said."""
    fake.begin(1, elastic=True)
    fake.begin(2, ranks=[1], joins=1)
    drain(fake.writer, db)
    fake.writer.rank_died(1, "rank 1 was killed (SIGKILL)")
    fake.writer.take_followed(Followed(1, interrupted=True, ranks={"0": "ok"}))
    drain(fake.writer, db)
    fake.finish(2, [1])
    drain(fake.writer, db)

    assert store.run(1).outcome == "interrupted"


def test_a_run_that_was_on_when_its_ranks_ended_is_lost_and_a_later_one_is_not(store, db, fake):
    """A restart: the store hears of it only when the new ranks have begun a run."""
    fake.begin(1, when=100.0)
    drain(fake.writer, db)
    fake.writer.rank_died(0, "rank 0 crashed")
    fake.writer.ranks_ended("its world was restarted", 150.0)
    fake.begin(2, when=200.0)
    drain(fake.writer, db)
    second, first = store.runs()

    assert (first.outcome, second.outcome) == ("lost", "running")
    assert [part.words for part in first.parts.values()] == [
        "rank 0 crashed",
        "rank 1 is lost: its world was restarted",
    ]

    fake.writer.close(db, "a client asked for it")

    assert store.runs()[0].outcome == "lost"
    assert db.execute("SELECT words FROM worlds").fetchall() == [("a client asked for it",)]


def test_a_log_that_ends_early_is_ended_by_the_clients_report(store, db, fake):
    """Its disk was full: the client knows the outcome. A rank's own outcome counts more."""
    fake.begin(1)
    fake.finish(1, [1], outcome="error")
    drain(fake.writer, db)
    fake.writer.take_followed(Followed(1, ranks={"0": "ok", "1": "ok"}))
    drain(fake.writer, db)
    (run,) = store.runs()

    assert run.outcomes == {0: "ok", 1: "error"}
    assert "could not be written" in run.parts[0].words


def test_a_log_that_ends_early_is_ended_by_the_next_run(store, db, fake):
    """No client reported how it ended: the client was gone."""
    fake.begin(1, ranks=[0])
    drain(fake.writer, db)
    fake.begin(2, ranks=[0])
    fake.finish(2, [0])
    drain(fake.writer, db)
    fake.writer.poll(db)
    second, first = store.runs()

    assert (second.outcome, first.outcome) == ("ok", "lost")
    assert "could not be written" in first.parts[0].words


def test_runs_on_different_ranks_end_in_any_order(store, db, fake):
    """The second ends while the first goes on, even if its folder appears first."""
    fake.begin(2, ranks=[1])
    drain(fake.writer, db)
    fake.begin(1, ranks=[0])
    fake.finish(2, [1])
    drain(fake.writer, db)
    outcomes = {run.number: run.outcome for run in store.runs()}
    fake.finish(1, [0])
    drain(fake.writer, db)

    assert outcomes == {1: "running", 2: "ok"}
    assert {run.outcome for run in store.runs()} == {"ok"}


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_that_the_ranks_took_for_an_end_is_reported_by_the_client(store, db, fake, late):
    """A cell that catches KeyboardInterrupt ends well on its ranks, but was interrupted; the report may come later."""
    fake.begin(1)
    if not late:
        fake.writer.take_followed(Followed(1, interrupted=True))
        drain(fake.writer, db)
    fake.finish(1)
    drain(fake.writer, db)
    if late:
        fake.writer.take_followed(Followed(1, interrupted=True))
        drain(fake.writer, db)

    assert store.runs()[0].outcome == "interrupted"


def test_a_full_disk_loses_nothing_that_the_spool_has(store, db, fake):
    """The transaction that failed is done again once there is room; what was stored before stays."""
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0] * 100))
    drain(fake.writer, db)
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages + 2}")
    fake.say(1, 0, points("loss", [2.0] * 20_000, 100), Output("stdout", "x" * 50_000))
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError, match="full"):
            fake.writer.poll(db)
    kept = len(store.runs()[0].metrics["loss"][0].values)
    fake.say(1, 0, points("loss", [3.0], 20_100))
    fake.writer.take_followed(Followed(1))
    db.execute("PRAGMA max_page_count = 1073741823")
    drain(fake.writer, db)
    (run,) = store.runs()

    assert kept == 100
    assert list(run.metrics["loss"][0].values) == [1.0] * 100 + [2.0] * 20_000 + [3.0]
    assert list(run.metrics["loss"][0].steps) == list(range(20_101))
    assert run.text(0) == "x" * 50_000


def test_an_idle_world_writes_nothing(store, db, fake):
    """Polls leave no transaction behind, even when a rank is dead."""
    fake.begin(1)
    fake.finish(1)
    fake.writer.rank_died(0, "dead")
    drain(fake.writer, db)
    before = db.total_changes
    for _ in range(10):
        fake.writer.poll(db)

    assert db.total_changes == before
