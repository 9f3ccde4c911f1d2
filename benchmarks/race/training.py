"""What watching a training loop costs: steps a second of the same loop under torchrun, in our cells, under TraceML.

All are up at the same time and train in short turns. A step of 0.3 ms has no collective in it: the smallest step of DDP
takes more than that.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.training import Turn, cell, interval, rounds, torchrun

from .result import Entry, Row
from .tools import US, not_installed

SECONDS = 36.0
"""For each size: how long all take turns."""
NOTHING_ON = f"{US} --no-metrics"


@dataclass(frozen=True)
class Size:
    """A step of some length."""

    title: str
    width: int
    steps: int
    """In one turn."""
    parallel: bool = True
    """Whether the model is wrapped in DDP."""


SIZES = {
    "0.3ms": Size("0.3 ms", 80, 400, parallel=False),
    "1ms": Size("1 ms", 48, 150),
    "10ms": Size("10 ms", 820, 16),
    "100ms": Size("100 ms", 2000, 2),
}

LOOP = """
import time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
{imports}
dist.init_process_group("gloo")
torch.set_num_threads(1)

def make(width, parallel):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    model = DistributedDataParallel(model) if parallel else model
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(32, width)

def train(made, steps):
    model, optimizer, data = made
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        {scope}
            optimizer.zero_grad()
            loss = (model(data) - data).square().mean()
            loss.backward()
            optimizer.step()
    dist.barrier()
    return steps / (time.perf_counter() - began)

sizes = {sizes}
made = {{name: make(width, parallel) for name, (width, steps, parallel) in sizes.items()}}
for name, (width, steps, parallel) in sizes.items():
    train(made[name], min(steps, 20))
rank = dist.get_rank()
go, done = open({folder!r} + f"/go-{{rank}}"), open({folder!r} + f"/done-{{rank}}", "w")
while (asked := go.readline().strip()) != "end":
    print(train(made[asked], sizes[asked][1]) if asked in made else 0.0, file=done, flush=True)
"""
PLAIN = {"imports": "", "scope": "if True:"}
TRACED = {
    "imports": 'import traceml_ai as traceml\ntraceml.init(mode="auto")',
    "scope": "with traceml.trace_step(model):",
}
TRACEML = ("traceml_ai.launcher.cli", "run")


def training() -> list[Row]:
    """All are started once, and then take turns at each size."""

    def code(style: dict[str, str]) -> Callable[[Path], str]:
        sizes = {name: (size.width, size.steps, size.parallel) for name, size in SIZES.items()}
        return lambda folder: LOOP.format(folder=str(folder), sizes=sizes, **style)

    contestants = {
        "torchrun": lambda: torchrun(code(PLAIN)),
        US: lambda: cell(code(PLAIN)),
        NOTHING_ON: lambda: cell(code(PLAIN), options="--no-metrics"),
        "TraceML": lambda: torchrun(code(TRACED), launcher=TRACEML),
    }
    missing = {}
    with contextlib.ExitStack() as up:
        turns: dict[str, Turn] = {}
        for contestant, opened in contestants.items():
            if contestant in not_installed():
                continue
            try:
                turns[contestant] = up.enter_context(opened())
            except Exception as problem:  # noqa: BLE001 — the others go on
                missing[contestant] = Entry(missing=f"it failed: {' '.join(str(problem).split())[:200]}")
        return [_row(name, size, _said(turns, name), missing) for name, size in SIZES.items()]


def _said(turns: dict[str, Turn], name: str) -> dict[str, list[float]]:
    """Steps a second in each round: an even number of rounds, so that each is as often early as late."""
    deadline = time.monotonic() + SECONDS
    said = rounds(turns, 8, name)
    while time.monotonic() < deadline:
        for contestant, values in rounds(turns, 2, name).items():
            said[contestant] += values
    return said


def _row(name: str, size: Size, said: dict[str, list[float]], missing: dict[str, Entry]) -> Row:
    return Row(
        f"training-{name}",
        f"training, {size.title} a step, 2 ranks{' with DDP' if size.parallel else ', no collective'}",
        "steps/s",
        {contestant: Entry(values) for contestant, values in said.items()} | missing,
        _pairs(said),
        more_is_better=True,
        baseline="torchrun",
    )


def _pairs(said: dict[str, list[float]]) -> str:
    """The median of each round's ratio to torchrun, with its interval: what the promises are about."""
    told = []
    for name, values in said.items():
        if name == "torchrun" or "torchrun" not in said:
            continue
        ratios = sorted(mine / other for mine, other in zip(values, said["torchrun"], strict=True))
        low, high = interval(ratios)
        told.append(f"{name} {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
    return f"Median of the ratio to torchrun in each round, and its 95 % interval: {', '.join(told)}."
