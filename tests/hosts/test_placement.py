"""The place of a rank on hosts that differ: its numbers, its host's processors, its files' rights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dtrain import Session
from tests.hosts.launching import left, start, values
from tests.hosts.network import Network
from tests.steward.until import until

PLACE = (
    "import os, socket\n"
    "names = ('LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'NODE_RANK', 'GROUP_RANK', 'GROUP_WORLD_SIZE', 'MASTER_ADDR')\n"
    "{name: os.environ.get(name) for name in names} | {'host': socket.gethostname()}"
)


@pytest.fixture(scope="module")
def world(network: Network) -> Iterator[Session]:
    """One rank on the first host, three on the second, which may use one processor alone and has a variable set."""
    last = max(os.sched_getaffinity(0))
    sshd = network["gpu2"].listener
    before = os.sched_getaffinity(sshd)
    os.sched_setaffinity(sshd, {last})
    mask = os.umask(0o027)
    try:
        session = start(network, "gpu1:1,gpu2:3")
    finally:
        os.umask(mask)
        os.sched_setaffinity(sshd, before)
    yield session
    session.stop()
    until(lambda: left(network) == [])


@pytest.mark.slow
def test_ranks_know_their_place_on_hosts_of_different_sizes(world: Session, network: Network) -> None:
    """Each count is that of the rank's own host; all meet at the same address, which is none of a host's own."""
    found = values(world.run(PLACE, view=None))
    places = [(0, "gpu1", 0, 1), (1, "gpu2", 0, 3), (2, "gpu2", 1, 3), (3, "gpu2", 2, 3)]

    assert found == {
        rank: {
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size),
            "NODE_RANK": str(int(host == "gpu2")),
            "GROUP_RANK": str(int(host == "gpu2")),
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": network.address,
            "host": host,
        }
        for rank, host, local_rank, local_size in places
    }
    assert [(rank.rank, rank.host, rank.local_rank) for rank in world.world.ranks] == [place[:3] for place in places]


def test_each_host_divides_its_own_cores(world: Session) -> None:
    """A rank alone on its host gets no number of threads; three that share one processor get one each."""
    threads = values(world.run("import os; os.environ.get('OMP_NUM_THREADS', 'none')", view=None))
    seen = world.info()
    here, last = sorted(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    why = {one.name: one.why for one in seen[2].variables}["OMP_NUM_THREADS"]

    own = os.environ.get("OMP_NUM_THREADS")
    assert threads == {0: own or "none", 1: own or "1", 2: own or "1", 3: own or "1"}
    assert "1 core, shared by 3 ranks of this host" in why
    assert [found.processors.numbers for found in seen.values()] == [here, [last], [last], [last]]


@pytest.mark.slow
def test_a_variable_that_a_host_sets_stays(network: Network) -> None:
    """The login of one host sets it; the other host divides its cores."""
    home = network["gpu2"].run(["sh", "-c", "echo ~root"], capture_output=True).stdout.strip()
    settings = Path(home, ".bashrc")
    network["gpu2"].run(["tee", str(settings)], input="export OMP_NUM_THREADS=7\n", capture_output=True)
    login = network["gpu2"].run(["getent", "passwd", "root"], capture_output=True).stdout
    if not login.strip().endswith("/bash"):
        pytest.skip("root's shell on the hosts is not bash")
    try:
        session = start(network)
        found = {
            rank: {one.name: (one.value, one.why) for one in seen.variables}["OMP_NUM_THREADS"]
            for rank, seen in session.info().items()
        }
        session.stop()
    finally:
        network["gpu2"].run(["truncate", "-s", "0", str(settings)])

    if "OMP_NUM_THREADS" not in os.environ:
        assert found[0][0] == found[1][0] != "7"
        assert found[2][0] == found[3][0] == "7"
        assert all(found[rank][1].startswith("your own value, kept; ") for rank in (2, 3))


def test_files_of_ranks_have_the_rights_that_the_person_chose(world: Session) -> None:
    """The umask of the notebook, not that of the login on a host."""
    found = values(world.run("mask = os.umask(0); _ = os.umask(mask); mask", view=None))

    assert found == dict.fromkeys(range(4), 0o027)
