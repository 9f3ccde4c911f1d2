"""The names of what holds the memory of ranks that train with PyTorch."""

from __future__ import annotations

import importlib.util

import pytest

from tests.session.cells import begin, fail, run, same, values
from tests.steward.until import PATIENCE

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

MODEL = """
import torch, weakref
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(100, 100) for _ in range(2))
        self.fc = torch.nn.Linear(100, 1000)
        self.register_buffer("mean", torch.zeros(1500))
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return self.fc(x)
    def __getattr__(self, name):
        if name == "trap": raise SystemExit("user code ran")
        return super().__getattr__(name)
class Marked(torch.Tensor):
    calls = 0
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Marked.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})
model = Net()
opt = torch.optim.Adam(model.parameters())
def step():
    loss = model(torch.ones(8, 100)).sum()
    loss.backward()
    opt.step()
    return loss.item()
step()
def sums():
    return [one.double().sum().item() for one in (model.fc.weight, model.fc.weight.grad)]
marked = torch.ones(25_000).as_subclass(Marked)
Marked.calls = 0
"""


@pytest.fixture(scope="module")
def trained(torch_three):
    """Ranks with a model, its optimizer and gradients."""
    run(torch_three, MODEL)
    yield torch_three
    run(torch_three, "get_ipython().reset(new_session=False)")


def pieces(report, rank=0):
    """What a rank holds, by its first name."""
    return {piece.names[0]: piece for piece in report.ranks[rank].largest}


def test_parts_of_models_and_optimizers_have_their_names_and_roles(trained):
    """No code of the user's tensors and models runs."""
    report = trained.memory(most=100)
    found = pieces(report)
    wanted = {
        "model.layers.1.weight": ("parameter", 40_000),
        "model.fc.weight": ("parameter", 400_000),
        "model.fc.weight.grad": ("gradient", 400_000),
        "opt.state[model.fc.weight].exp_avg": ("optimizer state", 400_000),
        "opt.state[model.layers.0.bias].exp_avg_sq": ("optimizer state", 400),
        "model.mean": ("buffer", 6000),
        "marked": ("value", 100_000),
    }

    assert {name: (found[name].kind, found[name].size) for name in wanted} == wanted
    mine = report.ranks[0]
    assert mine.kinds["parameter"] == mine.kinds["gradient"] == 4 * (2 * 100 * 101 + 101 * 1000)
    assert mine.kinds["optimizer state"] >= 2 * mine.kinds["parameter"]
    assert f"{mine.kinds['parameter'] / 1000:.1f} kB of parameters" in str(report)
    (row,) = [line for line in str(report).splitlines() if " model.fc.weight " in line]
    assert row.split()[-1] == "all"
    assert values(run(trained, "Marked.calls")) == same(0)


def test_views_count_once_with_arrays_that_share_their_memory(trained):
    """The row has the size of the storage."""
    run(trained, "whole = torch.ones(50_000)\nview = whole[:10]\nshared = whole.numpy()")
    found = trained.memory(most=100)
    run(trained, "del whole, view, shared")
    mine = pieces(found)["whole"]

    assert (mine.names, mine.size) == (["whole", "view", "shared"], 200_000)


def test_a_result_says_that_it_keeps_its_graph(trained):
    """Its activations have no name."""
    run(trained, "losses = [model(torch.ones(4, 100))]")
    found = trained.memory(most=100)
    run(trained, "del losses")

    assert pieces(found)["losses[0]"].graph
    assert "loss.item()" in str(found)
    assert not pieces(found)["model.fc.weight"].graph
    assert not any(name.startswith("losses") for name in pieces(trained.memory(most=100)))


def test_a_tensor_of_an_old_output_and_one_of_a_traceback_are_let_go_of(trained):
    """Weights, gradients and the optimizer's state stay."""
    trained.free()
    run(trained, "seen = []\ndef note(tensor):\n    seen.append(weakref.ref(tensor))\n    return tensor")
    run(trained, "note(torch.ones(60_000))")
    fail(trained, "def bad():\n    lost = note(torch.ones(70_000))\n    1 / 0\nbad()")
    before = values(run(trained, "print()\nsums()"))
    found = trained.memory(most=100)
    freed = trained.free()

    marked = {name for name, piece in pieces(found).items() if piece.old}
    assert "the last error: bad().lost" in marked
    assert len([name for name in marked if name.startswith("Out[")]) == 1
    assert all(one.error and one.outputs >= 1 for one in freed.ranks.values())
    again = "[ref() is None for ref in seen], sums()"
    assert values(run(trained, again)) == {rank: ([True, True], kept) for rank, kept in before.items()}
    assert not any(piece.old for piece in trained.memory(most=100).ranks[0].largest)


def test_gradients_are_left_alone_while_a_thread_of_a_cell_trains(trained):
    """Between cells, too: a look at them could crash the rank."""
    run(
        trained,
        "import threading\nended = threading.Event()\ndef on():\n    while not ended.is_set(): step()\n"
        "thread = threading.Thread(target=on)\nthread.start()",
    )
    beside = trained.memory(most=100)
    run(trained, "ended.set()\nthread.join()")

    assert "gradient" not in beside.ranks[0].kinds
    assert "Gradients are left out" in str(beside)
    assert "gradient" in trained.memory(most=100).ranks[0].kinds


def test_a_step_that_runs_keeps_its_tensors_no_longer_than_without_a_look(trained, meeting):
    """The variables of its functions have names; weights do, too; gradients are left out."""
    going = begin(
        trained,
        f"""
import pathlib
def train():
    steps = alive = 0
    while not pathlib.Path({str(meeting / "go")!r}).exists():
        batch = torch.ones(80_000)
        ref = weakref.ref(batch)
        step()
        del batch
        alive += ref() is not None
        steps += 1
        batch = torch.ones(80_000)
    del batch
    return steps, ref() is None
train()""",
    )
    found = [trained.memory(most=100) for _ in range(3)]
    (meeting / "go").touch()
    assert going.wait(PATIENCE)

    names = [{name for piece in report.ranks[0].largest for name in piece.names} for report in found]
    assert all("model.fc.weight" in one for one in names)
    assert any("train().batch" in one for one in names)  # a look may fall between two batches
    assert all("gradient" not in report.ranks[0].kinds for report in found)
    assert all(steps > 0 and gone for steps, gone in values(going).values())


TRAIN = """
import time
for step in range(3):
    large = torch.randn(3_000_000, 10)
    loss = (large.requires_grad_() * 2).pow(2).sum()
    loss.backward()
    del large, loss
    time.sleep(0.2)
"""


def test_the_memory_of_a_training_cell_is_recorded_with_what_names_held(trained):
    """The line of the peak; parameters and optimizer state, but no gradients, which the cell may replace."""
    cell = run(trained, TRAIN, record_memory=True)
    shown = trained.memory_record(run=cell.number)

    for found in shown.ranks.values():
        (course,) = found.courses
        assert course.peak - course.begin > 200_000_000  # the tensor and its gradient, at least
        lines = {one.source for one in (course.place.before, course.place.line) if one is not None}
        assert lines & {"loss.backward()", "loss = (large.requires_grad_() * 2).pow(2).sum()"}
        kinds = set().union(*(seen.host for seen in found.kinds))
        assert {"parameter", "optimizer state", "buffer"} <= kinds
        assert "gradient" not in kinds
        assert not found.cut
    assert "of parameters" not in str(shown).splitlines()[0]
    assert "parameters" in shown._repr_mimebundle_()["text/html"]
