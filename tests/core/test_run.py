"""A run folds events that arrive in any order and any number of times."""

from __future__ import annotations

import sys
import threading
from array import array

import pytest

from jupyter_dtrain import Run
from jupyter_dtrain.core.events import (
    Batch,
    Dropped,
    Error,
    Event,
    Finished,
    Metrics,
    Output,
    Result,
    Started,
    Totals,
    decode,
    encode,
    from_wire,
    to_wire,
)
from jupyter_dtrain.core.metrics import Columns, pack

STORY = [
    Started(1, "host", "/spool"),
    Output("stdout", "a\n"),
    Output("stderr", "b\n"),
    Result({"text/plain": "1"}),
    Finished("ok", 1.5),
]


def events(story=STORY, rank: int = 0):
    return [Event(1, rank, seq, 0.0, body) for seq, body in enumerate(story)]


def batch(first: int, last: int, rank: int = 0, story=STORY) -> Batch:
    return Batch(1, rank, first, last, events(story, rank)[first : last + 1])


@pytest.fixture
def run():
    """A run on ranks 0 and 2 of 4, whose spools hold the story."""
    return Run(1, "cell", [0, 2], 4, lambda _run, rank: iter(events(rank=rank)))


def test_events_come_in_one_by_one(run):
    """The run is over when all ranks have finished."""
    for seq in range(5):
        assert run.apply(batch(seq, seq)) == batch(seq, seq)
    left = run.unfinished
    run.apply(batch(0, 4, rank=2))
    run.end()
    run.release()

    assert ([2], []) == (left, run.unfinished)
    assert ("ok", {0: "ok", 2: "ok"}) == (run.outcome, run.outcomes)
    assert ("a\nb\n", "b\n") == (run.text(0), run.text(0, "stderr"))
    assert {0: "/spool", 2: "/spool"} == run.logs
    assert [0, 2] == list(run.results)


def test_earlier_events_are_not_applied_again(run):
    """Whole batches and overlapping ones: only the new part counts."""
    run.apply(batch(0, 2))

    assert run.apply(batch(0, 2)) is None
    assert batch(3, 3) == run.apply(batch(1, 3))
    assert "a\nb\n" == run.text(0)
    assert 4 == run.next_seq(0)


def test_a_hole_is_not_jumped_over(run):
    """Nothing is applied until it is filled."""
    run.apply(batch(0, 0))

    assert run.apply(batch(2, 4)) is None
    assert 1 == run.next_seq(0)
    assert batch(1, 4) == run.apply(batch(1, 4))


def test_nothing_comes_after_the_end(run):
    """The run drops later events of a rank that has finished."""
    run.apply(batch(0, 4))
    story = [*STORY, Output("stdout", "late\n")]

    assert run.apply(batch(5, 5, story=story)) is None
    assert "a\nb\n" == run.text(0)


def test_text_that_was_left_out_comes_from_the_spool(run):
    """A batch with totals covers numbers whose text it does not hold."""
    short = Batch(1, 0, 0, 4, [event for event in events() if not isinstance(event.body, Output)], Totals(4, 2, ["b"]))
    run.apply(short)

    assert "a\nb\n" == run.text(0)
    assert Totals(4, 2, ["b"]) == run.totals[0]


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        (("ok", "ok"), "ok"),
        (("ok", "error"), "error"),
        (("error", "interrupted"), "interrupted"),
        (("lost", "error"), "lost"),
        (("ok", "lost"), "lost"),
    ],
)
def test_the_outcome_is_the_worst_of_the_ranks(run, ends, outcome):
    """Lost before interrupted before error before ok."""
    for rank, end in zip((0, 2), ends, strict=True):
        run.apply(batch(0, 4, rank, [*STORY[:4], Finished(end, 1.0)]))
    running = run.outcome
    run.end()
    run.release()

    assert ("running", outcome) == (running, run.outcome)


def test_a_run_that_is_given_up_names_the_busy(run):
    """Its outcome is interrupted."""
    run.apply(batch(0, 4))
    run.end()
    run.release()

    assert ("interrupted", [2], {0: "ok"}) == (run.outcome, run.busy, run.outcomes)


def test_a_lost_rank_has_no_more_to_say(run):
    """The run has the reason in words."""
    run.mark_lost(2, "rank 2 was killed")

    assert [0] == run.unfinished
    assert {2: "lost"} == run.outcomes
    assert {2: "rank 2 was killed"} == run.lost


def test_every_event_survives_the_file_and_the_wire():
    """Encoded and decoded, it is the same."""
    bodies = [*STORY, Dropped(1, 2, "why"), Error("E", "v", [], ["n"], "c", "s")]
    whole = Batch(1, 0, 0, 6, events(bodies), Totals(1, 2, ["x"]))

    assert events(bodies) == [decode(encode(event)) for event in events(bodies)]
    assert whole == from_wire(to_wire(whole))
    assert {b"\n"} == {encode(event)[-1:] for event in events(bodies)}
    assert {1} == {encode(event).count(b"\n") for event in events(bodies)}


def test_metrics_and_pipelines_are_read_whole_while_they_grow():
    """Another thread reads them: columns of one length, and every series that has begun."""
    run = Run(1, "cell", [0], 1, lambda *_: iter(()))
    over, looks, torn = threading.Event(), 0, []

    def fold() -> None:
        for seq in range(4000):
            part = Columns(array("q", [seq] * 50), array("d", [0.0] * 50), array("d", [1.0] * 50))
            body = Metrics([pack(f"loss {seq // 40}", part), pack("all", part)])
            run.apply(Batch(1, 0, seq, seq, [Event(1, 0, seq, 0.0, body)]))
        over.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=fold)
    thread.start()
    try:
        while not over.is_set():
            for ranks in run.metrics.values():
                torn += [columns for columns in ranks.values() if len(set(map(len, columns))) > 1]
            looks += 1
    finally:
        sys.setswitchinterval(before)
        thread.join()

    assert looks > 1
    assert torn == []
    assert len(run.metrics["all"][0].values) == 200_000


def test_the_last_values_are_known_where_the_points_are_not_kept(monkeypatch):
    """Too many points, or points that the wire left out; learning rates are not among them."""
    monkeypatch.setattr("jupyter_dtrain.core.run.POINTS", 3)

    def never(_run, _rank):
        raise AssertionError("a spool was read")

    run = Run(1, "cell", [0, 1], 2, never)
    for seq, values in enumerate(([3.0, 2.0], [1.0, 0.5], [], [0.25])):
        columns = Columns(array("q", range(len(values))), array("d", values), array("d", values))
        series = [pack("loss", columns, 5), pack("lr/0", columns), pack("steps/s", columns)]
        run.apply(Batch(1, 1, seq, seq, [Event(1, 1, seq, 0.0, Metrics(series))]))
    assert run.last_values == [0.25]
