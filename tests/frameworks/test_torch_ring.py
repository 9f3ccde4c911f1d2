"""States of a training in PyTorch that a rank keeps, and the way back to one: the same losses, to the bit."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.steering import LoopAct
from jupyter_dtrain.frameworks.torch.plugin import Torch
from tests.frameworks.acting import acting_rank

MAKE = """
import random, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
data = torch.randn(64, 4)
def make(kind):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    if kind == "fsdp2": fully_shard(model)
    if kind == "ddp": model = DistributedDataParallel(model)
    opt = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, opt, torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)
def train(kind, plant=0, first=1, count=8):
    global trained
    model, opt, sched = trained = make(kind)
    losses = []
    for step in range(count):
        batch = data[step % 4 * 16 :][:16]
        opt.zero_grad()
        loss = (model(batch) - batch[:, :1] + random.random()).square().mean()
        loss.backward()
        losses.append(loss.item())
        if step + 1 == plant:
            with torch.no_grad():
                for one in model.parameters(): one.mul_(float("nan"))
        opt.step()
        sched.step()
    return losses
"""


def rewind(step):
    return LoopAct("rewind", count=step)


@pytest.fixture
def rank(tmp_path):
    with acting_rank(tmp_path, Torch()) as rank:
        rank.run(MAKE)
        yield rank


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp2"])
def test_a_training_goes_on_from_a_kept_state(rank, group, kind):
    """All parameters are NaN at step 5. After the way back to step 4, the batches of steps 5 to 8 come again."""
    rank.run(f"random.seed(1)\ntorch.manual_seed(1)\nright = train('{kind}')")
    rank.said.clear()

    rank.run(
        f"random.seed(1)\ntorch.manual_seed(1)\nfound = train('{kind}', plant=6, count=12)", ring=(3, 2), at_8=rewind(4)
    )

    right, found = rank.shell.user_ns["right"], rank.shell.user_ns["found"]
    assert rank.done[0].text == "The state of step 4 is loaded, and the loop goes on with its own data"
    assert (found[:6], found[6] != found[6]) == (right[:6], True)
    assert found[8:12] == right[4:8]
    assert rank.said[0].startswith("The ring keeps 3 states of ")
    assert rank.said[1:] == ["The ring has stood still since step 4: the state after step 6 is not finite."]


def test_older_states_are_there_and_newer_ones_are_forgotten(rank):
    """After a way back, the state that it led to is the newest."""
    rank.run("train('plain', count=9)", ring=(2, 2), at_7=rewind(4), at_9=rewind(4))

    assert [one.ok for one in rank.done] == [True, True]
    assert {one.text for one in rank.done} == {"The state of step 4 is loaded, and the loop goes on with its own data"}
    assert rank.kept == ["6,4", "8,4"]


def test_a_cell_without_a_ring_says_how_to_have_one(rank):
    rank.run("train('plain')", at_3=rewind(2))

    assert (rank.done[0].ok, rank.done[0].text) == (
        False,
        "this cell keeps no states: --ring 3/100 keeps the last three, one every hundred steps",
    )


def test_a_ring_that_is_too_large_is_none(rank, monkeypatch):
    """The training goes on."""
    monkeypatch.setattr("jupyter_dtrain.rank.ring.SHARE", 1e-12)

    rank.run("found = train('plain')", ring=(3, 2))

    assert len(rank.shell.user_ns["found"]) == 8
    assert len(rank.said) == 1
    assert rank.said[0].startswith("The ring keeps no states in this cell: 3 would take more than half of the ")


def test_a_cells_end_lets_go_of_all_states(rank):
    rank.run("train('plain')", ring=(3, 2))

    assert rank.acts._ring.steps == []
