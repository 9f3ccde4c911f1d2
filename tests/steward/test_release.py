"""The time at which ranks that wait for a failed one are released."""

from __future__ import annotations

import math
from concurrent.futures import Future

import pytest

from jupyter_dtrain.core.stacks import Wait
from jupyter_dtrain.steward.release import LOOK_AGAIN, OUTLASTS, PATIENCE, Release
from jupyter_dtrain.wire.agent_messages import EVERY_FRAMEWORK
from tests.machines import Clock, position

WAITS = position(7, waits=Wait("torch", "all_reduce"))
WORKS = position(7)
ENDED = position(7, finished=True)


class Scene:
    """Three ranks in run 7; what each answers to a look is in ``answers``, None for silence."""

    def __init__(self):
        self.clock = Clock()
        self.answers = {0: ENDED, 1: WORKS, 2: WORKS}
        self.looks, self.orders, self.released, self.stuck = [], [], [], []
        self.release = Release(
            self._ask,
            lambda run, frameworks: self.orders.append((run, frameworks)),
            lambda run, who: self.released.append((run, who)),
            lambda run, who: self.stuck.append((run, who)),
            2.0,
            self.clock,
        )

    def _ask(self):
        self.looks.append(self.clock() - 100)
        futures = {rank: Future() for rank in self.answers}
        for rank, answer in self.answers.items():
            if answer is not None:
                futures[rank].set_result(answer)
        return futures

    def wait(self, seconds):
        self.clock.run(self.release, seconds)


@pytest.fixture
def scene():
    """A scene in which no rank has failed."""
    return Scene()


def test_nothing_is_asked_while_no_rank_has_failed(scene):
    """There is no deadline either."""
    assert scene.release.tick(100.0) == math.inf
    assert not scene.looks


def test_ranks_have_a_grace_to_end_by_themselves(scene):
    """Looks come after it, until the run is over on every rank."""
    scene.release.failed(7)
    scene.wait(1.9)
    assert not scene.looks
    scene.wait(0.1)
    assert scene.looks == [2]
    scene.answers = {0: ENDED, 1: ENDED, 2: position(8)}
    scene.wait(LOOK_AGAIN)

    assert scene.looks == [2, 2 + LOOK_AGAIN]
    assert scene.release.tick(scene.clock()) == math.inf
    assert not scene.orders


def test_stop_leaves_no_grace(scene):
    """Stop may come after a rank has failed."""
    scene.release.failed(7)
    scene.release.look_now(7)
    scene.wait(0)

    assert scene.looks == [0]


def test_ranks_that_wait_are_released_in_their_framework(scene):
    """All hear of it; the report names those that waited."""
    scene.answers[2] = WAITS
    scene.release.look_now(7)
    scene.wait(0)

    assert scene.orders == [(7, ["torch"])]
    assert scene.released == [(7, {2: Wait("torch", "all_reduce")})]


def test_a_rank_that_waits_later_is_released_then(scene):
    """The question is put again."""
    scene.release.look_now(7)
    scene.wait(0)
    assert not scene.orders
    scene.answers[1] = WAITS
    scene.wait(LOOK_AGAIN)

    assert scene.released == [(7, {1: Wait("torch", "all_reduce")})]


def test_a_rank_that_is_silent_twice_counts_as_waiting_once(scene):
    """It may wait in any framework; native code may hold the interpreter's lock."""
    scene.answers[1] = None
    scene.release.look_now(7)
    scene.wait(PATIENCE)
    assert not scene.orders
    scene.wait(10)

    assert scene.orders == [(7, [EVERY_FRAMEWORK])]
    assert scene.released == [(7, {1: Wait(EVERY_FRAMEWORK, "native code")})]


def test_silence_that_was_broken_begins_anew(scene):
    """Twice in succession."""
    scene.answers[1] = None
    scene.release.look_now(7)
    scene.wait(PATIENCE + 0.1)
    scene.answers[1] = WORKS
    scene.wait(LOOK_AGAIN)
    scene.answers[1] = None
    scene.wait(LOOK_AGAIN + PATIENCE + 0.1)

    assert len(scene.looks) == 3
    assert not scene.orders


def test_only_ranks_that_wait_in_an_abandoned_run_are_released(scene):
    """Other cells may run beside it: a silent rank is left alone."""
    scene.answers = {0: ENDED, 1: None, 2: WORKS}
    scene.release.look_now(7)
    scene.release.given_up(7)
    scene.wait(10)
    assert not scene.orders
    scene.answers[2] = WAITS
    scene.wait(2 * (LOOK_AGAIN + PATIENCE))

    assert {2: Wait("torch", "all_reduce")} in [who for _, who in scene.released]
    assert all(who.keys() == {2} for _, who in scene.released)


def test_a_wait_that_cannot_be_ended_is_reported_at_once(scene):
    """The report does not call it released; a rank that waits beside it is."""
    endless = Wait("mpi", "Win.Lock", releasable=False)
    scene.answers[1] = position(7, waits=endless)
    scene.release.look_now(7)
    scene.wait(0)
    assert scene.stuck == [(7, {1: endless})]
    scene.wait(5)
    assert not scene.released
    assert not scene.orders
    scene.answers[2] = WAITS
    scene.wait(LOOK_AGAIN)

    assert scene.released == [(7, {2: Wait("torch", "all_reduce")})]
    assert all(stuck == (7, {1: endless}) for stuck in scene.stuck)


def test_a_wait_that_outlasts_its_releases_is_reported(scene):
    """The steward releases it again nevertheless; a rank that comes free and waits elsewhere begins anew."""
    scene.answers[2] = WAITS
    scene.release.look_now(7)
    scene.wait((OUTLASTS - 0.5) * LOOK_AGAIN)
    assert not scene.stuck
    scene.answers[2] = position(7, waits=Wait("torch", "barrier"))
    scene.wait((OUTLASTS - 0.5) * LOOK_AGAIN)
    assert not scene.stuck
    scene.wait(5)

    assert scene.stuck[0] == (7, {2: Wait("torch", "barrier")})
    assert scene.released[-1] == scene.stuck[-1]


def test_fresh_ranks_are_left_alone(scene):
    """The world was restarted."""
    scene.release.failed(7)
    scene.release.forget()
    scene.wait(5)

    assert not scene.looks
