"""A run in which no rank moves counts as one that hangs, and a note describes it."""

from __future__ import annotations

import math

import pytest

from jupyter_dtrain.core.events import (
    Error,
    Event,
    Finished,
    Frame,
    Output,
    PromptClosed,
    PromptOpened,
    Sample,
    Started,
    StepParts,
)
from jupyter_dtrain.core.fold import RunFold
from jupyter_dtrain.core.hangs import HangDetector
from jupyter_dtrain.core.stacks import Collective, Stack, Wait, describe_collectives, describe_hang
from jupyter_dtrain.wire.agent_messages import ReadStack
from tests.machines import Clock, Ranks

CELL = Frame("cell [3]", 7, "", "step(x)", cell=True)
HELPER = Frame("cell [2]", 3, "step", "dist.all_reduce(x)", cell=True)
LIBRARY = Frame("/torch/c10d_logger.py", 81, "wrapper", "", cell=False)


class Scene:
    """Two ranks that have just begun; they hang after 30 s."""

    def __init__(self):
        self.clock = Clock()
        self.ranks, self.notes = Ranks(self.clock), []
        self.begin([0, 1])

    def begin(self, begun, travel=0.0):
        """A new run, which the ranks ``begun`` have begun."""
        self.fold = RunFold([0, 1])
        for rank in begun:
            self.fold.take(Event(7, rank, 0, 0.0, Started(1, "host", "")))
        self.detector = HangDetector(self.fold, 2, 30.0, self.ask, self.notes.append, self.clock(), travel)

    def ask(self, ranks, then):
        """Ask the ranks, whose answers a test may replace."""
        self.ranks.stacks(ranks, 1.0, then)

    def wait(self, seconds):
        self.clock.run(self.detector, seconds)

    def say(self, rank, body):
        event = Event(7, rank, self.fold.ranks[rank].next_seq, 0.0, body)
        self.fold.take(event)
        self.detector.hear([event], self.clock())


@pytest.fixture
def scene():
    """A scene of two ranks."""
    return Scene()


def test_what_ranks_report_each_second_is_no_movement(scene):
    """How long they have stood still, and where their time goes."""
    for second in range(31):
        for rank in (0, 1):
            scene.say(rank, Sample(0.0, 1, still=float(second)))
            scene.say(rank, StepParts(1.0, {"communication": 1.0}))
        scene.wait(1)

    assert len(scene.notes) == 1


def test_ranks_that_do_not_move_are_reported_once(scene):
    """The note says where they are; no question goes to them before."""
    scene.wait(29.9)
    assert not scene.ranks.asked
    scene.wait(60)

    assert scene.ranks.times(ReadStack()) == [30]
    assert len(scene.notes) == 1
    assert scene.notes[0].startswith("No rank has moved for 30 s.")


def test_one_rank_that_moves_is_enough(scene):
    """The others may wait for it."""
    for _ in range(5):
        scene.wait(20)
        scene.say(1, Output("stdout", "on"))

    assert scene.detector.tick(scene.clock()) == scene.clock() + 30
    assert not scene.notes


def test_a_rank_that_says_that_it_stands_still_has_not_moved(scene):
    """Each says so once a second; it counts from when it moved last."""
    for second in range(29):
        scene.wait(1)
        for rank in (0, 1):
            scene.say(rank, Sample(1.0, 1000, still=second + 1.0))
    assert not scene.notes
    scene.wait(1)

    assert len(scene.notes) == 1


def test_after_a_move_it_is_reported_again(scene):
    """It hangs again after the move."""
    scene.wait(30)
    scene.say(0, Output("stdout", "on"))
    scene.wait(29)
    assert scene.notes[1:] == [""]
    scene.wait(1)

    assert len(scene.notes) == 3
    assert scene.notes[2] == scene.notes[0]


def test_a_rank_that_ends_makes_another_notice(scene):
    """The first one says where that rank was. The other waits for it, and learns how it ended."""
    at = Frame("cell [3]", 4, "", "dist.all_reduce(x)", cell=True)
    waiting = Stack("running", frames=[at], waits=Wait("torch", "all_reduce"))
    scene.ranks.stacks = lambda ranks, _, then: then(dict.fromkeys(ranks, waiting))
    scene.wait(30)
    assert "  Ranks 0-1: waiting in all_reduce, cell [3], line 4: dist.all_reduce(x)" in scene.notes[0].splitlines()

    place = Frame("cell [3]", 2, "", "raise ValueError('cause')", cell=True)
    scene.say(1, Error("ValueError", "cause", [place]))
    scene.say(1, Finished("error", 1.0))
    scene.wait(1)

    assert scene.notes[1].splitlines()[:3] == [
        "Rank 0 has not moved for 30 s.",
        "  Rank 0: waiting in all_reduce, cell [3], line 4: dist.all_reduce(x)",
        "  Rank 1: has failed: ValueError: cause, in cell [3], line 2",
    ]


def test_nothing_hangs_while_a_rank_asks_a_person(scene):
    """The others wait for it. With the answer all ranks have their time anew."""
    scene.wait(30)
    scene.say(0, PromptOpened(1, "input", "token? "))
    scene.wait(1)
    assert scene.notes[1:] == [""]
    for second in range(100):
        scene.wait(1)
        scene.say(1, Sample(0.0, 1, still=float(second)))
    scene.say(0, PromptClosed(1))
    scene.wait(29)
    assert scene.notes[1:] == [""]
    scene.wait(1)

    assert scene.notes[2].startswith("No rank has moved for 30 s.")


