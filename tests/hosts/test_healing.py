"""Dead ranks of other hosts are replaced on their own host, and worlds on hosts grow and shrink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_dtrain import Session
from jupyter_dtrain.core.errors import ReplaceFailed
from tests.hosts.launching import PATIENCE, left, process_at, start, values
from tests.hosts.network import Network
from tests.steward.until import until

PLACE = (
    "import os, socket\n"
    "from mpi4py import MPI\n"
    "[os.environ[name] for name in 'RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK WORLD_SIZE'.split()] + "
    "[socket.gethostname(), MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1)]"
)


@pytest.fixture
def world(network: Network) -> Iterator[Session]:
    """Two ranks on each host."""
    session = start(network)
    yield session
    session.stop()
    until(lambda: left(network) == [])


def kill(network: Network, session: Session, ranks: list[int]) -> None:
    """End them at once, from outside."""
    for process in [process_at(network, session, rank) for rank in ranks]:
        process.kill()
    until(lambda: [rank.rank for rank in session.world.dead] == ranks)


def processes(session: Session) -> dict[int, tuple[str, int]]:
    """Host and process of each rank."""
    return {rank.rank: (rank.host, rank.pid) for rank in session.world.ranks}


def places(session: Session) -> dict[int, Any]:
    """Each rank's knowledge of its place, and the result of an all-reduce of ones."""
    return values(session.run(PLACE, view=None))


def expected(hosts: list[str]) -> dict[int, Any]:
    """The same, as torchrun would have it, for ranks that fill the hosts in order."""
    order, size = list(dict.fromkeys(hosts)), len(hosts)
    return {
        rank: [
            *map(str, (rank, hosts[:rank].count(host), hosts.count(host), order.index(host), size)),
            host,
            rank,
            size,
        ]
        for rank, host in enumerate(hosts)
    }


def test_a_rank_of_another_host_is_replaced_in_mid_training(world: Session, network: Network) -> None:
    """On its host and under its number; the others keep process and variables; its output and its spool come here."""
    world.run("import os\nx = 10 + int(os.environ['RANK'])\nmodel = {'w': x}", view=None)
    before = processes(world)
    run = world.run(
        "import time\nfrom mpi4py import MPI\nfor step in range(6000):\n    MPI.COMM_WORLD.allreduce(step)\n"
        "    time.sleep(0.01)",
        wait=False,
        view=None,
    )
    until(lambda: sorted(run.logs) == run.ranks)
    kill(network, world, [3])
    assert run.wait(PATIENCE)
    healed = world.replace(["model"], source=0)
    after = processes(world)
    kept = world.run("x", ranks=[0, 1, 2], view=None)
    new = world.run(
        "import os\nprint('here is', model)\n('x' in dir(), 'MALLOC_MMAP_THRESHOLD_' in os.environ)", [3], view=None
    )

    assert healed.ranks == [3]
    assert {rank: after[rank] for rank in (0, 1, 2)} == {rank: before[rank] for rank in (0, 1, 2)}
    assert after[3][0] == "gpu2"
    assert after[3] != before[3]
    assert places(world) == expected(["gpu1", "gpu1", "gpu2", "gpu2"])
    assert values(kept) == {0: 10, 1: 11, 2: 12}
    assert new.text(3) == "here is {'w': 10}\n"
    assert values(new) == {3: (False, False)}
    mirror = Path(new.logs[3])
    until(lambda: mirror.exists() and b'"finished"' in mirror.read_bytes())
    assert b"here is" in mirror.read_bytes()


@pytest.mark.slow
def test_ranks_of_two_hosts_and_all_ranks_of_one_are_replaced(world: Session, network: Network) -> None:
    """MPI's daemon of a host on which every rank has died still knows the world; rank 0 is one like all others."""
    world.run("import os\nx = 10 + int(os.environ['RANK'])", view=None)
    for ranks in ([1, 2], [3]):
        kill(network, world, ranks)
        assert world.replace(["x"]).ranks == ranks
        assert places(world) == expected(["gpu1", "gpu1", "gpu2", "gpu2"])
    kept = processes(world)[2]
    kill(network, world, [0])
    world.replace(["x"])

    assert places(world) == expected(["gpu1", "gpu1", "gpu2", "gpu2"])
    assert processes(world)[2] == kept


@pytest.mark.slow
def test_the_only_rank_of_a_host_is_replaced(network: Network) -> None:
    """A world that was asked to heals itself."""
    session = start(network, "gpu1:1,gpu2:1", auto_replace=True)
    kill(network, session, [1])
    until(lambda: [rank.state for rank in session.world.ranks] == ["idle", "idle"], PATIENCE)
    found = places(session)
    session.stop()

    assert found == expected(["gpu1", "gpu2"])


@pytest.mark.slow
def test_a_world_on_hosts_shrinks(network: Network) -> None:
    """The highest ranks end; further ones are refused before anything happens; a restart starts as many as now."""
    session = start(network, "gpu1:2,gpu2:2", n=4)
    session.run("x = 1", view=None)
    session.resize(3)
    smaller = places(session)
    with pytest.raises(ReplaceFailed) as refusal:
        session.resize(4)
    session.resize(1)
    small = places(session)
    kept = values(session.run("x", view=None))
    session.restart()
    restarted = places(session)
    session.stop()

    assert smaller == expected(["gpu1", "gpu1", "gpu2"])
    assert "starts no further ranks on other hosts" in str(refusal.value)
    assert "%distributed stop, then %distributed start with -n 4" in str(refusal.value)
    assert small == restarted == expected(["gpu1"])
    assert kept == {0: 1}
