"""Cells that train in PyTorch, and the curves that a run keeps of them."""

from __future__ import annotations

import ast
import re
import time

import pytest

PATIENCE = 60
"""Seconds for a cell."""
START = """
import os, threading, torch
from torch import nn
rank = int(os.environ['RANK'])
torch.manual_seed(rank)
torch.set_num_threads(1)
def make(lr=0.1):
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr)
def lose(model):
    return model(torch.randn(4, 3)).square().mean()
"""
LOOP = """
model, optimizer = make()
noted = []
for _ in range(5):
    optimizer.zero_grad()
    loss = lose(model)
    loss.backward()
    optimizer.step()
    noted.append(loss.item())
noted
"""


def train(session, code, ranks=0, **options):
    """Run a cell; the run, and the value of its last line by rank."""
    run = session.run(code, ranks, view=None, timeout=PATIENCE, **options)
    return run, values(run)


def values(run):
    """The value of the last line, by rank."""
    texts = {rank: re.sub(r"\binf\b", "1e999", result.data["text/plain"]) for rank, result in run.results.items()}
    return {rank: ast.literal_eval(text) for rank, text in texts.items()}


def train_until(session, code, seen, folder):
    """As :func:`train`, for a cell that loops while ``goes_on()``: until ``seen(run)`` holds in mid-run."""
    end = folder / "end"
    goes_on = f"""
import time
def goes_on(deadline=time.monotonic() + {PATIENCE}):
    return time.monotonic() < deadline and not os.path.exists({str(end)!r})
"""
    run = session.run(goes_on + code, 0, wait=False, view=None)
    deadline = time.monotonic() + PATIENCE
    while not seen(run) and not run.done:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    end.touch()
    run.wait(PATIENCE)
    return run, values(run)


def points(run, name, rank=0):
    """(step, value) of each point of a series on a rank, none where there is no such series yet."""
    if rank not in run.metrics.get(name, {}):
        return []
    columns = run.metrics[name][rank]
    return list(zip(columns.steps, columns.values, strict=True))


def curve(values, first=0):
    """The points that a series of these values has, one a step."""
    return [(step, pytest.approx(value)) for step, value in enumerate(values, first)]


def losses(run):
    """The names of all series that are values of ``backward()``."""
    return sorted(name for name in run.metrics if not re.match("lr|steps/s|samples/s|grad_norm", name))
