"""States of a training in PyTorch that a rank keeps, and the way back to one: the same losses, to the bit."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.steering import LoopAct
from jupyter_dtrain.frameworks.torch.plugin import Torch
from jupyter_dtrain.rank.plugins import Plugins
from tests.frameworks.acting import acting_rank
from tests.rank.acting import between

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


HIDDEN = """
class Trainer:
    def begin(self, kind):
        model, opt, sched = make("plain")
        if kind == "attributes": self.model, self.opt, self.sched = model, opt, sched
        return (lambda x: model(x)), [model, opt, sched], kind
    def go_on(self, called, held, kind):
        losses = []
        for step in range(12 if kind != "right" else 8):
            batch = data[step % 4 * 16 :][:16]
            held[1].zero_grad()
            loss = (called(batch) - batch[:, :1]).square().mean()
            loss.backward()
            losses.append(loss.item())
            held[1].step()
            if kind != "optimizer": held[2].step()
        return losses
def fit(kind):
    torch.manual_seed(1)
    return (lambda self: self.go_on(*self.begin(kind)))(Trainer())
"""


@pytest.mark.parametrize(
    ("kind", "names"), [("attributes", "self.model, self.opt, self.sched"), ("optimizer", "the optimizer")]
)
def test_what_a_trainer_holds_is_found(rank, kind, names):
    """Its attributes, and at least the optimizer that steps."""
    rank.run(HIDDEN)

    rank.run(f"fit('{kind}')", ring=(3, 2), at_8=rewind(4))

    assert rank.done[0].ok
    assert rank.said[0].startswith(f"The ring keeps 3 states of {names}: ")


def test_a_trainers_state_is_loaded(rank):
    rank.run(HIDDEN)
    rank.run("right = fit('right')")

    rank.run("found = fit('attributes')", ring=(3, 2), at_8=rewind(4))

    assert rank.shell.user_ns["found"][8:] == rank.shell.user_ns["right"][4:]


def test_a_ring_that_keeps_nothing_says_so(rank):
    """Where no optimizer steps, where it makes too few steps, and where nothing is to be found."""
    rank.run("1", ring=(3, 2))
    rank.run("train('plain', count=3)", ring=(3, 4))
    rank.acts._ring._plugins = Plugins([])
    rank.run("train('plain')", ring=(3, 2))

    assert rank.said[:2] == [
        "--ring has seen no step of an optimizer in this cell, and has kept no state.",
        "--ring has kept no state: the optimizer has made 3 steps, fewer than 4.",
    ]
    [said] = rank.said[2:]
    assert said.startswith("The ring has nothing to keep after step 2: it finds no model and no optimizer in ")


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


BY_HAND = """
import torch
from torch import nn
class ByHand(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {"lr": 0.05})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["m"] = 0.9 * state.get("m", torch.zeros_like(p)) + p.grad
                state["last"] = [*state.get("last", []), p.grad][-2:]
                p.data = p.data - group["lr"] * sum(state["last"]) - 0.01 * state["m"]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.register_buffer("ema", torch.zeros(1))
        self.register_buffer("late", None)
    def forward(self, x):
        found = self.inner(x)
        self.ema = 0.9 * self.ema + 0.1 * found.mean().detach()
        self.late = self.ema * 2
        return found + self.ema
torch.manual_seed(0)
data = torch.randn(64, 4)
def train(kind, count):
    torch.manual_seed(1)
    model = Model()
    if kind == "lbfgs": opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    else: opt = ByHand(model.parameters())
    losses = []
    for step in range(count):
        batch = data[step % 4 * 16 :][:16]
        def closure():
            opt.zero_grad()
            loss = (model(batch) - batch[:, :1]).square().mean()
            loss.backward()
            return loss
        if kind == "lbfgs": losses.append(opt.step(closure).item())
        else:
            losses.append(closure().item())
            if kind == "replaced": model.inner.weight = nn.Parameter(model.inner.weight.detach().clone())
            if kind == "replaced": opt.param_groups[0]["params"][0] = model.inner.weight; closure()
            opt.step()
    return losses
"""


@pytest.mark.parametrize("kind", ["by hand", "replaced", "lbfgs"])
def test_tensors_that_code_replaces_are_those_that_are_put_back(rank, kind):
    """An optimizer that makes new tensors at each step, a buffer that is a new one, and a parameter."""
    rank.run(BY_HAND)
    rank.run(f"right = train('{kind}', 8)\nfound = train('{kind}', 12)")
    assert rank.shell.user_ns["found"][8:] != rank.shell.user_ns["right"][4:]

    rank.run(f"found = train('{kind}', 12)", ring=(3, 2), at_8=rewind(4))

    assert rank.done[0].ok, rank.done[0]
    assert rank.shell.user_ns["found"][8:12] == rank.shell.user_ns["right"][4:8]


@pytest.mark.parametrize("kind", ["plain", "fsdp2"])
def test_an_optimizers_state_that_is_gone_is_made_anew(rank, group, kind):
    """As it was, on the same device and in the same parts."""
    rank.shell.user_ns["ring"] = rank.acts._ring
    seed = "random.seed(1)\ntorch.manual_seed(1)\n"
    rank.run(f"{seed}right = train('{kind}')")

    rank.run(f"{seed}found = train('{kind}', count=12)", ring=(3, 2), at_8=between("opt.state.clear()\nring.rewind(4)"))

    assert rank.done[0].ok, rank.done[0]
    assert rank.shell.user_ns["found"][8:12] == rank.shell.user_ns["right"][4:8]


def test_a_state_keeps_no_tensor_of_the_training(rank):
    """On a GPU, each state would take as much of its memory again, and no size would say so."""
    code = (
        "import weakref\np = torch.nn.Parameter(torch.ones(3))\nopt, old = ByHand([p]), []\n"
        "for step in range(6):\n    p.grad = torch.ones(3)\n    opt.step()\n"
        "    old += [weakref.ref(one.untyped_storage()) for one in (p, opt.state[p]['m'])]\n"
        "alive = [one() is not None for one in old]\n"
    )
    rank.run(BY_HAND)

    rank.run(code, ring=(3, 1))

    assert rank.shell.user_ns["alive"] == [False] * 10 + [True] * 2
