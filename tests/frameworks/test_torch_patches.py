"""A part of ours that raises inside a call of torch's: the call ends as ever, and the cell says once what is lost."""

from __future__ import annotations

import pytest

from tests.session.cells import run, same, texts, values

BREAKING = """
import contextlib
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from jupyter_dtrain.frameworks.torch import backends, metrics, replicas, values
@contextlib.contextmanager
def breaking(owner, name):
    kept = getattr(owner, name)
    setattr(owner, name, None)
    try:
        yield
    finally:
        setattr(owner, name, kept)
of_rank = metrics._of_rank
"""
BATCHES = """
with breaking(values, "first_size"):
    found = [batch.tolist() for batch in torch.utils.data.DataLoader(torch.arange(3), batch_size=2)]
found
"""
OPTIMIZER = """
with breaking(of_rank._steppers, "born"):
    model, optimizer = make()
lose(model).backward()
optimizer.step()
sorted(optimizer.state_dict())
"""
SCALER = """
model, optimizer = make()
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
loss = lose(model)
with breaking(of_rank._losses, "scaled"):
    scaled = scaler.scale(loss)
scaled.item() == 2 * loss.item()
"""
GROUP = """
with breaking(backends.Backends, "choose"):
    dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
total.item()
"""
WRAPPER = """
dist.init_process_group("gloo")
with breaking(replicas, "_modules"):
    model = DistributedDataParallel(make()[0])
    other = DistributedDataParallel(make()[0])
lose(model).backward()
type(model).__name__
"""
END = "if dist.is_initialized(): dist.destroy_process_group()"
CASES = {
    "a batch": (BATCHES, [[0, 1], [2]], "__next__", "samples/s and the batch of all ranks are not shown"),
    "an optimizer": (
        OPTIMIZER,
        ["param_groups", "state"],
        "__init__",
        "steps and learning rates of optimizers are not shown",
    ),
    "a scaled loss": (SCALER, True, "scale", "losses that a GradScaler has scaled are shown scaled"),
    "a process group": (GROUP, 2.0, "init_process_group", "a process group is torch's own"),
    "a wrapped model": (WRAPPER, "DistributedDataParallel", "__init__", "the batch of all ranks is not shown"),
}


@pytest.fixture(scope="module")
def pair(torch_pair):
    """A world of two ranks with the means to break a part of ours."""
    run(torch_pair, BREAKING)
    return torch_pair


@pytest.mark.parametrize("name", CASES)
def test_a_part_of_ours_that_raises_changes_no_call_of_torch(pair, name):
    """It is told in the cell where it first happens, and never again."""
    code, value, place, lost = CASES[name]
    runs = []
    for _ in range(2):
        runs.append(run(pair, code))
        run(pair, END)

    assert [values(one) for one in runs] == [same(value, 2)] * 2
    for rank in (0, 1):
        first, later = (texts(one).get(rank, "") for one in runs)
        assert first.count("[jupyter-dtrain] jupyter-dtrain failed inside ") == 1, first
        assert f"failed inside {place} of torch " in first
        assert f"and the call went on without it: {lost}" in first
        assert "jupyter-dtrain failed" not in later
