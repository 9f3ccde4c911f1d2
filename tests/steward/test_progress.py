"""A start goes on while it makes progress, and ends with a reason once it does not."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.steward.progress import STILL, StartProgress
from tests.machines import Clock

PATIENCE = Settings().start_timeout


class Work:
    """The processes of a start: how long they have rested, and how much one has worked since the last step."""

    rested = 0.0
    worked = 0.0

    def rest(self):
        return self.rested

    def spent(self):
        return self.worked

    def step(self):
        self.worked = 0.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def work():
    return Work()


@pytest.fixture
def progress(clock, work):
    """A start of two ranks, whose processes run."""
    progress = StartProgress(2, Settings(), clock)
    progress.begin(work)
    return progress


def test_its_words_name_the_first_step_that_ranks_have_not_made(progress):
    said = [progress.words]
    for rank, step in ((0, "started"), (1, "started"), (1, "mpi"), (0, "ready"), (1, "ready")):
        progress.reach(rank, step)
        said.append(progress.words)

    assert said == [
        "0 of 2 ranks have started",
        "1 of 2 ranks have started, waiting for rank 1",
        "0 of 2 ranks have imported MPI",
        "1 of 2 ranks have imported MPI, waiting for rank 0",
        "1 of 2 ranks ready, waiting for rank 1",
        "2 of 2 ranks ready",
    ]
    assert progress.started == {0, 1}


def test_a_wait_for_nodes_has_words_of_its_own(progress):
    progress.waiting = "job 7 waits for nodes"

    assert progress.words == "job 7 waits for nodes"


def test_a_start_in_which_nothing_works_ends_after_its_timeout(progress, clock, work):
    work.rested = STILL + 1
    clock.now += PATIENCE - 1
    assert progress.rests
    assert progress.explain_end() == ""
    clock.now += 1

    assert f"0 of 2 ranks have started, and nothing has happened for {PATIENCE:.0f} s" in progress.explain_end()


def test_a_start_whose_processes_work_goes_on(progress, clock, work):
    clock.now += PATIENCE * 2
    work.worked = PATIENCE / 2

    assert not progress.rests
    assert progress.explain_end() == ""


def test_a_process_that_works_in_vain_ends_the_start(progress, clock, work):
    clock.now += PATIENCE * 2
    work.worked = PATIENCE + 1

    assert f"and a process has worked at one step for {PATIENCE:g} s" in progress.explain_end()


def test_a_step_may_not_take_for_ever(progress, clock):
    clock.now += Settings().longest_step + 1

    assert f"and the next step took more than {Settings().longest_step:g} s" in progress.explain_end()


def test_each_step_begins_the_time_anew(progress, clock, work):
    work.worked, work.rested = PATIENCE + 1, STILL + 1
    clock.now += PATIENCE - 1
    progress.reach(0, "started")
    clock.now += PATIENCE - 1

    assert work.worked == 0
    assert progress.explain_end() == ""


def test_before_its_processes_run_only_time_counts(clock):
    progress = StartProgress(2, Settings(), clock)
    clock.now += PATIENCE

    assert not progress.rests
    assert "nothing has happened" in progress.explain_end()
