"""The end of a world in a real Slurm: its job is taken away, its node is lost, or its steward is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import psutil
import pytest

from jupyter_dtrain import DistributedError, Session
from jupyter_dtrain.core.errors import WorldLost
from tests.hosts.network import Network
from tests.pace import slack
from tests.slurm.launching import PATIENCE, start
from tests.slurm.site import Site
from tests.steward.until import steward_of, until

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(300)"
LOST = 12.0
"""Seconds within which a node that is cut off is known to be lost, on a busy machine."""


def job_of(site: Site) -> str:
    """The number of the one job."""
    (job,) = site.jobs()
    return job.split()[0]


def test_a_world_whose_job_is_cancelled_says_so(site: Site) -> None:
    """In the cell that runs, which is lost, and at the next one."""
    session = start()
    job = job_of(site)
    cancel = threading.Timer(1.0, lambda: subprocess.run(["scancel", job], check=True))
    cancel.start()
    with pytest.raises(DistributedError) as caught:
        session.run(SLEEPS, view=None)
    cancel.join()
    run = session.last_run
    with pytest.raises(WorldLost, match=f"Slurm's job {job} is over: it was cancelled, as scancel does"):
        session.run("1", view=None)

    assert str(caught.value).startswith(f"Slurm's job {job} is over: it was cancelled, as scancel does")
    assert set(run.outcomes.values()) == {"lost"}
    site.check_empty()


@pytest.mark.slow
def test_a_world_whose_time_is_over_says_so(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """After a warning, as it has less than five minutes from its beginning."""
    session = start(ntasks_per_node=1, time="1")
    job = job_of(site)
    with pytest.raises(DistributedError) as caught:
        session.run(SLEEPS, view=None)
    run = session.last_run

    assert str(caught.value).startswith(f"Slurm's job {job} is over: it has reached its time limit")
    assert set(run.outcomes.values()) == {"lost"}
    site.check_empty()
    assert "This world ends soon: its nodes have" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_world_that_ends_soon_warns_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Five minutes before the limit, at the next cell; here from the beginning."""
    session = start(nodes=1, ntasks_per_node=1, time="4")
    until(lambda: session.ends)
    session.run("1", view=None)
    session.run("1", view=None)
    session.stop()
    said = capsys.readouterr()

    assert "".join(said).count("This world ends soon: its nodes have 3 min left. Save what you need.") == 1
    site.check_empty()


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["steward", "steward and guard"])
def test_a_killed_steward_leaves_no_job(site: Site, killed: str) -> None:
    """The guard cancels it; without a guard the job's script ends it, once nobody renews its file."""
    session = start(ntasks_per_node=1)
    run = session.run(SLEEPS, wait=False, view=None)
    until(lambda: all("begun" in run.text(rank) for rank in run.ranks), PATIENCE)
    steward = steward_of(session)
    guard = steward.parent()
    assert guard is not None
    if killed == "steward and guard":
        guard.kill()
    steward.kill()
    psutil.wait_procs([steward, guard], timeout=PATIENCE)
    assert run.wait(PATIENCE)
    with pytest.raises(WorldLost):
        session.run("1", view=None)
    if killed == "steward and guard":
        until(lambda: site.jobs() == [], 200)

    assert set(run.outcomes.values()) == {"lost"}
    site.check_empty()


@pytest.mark.slow
def test_a_steward_that_is_killed_while_its_job_waits_leaves_none(site: Site) -> None:
    """It may never have learned the number of its job."""
    said: list[str] = []

    def say(words: str) -> None:
        if "waits in partition" in words and not said:
            said.append(words)
            (job,) = [job for job in site.jobs() if "other" not in job]
            world = job.split()[2].removeprefix("dtrain-")
            (steward,) = [one for one in psutil.process_iter() if _is_steward(one, world)]
            os.kill(steward.pid, signal.SIGKILL)

    with site.occupied():
        with pytest.raises(Exception, match="steward"):
            start(ntasks_per_node=1, progress=say)
        until(lambda: [job for job in site.jobs() if "other" not in job] == [], PATIENCE)

    site.check_empty()


def _is_steward(process: psutil.Process, world: str) -> bool:
    """Whether this is the steward, the child of the guard, of the world."""
    try:
        parent = process.parent()
        words = process.cmdline()
        both = parent is not None and parent.cmdline() == words
        return both and any("jupyter_dtrain.steward" in word for word in words) and world in str(words)
    except psutil.Error:
        return False


@pytest.mark.slow
def test_a_node_that_is_cut_off_is_named() -> None:
    """Long before Slurm itself notices it: the world ends, and its job with it."""
    with Network(hosts=2) as network, Site(network) as site:
        session = start(ntasks_per_node=1)
        run = session.run(SLEEPS, wait=False, view=None)
        until(lambda: all("begun" in run.text(rank) for rank in run.ranks), PATIENCE)
        began = time.monotonic()
        network["gpu2"].cut()
        try:
            assert run.wait(PATIENCE)
            seconds = time.monotonic() - began
            reason = _reason(session)
        finally:
            network["gpu2"].join()
        print(f"the node was named after {seconds:.1f} s")

        assert seconds < LOST + slack()
        assert "the host gpu2 was lost (gpu2: The node has not answered for 7 s)" in reason
        assert set(run.outcomes.values()) == {"lost"}
        # Slurm kills what is left there as soon as the node is back, so two folders stay.
        until(lambda: [line for line in site.left() if "job" in line or "process" in line] == [], 90)


def _reason(session: Session) -> str:
    with pytest.raises(WorldLost) as caught:
        session.run("1", view=None)
    return str(caught.value)
