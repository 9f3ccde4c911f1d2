"""What the communication of a step consists of, where PyTorch shards a model over the ranks."""

from __future__ import annotations

import importlib.util

import pytest

from jupyter_dtrain.core.step_summary import summarise
from jupyter_dtrain.view.step_time import lines
from tests.session.cells import run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

TRAIN = """
import time, torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
if not dist.is_initialized():
    dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(1500, 1500), torch.nn.ReLU(), torch.nn.Linear(1500, 1500))
model = WRAP
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(40):
    time.sleep(0.03)
    model(torch.ones(2, 1500)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "wrap", ["fully_shard(model)", "FullyShardedDataParallel(model, device_id=torch.device('cpu'))"], ids=["2", "1"]
)
def test_the_gathers_of_fsdp_are_told_apart_from_its_scatters(torch_pair, wrap):
    """In the run, and in what a panel and the store get of it."""
    ended = run(torch_pair, TRAIN.replace("WRAP", wrap))

    for rank, calls in ended.communication.items():
        print(rank, calls, ended.step_time[rank])
        assert calls.keys() >= {"all_gather", "reduce_scatter"}
        assert "all_reduce" not in calls
        assert sum(calls.values()) == pytest.approx(ended.step_time[rank]["communication"], abs=0.01)
    found = summarise(ended.fold)
    print(*lines(found), sep="\n")
    assert set(found.calls) >= {"all_gather", "reduce_scatter"}
    assert "(all_gather " in lines(found)[1] or "(reduce_scatter " in lines(found)[1]
