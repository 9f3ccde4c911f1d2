"""Pipelines in the ranks: each step is one loss, as of one process, and what the stages did is known."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from types import SimpleNamespace

import pytest

from jupyter_dtrain.core.events import PipelineStep, decode
from jupyter_dtrain.frameworks.torch.pipelines import TorchPipelines

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

PATIENCE = 60
RANKS, MICROBATCHES, STEPS = 2, 4, 3
ONE_STAGE = ["GPipe", "1F1B"]
HALVES = ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
V_SHAPED = ["ZBVZeroBubble", "DualPipeV"]
ALL = [*ONE_STAGE, "Interleaved1F1B", "LoopedBFS", *HALVES]


def a_schedule(name):
    """A parameter; one that fails under torchrun as well, by PyTorch's own fault, is skipped."""
    if importlib.util.find_spec("torch") is None or name not in V_SHAPED:
        return name
    numbers = importlib.metadata.version("torch").split(".")[:2]
    old = [int(one) for one in numbers] < [2, 12]
    reason = "needs PyTorch 2.12: older ones let a rank send to itself over gloo, which fails"
    return pytest.param(name, marks=pytest.mark.skipif(old, reason=reason))


START = f"""
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(99)
features, targets = torch.randn(8, 6), torch.randn(8, 6)
def layers(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]
def prepare(name, loss=nn.functional.mse_loss, **options):
    kind = get_schedule_class(name)
    single = issubclass(kind, PipelineScheduleSingle)
    count = {RANKS} if single else 2 * {RANKS}
    mine = [rank] if single else [rank, count - 1 - rank if name in {V_SHAPED} else rank + {RANKS}]
    parts = layers(count)
    stages = [PipelineStage(parts[index], index, count, torch.device("cpu")) for index in mine]
    schedule = kind(stages[0] if single else stages, {MICROBATCHES}, loss_fn=loss, **options)
    optimizer = torch.optim.SGD([weight for index in mine for weight in parts[index].parameters()], lr=0.5)
    given = dict(target=targets) if count - 1 in mine else {{}}
    return schedule, optimizer, [features] if 0 in mine else [], given, layers(count)
def train(name, steps={STEPS}, **options):
    schedule, optimizer, inputs, given, whole = prepare(name, **options)
    for _ in range(steps):
        schedule.step(*inputs, **given)
        optimizer.step()
        optimizer.zero_grad()
    # The same in one process, without anything that is listened to.
    weights = [weight for part in whole for weight in part.parameters()]
    expected = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(nn.Sequential(*whole)(features), targets)
        expected.append(loss.item())
        with torch.no_grad():
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights)):
                weight -= 0.5 * gradient
    return expected
"""


@pytest.fixture(scope="module")
def pair(torch_pair):
    """A world of two ranks in which pipelines can be made."""
    torch_pair.run(START, view=None, timeout=PATIENCE)
    return torch_pair


def losses(run):
    """(step, value) of each loss, by rank."""
    return {rank: list(zip(part.steps, part.values, strict=True)) for rank, part in run.metrics.get("loss", {}).items()}


def last(run, rank=0):
    """The value of the last line on a rank."""
    return ast.literal_eval(run.results[rank].data["text/plain"])


