"""Worlds on two hosts over ssh: the same cells, nothing in clear, nothing left behind, and a lost host is named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dtrain import Session
from tests.hosts.launching import PATIENCE, left, start, values
from tests.hosts.network import Network
from tests.steward.until import until


@pytest.fixture(scope="module")
def world(network: Network) -> Iterator[Session]:
    """Two ranks on each host, which tests leave idle."""
    session = start(network)
    yield session
    session.stop()
    until(lambda: left(network) == [])


def test_ranks_fill_the_hosts_in_order(world: Session, network: Network) -> None:
    """Each knows its place as under torchrun, and where all meet."""
    code = (
        "import os, socket\n"
        "names = 'RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK WORLD_SIZE MASTER_ADDR GLOO_SOCKET_IFNAME'\n"
        "[os.environ[name] for name in names.split()] + [socket.gethostname()]"
    )
    found = values(world.run(code, view=None))

    address = network.address
    assert found == {
        rank: [
            str(rank),
            str(rank % 2),
            "2",
            str(rank // 2),
            str(rank // 2),
            "4",
            address,
            "eth0",
            f"gpu{rank // 2 + 1}",
        ]
        for rank in range(4)
    }
    assert [rank.host for rank in world.world.ranks] == ["gpu1", "gpu1", "gpu2", "gpu2"]


def test_ranks_meet_across_hosts(world: Session) -> None:
    """In MPI, and in torch's process group where torch is installed."""
    assert set(values(world.run("from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)", view=None)).values()) == {4}
    pytest.importorskip("torch")
    code = (
        "import torch, torch.distributed as dist\n"
        "dist.is_initialized() or dist.init_process_group()\n"
        "t = torch.ones(3)\ndist.all_reduce(t)\nfloat(t[0])"
    )
    assert set(values(world.run(code, view=None)).values()) == {4.0}


def test_a_rank_of_another_host_is_killed_on_request(network: Network) -> None:
    """The order goes to the watch there: signed and encrypted, as is the lease that it renews."""
    session = start(network, "gpu1:1,gpu2:1")
    run = session.run("import time; time.sleep(60)", ranks=[1], wait=False, view=None)
    until(lambda: sorted(run.logs) == run.ranks)
    session.kill([1])
    assert run.wait(PATIENCE)
    words = session.world.ranks[1].words
    session.stop()

    assert words.startswith("rank 1 was killed (SIGKILL)")


def test_spools_of_other_hosts_have_a_mirror_here(world: Session) -> None:
    """Byte for byte what the ranks have written; store, sidebar and attaching clients read it."""
    run = world.run("for k in range(3000): print('line', k)\nimport os; os.write(1, b'native\\n')", view=None)
    lines = "".join(f"line {k}\n" for k in range(3000)) + "native\n"

    def mirrored() -> bool:
        paths = [Path(run.logs[rank]) for rank in run.ranks]
        return all(path.exists() and b'"finished"' in path.read_bytes() for path in paths)

    until(mirrored)
    assert {run.text(rank) for rank in run.ranks} == {lines}
    assert {Path(path).parent.parent for path in run.logs.values()} == {Path(world.request.spool)}


def test_nothing_crosses_the_network_in_clear(network: Network, tmp_path: Path) -> None:
    """No cell, no output, no result, no variable of --env, no key: looked for in all frames of a host's cable."""
    path = tmp_path / "frames"
    with network["gpu2"].captured(path):
        session = start(network, "gpu1:1,gpu2:1", env={"SECRET": "zebra-variable"})
        session.run(
            "zebra = 'zebra' + '-value'\nprint('zebra' + '-text')\nimport os\nos.write(1, b'zebra-native')\nzebra",
            view=None,
        )
        keys = json.loads(
            (Path(session.request.folder) / "profile" / "security" / "ipcontroller-engine.json").read_text()
        )
        run = session.run("os.write(1, b'zebra-last'); os.kill(os.getpid(), 9)", ranks=[1], wait=False, view=None)
        assert run.wait(PATIENCE)
        session.stop()
    frames = path.read_bytes()
    secrets = [value for name, value in keys.items() if name == "key" or "curve" in name]

    assert len(frames) > 10_000
    assert re.findall(rb"zebra[-\w]*", frames) == []
    assert secrets
    assert not any(secret.encode() in frames for secret in secrets)


def test_output_that_no_pipe_takes_at_once_is_copied_while_the_run_goes_on(world: Session) -> None:
    """Megabytes from each rank: the mirror has them before the run ends."""
    code = "import time\nfor k in range(40): print('y' * 100_000)\nprint('printed', flush=True)\ntime.sleep(60)"
    run = world.run(code, wait=False, view=None)
    until(lambda: all(totals.bytes > 4_000_000 for totals in run.totals.values()))
    paths = [Path(path) for path in run.logs.values()]
    until(lambda: all(path.exists() and b"printed" in path.read_bytes()[-5000:] for path in paths))
    world.interrupt()

    assert run.wait(PATIENCE)
    assert all(path.stat().st_size > 4_000_000 for path in paths)


TRAIN = """
import torch, torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
dist.is_initialized() or dist.init_process_group()
torch.manual_seed(0)
rank, size = dist.get_rank(), dist.get_world_size()
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(30):
    part = slice((step * size + rank) * 8, (step * size + rank + 1) * 8)
    loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
round(float(sum(parameter.abs().sum() for parameter in model.parameters())), 5)
"""


@pytest.mark.slow
def test_a_training_ends_with_the_same_weights_as_on_one_machine(world: Session) -> None:
    """Four ranks under DDP, on two hosts and here; their losses arrive as on one machine."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    there = world.run(TRAIN, view=None)
    with Session.start(n=4) as here:
        local = values(here.run(TRAIN, view=None))

    assert values(there) == local
    assert len(set(local.values())) == 1
    assert {rank: len(there.metrics["loss"][rank].values) for rank in there.ranks} == dict.fromkeys(range(4), 30)


@pytest.mark.slow
def test_a_client_that_attaches_has_the_variables(network: Network) -> None:
    """It takes over, and drives the same ranks over the same encrypted way."""
    first = start(network, "gpu1:1,gpu2:1", name="attached-elsewhere")
    first.run("kept = 7\nprint('before')", view=None)
    second = Session.attach("attached-elsewhere", control=True)
    found = values(second.run("kept", view=None))
    second.stop()

    assert found == {0: 7, 1: 7}
    until(lambda: not [line for line in left(network) if "attached" in line])
