"""A run in which no rank moves counts as one that hangs, and a note describes it."""

from __future__ import annotations

import math

import pytest

from jupyter_dtrain.core.events import Batch, Event, Output, Sample
from jupyter_dtrain.core.hangs import HangDetector
from jupyter_dtrain.wire.agent_messages import ReadStack
from tests.machines import Clock, Ranks, Working


class Scene:
    """Two ranks that have just begun; they hang after 30 s."""

    def __init__(self):
        self.clock = Clock()
        self.run, self.ranks, self.notes = Working(), Ranks(self.clock), []
        self.detector = HangDetector(self.run, 30.0, self.ranks, self.notes.append, self.clock())

    def wait(self, seconds):
        self.clock.run(self.detector, seconds)

    def say(self, rank, body):
        self.detector.hear(Batch(7, rank, 0, 0, [Event(7, rank, 0, 0.0, body)]), self.clock())


@pytest.fixture
def scene():
    """A scene of two ranks."""
    return Scene()


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
    assert len(scene.notes) == 1
    scene.wait(1)

    assert len(scene.notes) == 2


def test_only_ranks_that_have_not_ended_count(scene):
    """All are looked at: the others may have called something else."""
    scene.wait(10)
    scene.say(0, Output("stdout", "done"))
    scene.run.unfinished = [1]
    scene.wait(20)

    assert scene.ranks.asked == [(130, [0, 1], ReadStack())]
    assert scene.notes[0].startswith("Rank 1 has not moved for 30 s.")
    scene.run.unfinished = []
    assert scene.detector.tick(scene.clock()) == math.inf


@pytest.mark.parametrize("end", ["the run", "the standstill"])
def test_a_run_that_has_ended_before_the_ranks_answered_is_not_reported(scene, end):
    """They take a while to say where they are."""
    answers = []
    scene.ranks.stacks = lambda ranks, patience, then: answers.append((ranks, patience, then))
    scene.wait(30)
    if end == "the run":
        scene.run.unfinished = []
    else:
        scene.say(0, Output("stdout", "on"))
        scene.wait(0)
    ranks, _, then = answers[0]
    then(dict.fromkeys(ranks))

    assert not scene.notes
