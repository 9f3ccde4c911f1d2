"""Values of optimizers and of modules that a person sets between two steps of a loop in PyTorch."""

from __future__ import annotations

import pytest

from jupyter_dtrain.frameworks.torch.plugin import Torch
from tests.frameworks.acting import acting_rank
from tests.rank.acting import STOP, UNDO, between, setting

START = """
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.second = nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("count", torch.tensor(3))
    def forward(self, batch): return self.second(self.dropout(self.first(batch))) * self.scale
model = Net()
opt = torch.optim.SGD(
    [{"params": model.first.parameters(), "lr": 0.1}, {"params": model.second.parameters(), "lr": 0.01}], momentum=0.5
)
def steps(count=4, sched=None):
    for _ in range(count):
        opt.zero_grad()
        model(torch.ones(4, 2)).square().mean().backward()
        opt.step()
        if sched is not None: sched.step()
"""


@pytest.fixture
def rank(tmp_path):
    with acting_rank(tmp_path, Torch()) as rank:
        rank.run(START)
        yield rank


def rates(rank, key="lr"):
    return [group[key] for group in rank.shell.user_ns["opt"].param_groups]


def test_a_rate_is_that_of_all_groups_and_an_undo_puts_back_each(rank):
    """A person writes ``opt.lr``, which no optimizer has."""
    rank.run("steps()", at_1=setting("opt.lr=1"), at_2=between("seen = [g['lr'] for g in opt.param_groups]"), at_3=UNDO)

    assert rank.shell.user_ns["seen"] == [1.0, 1.0]
    assert [one.text for one in rank.done] == ["opt.lr: 0.1, 0.01 -> 1.0", "", "opt.lr: 1.0 -> 0.1, 0.01"]
    assert rates(rank) == [0.1, 0.01]


def test_one_group_has_its_own(rank):
    """By its place; any key that a group has can be set."""
    rank.run("steps()", at_2=setting("opt[1].lr=1e-4 opt.momentum=0.9"))

    assert rank.done[0].text == "opt[1].lr: 0.01 -> 0.0001; opt.momentum: 0.5 -> 0.9"
    assert (rates(rank), rates(rank, "momentum")) == ([0.1, 0.0001], [0.9, 0.9])


def test_a_rate_that_is_a_tensor_stays_one(rank):
    """As capturable optimizers have it: whoever holds the tensor sees the new value."""
    rank.run("opt = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))\nheld = opt.param_groups[0]['lr']")

    rank.run("steps()", at_2=setting("opt.lr=0.25"))

    assert rank.done[0].text == "opt.lr: 0.5 -> 0.25"
    assert rank.shell.user_ns["held"].item() == 0.25


def test_values_of_a_module_are_set(rank):
    """A number of a submodule, and a parameter that is one number, in place."""
    rank.run("held = model.scale\nsteps()", at_4=setting("model.dropout.p=0.1 model.scale=0.25"))

    assert rank.done[0].text.startswith("model.dropout.p: 0.5 -> 0.1; model.scale: ")
    assert rank.shell.user_ns["model"].dropout.p == 0.1
    assert rank.shell.user_ns["held"] is rank.shell.user_ns["model"].scale
    assert rank.shell.user_ns["held"].item() == 0.25


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("opt.rate=1", "opt has no rate"),
        ("opt[2].lr=1", "opt has no items"),
        ("opt.lr='slow'", "opt.lr is a number, and 'slow' is not"),
        ("opt.params=1", "opt has no params"),
        ("opt.step=1", "opt.step is a method; set replaces numbers, texts, lists and the like"),
        ("model.first.weight=1", "model.first.weight is of the type Parameter; "),
        ("model.count=1", "model.count is of the type Tensor; "),
    ],
)
def test_what_is_no_value_to_set_is_said(rank, line, why):
    rank.run("steps()", at_2=setting(line))

    assert (rank.done[0].ok, rank.done[0].text[: len(why)]) == (False, why)


@pytest.mark.parametrize(
    ("scheduler", "note"),
    [
        ("LambdaLR(opt, lambda step: 1.0)", "set sched.base_lrs, too, if it is to stay"),
        ("OneCycleLR(opt, 0.1, total_steps=50)", "sched sets opt.lr again at its next step"),
        ("StepLR(opt, 1, 0.5)", "sched goes on from there"),
    ],
)
def test_a_scheduler_that_changes_it_again_is_named(rank, scheduler, note):
    """It is a name of the loop's, here one of the function's."""
    rank.run(f"steps(sched=torch.optim.lr_scheduler.{scheduler})", at_2=setting("opt.lr=0.5"))

    assert rank.done[0].text.endswith(note)
    assert "sched" not in rank.shell.user_ns


def test_code_between_two_steps_sees_the_loops_names(rank):
    """Not those of torch's hooks, nor of a scheduler that wraps the step."""
    code = "steps(sched=torch.optim.lr_scheduler.StepLR(opt, 100))"

    rank.run(code, at_2=between("count = 7\nfor g in opt.param_groups: g['lr'] *= 0.5\nseen = type(sched).__name__"))

    assert rank.done[0].ok, rank.done[0].error
    assert rates(rank) == [0.05, 0.005]
    assert rank.shell.user_ns["seen"] == "StepLR"
    assert "count" not in rank.shell.user_ns


def test_a_loop_that_steps_is_ended(rank):
    """The loop over hooks in torch, which call the rank, is not the training's."""
    rank.run("seen = []\nfor count in range(5):\n    steps(1)\n    seen.append(count)\nbelow = 1\n", at_2=STOP)

    assert rank.done[0].text == "The loop ended as asked, and the cell went on below it"
    assert (rank.shell.user_ns["seen"], rank.shell.user_ns["below"]) == ([0], 1)
