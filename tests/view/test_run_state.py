"""The fold of a run that all places share: states, time and step, whichever way the events came."""

from __future__ import annotations

import time
from array import array

import pytest

from jupyter_dtrain.core.events import (
    Batch,
    Error,
    Event,
    Finished,
    Frame,
    Metrics,
    Output,
    PromptClosed,
    PromptOpened,
    Started,
)
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.view.document import status
from jupyter_dtrain.view.run_state import RunState, rank_state
from tests.steward.until import until


def points(*steps):
    """A loss at these steps."""
    times, values = array("d", [100.0] * len(steps)), array("d", [1.0] * len(steps))
    return Metrics([pack("loss", Columns(array("q", steps), times, values))])


def test_the_time_of_a_run_is_the_same_for_every_reader():
    """It begins with the first rank, and is in the end what the slowest took: for the session's Run as well."""
    began = time.time() - 5.0
    said = {0: (began, Finished("ok", 2.5)), 1: (began + 1.0, Finished("ok", 3.25))}
    gathered, run = RunState(1, [0, 1], 2), Run(1, "", [0, 1], 2, lambda *_: iter(()))
    assert gathered.elapsed == 0.0
    for rank, (start, _) in said.items():
        events = [Event(1, rank, 0, start, Started(1, "host", ""))]
        run.apply(Batch(1, rank, 0, 0, events))
        gathered.take(events[0])
    assert 5.0 <= gathered.elapsed <= run.elapsed <= gathered.elapsed + 1.0
    for rank, (_, end) in said.items():
        event = Event(1, rank, 1, began + 4.0, end)
        run.apply(Batch(1, rank, 1, 1, [event]))
        gathered.take(event)
    run.end()
    assert gathered.elapsed == run.elapsed == 3.25
    assert gathered.picture("ok").elapsed == 3.25


def test_a_rank_that_is_lost_without_a_word_stops_the_clock():
    """Nothing says how long it took."""
    gathered = RunState(1, [0], 1)
    gathered.take(Event(1, 0, 0, time.time() - 2.0, Started(1, "host", "")))
    gathered.fold.lose(0, "")
    assert 2.0 <= gathered.elapsed == gathered.elapsed < 60.0


def test_a_rank_that_another_ones_failure_released_has_not_failed():
    """Everyone sees who has; the outcome of the run counts both."""
    gathered = RunState(1, [0, 1, 2], 3)
    gathered.take(Event(1, 0, 0, 100.0, Error("RuntimeError", "closed", [], waited="all_reduce", released=True)))
    gathered.take(Event(1, 1, 0, 100.0, Error("ValueError", "cause", [Frame("cell [3]", 2, "", "", cell=True)])))
    for rank in (0, 1):
        gathered.take(Event(1, rank, 1, 100.0, Finished("error", 1.0)))
    gathered.fold.lose(2, "")
    picture = gathered.picture("lost")

    assert picture.states == {0: "released", 1: "error", 2: "dead"}
    assert gathered.fold.states == {0: "error", 1: "error", 2: "lost"}
    assert status(picture).words["1"] == "ValueError: cause, in cell [3], line 2"


def test_the_clock_goes_on_while_other_ranks_work():
    """As in an elastic training, in which the others go on without a rank that died."""
    gathered = RunState(1, [0, 1], 2)
    for rank in (0, 1):
        gathered.take(Event(1, rank, 0, time.time() - 2.0, Started(1, "host", "")))
    gathered.fold.lose(1, "")
    begun = gathered.elapsed
    until(lambda: gathered.elapsed > begun)
    gathered.take(Event(1, 0, 1, time.time(), Finished("ok", 7.5)))
    assert gathered.elapsed == 7.5


def test_a_clock_that_is_set_while_a_run_goes_on_changes_nothing(monkeypatch):
    """The host's clock may be an hour wrong until a service corrects it."""
    gathered, run = RunState(1, [0], 1), Run(1, "", [0], 1, lambda *_: iter(()))
    started = Event(1, 0, 0, time.time(), Started(1, "host", ""))
    gathered.take(started)
    run.apply(Batch(1, 0, 0, 0, [started]))
    now = time.time
    for jump in (3600.0, -7200.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: now() + jump)
        assert 0.0 <= gathered.elapsed < 600.0
        assert 0.0 <= run.elapsed < 600.0


