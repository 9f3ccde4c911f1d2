"""How ranks read their data while they train in PyTorch: the batch of all, and data that all read alike."""

from __future__ import annotations

import importlib.util

import pytest

from tests.frameworks.torch_curves import PATIENCE

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SAME = "Ranks 0-1 read the same data and repeat each other's work"
BATCH = "Global batch 16 = 2 replicas x 8 samples"
START = """
import os, torch, torch.distributed as dist, jupyter_dtrain
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4))
def step(model, optimizer, loader, accumulate=1, epochs=1):
    for _ in range(epochs):
        for count, (batch,) in enumerate(loader, 1):
            loss = model(batch).square().mean()
            loss.backward()
            if count % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
def ddp():
    model = DistributedDataParallel(nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)
"""


@pytest.fixture(scope="module")
def pair(torch_pair):
    torch_pair.run(START, view=None, timeout=PATIENCE)
    yield torch_pair
    torch_pair.run("dist.is_initialized() and dist.destroy_process_group()", view=None, timeout=PATIENCE)


def said(pair, code):
    """The sentences about the data of a cell."""
    return pair.run(code, view=None, timeout=PATIENCE).reading


@pytest.mark.parametrize(
    "loader",
    [
        "jupyter_dtrain.shard(DataLoader(data, batch_size=8))",
        "jupyter_dtrain.shard(DataLoader(data, batch_size=8, shuffle=True, num_workers=1))",
        "DataLoader(data, batch_size=8, sampler=torch.utils.data.DistributedSampler(data))",
    ],
)
def test_the_batch_of_all_ranks_is_shown_with_the_iterations_of_an_epoch(pair, loader):
    assert said(pair, f"step(*ddp(), {loader})") == [f"{BATCH}; 4 iterations an epoch"]


@pytest.mark.parametrize(
    ("loader", "before_each", "repeats"),
    [
        ("jupyter_dtrain.shard(DataLoader(data, batch_size=8, shuffle=True))", "", True),
        ("DataLoader(data, batch_size=8, sampler=torch.utils.data.DistributedSampler(data))", "", True),
        (
            "DataLoader(data, batch_size=8, sampler=torch.utils.data.DistributedSampler(data))",
            "loader.sampler.set_epoch(epoch)",
            False,
        ),
        ("jupyter_dtrain.shard(DataLoader(data, batch_size=8))", "", False),
    ],
)
def test_epochs_that_a_sampler_shuffles_alike_are_a_warning(pair, loader, before_each, repeats):
    """It is told of an epoch by nobody but the user; without shuffling, the order is the same by intention."""
    code = f"loader = {loader}\nparts = ddp()\nfor epoch in range(3):\n    {before_each}\n    step(*parts, loader)"
    words = said(pair, code)

    assert words[0] == f"{BATCH}; 4 iterations an epoch"
    assert any("Call loader.sampler.set_epoch(epoch)" in one for one in words[1:]) is repeats
    assert len(words) == 1 + repeats


def test_batches_between_two_steps_are_accumulated(pair):
    words = said(pair, "step(*ddp(), jupyter_dtrain.shard(DataLoader(data, batch_size=8)), accumulate=2)")

    assert words == ["Global batch 32 = 2 replicas x 8 samples x 2 accumulated; 4 iterations (2 steps) an epoch"]


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(data, batch_size=8)",
        "DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))",
        "DataLoader(data, batch_size=8, num_workers=1)",
    ],
)
def test_replicas_that_read_the_same_are_warned_of(pair, loader):
    batch, warning = said(pair, f"step(*ddp(), {loader})")

    assert batch == f"{BATCH}; 8 iterations an epoch"
    assert warning.startswith(SAME)


def test_loaders_that_shuffle_with_seeds_of_their_own_are_no_fault(pair):
    generator = "torch.Generator().manual_seed(rank)"
    words = said(pair, f"step(*ddp(), DataLoader(data, batch_size=8, shuffle=True, generator={generator}))")

    assert words == [f"{BATCH}; 8 iterations an epoch"]


@pytest.mark.parametrize("grad", ["torch.no_grad()", "torch.enable_grad()"])
def test_validation_data_that_all_ranks_read_is_no_fault(pair, grad):
    code = f"""
model, optimizer = ddp()
loader = jupyter_dtrain.shard(DataLoader(data, batch_size=8))
validation = DataLoader(data, batch_size=16)
for epoch in range(2):
    with {grad}:
        lost = sum(model(batch).square().mean() for (batch,) in validation)
    step(model, optimizer, loader)
"""
    assert said(pair, code) == [f"{BATCH}; 4 iterations an epoch"]


def test_two_loaders_of_one_step_are_told_apart(pair):
    code = """
model, optimizer = ddp()
labelled, other = jupyter_dtrain.shard(DataLoader(data, batch_size=8)), DataLoader(data, batch_size=2)
for (x,), (y,) in zip(labelled, other):
    (model(x).square().mean() + model(y).mean()).backward()
    optimizer.step()
"""
    batch, _ = said(pair, code)
    assert batch.startswith("Global batch 4 = 2 replicas x 2 samples")


def test_models_that_nobody_averages_are_no_replicas(pair):
    """A search over settings, say: ranks train models of their own, on the same data."""
    words = said(
        pair,
        "model = nn.Linear(4, 1)\nstep(model, torch.optim.SGD(model.parameters()), DataLoader(data, batch_size=8))",
    )

    assert words == ["Batch 8 a rank; 8 iterations an epoch"]


def test_streams_have_no_number_of_iterations(pair):
    code = """
class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(64.0).reshape(16, 4).split(1))
loader = DataLoader(Stream(), batch_size=4, collate_fn=lambda rows: [torch.cat(rows)])
step(*ddp(), loader)
"""
    batch, warning = said(pair, code)
    assert batch == "Global batch 8 = 2 replicas x 4 samples"
    assert warning.startswith(SAME)


def test_sharded_models_have_replicas_too(pair):
    code = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = nn.Linear(4, 1)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
step(model, torch.optim.SGD(model.parameters()), DataLoader(data, batch_size=8))
"""
    batch, warning = said(pair, code)
    assert batch == f"{BATCH}; 8 iterations an epoch"
    assert warning.startswith(SAME)


def test_ranks_that_hold_parts_of_a_model_read_the_same(pair):
    code = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
torch.manual_seed(0)
model = parallelize_module(nn.Linear(4, 2), init_device_mesh("cpu", (2,)), ColwiseParallel())
step(model, torch.optim.SGD(model.parameters()), DataLoader(data, batch_size=8))
"""
    assert said(pair, code) == ["Batch 8 a rank; 8 iterations an epoch"]


def test_a_cell_without_metrics_says_nothing(pair):
    run = pair.run("step(*ddp(), DataLoader(data, batch_size=8))", view=None, timeout=PATIENCE, metrics=False)

    assert run.reading == []