def test_those_that_a_person_kept_waiting_have_their_time_anew(scene):
    """Also where the rank that asked has ended the cell, as after Stop."""
    scene.say(1, Sample(0.0, 1))
    scene.say(0, PromptOpened(1, "input", "token? "))
    scene.wait(100)
    scene.say(1, Sample(0.0, 1, still=100.0))
    scene.say(0, PromptClosed(1, "interrupted"))
    scene.say(0, Finished("interrupted", 100.0))
    scene.wait(29)
    assert scene.notes == []
    scene.wait(1)

    assert scene.notes[0].startswith("Rank 1 has not moved for 30 s.")


def test_a_rank_that_dies_asks_no_more(scene):
    """The others may hang then."""
    scene.say(0, PromptOpened(1, "input", "token? "))
    scene.fold.lose(0, "rank 0 was killed (SIGKILL)")
    scene.wait(30)

    assert scene.notes[0].startswith("Rank 1 has not moved for 30 s.")


def test_a_rank_does_not_stand_still_while_the_values_of_its_cell_are_on_their_way(scene):
    """Afterwards the notice says that the rank has not begun."""
    scene.begin([0], travel=100.0)
    scene.ranks.stacks = lambda ranks, _, then: then(dict.fromkeys(ranks, Stack("idle")))
    scene.wait(50)
    scene.say(0, Output("stdout", "begun"))
    scene.wait(79)
    assert not scene.notes

    scene.wait(1)
    assert scene.notes[0].splitlines()[1:3] == ["  Rank 0: idle", "  Rank 1: has not begun the cell"]


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        (Stack("running", frames=[CELL], call="sleep"), "sleeping in cell [3], line 7: step(x)"),
        (Stack("running", frames=[CELL, LIBRARY], call="step"), "in step, cell [3], line 7: step(x)"),
        (Stack("running", frames=[CELL, LIBRARY]), "in wrapper, cell [3], line 7: step(x)"),
        (
            Stack("running", frames=[CELL, HELPER, LIBRARY], waits=Wait("torch", "all_reduce")),
            "waiting in all_reduce, cell [2], line 3: dist.all_reduce(x) (called from cell [3], line 7: step(x))",
        ),
        (Stack("idle"), "idle"),
    ],
)
def test_a_place_has_the_name_in_the_users_line_and_the_line_that_led_there(stack, words):
    """A library's own name for the call says nothing to the user."""
    assert f"  Rank 0: {words}" in describe_hang({0: stack}, [0], 30.0, {}, []).splitlines()


def test_ranks_that_a_waiting_rank_may_wait_for_are_named(scene):
    """Those that have ended, and those that never had the cell. A rank that computes waits for nobody."""
    waits = Stack("running", frames=[CELL], waits=Wait("MPI", "Barrier"))
    ended = {1: "has ended the cell", 2: "has ended the cell"}
    said = describe_hang({0: waits, 1: Stack("idle"), 2: Stack("idle")}, [0], 30.0, ended, [3])

    assert said.splitlines()[2:4] == ["  Ranks 1-2: has ended the cell", "  Rank 3: not in this cell"]
    assert "ended the cell" not in describe_hang({0: Stack("running", frames=[CELL])}, [0], 30.0, ended, [3])


def at(number, call, alike="", *, over=False):
    return Stack("running", collectives=[Collective("0", [0, 1], number, call, alike, over=over)])


@pytest.mark.parametrize(
    ("stacks", "said"),
    [
        # Rank 0 gives what the others get.
        ({0: at(1, "scatter of float[2, 3]", "scatter"), 1: at(1, "scatter", "scatter")}, []),
        ({0: at(1, "broadcast of float[6]", "b 6"), 1: at(1, "broadcast of float[2, 3]", "b 6")}, []),
        # What all have done with is of the past; what one still waits in is not.
        ({0: at(1, "all_reduce", over=True), 1: at(1, "barrier", over=True)}, []),
        (
            {0: at(1, "all_reduce", over=True), 1: at(1, "barrier")},
            ["Collective 1 is not the same on all ranks: all_reduce on rank 0; barrier on rank 1."],
        ),
        # An older difference does not hide where they are now.
        (
            {
                0: Stack("running", collectives=[*at(1, "x", over=True).collectives, *at(2, "barrier").collectives]),
                1: at(1, "y", over=True),
            },
            ["Rank 1 has not reached collective 2, barrier."],
        ),
    ],
)
def test_collectives_are_compared_by_what_must_be_equal(stacks, said):
    """Shapes may differ, where the collective lets them."""
    assert describe_collectives(stacks) == said


def test_only_ranks_that_have_not_ended_count(scene):
    """All are looked at: the others may have called something else."""
    scene.wait(10)
    scene.say(0, Finished("ok", 1.0))
    scene.wait(20)

    assert scene.ranks.asked == [(130, [0, 1], ReadStack())]
    assert scene.notes[0].startswith("Rank 1 has not moved for 30 s.")
    scene.say(1, Finished("ok", 1.0))
    assert scene.detector.tick(scene.clock()) == math.inf


@pytest.mark.parametrize("end", ["the run", "the standstill"])
def test_a_run_that_has_ended_before_the_ranks_answered_is_not_reported(scene, end):
    """They take a while to say where they are."""
    answers = []
    scene.ranks.stacks = lambda ranks, patience, then: answers.append((ranks, patience, then))
    scene.wait(30)
    if end == "the run":
        for rank in (0, 1):
            scene.fold.lose(rank, "")
    else:
        scene.say(0, Output("stdout", "on"))
        scene.wait(0)
    ranks, _, then = answers[0]
    then(dict.fromkeys(ranks))

    assert not scene.notes
