"""The ways of PyTorch to train in parallel, beside DDP: in cells, and when a rank fails in the middle of one."""

from __future__ import annotations

import importlib.util

import psutil
import pytest

from tests.session.cells import begin, fail, pids, run, same, texts, until, values

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

DEFINE = """
import os, time, torch
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def plain():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 5))
    return losses
"""
FAIL = "if rank == 1: raise ValueError('a bug')\n"
SUM = "total = torch.ones(1); dist.all_reduce(total); total.item()"
FSDP = "model = FullyShardedDataParallel(plain(), device_id=torch.device('cpu'))\n"
TENSORS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def in_parts(mesh):
    return parallelize_module(plain(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
"""


@pytest.fixture(scope="module")
def pair(torch_pair):
    """Two ranks with a process group."""
    run(torch_pair, DEFINE + "dist.init_process_group()")
    yield torch_pair
    run(torch_pair, "dist.is_initialized() and dist.destroy_process_group()")


@pytest.mark.slow
def test_a_group_to_which_a_rank_does_not_come(pair):
    """gloo would wait for it where nothing ends it; the rank is named, and the next group works."""
    failed = fail(pair, FAIL + "dist.new_group([0, 1])")
    assert (failed.errors[0].waited, failed.errors[0].evalue) == ("new_group", "new_group: rank 1 did not arrive.")
    again = "group = dist.new_group([0, 1]); total = torch.ones(1); dist.all_reduce(total, group=group); total.item()"
    assert values(run(pair, again)) == same(2.0, 2)


def test_groups_are_made_and_left_again_and_again(pair):
    """Groups of all ranks and of some, in the same order everywhere, also while the default group is made anew."""
    code = """
found = []
for _ in range(3):
    dist.destroy_process_group()
    dist.init_process_group()
    both, one = dist.new_group([0, 1]), dist.new_group([1])
    subgroup, _ = dist.new_subgroups_by_enumeration([[0, 1]])
    total = torch.ones(1)
    dist.all_reduce(total, group=both)
    dist.all_reduce(total, group=subgroup)
    if rank == 1:
        dist.all_reduce(total, group=one)
    found.append(total.item())
found
"""
    assert values(run(pair, code)) == same([4.0] * 3, 2)


@pytest.mark.slow
def test_an_address_of_this_host(pair):
    """``tcp://``, where a rank keeps the store in a script without torchrun: again and again at one port."""
    code = """
found = []
for _ in range(2):
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="tcp://localhost:29500", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    found.append(total.item())
found
"""
    assert values(run(pair, code)) == same([2.0, 2.0], 2)
    failed = fail(
        pair, "dist.destroy_process_group()\n" + FAIL + code.replace("    dist.destroy_process_group()\n", "")
    )
    assert failed.errors[0].evalue == "init_process_group: rank 1 did not arrive."
    run(pair, "dist.init_process_group()")


def test_a_failure_within_tensor_parallel_layers(pair):
    """Their collectives are operators, and ranks that wait in one are seen, too; the layers go on."""
    run(pair, TENSORS + "model = in_parts(init_device_mesh('cpu', (2,)))")
    assert values(run(pair, "train(model) == train(plain())")) == same(True, 2)
    failed = fail(pair, FAIL + "model(torch.ones(2, 6)).sum().backward()")
    assert (failed.errors[0].waited, failed.errors[1].ename) == ("wait_tensor", "ValueError")
    run(pair, "model.load_state_dict(in_parts(init_device_mesh('cpu', (2,))).state_dict())")
    assert values(run(pair, "train(model) == train(plain())")) == same(True, 2)
    run(pair, "del model")


def test_a_failure_within_fsdp(pair):
    """The first kind of it. It cannot go on, and the error says so with its name; a new one can."""
    run(pair, f"from torch.distributed.fsdp import FullyShardedDataParallel\n{FSDP}")
    assert values(run(pair, "train(model) == train(plain())")) == same(True, 2)
    failed = fail(pair, FAIL + "train(model)")
    assert failed.errors[0].waited == "forward"
    note = texts(run(pair, SUM))[1]
    assert "model: this FullyShardedDataParallel belongs to the old process group" in note
    assert "Make the model again and wrap it in FullyShardedDataParallel again" in note
    assert values(run(pair, FSDP + "train(model) == train(plain())")) == same(True, 2)
    run(pair, "del model")


MADE = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
sharded = fully_shard(plain())
spread = distribute_tensor(torch.ones(8, 8), init_device_mesh("cpu", (2,)), [Shard(0)])
train(sharded)
"""


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("sharded(torch.ones(2, 6))", "forward"),
        ("spread.full_tensor()", "full_tensor"),
        pytest.param("spread.sum() + 1", "add", marks=pytest.mark.slow),
        pytest.param(
            "torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)", "clip_grad_norm_", marks=pytest.mark.slow
        ),
    ],
)
def test_waits_deep_in_torch_are_released_and_called_as_the_user_calls_them(pair, call, name):
    """FSDP2 gathers in hooks behind wrappers; DTensor's collectives are operators."""
    run(pair, MADE + ("\nsharded(torch.ones(2, 6)).sum().backward()" if "grad" in call else ""))
    failed = fail(pair, FAIL + call)

    assert failed.elapsed < 20
    assert failed.errors[0].waited == name
    run(pair, "del sharded, spread")


LOADER = """
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __init__(self, pause=0.0): self.pause = pause
    def __len__(self): return 8
    def __getitem__(self, index):
        time.sleep(self.pause)
        if index == 5: print("five", flush=True)
        return torch.tensor(float(index))
class Broken(Numbers):
    def __getitem__(self, index):
        if index == 3 and rank == 1: raise KeyError("no such sample")
        return super().__getitem__(index)
def total(data):
    return sum(batch.sum().item() for batch in DataLoader(data, batch_size=2, num_workers=2))
"""


@pytest.mark.slow
def test_workers_of_a_data_loader(pair):
    """They load a class that a cell defines. Their text is the rank's, and an error in one is the cell's."""
    summed = run(pair, LOADER + "total(Numbers())")
    assert values(summed) == same(28.0, 2)
    assert texts(summed) == same("five\n", 2)
    failed = fail(pair, "for batch in DataLoader(Broken(), batch_size=2, num_workers=2): dist.barrier()")
    assert failed.errors[1].ename == "KeyError"
    assert "no such sample" in failed.errors[1].evalue
    assert failed.errors[0].waited == "barrier"
    assert values(run(pair, SUM)) == same(2.0, 2)


@pytest.mark.slow
def test_workers_of_a_loop_that_is_interrupted(pair):
    """They end when Python lets go of their loader, which the traceback of an error holds."""
    run(pair, LOADER + "import gc; gc.collect()")
    before = {rank: set(psutil.Process(pid).children()) for rank, pid in pids(pair).items()}
    waiting = begin(pair, "total(Numbers(pause=1))")
    until(lambda: all(len(set(psutil.Process(pid).children()) - before[rank]) == 2 for rank, pid in pids(pair).items()))
    pair.interrupt()
    assert waiting.wait(20)
    assert waiting.outcome == "interrupted"
    fail(pair, "1 / 0")
    run(pair, "gc.collect()")
    until(lambda: all(set(psutil.Process(pid).children()) <= before[rank] for rank, pid in pids(pair).items()))
    assert values(run(pair, SUM)) == same(2.0, 2)
