"""A rank that dies in the middle of training is replaced, and the training goes on as if nothing had happened."""

from __future__ import annotations

import time

import pytest

from jupyter_dtrain import DistributedError
from tests.session.cells import pids, run, same, values

pytestmark = [pytest.mark.slow, pytest.mark.here("it kills processes of ranks")]

IMPORTS = """
import os
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
"""
FUNCTIONS = """
def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 32, generator=generator)
    return x, x.sum(1, keepdim=True).sin()

def train(until, dies=None):
    global step
    while step < until:
        x, y = batch(step, dist.get_rank())
        opt.zero_grad()
        loss = ((ddp(x) - y) ** 2).mean()
        loss.backward()
        if dies == (step, dist.get_rank()):
            os.kill(os.getpid(), 9)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        opt.step()
        losses.append(mean.item() / dist.get_world_size())
        step += 1
"""
MAKE = """
dist.init_process_group()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 1))
ddp = DistributedDataParallel(model, bucket_cap_mb=1)
opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
step, losses = 0, []
"""
NAMES = ["model", "ddp", "opt", "step", "losses"]


def test_training_goes_on_as_if_no_rank_had_died(launch):
    """Rank 1 dies, then rank 0: a model of several buckets, its DDP and its optimizer come from a living rank.

    A heal ends with an all-reduce over all ranks. On a machine with nothing else to do it takes 3 to 4 seconds.
    """
    with launch(n=4) as session:
        cells = [run(session, code).number for code in (IMPORTS, FUNCTIONS)]
        run(session, MAKE)
        run(session, "train(30)")
        undisturbed = session.pull("losses", 0)[0]
        run(session, MAKE.replace("dist.init_process_group()", ""))
        before = pids(session)
        for died_at, victim, source in ((12, 1, 0), (20, 0, 2)):
            with pytest.raises(DistributedError):
                run(session, f"train(30, dies=({died_at}, {victim}))")
            began = time.monotonic()
            session.replace(NAMES, source, replay=cells)
            count = "t = torch.ones(1); dist.all_reduce(t); import jupyter_dtrain\n(int(t), jupyter_dtrain.comm.size)"
            assert same((4, 4), 4) == values(run(session, count))
            assert time.monotonic() - began < 60
            assert same(died_at, 4) == session.pull("step")
        run(session, "train(30)")

        after = pids(session)
        assert {rank for rank in range(4) if before[rank] != after[rank]} == {0, 1}
        for losses in session.pull("losses").values():
            assert losses == pytest.approx(undisturbed, rel=1e-5)
        weights = values(run(session, "[round(float(p.detach().double().sum()), 9) for p in model.parameters()]"))
        assert len({str(one) for one in weights.values()}) == 1


def test_a_state_that_is_spread_over_ranks_is_refused(launch):
    """FSDP's part of a dead rank is gone: the error names what brings it back."""
    with launch(n=2) as session:
        run(session, f"{IMPORTS}\nfrom torch.distributed.fsdp import fully_shard\ndist.init_process_group()")
        run(session, "model = nn.Linear(8, 8)\nfully_shard(model)")
        session.kill(1)
        with pytest.raises(DistributedError, match=r"'model': it is sharded.*%distributed load") as failed:
            session.replace(["model"], 0)
        assert failed.value.run.outcome == "error"
        assert session.world.dead == []


def test_a_new_rank_runs_the_set_up_cell_alone(launch):
    """The heal has made the group already, so that the set-up waits for nobody; and it says what it could not make."""
    set_up = f"{IMPORTS}\ndist.init_process_group()\nrank = dist.get_rank()"
    with launch(n=2) as session:
        run(session, f"{set_up}\npart = dist.new_group()")
        session.kill(1)
        healed = session.replace()
        alone = run(session, f"{set_up}\nrank, dist.get_world_size()", 1, timeout=60)

        assert {1: (1, 2)} == values(alone)
        assert healed.notes == ["part: this process group is gone. Make it again with new_group()"]
        assert same(2, 2) == values(run(session, "t = torch.ones(1); dist.all_reduce(t)\nint(t)"))
