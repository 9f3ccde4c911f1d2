"""Output that a slow network has not yet brought: a death is told before it, and nothing of it is lost."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import Session
from jupyter_dtrain.core.events import Finished
from jupyter_dtrain.wire.spool import file_ends, spool_path
from tests.hosts.launching import left, start
from tests.hosts.network import Host, Network
from tests.pace import slack
from tests.steward.until import steward_of, until

BACKLOG = 100_000_000
"""Bytes."""
TOLD = 5.0
"""Seconds within which a death is told on a crowded machine; on a free one it takes half a second."""


def connection_to(session: Session, host: str) -> psutil.Process:
    """The ssh that carries the reports of a host's watch."""
    found = [child for child in steward_of(session).children() if child.name() == "ssh" and host in child.cmdline()]
    (ssh,) = found
    return ssh


def ids_on(host: Host) -> set[int]:
    """The ids of the processes of a host, as it counts them itself."""
    found = set()
    for process in host.processes():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            found |= {int(line.split()[-1]) for line in lines if line.startswith("NSpid:")}
    return found


@pytest.mark.slow
def test_a_death_is_told_before_the_output_that_waits(network: Network) -> None:
    """The connection takes nothing while a rank prints 100 MB and dies; the other rank, which waits, is freed."""
    session = start(network, "gpu1:1,gpu2:1")
    ssh = connection_to(session, "gpu2")
    path = spool_path(session.request.spool, 1, 1)
    code = (
        "import os\nfrom mpi4py import MPI\nif os.environ['RANK'] == '0': MPI.COMM_WORLD.recv(source=1)\n"
        f"for k in range({BACKLOG // 1_000_000}): print('y' * 999_999)\n"
        "print('the last line', flush=True); os.kill(os.getpid(), 9)"
    )
    pid = session.world.ranks[1].pid
    ssh.send_signal(signal.SIGSTOP)
    try:
        run = session.run(code, wait=False, view=None)
        assert run.number == 1
        until(lambda: pid not in ids_on(network["gpu2"]), 120)
    finally:
        ssh.send_signal(signal.SIGCONT)
    began = time.monotonic()
    until(lambda: session.world.ranks[1].has_ended)
    told, copied = time.monotonic() - began, path.stat().st_size if path.exists() else 0
    state, words = session.world.ranks[1].state, session.world.ranks[1].words
    assert run.wait(120)
    took = time.monotonic() - began
    finally_said = session.world.ranks[1].words
    text = run.text(1)
    ends = file_ends(path)
    session.stop()

    print(f"told after {told:.2f} s, when {copied / 1e6:.1f} MB were here; all were here after {took:.1f} s")
    assert told < TOLD + slack()
    assert copied < BACKLOG / 2
    assert state == "unreachable"
    assert words.startswith("rank 1 was killed (SIGKILL)")
    assert words.endswith("; its last output is still on its way")
    assert set(run.outcomes.values()) == {"error", "lost"}
    assert finally_said == words.partition(";")[0]
    assert len(text) == BACKLOG + len("the last line\n")
    assert text.endswith("y\nthe last line\n")
    assert ends is not None
    assert isinstance(ends[1].body, Finished)
    until(lambda: left(network) == [])