def test_the_step_is_that_of_the_rank_that_is_furthest_ahead():
    """The panel shows the same."""
    gathered = RunState(1, [0, 1], 2)
    assert gathered.fold.step is None
    gathered.take(Event(1, 0, 1, 0.0, points(1, 2, 299)))
    gathered.take(Event(1, 1, 1, 0.0, points(297)))
    assert gathered.fold.step == 299


def test_two_readers_know_who_is_ahead():
    """Text counts for nothing: one of them skips it, and the other may get less of it."""
    kernel, server = RunState(1, [0, 1], 2), RunState(1, [0, 1], 2)
    for reader in (kernel, server):
        reader.take(Event(1, 0, 0, 0.0, Started(1, "host", "")))
        reader.take(Event(1, 0, 7, 0.0, points(1)))
    kernel.take(Event(1, 0, 8, 0.0, Output("stdout", "a line")))
    assert kernel.picture("running").reach == server.picture("running").reach == [8, 0]


def test_hosts_are_known_before_ranks_begin():
    """So no tile moves to another group when its rank begins."""
    gathered = RunState(1, [0, 1], 3, {0: "a", 1: "b", 2: "c"})
    assert gathered.picture("running").hosts == {0: "a", 1: "b"}
    assert gathered.fold.states == {0: "sent", 1: "sent"}


@pytest.mark.parametrize(
    ("process", "in_run", "over", "waits", "state"),
    [
        ("idle", None, True, False, "idle"),
        ("idle", "sent", False, False, "sent"),
        ("idle", "running", False, False, "running"),
        ("idle", "running", False, True, "waiting"),
        ("idle", "sent", False, True, "sent"),
        ("idle", "ok", False, True, "ok"),
        ("idle", "ok", True, False, "idle"),
        ("idle", "error", True, False, "error"),
        ("idle", "released", True, False, "released"),
        ("idle", "dead", True, False, "idle"),
        ("idle", "dead", False, False, "dead"),
        ("stopped", "running", False, True, "stopped"),
        ("dead", "running", False, False, "dead"),
        ("starting", None, True, False, "starting"),
    ],
)
def test_the_state_of_a_rank_in_one_word(process, in_run, over, waits, state):
    """Its process comes first, then its run, then what it waits for."""
    assert rank_state(process, in_run, over=over, waits=waits) == state


def test_a_fresh_rank_has_nothing_of_the_run_in_which_another_process_was_it():
    """After a restart no rank is at an error."""
    assert rank_state("idle", "error", over=True, waits=False, replaced=True) == "idle"
    assert rank_state("idle", "interrupted", over=True, waits=False, replaced=True) == "idle"
    assert rank_state("dead", "error", over=True, waits=False, replaced=True) == "dead"


def test_ranks_that_ask_the_same_are_one_question():
    """A debugger's ranks are each one of its own. A rank that asks has that state, until it is answered."""
    state = RunState(1, range(4), 4)
    for rank in range(4):
        state.take(Event(1, rank, 0, 0.0, Started(1, "here", "")))
    for rank in (0, 2):
        state.take(Event(1, rank, 1, 0.0, PromptOpened(1, "input", "token? ", place="cell [3], line 2")))
    state.take(Event(1, 1, 1, 0.0, PromptOpened(3, "input", "token? ", nth=2)))
    state.take(Event(1, 3, 1, 0.0, PromptOpened(1, "debugger", "(Pdb) ", said="> cell [3](4)\n")))
    found = status(state.picture("running"))

    assert [(part.ranks, part.numbers, part.kind) for part in found.prompts] == [
        ([0, 2], [1, 1], "input"),
        ([1], [3], "input"),
        ([3], [1], "debugger"),
    ]
    assert (found.prompts[0].place, found.prompts[2].said) == ("cell [3], line 2", "> cell [3](4)\n")
    assert {state.shown(rank) for rank in range(4)} == {"asking"}
    state.take(Event(1, 3, 2, 0.0, PromptClosed(1)))
    state.take(Event(1, 0, 2, 0.0, Finished("interrupted", 1.0)))
    found = status(state.picture("running"))
    assert [part.ranks for part in found.prompts] == [[1], [2]]
    assert [state.shown(rank) for rank in range(4)] == ["interrupted", "asking", "asking", "running"]
