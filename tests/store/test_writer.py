"""What a world's spools hold is in the store: once, in order, whatever happens between two polls."""

from __future__ import annotations

import math
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from jupyter_dtrain.core.clients import own_process
from jupyter_dtrain.core.events import (
    Display,
    Dropped,
    Error,
    Finished,
    Frame,
    Gpu,
    Metrics,
    Output,
    Result,
    Sample,
    Series,
    encode,
)
from jupyter_dtrain.store import pieces
from jupyter_dtrain.store.columns import BLOCK
from jupyter_dtrain.store.intake import StoreIntake
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.store.source import LIMIT, SpoolFolder
from jupyter_dtrain.store.writer import MAX_JSON, SKIPPED, StoreWriter
from jupyter_dtrain.wire.spool import spool_path
from jupyter_dtrain.wire.steward_messages import Followed
from tests.store.conftest import FakeWorld, points


def drain(writer: StoreWriter, db: sqlite3.Connection) -> None:
    """Poll until nothing is left."""
    while writer.poll(db):
        pass


def blocks(db: sqlite3.Connection) -> list[int]:
    """How many points each block has."""
    return [count for (count,) in db.execute("SELECT points FROM blocks ORDER BY series, number")]


def gone_process() -> tuple[int, float]:
    """A process that ran on this machine, and does no longer."""
    code = "import os, psutil; print(os.getpid(), psutil.Process().create_time())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    pid, created = said.split()
    return int(pid), float(created)


def test_a_run_is_stored_as_its_ranks_tell_it(store, db, fake):
    """Cell, ranks, outcomes, times, text, errors, results, metrics, resources."""
    fake.begin(7, "the cell", when=100.0)
    fake.say(7, 0, Output("stdout", "one\n"), Output("stderr", "two\n"), Display({"text/plain": "not kept"}))
    fake.say(
        7, 0, points("loss", [3.0, 2.0]), Sample(50.0, 1 << 30, 1, Gpu(0, 90.0, 5, 10)), Result({"text/plain": "42"})
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


def test_a_slow_series_is_no_row_a_point(store, db, fake):
    """A point a poll: blocks are added to until they are worth a row; a large one is one row at once."""
    fake.begin(1)
    for step in range(BLOCK + 44):
        fake.say(1, 0, points("slow", [float(step)], step))
        fake.writer.poll(db)
    fake.say(1, 1, points("fast", [0.5] * 10_000))
    fake.writer.poll(db)

    assert blocks(db) == [BLOCK, 44, 10_000]
    assert list(store.runs()[0].metrics["slow"][0].values) == [float(step) for step in range(BLOCK + 44)]


def test_values_that_are_not_finite_and_names_of_every_kind_come_back(store, db, fake):
    """Bit for bit."""
    names = ["loss", "", "a b", "'; DROP TABLE runs; --", '"', "ä🎉", "a\nb", "a\x00b", "x" * 200, "a/b", "%s"]
    strange = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308]
    fake.begin(1)
    for name in names:
        fake.say(1, 0, points(name, strange))
    drain(fake.writer, db)
    metrics = store.runs()[0].metrics

    assert sorted(metrics) == sorted(names)
    for name in names:
        assert [repr(value) for value in metrics[name][0].values] == [repr(value) for value in strange]


def test_columns_that_do_not_fit_each_other_are_left_out(store, db, fake):
    """What is whole beside them is kept, and so is what follows."""
    eight = b"\0" * 8
    fake.begin(1)
    fake.say(1, 0, Metrics([Series("bad", eight, eight, eight * 2), Series("odd", b"123", b"123", b"123")]))
    fake.say(1, 0, points("good", [1.0]))
    drain(fake.writer, db)

    assert list(store.runs()[0].metrics) == ["good"]


def test_a_line_that_cannot_be_read_is_passed_over(store, db, fake):
    """Of a newer vocabulary, say; what follows it is kept."""
    fake.begin(1)
    path = spool_path(fake.folder, 1, 0)
    with open(path, "ab") as file:
        file.write(b'{"run":1,"rank":0,"seq":1,"time":1.0,"body":{"type":"telepathy"}}\nrubbish\n')
    fake.say(1, 0, Output("stdout", "after\n"))
    drain(fake.writer, db)

    assert store.runs()[0].text(0) == "after\n"


def test_of_long_text_the_beginning_and_the_end_are_stored(store, db, fake):
    """In a few rows; whole as long as the spool is there, and afterwards with a line that says what is missing."""
    lines = [f"line {index:06d} ä\n" for index in range(100_000)]
    fake.begin(1)
    for start in range(0, 100_000, 500):
        fake.say(1, 0, Output("stderr" if start % 1000 else "stdout", "".join(lines[start : start + 500])))
    fake.finish(1)
    drain(fake.writer, db)
    (run,) = store.runs()
    whole, errors = run.text(0), run.text(0, "stderr")
    spool_path(fake.folder, 1, 0).unlink()
    head, note, tail = run.text(0).partition("\n[… ")
    stored = db.execute("SELECT sum(length(pieces)), count(*) FROM texts").fetchone()

    assert whole == "".join(lines)
    assert errors == "".join(line for start in range(500, 100_000, 1000) for line in lines[start : start + 500])
    assert whole.startswith(head)
    assert pieces.HEAD - 4 < len(head.encode()) <= pieces.HEAD
    rest = tail.partition("…]\n")[2]
    assert whole.endswith(rest)
    assert pieces.TAIL - 4 < len(rest.encode()) <= pieces.TAIL
    assert note + tail.split()[0] == f"\n[… {len(whole.encode()) - len(head.encode()) - len(rest.encode())}"
    assert stored[0] < 1.2 * (pieces.HEAD + pieces.TAIL)
    assert stored[1] < 100
    assert run.tail(0, 3) == [line.rstrip() for line in lines[-3:]]


