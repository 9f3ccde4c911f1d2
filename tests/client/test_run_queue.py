"""The order in which cells go to the ranks."""

from __future__ import annotations

import pytest

from jupyter_dtrain.client.run_queue import RunQueue
from jupyter_dtrain.client.submitted_run import SubmittedRun


@pytest.fixture
def queue():
    """A queue without runs."""
    return RunQueue()


@pytest.fixture
def add(queue, make_run):
    """``add(number, ranks, sent=…)``: a run that was submitted."""

    def make(number, ranks=(0, 1), *, sent=False):
        submitted = SubmittedRun(make_run(number, ranks))
        submitted.sent = sent
        queue.post(submitted)
        queue.add(submitted)
        return submitted

    return make


def test_a_run_is_busy_from_the_moment_that_it_was_submitted(queue, make_run):
    """It is so before the scheduler has seen it."""
    submitted = SubmittedRun(make_run(3))
    queue.post(submitted)
    assert queue.busy() == {0: 3, 1: 3}
    assert queue.next_ready() is None
    queue.add(submitted)

    assert queue.busy() == {0: 3, 1: 3}
    assert queue.next_ready() is submitted


def test_a_run_waits_for_earlier_ones_on_its_ranks(queue, add):
    """Runs on other ranks pass it; one that waits holds its ranks, so that order is kept on each."""
    first, second = add(1, [0, 1], sent=True), add(2, [1, 2])
    third, fourth = add(3, [2, 3]), add(4, [3])
    other = add(5, [])
    assert queue.next_ready() is other
    queue.end(other)
    assert queue.next_ready() is None
    queue.end(first)
    assert queue.next_ready() is second
    second.sent = True
    assert queue.next_ready() is None
    queue.end(second)
    assert queue.next_ready() is third

    assert queue.unsent == [third, fourth]
    # A new rank may be in the place of a lost one.
    third.sent = True
    assert queue.next_ready() is None
    third.run.mark_lost(3, "it died")
    assert queue.next_ready() is fourth
    third.sent = False
    assert queue.behind(third.run) == [third, fourth]


def test_ranks_that_were_left_behind_stay_taken_until_they_are_through(queue, add, finished):
    """Their run has ended; a rank that has finished is free anyway."""
    left, waits = add(1, [0, 1], sent=True), add(2, [0])
    assert queue.end(left)
    queue.leave(left)
    assert queue.next_ready() is None
    assert queue.left_behind() == {0: 1, 1: 1}
    assert queue.find(1) is left
    assert queue.sent == [left]
    left.run.apply(finished(rank=0))
    assert queue.left_behind() == {1: 1}
    assert queue.next_ready() is waits
    left.run.apply(finished(rank=1))
    assert queue.came_back(left)

    assert not queue.came_back(left)
    assert queue.find(1) is None


def test_a_run_ends_once(queue, add):
    """Several parts may report its end."""
    submitted = add(1)

    assert queue.end(submitted)
    assert not queue.end(submitted)
    assert queue.open == []
    assert queue.busy() == {}


def test_a_lost_world_has_no_ranks_that_were_left_behind(queue, add):
    """They are gone."""
    submitted = add(1, sent=True)
    queue.end(submitted)
    queue.leave(submitted)
    queue.forget_left()

    assert queue.left_behind() == {}


def test_another_clients_run_is_named_to_those_that_wait_for_it(queue, add):
    """The user's own run is not named so."""
    mine, theirs = add(1, [0], sent=True), add(2, [1], sent=True)
    theirs.adopted = True

    assert queue.adopted_before(add(3, [1, 2])) is theirs.run
    assert queue.adopted_before(add(4, [0])) is None
    assert queue.find(1) is mine
    assert queue.find(9) is None
