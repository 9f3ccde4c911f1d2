"""Frameworks whose ranks are on two hosts: what has an address of its own meets across the network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_dtrain import Session
from tests.frameworks.horovod_cells import BEGIN, STAND_IN
from tests.frameworks.test_torch_rpc import CALL, CALLED, DEFINE, INIT, TRAIN, TRAINED
from tests.hosts.launching import PATIENCE, left, start, values
from tests.hosts.network import Network
from tests.steward.until import until


@pytest.fixture(scope="module")
def world(network: Network) -> Iterator[Session]:
    """One rank on each host."""
    pytest.importorskip("torch")
    session = start(network, "gpu1:1,gpu2:1")
    yield session
    session.stop()
    until(lambda: [line for line in left(network) if "process" in line] == [])


@pytest.mark.slow
def test_rpc_calls_a_rank_of_the_other_host(world: Session) -> None:
    """A function of a cell, and an object that lives there."""
    world.run(DEFINE + INIT, view=None, timeout=PATIENCE)
    called = values(world.run(CALL, view=None, timeout=PATIENCE))
    trained = values(world.run(TRAIN, view=None, timeout=PATIENCE))
    world.run("rpc.shutdown()", view=None, timeout=PATIENCE)

    assert called == CALLED
    assert trained == dict.fromkeys(range(2), TRAINED)


@pytest.mark.slow
def test_horovods_stand_in_averages_across_hosts(world: Session) -> None:
    """Each rank has its place on its own host; the mean is that of both."""
    place = "hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()"
    found = values(
        world.run(
            f"{STAND_IN}{BEGIN}float(hvd.allreduce(torch.tensor([float(hvd.rank())])).item()), [{place}]",
            view=None,
            timeout=PATIENCE,
        )
    )

    assert found == {rank: (0.5, [rank, 2, 0, 1, rank, 2]) for rank in range(2)}
