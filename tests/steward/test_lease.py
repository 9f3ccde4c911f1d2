"""A world lives as long as its driver says so, and one lease longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from jupyter_dtrain import Settings
from tests.processes import wait_until_gone
from tests.steward.until import runs, steward_of, until


def test_a_start_may_take_longer_than_the_lease(launch, mark) -> None:
    """No client can renew before the world is up."""
    session = launch(n=2, settings=Settings(keep_alive=0.5))

    assert session.run("1", view=None).outcome == "ok"
    session.stop()
    assert wait_until_gone(mark) == []


def test_a_client_that_is_stopped_is_as_good_as_gone(home, mark) -> None:
    """SIGSTOP to the client: the lease runs out. When it goes on, it learns that its world is gone."""
    code = """
import sys
from jupyter_dtrain import DtrainError, Session, Settings
session = Session.start(n=1, settings=Settings(keep_alive=2))
print(session._link.listing.steward, flush=True)
sys.stdin.readline()
try:
    session.run("1", view=None)
except DtrainError as lost:
    print(lost)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        steward = int(client.stdout.readline())
        os.kill(client.pid, signal.SIGSTOP)
        try:
            until(lambda: not runs(steward))
        finally:
            os.kill(client.pid, signal.SIGCONT)
        said, _ = client.communicate("\n", timeout=30)

    assert "is gone" in said or "is lost" in said
    assert wait_until_gone(mark) == []


def test_ranks_end_with_their_lease_when_no_process_is_left_to_end_them(launch, mark) -> None:
    """The steward and mpiexec are killed together: the watches get no renewal, and end their ranks."""
    session = launch(n=2, settings=Settings(keep_alive=2))
    steward = steward_of(session)
    mpiexec = next(child for child in steward.children() if child.name() == "prterun")
    steward.suspend()
    mpiexec.kill()
    steward.kill()

    assert wait_until_gone(mark) == []