def test_text_that_trickles_is_stored_in_few_rows(store, db, fake):
    """A short line a poll, from both streams in turn."""
    fake.begin(1)
    for index in range(1000):
        fake.say(1, 0, Output("stderr" if index % 2 else "stdout", f"{index}\n"))
        fake.writer.poll(db)

    assert db.execute("SELECT count(*) FROM texts").fetchone()[0] < 20
    assert store.runs()[0].text(0) == "".join(f"{index}\n" for index in range(1000))
    assert store.runs()[0].text(0, "stderr") == "".join(f"{index}\n" for index in range(1, 1000, 2))


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


def test_an_event_that_is_larger_than_what_is_read_at_once_is_stored(store, db, fake):
    """And so is what follows it."""
    fake.begin(1)
    fake.say(1, 0, Output("stdout", "x" * (LIMIT + 5)), Output("stdout", "end\n"), Dropped(1, 1, "reason"))
    drain(fake.writer, db)

    assert store.runs()[0].text(0) == "x" * (LIMIT + 5) + "end\n"


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


def test_what_ran_when_the_ranks_were_ended_is_lost_and_what_came_later_is_not(store, db, fake):
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


def test_a_log_that_ends_early_is_ended_by_what_the_client_tells(store, db, fake):
    """Its disk was full: the client knows the outcome. What a rank has said itself counts more."""
    fake.begin(1)
    fake.finish(1, [1], outcome="error")
    drain(fake.writer, db)
    fake.writer.tell(Followed(1, ranks={"0": "ok", "1": "ok"}))
    drain(fake.writer, db)
    (run,) = store.runs()

    assert run.outcomes == {0: "ok", 1: "error"}
    assert "could not be written" in run.parts[0].words


def test_a_log_that_ends_early_is_ended_by_the_next_run(store, db, fake):
    """Nobody told how it ended: the client was gone."""
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
    """The second ends while the first goes on, also when its folder appears first."""
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
def test_an_interrupt_that_the_ranks_took_for_an_end_is_told_by_the_client(store, db, fake, late):
    """A cell that catches KeyboardInterrupt ends well on its ranks, but was interrupted; also told afterwards."""
    fake.begin(1)
    if not late:
        fake.writer.tell(Followed(1, interrupted=True))
        drain(fake.writer, db)
    fake.finish(1)
    drain(fake.writer, db)
    if late:
        fake.writer.tell(Followed(1, interrupted=True))
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
    fake.writer.tell(Followed(1))
    db.execute("PRAGMA max_page_count = 1073741823")
    drain(fake.writer, db)
    (run,) = store.runs()

    assert kept == 100
    assert list(run.metrics["loss"][0].values) == [1.0] * 100 + [2.0] * 20_000 + [3.0]
    assert list(run.metrics["loss"][0].steps) == list(range(20_101))
    assert run.text(0) == "x" * 50_000


def test_an_idle_world_writes_nothing(store, db, fake):
    """Also not when a rank is dead: polls leave no transaction behind."""
    fake.begin(1)
    fake.finish(1)
    fake.writer.rank_died(0, "dead")
    drain(fake.writer, db)
    before = db.total_changes
    for _ in range(10):
        fake.writer.poll(db)

    assert db.total_changes == before


def intake_of(world: FakeWorld, store, said: list[str], days: float = 365.0) -> StoreIntake:
    """What the steward of ``world`` would have."""
    return StoreIntake(store.path, world.owner, SpoolFolder(world.folder, SKIPPED), days, said.append)


def poll_all(intake: StoreIntake) -> None:
    while intake.poll():
        pass


def test_what_a_killed_steward_did_not_store_the_next_one_does(store, make_world):
    """The rest of the text, the points, and the end: as far as its spools tell it."""
    killed, living, said = make_world(owner=gone_process()), make_world(name="world-2"), []
    killed.begin(1, when=100.0)
    killed.say(1, 0, points("loss", [1.0]), when=101.0)
    with closing(open_for_writing(store.path)) as db:
        killed.writer.poll(db)
    before = store.runs()[0].outcome, store.runs()[0].elapsed
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
    assert "its steward was killed" in first.parts[1].words
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


def test_a_store_that_fails_is_told_once_and_written_when_it_can_be(store, fake, monkeypatch):
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


def test_events_that_come_twice_count_once(store, db, fake):
    """From a source that starts over: their numbers tell."""

    class Again(SpoolFolder):
        def read(self, run, rank, _position):
            return super().read(run, rank, 0)._replace(more=False)

    fake.writer = StoreWriter(fake.owner, Again(fake.folder, SKIPPED))
    fake.begin(1)
    for index in range(3):
        fake.say(1, 0, points("loss", [float(index)], index), Output("stdout", f"{index}\n"))
        fake.writer.poll(db)

    assert list(store.runs()[0].metrics["loss"][0].values) == [0.0, 1.0, 2.0]
    assert store.runs()[0].text(0) == "0\n1\n2\n"


def test_encoding_has_the_form_by_which_unwanted_events_are_passed_over(fake):
    """The source looks for the type at the beginning of a line."""
    fake.begin(1)
    fake.say(1, 0, Display({"text/plain": "x"}))
    path = spool_path(fake.folder, 1, 0)
    from jupyter_dtrain.wire.spool import read_file

    lines = [encode(event) for event in read_file(path)]
    kept = SpoolFolder(fake.folder, SKIPPED).read(1, 0, 0).events
    everything = SpoolFolder(fake.folder).read(1, 0, 0).events

    assert len(lines) == len(everything) == 2
    assert kept == everything[:1]
