"""A recorder numbers what a rank says, spools it, and announces it in bounded bytes."""

from __future__ import annotations

import math
import os
import threading
import warnings

import pytest

from jupyter_dtrain.core.events import (
    CodeLine,
    Configured,
    Dropped,
    Finished,
    MediaLogged,
    Output,
    Result,
    Spent,
    Started,
    StepParts,
    from_wire,
    to_wire,
)
from jupyter_dtrain.rank import recorder as recorder_module
from jupyter_dtrain.rank.recorder import KEEP_RUNS, TAIL_LINES, TAIL_WIDTH, WIRE_TEXT
from jupyter_dtrain.wire.spool import read_file, spool_path


def joined(bodies, stream=None) -> str:
    return "".join(b.text for b in bodies if isinstance(b, Output) and stream in (None, b.stream))


def covered(batches) -> list[int]:
    """All numbers that the batches cover, in order."""
    return [seq for batch in batches for seq in range(batch.first, batch.last + 1)]


def test_a_run_is_recorded_from_start_to_finish(make_recorder, heard, path_of):
    """Events are numbered from 0, in order, in the file as in the announcements."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.write("stdout", "a")
    recorder.write("stdout", "b\n")
    recorder.write("stderr", "c\n")
    recorder.append(Result({"text/plain": "1"}))
    recorder.write("stdout", "d\n")
    recorder.finish("ok")
    kinds = [type(body) for body in heard.bodies]

    assert [Started, Output, Output, Result, Output, Finished] == kinds
    assert "ab\nc\nd\n" == joined(heard.bodies)
    assert list(range(6)) == [event.seq for event in heard.events] == covered(heard.batches)
    assert heard.events == list(read_file(path_of(1)))
    assert {(1, 3)} == {(event.run, event.rank) for event in heard.events}
    assert heard.bodies[0].spool == str(path_of(1))


def test_text_is_announced_without_a_flush(make_recorder, heard):
    """It is announced while the run goes on."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.write("stdout", "soon\n")

    heard.until(lambda heard: "soon\n" == joined(heard.bodies))
    recorder.finish("ok")


def test_an_event_is_in_the_file_before_it_is_announced(make_recorder, path_of):
    """A client that hears of a number can read the event."""
    missing = []

    def look(batch) -> None:
        if [event.seq for event in read_file(path_of(1))][-1] < batch.last:
            missing.append(batch)

    recorder = make_recorder(look)
    recorder.begin(1)
    for k in range(200):
        recorder.write("stdout", f"{k}\n")
        recorder.append(Result({"text/plain": str(k)}))
    recorder.finish("ok")

    assert [] == missing


def test_a_flush_spools_at_once(make_recorder, path_of):
    """A rank may die in the next moment."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.write("stdout", "last words")
    recorder.flush()

    assert "last words" == joined(event.body for event in read_file(path_of(1)))
    recorder.finish("ok")


def test_a_flood_goes_to_the_disk_and_not_into_memory(make_recorder, path_of, heard):
    """The writer itself spools when the announcer cannot keep up."""
    recorder = make_recorder()
    recorder.begin(1)
    highest = 0
    for _ in range(5000):
        recorder.write("stdout", "x" * 999 + "\n")
        highest = max(highest, recorder._pending_size)
    recorder.finish("ok")

    assert highest <= recorder_module.PENDING_LIMIT + 1000
    assert 5_000_000 == len(joined(event.body for event in read_file(path_of(1))))


def test_announcements_are_bounded_and_cover_every_number(make_recorder, heard):
    """Past the first megabytes only totals and the last lines; no number is left out of the spans."""
    recorder = make_recorder()
    recorder.begin(1)
    for k in range(50_000):
        recorder.write("stdout", f"{k:<99}\n")
    recorder.append(Result({"text/plain": "kept"}))
    recorder.finish("ok")
    last = heard.batches[-1]

    assert len(joined(heard.bodies)) <= WIRE_TEXT
    assert list(range(last.last + 1)) == covered(heard.batches)
    assert (5_000_000, 50_000) == (last.totals.bytes, last.totals.lines)
    assert [f"{k:<99}" for k in range(49_980, 50_000)] == last.totals.tail
    assert [Result({"text/plain": "kept"})] == [body for body in heard.bodies if isinstance(body, Result)]
    assert isinstance(heard.bodies[-1], Finished)


def test_the_last_lines_are_bounded_and_know_progress_bars(make_recorder, heard):
    """It has at most 20 lines of 400 characters, and the last state of a line that was overwritten."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.write("stdout", "x" * (WIRE_TEXT + 1) + "\n")
    for k in range(30):
        recorder.write("stdout", "y" * 1000 + f"\r{k}\n")
    recorder.write("stdout", "10%\r20%\r30%")
    recorder.finish("ok")
    tail = heard.batches[-1].totals.tail

    assert TAIL_LINES == len(tail)
    assert [*map(str, range(11, 30)), "30%"] == tail
    assert max(map(len, tail)) <= TAIL_WIDTH