@pytest.mark.parametrize("name", [a_schedule(name) for name in ALL])
def test_each_step_is_one_loss_and_is_drawn(pair, name):
    """The loss of one process; every stage's forwards and backwards, in an order that can be; the bubble of theory."""
    run = pair.run(f"train({name!r})", view=None, timeout=PATIENCE)
    (timeline,) = run.pipelines

    expected = [(step, pytest.approx(loss, abs=1e-6)) for step, loss in enumerate(last(run))]
    assert losses(run) == {0 if name in V_SHAPED else 1: expected}

    stages = RANKS if name in ONE_STAGE else 2 * RANKS
    assert (timeline.schedule, timeline.stages, timeline.microbatches) == (name, stages, MICROBATCHES)
    assert timeline.step == STEPS - 1
    assert 0 <= timeline.bubble < 1
    ideal = MICROBATCHES * (stages // RANKS) * (3 if name in HALVES else 1)
    assert timeline.theory == pytest.approx((RANKS - 1) / (ideal + RANKS - 1))
    done = {
        (action.kind, action.stage, action.microbatch): (action.start, action.start + action.seconds)
        for lane in timeline.lanes.values()
        for action in lane
    }
    for stage in range(stages):
        for number in range(MICROBATCHES):
            began, ended = done["F", stage, number]
            if stage:
                assert done["F", stage - 1, number][1] <= began
            backward = done.get(("B", stage, number)) or done["I", stage, number]
            assert ended <= backward[0]
            if ("I", stage, number) in done:
                assert backward[1] <= done["W", stage, number][0]
    assert any(kind == "R" for kind, _, _ in done)
    assert any(kind == "S" for kind, _, _ in done)
    assert ("I" in {kind for kind, _, _ in done}) == (name in HALVES)


def test_gradients_that_are_not_divided_are_those_of_the_sum(pair):
    """``scale_grads=False``: the loss of each micro-batch is its part of the whole."""
    part = "lambda output, target: nn.functional.mse_loss(output, target) / 4"
    run = pair.run(f"train('1F1B', loss={part}, scale_grads=False)", view=None, timeout=PATIENCE)
    assert [value for _, value in losses(run)[1]] == pytest.approx(last(run), abs=1e-6)


def test_steps_are_accumulated_and_evaluations_are_no_losses(pair):
    """Two steps of the schedule before the optimizer's; an evaluation between."""
    code = (
        "schedule, optimizer, inputs, given, _ = prepare('1F1B')\n"
        "kept, noted = [], []\n"
        "for _ in range(2):\n"
        "    for scale in (1, 2):\n"
        "        schedule.step(*(scale * x for x in inputs), **given, losses=kept)\n"
        "        noted += [torch.stack(kept).mean().item() if kept else 0]\n"
        "    with torch.no_grad():\n"
        "        hasattr(schedule, 'eval') and schedule.eval(*inputs, **given)\n"  # PyTorch before 2.9 has none
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "noted"
    )
    run = pair.run(code, view=None, timeout=PATIENCE)
    one, other, third, fourth = last(run, 1)
    assert losses(run) == {1: [(0, pytest.approx((one + other) / 2)), (1, pytest.approx((third + fourth) / 2))]}
    assert [timeline.step for timeline in run.pipelines] == [3]


def test_schedules_of_one_cell_are_drawn_beside_each_other(pair):
    """One of a kind that is made again goes on where it was; a cell without metrics draws none."""
    run = pair.run("train('1F1B', 2); train('GPipe', 1); train('1F1B', 2)", view=None, timeout=PATIENCE)
    quiet = pair.run("train('1F1B')", view=None, timeout=PATIENCE, metrics=False)
    assert [(timeline.schedule, timeline.step) for timeline in run.pipelines] == [("1F1B", 3), ("GPipe", 0)]
    assert quiet.pipelines == []


@pytest.mark.slow
def test_a_long_run_reports_about_one_step_a_second(pair):
    """All ranks the same ones, among them the last."""
    run = pair.run("train('1F1B', 300)", view=None, timeout=PATIENCE)
    steps = {}
    for rank, path in run.logs.items():
        with open(path, "rb") as file:
            bodies = [decode(line).body for line in file]
        steps[rank] = {body.step for body in bodies if isinstance(body, PipelineStep)}
    (timeline,) = run.pipelines
    assert timeline.step == 299
    common = steps[0] & steps[1]
    assert {0, 299} <= common
    assert len(common) <= len(steps[0] | steps[1]) <= 2 * run.elapsed + 8


def test_a_rank_that_waits_in_a_step_is_shown_as_waiting(pair):
    """Our functions stand between torch's, and are not taken for a set-up."""
    code = (
        "import time, threading\n"
        "schedule, optimizer, inputs, given, _ = prepare('1F1B')\n"
        "schedule.step(*inputs, **given)\n"
        "if rank == 0:\n    raise RuntimeError('one of them')\n"
        "schedule.step(*inputs, **given)"
    )
    with pytest.raises(Exception, match="one of them") as raised:
        pair.run(code, view=None, timeout=PATIENCE)
    assert raised.value.run.errors[1].waited == "step"


def test_another_version_of_torch_is_left_as_it_is():
    """It lacks the hooked methods; the caller of the hook gets an error."""
    schedules = SimpleNamespace(PipelineScheduleSingle=type("Single", (), {"step": len}))
    with pytest.raises(AttributeError, match="_PipelineSchedule"):
        TorchPipelines(None, None)._hook(schedules)
    assert schedules.PipelineScheduleSingle.step is len
