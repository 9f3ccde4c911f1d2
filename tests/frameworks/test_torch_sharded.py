"""Sharded models that go on after a cell failed or was stopped in the middle of a step, in the same objects."""

from __future__ import annotations

import importlib.util

import pytest

from tests.session.cells import begin, fail, run, same, texts, until, values

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

DEFINE = """
import os, time, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
trip = ""

def fall(where):
    if trip == f"stall in {where}":
        print("here", flush=True)
        time.sleep(60)
    if trip == where and rank == 1:
        raise ValueError(f"a bug in {where}")

class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        fall("forward")
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        fall("backward")
        return grad

class Trap(torch.nn.Module):
    def forward(self, x):
        return Pass.apply(x)

def plain():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), Trap(), torch.nn.ReLU(), torch.nn.Linear(8, 4))

def sharded(model, **options):
    for one in (model[0], model[3], model):
        fully_shard(one, **options)
    return model

def in_parts(mesh):
    return parallelize_module(plain(), mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})

def stage(mesh):
    part = plain()[:1] if mesh.get_local_rank("stage") == 0 else plain()[1:]
    replica = DistributedDataParallel(part, process_group=mesh.get_group("data"))
    one = PipelineStage(replica, mesh.get_local_rank("stage"), 2, torch.device("cpu"), group=mesh.get_group("stage"))
    return Schedule1F1B(one, 4, loss_fn=lambda y, _: y.square().mean())

def two(*names):
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=names)

MAKE = {
    "fsdp": lambda: sharded(plain()),
    "hybrid": lambda: sharded(plain(), mesh=two("replicate", "shard")),
    "tensor": lambda: in_parts(init_device_mesh("cpu", (size,))),
    "fsdp over tensor": lambda: sharded(in_parts((mesh := two("data", "tensor"))["tensor"]), mesh=mesh["data"]),
    "pipeline": lambda: stage(two("data", "stage")),
}

class Training:
    def __init__(self, kind):
        globals()['trip'] = ''
        self.kind, self.model = kind, MAKE[kind]()
        self.module = self.model._stage.submod if kind == "pipeline" else self.model
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.1)
        self.done = 0

    def loss(self, x):
        if self.kind != "pipeline":
            loss = self.model(x).square().mean()
            loss.backward()
            return loss.item()
        losses = []
        self.model.step(*([x] if self.model._stage.is_first else []), target=x, losses=losses)
        return sum(map(float, losses))

    def train(self, steps):
        found = []
        for _ in range(steps):
            torch.manual_seed(self.done)
            found.append(self.loss(torch.randn(8, 6).requires_grad_()))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.done += 1
        return found

def close(found, wanted):
    return len(found) == len(wanted) and all(abs(a - b) < 1e-5 for a, b in zip(found, wanted, strict=True))
"""
KINDS = [
    "fsdp over tensor",
    "pipeline",
    *(pytest.param(one, marks=pytest.mark.slow) for one in ("fsdp", "hybrid", "tensor")),
]


@pytest.fixture(scope="module")
def four(launch, soon):
    """Four ranks with a process group."""
    session = launch(n=4, settings=soon)
    run(session, DEFINE + "dist.init_process_group()")
    yield session
    session.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_step_is_repeated(four, kind):
    """One rank raises in forward, then one in backward; the losses are those of a training without a failure."""
    run(four, f"wanted = Training({kind!r}).train(6)\none = Training({kind!r})\nfound = one.train(2)")
    for where in ("forward", "backward"):
        failed = fail(four, f"trip = {where!r}\none.train(2)")
        assert failed.errors[1].ename in ("ValueError", "RuntimeError")  # a pipeline's own
        assert any(failed.errors[rank].waited for rank in (0, 2, 3))
        run(four, "trip = ''\nfound += one.train(2)")
    assert values(run(four, "one.done, close(found, wanted)")) == same((6, True), 4)


def test_a_step_that_was_stopped_is_repeated(four):
    """Stop, while rank 1 computes in forward and the others wait for its shards."""
    run(four, "wanted = Training('fsdp').train(4)\none = Training('fsdp')\nfound = one.train(2)")
    waiting = begin(four, "trip = 'stall in forward' if rank == 1 else ''\none.train(2)")
    until(lambda: "here" in waiting.text(1))
    four.interrupt()
    assert waiting.wait(60)
    assert waiting.outcome == "interrupted"
    assert values(run(four, "trip = ''\nfound += one.train(2)\nclose(found, wanted)")) == same(True, 4)


@pytest.mark.slow
def test_an_error_in_forward_on_all_ranks_at_once(four):
    """No rank waits, so no group is made again; but the models must leave the step in which they are."""
    run(four, "wanted = Training('fsdp').train(4)\none = Training('fsdp')\nfound = one.train(2)")
    fail(four, "one.model(torch.ones(8, 6) @ torch.ones(6, 3))")
    fail(four, "Pass.backward = staticmethod(lambda ctx, grad: grad[:, :1])\none.train(2)")
    run(four, "Pass.backward = staticmethod(lambda ctx, grad: grad)")
    assert values(run(four, "found += one.train(2)\nclose(found, wanted)")) == same(True, 4)


@pytest.mark.slow
def test_a_snapshot_of_a_model_that_has_recovered(four, tmp_path):
    """It is saved and loaded as before."""
    run(four, "one = Training('fsdp over tensor')\nmodel, optimizer = one.model, one.optimizer\none.train(2)")
    fail(four, "trip = 'forward'\none.train(1)")
    run(four, "trip = ''")
    four.save("recovered", ["model", "optimizer"], to=tmp_path)
    run(four, "wanted = one.train(2)")
    four.load(str(tmp_path / "recovered"))
    assert values(run(four, "one.done = 2\nclose(one.train(2), wanted)")) == same(True, 4)


@pytest.mark.slow
def test_a_mesh_that_a_rank_lacks_is_named(four):
    """The others cannot make its groups again without it."""
    run(four, "mesh = two('a', 'b')")
    run(four, "del mesh", 1)
    fail(four, "if rank == 1: raise ValueError\ndist.barrier()")
    found = run(four, "total = torch.ones(1)\ndist.all_reduce(total)\ntotal.item()")
    assert values(found) == same(4.0, 4)
    said = texts(found)
    assert said[0] == said[2] == said[3]
    assert "mesh: made with a DeviceMesh or group of the old process group, and cannot go on (not all ranks" in said[0]
    assert said[1] == ""
    run(four, "mesh = None")
