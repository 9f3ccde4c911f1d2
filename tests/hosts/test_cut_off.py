"""A host that is cut off while ranks wait in a collective, which ends by itself in none of them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import psutil
import pytest

from jupyter_dtrain import Session, Settings
from jupyter_dtrain.core.errors import WorldLost
from jupyter_dtrain.magics.parsing import MagicParser
from jupyter_dtrain.magics.worlds import start_arguments, start_options
from jupyter_dtrain.wire.agent_messages import RenewWatch
from tests.hosts.launching import PATIENCE, left, values
from tests.hosts.network import Network
from tests.hosts.test_faults import LOST
from tests.pace import slack
from tests.steward.until import until

LEASE = 15.0
SETTINGS = Settings(start_timeout=60, keep_alive=LEASE)
CELLS = {
    # Rank 2 keeps away, so the others are in the collective before the cable is pulled.
    "all_reduce": "import os, time, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "while dist.get_rank() == 2: time.sleep(0.1)\n"
    "dist.all_reduce(torch.ones(1))",
    "Allreduce": "import time\nimport numpy\nfrom mpi4py import MPI\n"
    "while MPI.COMM_WORLD.rank == 2: time.sleep(0.1)\n"
    "MPI.COMM_WORLD.Allreduce(numpy.ones(1), numpy.ones(1))",
}


@pytest.fixture(scope="module")
def network(able: None) -> Iterator[Network]:
    """Three hosts: when one is cut off, the others must still make a world."""
    with Network(hosts=3) as network:
        yield network


@pytest.mark.slow
@pytest.mark.parametrize("call", CELLS)
def test_ranks_in_a_collective_with_a_lost_host_are_lost_within_seconds(network: Network, call: str) -> None:
    """The line in the message starts a world on the hosts that answer. Each host ends its own ranks, also the lost one.

    That one still has no cable then, and only the lease of its watch tells it.
    """
    if call == "all_reduce":
        pytest.importorskip("torch")
    ssh = f"-F {network.ssh_config}"
    session = Session.start(hosts="gpu1:1,gpu2:1,gpu3:1", ssh_args=ssh, settings=SETTINGS)
    run = session.run(CELLS[call], wait=False, view=None)
    until(lambda: waiting(session) == {0: call, 1: call}, PATIENCE)
    # The lease of a start is longer, until the steward renews it for the first time, which may be to come.
    world, channel = session._link.bound()
    channel.ask(world.ranks[1].watch, RenewWatch()).result(PATIENCE)
    gpu2 = network["gpu2"]
    began = time.monotonic()
    gpu2.cut()
    try:
        assert run.wait(PATIENCE)
        seconds = time.monotonic() - began
        with pytest.raises(WorldLost, match="the host gpu2 was lost"):
            session.run("1", view=None)
        until(lambda: not [line for line in left(network) if not line.startswith("gpu2")])
        # sshd itself does not notice that its client is gone.
        until(lambda: not ours(network, "gpu2"), LEASE + PATIENCE)
        lasted = time.monotonic() - began
        session.leave()
        again = start_again(run.lost[0])
        computed = values(again.run(CELLS[call].replace("== 2", "== 3") + "\n1", view=None, timeout=PATIENCE))
        again.stop()
    finally:
        gpu2.join()

    print(f"{call}: lost after {seconds:.1f} s; the lost host's ranks ended after {lasted:.1f} s")
    assert seconds < LOST + slack()
    assert run.outcomes == dict.fromkeys(range(3), "lost")
    assert {"the host gpu2 was lost" in words for words in run.lost.values()} == {True}
    assert computed == {0: 1, 1: 1}
    until(lambda: left(network) == [])


def waiting(session: Session) -> dict[int, str]:
    """The calls in which ranks wait for others."""
    stacks = session.stacks(timeout=PATIENCE)
    return {
        rank: stack.waits.call.rpartition(".")[2]
        for rank, stack in stacks.items()
        if stack is not None and stack.waits is not None
    }


def ours(network: Network, name: str) -> list[int]:
    """The processes of a host, other than those of its sshd."""
    found = []
    for pid in network[name].processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if not psutil.Process(pid).name().startswith("sshd"):
                found.append(pid)
    return found


def start_again(words: str) -> Session:
    """A world by the line that a message ends with, as the magic reads it."""
    found = re.search(r"%distributed start (.*)", words)
    assert found is not None, words
    parser = MagicParser(prog="%distributed start")
    start_arguments(parser)
    options = start_options(parser.parse_line(found[1]))
    assert options["hosts"] == "gpu1:1,gpu3:1"
    return Session.start(**options, settings=SETTINGS)
