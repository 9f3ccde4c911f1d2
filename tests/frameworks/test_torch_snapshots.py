"""Snapshots of PyTorch's models and optimizers: loaded into worlds of other sizes, saved beside training."""

from __future__ import annotations

import ast
import contextlib

import pytest

from jupyter_dtrain import DistributedError
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.snapshots import newest, read_manifest
from tests.session.cells import run, same, values
from tests.steward.until import until

MODEL = """
import torch
def build():
    global model, opt
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    wrap()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.linspace(-1, 1, 64).reshape(8, 8)
def step():
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    return loss.item()
"""
SHARDED = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group()
def wrap():
    for layer in model: fully_shard(layer)
    fully_shard(model)
"""
WHOLE = "def wrap(): pass\n"
TRAIN_25 = """
def held():
    return [p.to_local().sum().item() for p in model.parameters()]
sums = {}
for done in range(1, 26):
    step()
    sums[done] = held()
"""
FOUND = "[done for done, kept in sums.items() if kept == held()]"
"""After how many steps the parameters were as they are now."""


def newest_step(folder, name):
    """The step of the newest whole snapshot; None while there is none, since ranks write beside the cell."""
    with contextlib.suppress(BadRequest):
        return read_manifest(newest(folder, name)).step
    return None


def losses(session):
    """The losses of three more steps, on rank 0."""
    return ast.literal_eval(run(session, "[step() for _ in range(3)]").results[0].data["text/plain"])


@pytest.fixture(scope="module")
def sharded(torch_pair, snapshot_folder):
    """Two ranks with a sharded model that has trained a little."""
    run(torch_pair, MODEL + SHARDED + "build()\nfor _ in range(5): step()", timeout=180)
    yield torch_pair
    run(torch_pair, "dist.is_initialized() and dist.destroy_process_group()")


@pytest.mark.slow
@pytest.mark.here("the snapshots' folder must be shared")
def test_a_sharded_model_of_four_ranks_goes_on_with_two_and_with_one(launch, snapshot_folder):
    """With the same losses, and in a model that is not sharded at all."""
    with launch(n=4) as four:
        run(four, MODEL + SHARDED + "build()\nfor _ in range(5): step()", timeout=180)
        four.save("whole", ["model", "opt"])
        wanted = losses(four)
        run(four, "build()")
        four.load("whole")
        assert losses(four) == pytest.approx(wanted, abs=1e-6)
    for size, wrapped in ((2, SHARDED), (1, WHOLE)):
        with launch(n=size) as fewer:
            run(fewer, MODEL + wrapped + "build()", timeout=180)
            assert fewer.load("whole").notes == []
            assert losses(fewer) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.here("the snapshots' folder must be shared")
def test_another_model_is_refused_with_the_keys_that_differ(sharded):
    """Other names, and other shapes; nothing is changed."""
    run(sharded, "build()")
    sharded.save("kept", ["model", "opt"])
    run(sharded, "other, model = model, torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.ReLU())")
    with pytest.raises(DistributedError) as caught:
        sharded.load("kept", ["model"])
    words = caught.value.run.errors[0].evalue
    assert "only in the snapshot: model.2.bias, model.2.weight" in words
    assert "model.0.weight is (3, 8) here and (16, 8) in the snapshot" in words
    run(sharded, "build()")


@pytest.mark.here("the snapshots' folder must be shared")
def test_snapshots_are_saved_between_steps_of_a_cell(sharded, snapshot_folder):
    """By steps and by time; the cell trains on meanwhile."""
    run(sharded, "build()")
    sharded.save("steps", ["model", "opt"], every=10)
    run(sharded, TRAIN_25)
    # A save that is due while another one is written is left out, so on a fast machine step 20 may not be there.
    until(lambda: newest_step(snapshot_folder, "steps") is not None)
    assert sharded.stop_saving("steps") == ["steps"]
    run(sharded, "build()")
    sharded.load("steps")
    ((saved,),) = {tuple(found) for found in values(run(sharded, FOUND)).values()}
    assert saved in (10, 20)
    assert values(run(sharded, f"for _ in range({25 - saved}): step()\nheld() == sums[25]")) == same(True, 2)
    sharded.save("times", ["model"], every="0.2s")
    run(sharded, "import time\nfor _ in range(30): step(); time.sleep(0.05)")
    until(lambda: newest_step(snapshot_folder, "times") is not None)
    sharded.stop_saving()


@pytest.mark.slow
@pytest.mark.here("the snapshots' folder must be shared")
def test_replicas_are_saved_once(launch, snapshot_folder):
    """The files of DDP's model are not larger for more ranks, and any optimizer of it has its names."""
    with launch(n=2) as pair:
        ddp = (
            "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"
            "dist.init_process_group()\ndef wrap():\n    global model\n    model = DistributedDataParallel(model)\n"
        )
        run(pair, MODEL + ddp + "build()\nfor _ in range(3): step()", timeout=180)
        pair.save("replicas", ["model", "opt"])
        wanted = losses(pair)
        run(pair, "build()")
        pair.load("replicas")
        assert losses(pair) == pytest.approx(wanted, abs=1e-6)
    held = read_manifest(newest(snapshot_folder, "replicas")).held
    assert held == {"model": "torch", "opt": "torch"}
