"""Interrupts of a run by a client that has not begun it."""

from __future__ import annotations

import math

import pytest

from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.steward.interrupts import ACK, LOOK, StewardInterrupts
from jupyter_dtrain.wire.agent_messages import InterruptRank, ReadPosition
from jupyter_dtrain.wire.steward_messages import InterruptWanted, OpenRun
from tests.machines import NOT_SENT, SENT, Clock, Ranks, Steward, position

INTERRUPTS = InterruptRank(7), InterruptRank(7, force=True)


class Scene:
    """A world of two ranks that work on run 7."""

    def __init__(self):
        self.clock = Clock()
        self.ranks, self.steward, self.told = Ranks(self.clock), Steward(self.clock), []
        self.positions = {0: position(7), 1: position(7)}
        self.ranks.answer = self._answer
        self.interrupts = StewardInterrupts(self.ranks, Settings(), self.told.append, self.steward, self.clock)

    def _answer(self, rank, question):
        return self.positions[rank] if question == ReadPosition() else NOT_SENT

    def ask(self, *, driven, force=False):
        self.interrupts.ask([OpenRun(7, [0, 1], [0, 1])], force=force, by="the sidebar", driven=driven)

    def wait(self, seconds):
        self.clock.run(self.interrupts, seconds)


@pytest.fixture
def scene():
    """A scene without any request."""
    return Scene()


def test_nothing_is_due_at_first(scene):
    """The first deadline comes with a request."""
    assert scene.interrupts.tick(100.0) == math.inf


def test_a_driver_hears_of_the_interrupt_and_does_it(scene):
    """The steward leaves it alone then."""
    scene.ask(driven=True, force=True)
    assert scene.told == [InterruptWanted(run=7, force=True, by="the sidebar")]
    scene.interrupts.taken_up(None)
    scene.wait(20)

    assert not scene.ranks.asked


def test_the_steward_ends_the_runs_that_the_driver_does_not_follow(scene):
    """It does so at once, since another client began them."""
    scene.positions = {0: position(7), 1: position(6)}
    runs = [OpenRun(6, [1], [1]), OpenRun(7, [0], [0])]
    scene.interrupts.ask(runs, force=False, by="the sidebar", driven=True)
    assert scene.told == [InterruptWanted(run=7, force=False, by="the sidebar")]
    scene.interrupts.taken_up([7, 8])
    scene.wait(0)

    assert [asked[1:] for asked in scene.ranks.asked] == [([1], InterruptRank(6))]


def test_without_a_driver_all_runs_are_ended(scene):
    """Each by its own steps, until its own ranks have ended it."""
    scene.positions = {0: position(7), 1: position(6)}
    scene.interrupts.ask([OpenRun(6, [1], [1]), OpenRun(7, [0], [0])], force=False, by="x", driven=False)
    scene.wait(LOOK)
    assert [asked[1:] for asked in scene.ranks.asked[:2]] == [([1], InterruptRank(6)), ([0], InterruptRank(7))]
    scene.positions[1] = position(6, finished=True)
    scene.wait(2 * LOOK)
    asked = len(scene.ranks.asked)
    scene.wait(2)

    assert {tuple(ranks) for _, ranks, _ in scene.ranks.asked[asked:]} == {(0,)}


def test_the_steward_does_what_no_driver_takes_up(scene):
    """It begins after a second, and takes the same steps."""
    scene.ask(driven=True)
    scene.wait(ACK - 0.1)
    assert not scene.ranks.asked
    scene.wait(0.1)
    assert scene.ranks.times(*INTERRUPTS) == [ACK]
    scene.wait(1)

    assert scene.steward.times("release") == [ACK + 1]


def test_without_a_driver_the_steward_begins_at_once(scene):
    """It also looks whether ranks have ended the run."""
    scene.ask(driven=False)
    scene.wait(2 * LOOK)

    assert scene.ranks.times(*INTERRUPTS)[0] == 0
    assert scene.ranks.times(ReadPosition()) == [LOOK, 2 * LOOK]
    assert not scene.told


def test_asked_again_it_hurries_and_force_holds(scene):
    """A second press of Stop does the same."""
    scene.ask(driven=False)
    scene.ask(driven=False, force=True)
    scene.wait(1)

    assert scene.steward.times("release")[0] == 0
    assert scene.steward.times("kill") == [1]


@pytest.mark.parametrize("answer", [position(7, finished=True), position(8), position(None)])
def test_it_is_over_when_the_ranks_have_ended_the_run(scene, answer):
    """Or work on another."""
    scene.ask(driven=False)
    scene.positions[0] = answer
    scene.wait(LOOK)
    assert scene.ranks.asked[-1][1] == [0, 1]
    scene.wait(LOOK)
    assert scene.ranks.asked[-1][1] == [1]
    scene.positions[1] = answer
    scene.wait(LOOK)

    assert scene.interrupts.tick(scene.clock()) == math.inf


def test_it_is_over_when_the_ranks_have_died(scene):
    """The interrupt goes on with the ranks that live."""
    scene.ask(driven=False)
    scene.interrupts.rank_died(0)
    assert scene.interrupts.tick(scene.clock()) < math.inf
    scene.interrupts.rank_died(1)

    assert scene.interrupts.tick(scene.clock()) == math.inf


@pytest.mark.parametrize("driven", [True, False])
def test_fresh_ranks_are_not_interrupted(scene, driven):
    """The world was restarted meanwhile."""
    scene.ask(driven=driven)
    scene.interrupts.forget()
    asked = len(scene.ranks.asked)
    scene.wait(10)

    assert len(scene.ranks.asked) == asked


def test_some_ranks_alone_get_the_signal_until_they_answer(scene):
    """A rank that answers has taken it or ran nothing; one that does not is asked again, as long as a cell is."""
    scene.ranks.answer = lambda rank, _: SENT if rank == 0 else None
    scene.interrupts.ask_some(7, [0, 1])
    asked = [(ranks, question) for _, ranks, question in scene.ranks.asked]

    assert asked == [([0, 1], InterruptRank(7))] + [([1], InterruptRank(7))] * 15