def test_past_the_cap_text_is_counted_and_reported_once(make_recorder, heard, path_of):
    """Other events are kept."""
    recorder = make_recorder(cap=10_000)
    recorder.begin(1)
    for _ in range(1000):
        recorder.write("stdout", "ü" * 50)
        recorder.flush()
    recorder.append(Result({"text/plain": "kept"}))
    recorder.finish("ok")
    bodies = [event.body for event in read_file(path_of(1))]
    (dropped,) = [body for body in bodies if isinstance(body, Dropped)]

    assert 100_000 == len(joined(bodies).encode()) + dropped.bytes
    assert 0 < dropped.events < 1000
    assert bodies == heard.bodies
    assert Result({"text/plain": "kept"}) in bodies
    assert isinstance(bodies[-1], Finished)


def test_a_failing_disk_is_reported_and_the_run_goes_on(make_recorder, heard, tmp_path):
    """One line on stderr; events are announced, and can be read from memory."""
    (tmp_path / "file").write_text("not a folder")
    recorder = make_recorder(folder=tmp_path / "file")
    recorder.begin(1)
    recorder.write("stdout", "heard\n")
    recorder.append(Result({"text/plain": "1"}))
    recorder.finish("ok")

    assert "heard\n" == joined(heard.bodies, "stdout")
    assert 1 == joined(heard.bodies, "stderr").count("rank 3: the log cannot be written")
    assert heard.events == recorder.read(1, 0).events


def test_output_between_runs_belongs_to_the_next(make_recorder, heard):
    """Text; other events have no place."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.finish("ok")
    recorder.write("stderr", "between\n")
    recorder.append(Result({"text/plain": "nobody's"}))
    recorder.begin(2)
    recorder.write("stdout", "second\n")
    recorder.finish("ok")
    second = [event.body for event in heard.events if event.run == 2]

    assert [Started, Output, Output, Finished] == [type(body) for body in second]
    assert [("stderr", "between\n"), ("stdout", "second\n")] == [(b.stream, b.text) for b in second[1:3]]


def test_output_before_the_first_run_goes_to_the_log(make_recorder, heard, tmp_path):
    """Libraries that speak while a rank starts."""
    recorder = make_recorder()
    recorder.write("stderr", "early\n")
    recorder.begin(1)
    recorder.finish("ok")

    assert "early\n" == (tmp_path / "rank.log").read_text()
    assert "" == joined(heard.bodies)


def test_a_flood_between_runs_is_kept_in_bounded_size(make_recorder, heard, tmp_path):
    """The rest goes to the log."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.finish("ok")
    for _ in range(30):
        recorder.write("stdout", "x" * 100_000)
    recorder.begin(2)
    recorder.finish("ok")

    assert 1_100_000 == len(joined(heard.bodies))
    assert 1_900_000 == (tmp_path / "rank.log").stat().st_size


