"""A world in a job of a real Slurm, started from a login node."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from jupyter_dtrain import Session
from jupyter_dtrain.core.world import time_left
from jupyter_dtrain.magics.worlds import status
from tests.slurm.launching import start, values
from tests.slurm.site import Site
from tests.steward.until import state_of, until


@pytest.fixture(scope="module")
def world(site: Site) -> Iterator[Session]:
    """Two ranks on each node, which tests leave idle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FROM_THE_LOGIN_NODE", "7")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        session = start(time="100")
    yield session
    session.stop()
    site.check_empty()


def test_ranks_fill_the_nodes_of_a_job(world: Session, site: Site) -> None:
    """Each knows its place as under torchrun, and its job; no variable tells it the place of MPI's daemon."""
    code = (
        "import os, socket\n"
        "names = 'RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK WORLD_SIZE MASTER_ADDR GLOO_SOCKET_IFNAME'\n"
        "names += ' FROM_THE_LOGIN_NODE SLURM_JOB_ID'\n"
        "[os.environ[name] for name in names.split()] + [socket.gethostname(), os.environ.get('SLURM_PROCID')]"
    )
    found = values(world.run(code, view=None))
    job = site.jobs()[0].split()[0]
    address = site.network.address

    assert found == {
        rank: [
            *(str(rank), str(rank % 2), "2", str(rank // 2), str(rank // 2), "4", address, "eth0", "7", job),
            *(f"gpu{rank // 2 + 1}", None),
        ]
        for rank in range(4)
    }


@pytest.mark.slow
def test_ranks_meet_across_nodes(world: Session) -> None:
    """In MPI, and in torch's process group where torch is installed."""
    assert set(values(world.run("from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)", view=None)).values()) == {4}
    pytest.importorskip("torch")
    code = (
        "import torch, torch.distributed as dist\n"
        "dist.is_initialized() or dist.init_process_group()\n"
        "t = torch.ones(3)\ndist.all_reduce(t)\nfloat(t[0])"
    )
    assert set(values(world.run(code, view=None)).values()) == {4.0}


def test_the_time_that_is_left_is_shown(world: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the status, and in the sidebar."""
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("jupyter_dtrain.magics.worlds.current", lambda: world)
    monkeypatch.setattr("jupyter_dtrain.magics.worlds._publish", shown.append)
    until(lambda: world.ends)
    status(None)  # type: ignore[arg-type]  # it reads no argument
    state = state_of(world)

    assert 0 < world.ends - time.time() < 6000
    assert re.search(r"4 ranks, 1 h \d+ min left", shown[0]["text/plain"])
    assert re.fullmatch(r"1 h \d+ min left", time_left(state.ends))


@pytest.mark.slow
def test_a_restarted_world_stays_in_its_job(world: Session, site: Site) -> None:
    """Fresh ranks, on the same nodes."""
    before = site.jobs()
    pids = {rank.pid for rank in world.world.ranks}
    world.restart()
    fresh = {rank.pid for rank in world.world.ranks}

    assert site.jobs() == before
    assert not pids & fresh
    assert values(world.run("1 + 1", view=None)) == dict.fromkeys(range(4), 2)


@pytest.mark.slow
def test_a_dead_rank_is_replaced_on_its_node(site: Site) -> None:
    """In the same job, under its number; the others keep their variables."""
    session = start()
    session.run("import os\nx = 10 + int(os.environ['RANK'])", view=None)
    pids = [rank.pid for rank in session.world.ranks]
    session.run("os.kill(os.getpid(), 9)", ranks=[3], wait=False, view=None)
    until(lambda: [rank.rank for rank in session.world.dead] == [3])
    session.replace(["x"])
    code = (
        "import os, socket\nfrom mpi4py import MPI\n"
        "given = os.environ\n"
        "(given['LOCAL_RANK'], given.get('SLURM_PROCID'), socket.gethostname(), MPI.COMM_WORLD.allreduce(1), x)"
    )
    found = values(session.run(code, view=None))
    kept = [rank.pid for rank in session.world.ranks[:3]] == pids[:3]
    session.stop()

    assert found == {
        rank: (str(rank % 2), None, f"gpu{rank // 2 + 1}", 4, 10 + rank if rank < 3 else 10) for rank in range(4)
    }
    assert kept
