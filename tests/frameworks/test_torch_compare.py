"""Replicas of PyTorch models are compared over ranks: each planted divergence is named rightly."""

from __future__ import annotations

import time

import pytest

from jupyter_dtrain.view.contents import inventory_rows
from tests.pace import slack
from tests.session.cells import run

SET_UP = """
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
rank = dist.get_rank()
def make():
    global model, opt, sampler, loader
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(net)
    opt = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(48, 8))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    for _ in range(3):
        opt.zero_grad()
        model(torch.ones(4, 8) * torch.arange(4).unsqueeze(1)).square().mean().backward()
        opt.step()
make()
"""


@pytest.fixture(scope="module")
def replicas(launch):
    """Four ranks, each with a replica."""
    session = launch(n=4)
    run(session, SET_UP, timeout=180)
    yield session
    session.stop()


@pytest.fixture
def alike(replicas):
    """The same, with fresh replicas that are alike."""
    run(replicas, "make()")
    assert replicas.diff("model").identical
    return replicas


def marked(session):
    """The variables that ``vars`` marks as different, of a sharded tensor and a dictionary with it."""
    found = session.vars(["spread", "tree"])
    return sorted({row.name for row in inventory_rows(session.world.size, found.ranks) if row.differs})


@pytest.mark.parametrize(
    ("where", "code", "rank", "part", "kind", "by"),
    [
        ("a weight", "model.module[2].weight[0, 3] += 0.5", 2, "2.weight", "parameter", 0.5),
        ("a buffer", "model.module[1].running_var[5] += 0.25", 3, "1.running_var", "broadcast buffer", 0.25),
        ("a gradient", "model.module[0].bias.grad[1] += 0.125", 1, "0.bias.grad", "gradient", 0.125),
        (
            "an optimizer's state",
            "opt.state[model.module[0].weight]['exp_avg'][2, 2] += 1.0",
            1,
            "opt: exp_avg of 0.weight",
            "optimizer state",
            1.0,
        ),
    ],
)
def test_a_planted_divergence_is_named(alike, where, code, rank, part, kind, by):
    """The first part, its kind, the rank, and by how much it differs."""
    run(alike, f"with torch.no_grad(): {code}", rank)

    first = alike.diff("model").first

    assert (first.name, first.kind, first.ranks) == (part, kind, [rank]), where
    (amount,) = first.amounts
    assert (amount.rank, amount.count) == (rank, 1)
    assert amount.largest == pytest.approx(by, rel=1e-4)
    assert amount.norm == pytest.approx(by, rel=1e-4)


def test_another_learning_rate_is_a_difference(alike):
    """Settings of groups are compared, too."""
    run(alike, "opt.param_groups[0]['lr'] = 0.5", 2)
    first = alike.diff("model").first
    assert (first.name, first.kind, first.ranks, first.words[2]) == ("opt: lr", "setting", [2], "0.5")


def test_data_in_another_order_is_found_by_its_states(alike):
    """A sampler's epoch is a step counter; torch's generator is a random state. Both are read only when asked for."""
    run(alike, "sampler.set_epoch(3)", 3)
    run(alike, "torch.manual_seed(5)")
    run(alike, "torch.rand(1)", 1)

    assert alike.diff("model").identical
    found = {one.name: (one.kind, one.ranks) for one in alike.diff("model", states=True).differences}

    assert found["sampler.epoch"] == ("step counter", [3])
    assert found["torch's random state"] == ("random state", [1])


def test_permuted_values_are_not_the_same(alike):
    """Digests know the place of each value; sums of values would not."""
    run(alike, "with torch.no_grad():\n    w = model.module[0].weight\n    w[[0, 1]] = w[[1, 0]].clone()", 2)
    assert alike.diff("model").first.name == "0.weight"
    run(alike, "a = torch.zeros(1 << 17)\na[1 if rank else 70000] = a[5] = -1.0")
    assert alike.diff("a").first.ranks == [0]
    run(alike, "b = torch.ones(8)\nif rank == 1: b[[2, 4]] *= -1")
    assert alike.diff("b").first.ranks == [1]


def test_sharded_tensors_are_compared_by_placement_and_by_piece(replicas):
    """Different shards are no difference; a shard that two ranks share is compared between these two."""
    run(
        replicas,
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
part = torch.arange(8.0)[4 * (rank % 2) : 4 * (rank % 2) + 4].clone()
spread = DTensor.from_local(part, mesh, [Replicate(), Shard(0)], run_check=False)
""",
    )
    assert replicas.diff("spread").identical
    run(replicas, "tree = {'spread': spread, 'whole': torch.ones(2)}")
    assert marked(replicas) == []
    run(replicas, "spread._local_tensor[1] += 2", 3)
    assert marked(replicas) == ["spread", "tree"]
    first = replicas.diff("spread").first
    assert (first.name, first.ranks, first.reference) == ("spread (4,) at (4,)", [3], 1)
    assert first.amounts[0].largest == 2.0
    run(
        replicas,
        "if rank == 0:\n    places = [Shard(0), Shard(0)]\n"
        "    spread = DTensor.from_local(part, mesh, places, run_check=False, shape=(8,), stride=(1,))",
    )
    assert replicas.diff("spread").first.what == "placement"


def test_a_standing_check_marks_the_step_of_the_first_divergence(alike):
    """It waits for no rank, and needs no line in the cell."""
    code = """
for step in range(30):
    opt.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    opt.step()
    if step == 16 and rank == 2:
        with torch.no_grad(): model.module[0].weight[0, 0] += 1e-3
"""
    cell = run(alike, code, check="model", check_every=5)

    found = cell.divergence
    assert (found.name, found.step, found.since, found.part, found.ranks) == ("model", 20, 15, "0.weight", [2])
    assert cell.checked == 4
    assert run(alike, "pass", check="model").divergence is None


def test_a_standing_check_that_cannot_be_says_so_and_lets_the_cell_train(alike):
    """A name that is missing, and a cell without a step."""
    step = "opt.zero_grad(); model(torch.randn(4, 8)).mean().backward(); opt.step()"
    assert "--check nowhere has ended" in run(alike, step, check="nowhere", check_every=1).text(0)
    assert "--check has seen no step" in run(alike, "pass", check="model").text(0)


@pytest.mark.slow
def test_a_model_of_a_gigabyte_is_checked_in_two_seconds(replicas):
    """On four ranks that share two cores; the fastest of three, as other work may take the cores."""
    run(replicas, "torch.manual_seed(1)\nbig = torch.nn.ParameterList([torch.randn(1 << 22) for _ in range(64)])")
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert replicas.diff("big").identical
        took.append(time.monotonic() - began)
    run(replicas, "del big")
    assert min(took) < slack()
