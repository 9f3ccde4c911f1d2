"""Questions to ranks, and what becomes of the answers."""

from __future__ import annotations

import math
from concurrent.futures import Future

import pytest

from jupyter_dtrain.core.stacks import Stack
from jupyter_dtrain.core.world import AddressedRank, AddressedWorld
from jupyter_dtrain.wire.agent_messages import InspectRank, InterruptRank, ReadPosition, ReadStack, WatchRequest
from jupyter_dtrain.wire.questions import OUTSIDE_PATIENCE, Questions
from tests.machines import NOT_SENT, SENT, Clock, position

RUNNING, NATIVE = Stack("running"), Stack("native")


class Channel:
    """The way to ranks; the test answers for them."""

    def __init__(self):
        self.agents, self.watches = {}, {}

    def ask(self, identity, question):
        """Ask an agent or a watch."""
        asked = self.watches if isinstance(question, WatchRequest) else self.agents
        asked[identity] = question, Future()
        return asked[identity][1]


class Scene:
    """Three ranks; rank 2 is dead."""

    def __init__(self, make_rank):
        self.clock, self.channel = Clock(), Channel()
        ranks = [make_rank(0), make_rank(1), make_rank(2, state="dead")]
        self.bound = AddressedWorld("w", "id", ranks), self.channel
        self.woken, self.answers = [], []
        self.questions = Questions(lambda: self.bound, lambda: self.woken.append(True), self.clock)

    def tick(self, seconds=0.0):
        self.clock.now += seconds
        wake, due = self.questions.tick(self.clock())
        for task in due:
            task()
        return wake


@pytest.fixture
def scene():
    """A scene with ranks whose engines and watches are named after them."""

    def make_rank(rank, state="idle"):
        return AddressedRank(rank, 0, f"h{rank}", 0, "cpu", 1, state, engine=f"e{rank}", watch=f"w{rank}")

    return Scene(make_rank)


def test_an_answer_comes_when_all_have_answered(scene):
    """It comes on the thread that ticks, which wakes up; a dead rank is not asked, and its answer is None."""
    scene.questions.ask([0, 1, 2], 5.0, scene.answers.append, ReadPosition())
    assert scene.channel.agents.keys() == {"e0", "e1"}
    assert scene.channel.agents["e0"][0] == ReadPosition()
    scene.channel.agents["e0"][1].set_result(position(1))
    assert scene.tick() == 105
    scene.channel.agents["e1"][1].set_result(position(2))
    assert not scene.answers

    assert scene.tick() == math.inf
    assert scene.answers == [{0: position(1), 1: position(2), 2: None}]
    assert len(scene.woken) == 2


def test_a_rank_that_is_silent_has_answered_none(scene):
    """The question ends when the patience is over; a later answer goes nowhere."""
    scene.questions.ask([0, 1], 5.0, scene.answers.append, ReadPosition())
    scene.channel.agents["e1"][1].set_result(position(2))
    scene.tick(4.9)
    assert not scene.answers
    scene.tick(0.1)

    assert scene.answers == [{0: None, 1: position(2)}]
    assert scene.channel.agents["e0"][1].cancelled()
    assert scene.tick(10) == math.inf


def test_without_a_world_there_is_no_answer(scene):
    """The question ends at once."""
    scene.bound = None
    scene.questions.ask([0, 1], 5.0, scene.answers.append, ReadPosition())

    assert scene.answers == [{0: None, 1: None}]


def test_the_watch_of_a_silent_rank_says_where_it_is(scene):
    """It has its own patience."""
    scene.questions.stacks([0, 1], 1.0, scene.answers.append)
    scene.channel.agents["e0"][1].set_result(RUNNING)
    scene.tick(1.0)
    assert scene.channel.watches.keys() == {"w1"}
    assert (scene.channel.agents["e1"][0], scene.channel.watches["w1"][0]) == (ReadStack(), InspectRank(1))
    assert scene.tick() == 101 + OUTSIDE_PATIENCE
    scene.channel.watches["w1"][1].set_result(NATIVE)
    scene.tick()

    assert scene.answers == [{0: RUNNING, 1: NATIVE}]


@pytest.mark.parametrize("force", [False, True])
def test_an_interrupt_is_taken_by_the_ranks_that_say_so(scene, force):
    """One whose cell has not taken it has answered, one that is silent has not, one that is dead was not asked."""
    scene.questions.interrupt(7, [0, 1, 2], 0.5, scene.answers.append, force=force)
    assert [asked for asked, _ in scene.channel.agents.values()] == [InterruptRank(7, force)] * 2
    scene.channel.agents["e0"][1].set_result(SENT)
    scene.channel.agents["e1"][1].set_result(NOT_SENT)
    scene.tick()
    scene.questions.interrupt(7, [0, 1], 0.5, scene.answers.append, force=force)
    scene.channel.agents["e1"][1].set_result(SENT)
    scene.tick(0.5)

    assert scene.answers == [[0], [1]]


def test_a_watch_that_is_silent_too_leaves_none(scene):
    """The question ends even so."""
    scene.questions.stacks([0], 1.0, scene.answers.append)
    scene.tick(1.0)
    scene.tick(OUTSIDE_PATIENCE)

    assert scene.answers == [{0: None}]


def test_no_watch_is_asked_when_all_have_answered(scene):
    """The same holds when the world has gone meanwhile."""
    scene.questions.stacks([0], 1.0, scene.answers.append)
    scene.channel.agents["e0"][1].set_result(RUNNING)
    scene.questions.stacks([1], 1.0, scene.answers.append)
    scene.tick()
    scene.bound = None
    scene.tick(1.0)

    assert scene.answers == [{0: RUNNING}, {1: None}]
    assert not scene.channel.watches
