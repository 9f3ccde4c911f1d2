"""The steps that end a run, each at its time."""

from __future__ import annotations

import math

import pytest

from jupyter_dtrain.core.errors import WorldLost
from jupyter_dtrain.core.interruption import DYING, FORCED, HURRIED, Interruption
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.wire.agent_messages import InterruptRank, ReadStack
from tests.machines import SENT, Clock, Ranks, Steward, Working


class Scene:
    """An interruption of two ranks that has just begun."""

    def __init__(self):
        self.clock = Clock()
        self.run, self.ranks, self.steward, self.notes = Working(), Ranks(self.clock), Steward(self.clock), []
        self.ending = Interruption(self.run, Settings(), self.ranks, self.steward, self.notes.append, self.clock())

    def wait(self, seconds):
        self.clock.run(self.ending, seconds)

    @property
    def signals(self):
        return self.ranks.times(InterruptRank(7))

    @property
    def exceptions(self):
        return self.ranks.times(InterruptRank(7, force=True))


@pytest.fixture
def scene():
    """Settings as by default: release after 1 s, an exception after 5 s, the end after 8 s."""
    return Scene()


def test_a_signal_that_was_not_taken_is_sent_again(scene):
    """Every half second, to the ranks that have not taken it."""
    scene.ranks.answer = lambda rank, _: SENT if rank == 0 else None
    scene.wait(0.9)

    assert scene.signals == [0, 0.5]
    assert [asked[1] for asked in scene.ranks.asked] == [[0, 1], [1]]
    assert not scene.steward.did
    assert not scene.notes


def test_a_signal_that_every_rank_took_is_not_sent_again(scene):
    """A rank that ran nothing gets none either: it has answered, but sent none."""
    scene.ranks.answer = lambda *_: SENT
    scene.wait(4)

    assert scene.signals == [0]


def test_ranks_that_wait_for_others_are_released(scene):
    """The release comes after a second, and again every two; the note comes once."""
    scene.wait(4)

    assert scene.steward.did == [(at, "release", (7,)) for at in (1, 3)]
    assert scene.notes == [
        "Ranks 0-1 are still running 1 s after the interrupt. The world now releases ranks that wait for others."
    ]


def test_an_exception_is_raised_where_the_signal_was_caught(scene):
    """It comes after five seconds, again and again; before it a note says where the ranks were."""
    scene.wait(6)

    assert scene.ranks.times(ReadStack()) == [5]
    assert scene.exceptions == [5, 5.5, 6]
    assert scene.notes[1].startswith(
        "Ranks 0-1 are still running 5 s after the interrupt. An exception is raised in the cell"
    )


def test_the_exception_does_not_wait_for_ranks_that_say_late_where_they_are(scene):
    """A note comes before it in any case; what they say then is a note of its own while any of them runs."""
    scene.ranks.slow = True
    scene.wait(5)
    assert len(scene.notes) == 1
    assert scene.exceptions == []
    scene.wait(0.6)
    assert scene.exceptions == [5.5]
    assert scene.notes[1:] == [
        "Ranks 0-1 are still running 6 s after the interrupt. An exception is raised in the cell."
    ]
    (look,) = scene.ranks.looks
    look()
    assert scene.exceptions == [5.5]
    assert scene.notes[2].startswith("After the interrupt the cell was here:\n")
    scene.run.unfinished = []
    look()
    assert len(scene.notes) == 3


def test_the_cell_ends_without_the_ranks_that_have_not(scene):
    """It ends after eight seconds. Work on those ranks goes on, but breaks no collective of other cells any more."""
    scene.wait(7.9)
    assert not scene.ending.over
    scene.wait(0.2)
    assert scene.ending.over
    released, raised = scene.steward.times("release"), len(scene.exceptions)
    scene.wait(4)

    assert scene.steward.times("release") == released
    assert len(scene.exceptions) > raised
    assert scene.ending.tick(scene.clock()) < math.inf


def test_with_force_ranks_that_have_not_ended_are_killed(scene):
    """Once; the cell ends when their deaths had time to be reported."""
    scene.ending.force = True
    scene.wait(8)
    assert scene.steward.did[-1] == (8, "kill", ([0, 1], FORCED))
    assert not scene.ending.over
    scene.wait(DYING)

    assert scene.ending.over
    assert scene.steward.times("kill") == [8]
    assert "as --force asks." in scene.notes[-1]


def test_a_second_press_takes_all_steps_at_once_and_a_third_ends(scene):
    """The end comes a second after the second press."""
    scene.wait(0.5)
    scene.ending.press(scene.clock())
    scene.wait(0)
    assert scene.steward.times("release") == [0.5]
    assert scene.exceptions == [0.5]
    scene.wait(HURRIED - 0.1)
    assert not scene.ending.over
    scene.ending.press(scene.clock())
    scene.wait(0)

    assert scene.ending.over


def test_a_second_press_alone_ends_the_cell_a_second_later(scene):
    """No third is needed."""
    scene.ending.press(scene.clock())
    scene.wait(HURRIED)

    assert scene.ending.over


def test_ranks_that_have_ended_are_left_alone(scene):
    """Notes name who is left; nothing is asked of any rank when none is."""
    scene.run.unfinished = [1]
    scene.wait(1)
    assert scene.notes == [
        "Rank 1 is still running 1 s after the interrupt. The world now releases ranks that wait for others."
    ]
    scene.run.unfinished = []
    asked = len(scene.ranks.asked)
    scene.wait(8)

    assert len(scene.ranks.asked) == asked
    assert scene.steward.times("release") == [1]
    assert scene.ending.over


@pytest.mark.parametrize("force", [False, True])
def test_a_steward_that_is_gone_stops_no_step(scene, force):
    """The cell ends at its time."""
    scene.steward.fails = WorldLost("gone")
    scene.ending.force = force
    scene.wait(8 + DYING)

    assert scene.ending.over
    assert scene.exceptions[0] == 5