def test_many_threads_lose_nothing(make_recorder, heard, path_of):
    """Four of them print while a fifth appends; each one's lines are in order, numbers have no hole."""
    recorder = make_recorder()
    recorder.begin(1)

    def speak(name: int) -> None:
        for k in range(1000):
            recorder.write("stdout", f"{name} {k}\n")

    threads = [threading.Thread(target=speak, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for k in range(200):
        recorder.append(Result({"text/plain": str(k)}))
    for thread in threads:
        thread.join()
    recorder.finish("ok")
    events = list(read_file(path_of(1)))
    lines = joined(event.body for event in events).splitlines()

    assert list(range(len(events))) == [event.seq for event in events]
    for name in range(4):
        assert [f"{name} {k}" for k in range(1000)] == [line for line in lines if line.startswith(f"{name} ")]
    assert list(range(len(events))) == covered(heard.batches)
    assert events == heard.events


def test_a_run_that_has_finished_says_nothing_more(make_recorder, heard):
    """Exactly one Finished, also when it is called again."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.finish("error", regroup=True)
    recorder.finish("ok")
    finished = [body for body in heard.bodies if isinstance(body, Finished)]

    assert [("error", True)] == [(body.outcome, body.regroup) for body in finished]
    assert finished[0].elapsed >= 0


def test_it_knows_where_it_stands(make_recorder):
    """Its position is right before, during and after a run."""
    recorder = make_recorder()
    before = recorder.position()
    recorder.begin(7)
    during = recorder.position()
    recorder.finish("ok")

    assert [(None, 0, True), (7, 1, False), (7, 2, True)] == [before, during, recorder.position()]


def test_a_run_is_read_while_it_runs(make_recorder):
    """The answer has the newest text, and totals."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.write("stdout", "a\nb\n")
    batch = recorder.read(1, 0)

    assert (0, 1) == (batch.first, batch.last)
    assert "a\nb\n" == joined(event.body for event in batch.events)
    assert (4, 2, ["a", "b"]) == (batch.totals.bytes, batch.totals.lines, batch.totals.tail)
    assert recorder.read(1, 2) is None
    assert recorder.read(2, 0) is None
    recorder.finish("ok")


def test_the_newest_runs_can_be_read_and_old_ones_are_closed(make_recorder, path_of):
    """Their files stay."""
    recorder = make_recorder()
    for run in range(1, KEEP_RUNS + 3):
        recorder.begin(run)
        recorder.finish("ok")

    assert [1, 2] == [run for run in range(1, KEEP_RUNS + 3) if recorder.read(run, 0) is None]
    assert 2 == len(list(read_file(path_of(1))))


def test_later_runs_have_the_new_number_and_earlier_ones_keep_theirs(make_recorder, heard, tmp_path):
    """Also where an earlier one is read again, or a later one is withdrawn. The log goes on in another file."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.write("stdout", "of three\n")
    recorder.finish("ok")
    recorder.log("before")
    recorder.renumber(2)
    recorder.log("after")
    recorder.begin(2)
    recorder.write("stdout", "of two\n")
    recorder.finish("ok")
    recorder.withdraw(4)

    assert {(run, rank) for run, rank in ((event.run, event.rank) for event in heard.events)} == {
        (1, 3),
        (2, 2),
        (4, 2),
    }
    assert {(batch.run, batch.rank) for batch in heard.batches} == {(1, 3), (2, 2), (4, 2)}
    assert [(recorder.read(run, 0).rank, recorder.read(run, 0).events[0].rank) for run in (1, 2)] == [(3, 3), (2, 2)]
    assert joined(event.body for event in read_file(spool_path(tmp_path / "spool", 2, 2))) == "of two\n"
    told = "[jupyter-dtrain] rank 3 is rank 2 from here on\n"
    assert (tmp_path / "rank.log").read_text() == f"before\n{told}"
    assert (tmp_path / "rank-2.log").read_text() == f"{told}after\n"


@pytest.mark.parametrize(
    "body",
    [StepParts(1.0, {}, lines=[CodeLine("f.py", None, "data", 1.0)]), StepParts(math.nan, {})],
    ids=["none", "nan"],
)
def test_an_event_that_no_reader_can_read_takes_no_other_with_it(make_recorder, heard, path_of, body):
    """Neither in the file, nor on the wire: the next ones and the end come, and the log has its words."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.append(body)
    recorder.append(Result({"text/plain": "kept"}))
    recorder.finish("ok", spent=Spent(math.nan, 0, 0, 0))

    assert [type(body) for body in heard.bodies] == [Started, Output, Result, Output, Finished]
    assert list(read_file(path_of(1))) == heard.events
    assert all(from_wire(to_wire(batch)) == batch for batch in heard.batches)
    assert "StepParts" in heard.bodies[1].text
    assert heard.bodies[1].log
    assert heard.bodies[-1].outcome == "ok"


def test_text_that_no_encoding_knows_is_replaced(make_recorder, heard):
    """A lone surrogate breaks neither the file nor the announcement."""
    recorder = make_recorder()
    recorder.begin(1)
    recorder.write("stdout", "a\ud800b")
    recorder.finish("ok")

    assert "a?b" == joined(heard.bodies)


def test_the_bytes_of_media_stay_in_the_spool(make_recorder, heard, path_of):
    """Neither an announcement nor an answer has them, and they take no room from text."""
    recorder = make_recorder(cap=1000)
    recorder.begin(1)
    recorder.append(MediaLogged("sample", "image", 3, mime="image/png", data=b"x" * 10_000, caption="\ud800"))
    recorder.write("stdout", "still here\n")
    recorder.finish("ok")
    heard.until(lambda it: isinstance(it.bodies[-1], Finished))
    spooled = [event.body for event in read_file(path_of(1))]
    answered = [event.body for event in recorder.read(1, 0).events]

    for bodies, size in ((heard.bodies, 0), (spooled, 10_000), (answered, 0)):
        (found,) = (body for body in bodies if isinstance(body, MediaLogged))
        assert (found.name, found.step, found.caption, len(found.data)) == ("sample", 3, "?", size)
        assert [body.text for body in bodies if isinstance(body, Output)] == ["still here\n"]


def test_a_forked_process_records_nothing(make_recorder, heard, path_of):
    """Its events would take the numbers of the rank's next ones, which readers then take for known."""
    recorder = make_recorder()
    recorder.begin(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: forks of a process with threads
        pid = os.fork()
    if not pid:
        recorder.append(Configured({"x": "child"}, "set"))
        recorder.write("stdout", "child")
        recorder.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    recorder.append(Configured({"x": "parent"}, "set"))
    recorder.finish("ok")
    found = list(read_file(path_of(1)))

    assert [event.seq for event in found] == [0, 1, 2]
    assert found[1].body == Configured({"x": "parent"}, "set")
