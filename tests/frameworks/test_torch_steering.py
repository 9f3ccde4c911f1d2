"""A training of PyTorch is steered at one step on all ranks, as if its code had done so there."""

from __future__ import annotations

import pytest

from jupyter_dtrain import NotSteered
from tests.session.cells import begin, run, texts, values
from tests.steward.until import PATIENCE, until

SET_UP = """
import copy, os, time
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
rank = dist.get_rank()

def make(kind):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.0), torch.nn.Linear(16, 1))
    net = DistributedDataParallel(net) if kind == "ddp" else fully_shard(net)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

def train(kind, steps, halve_at=0, pause=0.0):
    model, opt = make(kind)
    data = torch.randn(32, 8, generator=torch.Generator().manual_seed(rank))
    for step in range(steps):
        opt.zero_grad()
        loss = (model(data) - data[:, :1]).square().mean()
        loss.backward()
        opt.step()
        if step + 1 == halve_at:
            for group in opt.param_groups: group["lr"] *= 0.5
        time.sleep(pause)
    whole = [getattr(one, "full_tensor", lambda one=one: one)().detach().clone() for one in model.parameters()]
    return loss.item(), opt.param_groups[0]["lr"], whole
"""


@pytest.fixture(scope="module")
def ranks(launch):
    """Four ranks of a process group."""
    session = launch(n=4)
    run(session, SET_UP, timeout=180)
    yield session
    session.stop()


def printed(session, code):
    """What each rank prints in an act between two steps."""
    return {rank: one.text for rank, one in session.loop.between(code).ranks.items()}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("at", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_a_rate_that_is_halved_between_two_steps(ranks, kind, at):
    """The losses and weights are those of a script that halves it there, on each rank."""
    steps = at + 60
    cell = begin(ranks, f"steered = train({kind!r}, {steps}, pause=0.05)")
    paused = ranks.loop.pause()
    assert paused.step < at, "the loop was too fast for this test"
    assert ranks.loop.step(at - paused.step).step == at
    found = ranks.loop.set("opt.lr=0.05")
    ranks.loop.resume()
    assert cell.wait(PATIENCE)
    assert cell.outcome == "ok"

    assert f"opt.lr: 0.1 -> 0.05 (ranks 0-3, after step {at})" in found.words
    [act] = [act for act in cell.fold.acts.values() if act.kind == "set"]
    assert (act.step, set(act.found), act.failed) == (at, {0, 1, 2, 3}, [])
    run(ranks, f"scripted = train({kind!r}, {steps}, halve_at={at})")
    alike = run(
        ranks,
        "[steered[:2] == scripted[:2], steered[1], all(torch.equal(a, b) for a, b in zip(steered[2], scripted[2]))]",
    )
    assert values(alike) == {rank: [True, 0.05, True] for rank in range(4)}


def test_a_value_is_set_on_all_ranks_or_on_none(ranks):
    """One rank that has none of that name is enough; undo puts back each rank's own."""
    cell = begin(ranks, "mine = rank + 0.5\nif rank != 2: extra = 1\ntrain('ddp', 100000, pause=0.01)")
    with pytest.raises(NotSteered, match=r"Rank 2: .*extra.*Nothing was changed\."):
        ranks.loop.set("extra=2 opt.lr=0.5")
    assert printed(ranks, "print(opt.param_groups[0]['lr'])") == dict.fromkeys(range(4), "0.1\n")
    ranks.loop.set({"model.module[2].p": 0.25, "mine": 9.0})
    assert printed(ranks, "print(model.module[2].p, mine)") == dict.fromkeys(range(4), "0.25 9.0\n")
    ranks.loop.undo()
    assert printed(ranks, "print(model.module[2].p, mine)") == {rank: f"0.0 {rank + 0.5}\n" for rank in range(4)}
    with pytest.raises(NotSteered, match="Nothing was changed"):
        ranks.loop.undo()
    assert "optimizer.lr: 0.1 -> 0.2" in ranks.loop.set("optimizer.lr=0.2").words
    assert printed(ranks, "opt.param_groups[0]['lr']") == dict.fromkeys(range(4), "0.2\n")
    ranks.interrupt()

    assert cell.wait(PATIENCE)


RUINED = """
def ruined(plant):
    global lowest
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(net)
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(32, 8, generator=torch.Generator().manual_seed(rank))
    losses, good = [], 0
    while good < 40:
        opt.zero_grad()
        loss = (model(data) - data[:, :1]).square().mean()
        loss.backward()
        if len(losses) + 1 == plant:
            for one in model.parameters(): one.grad.fill_(float("nan"))
        opt.step()
        losses.append(loss.item())
        good = good + 1 if opt.param_groups[0]["lr"] < 0.005 else 0
        time.sleep(0.002)
    return losses, opt.param_groups[0]["lr"]
"""


@pytest.mark.parametrize("plant", [120, pytest.param(300, marks=pytest.mark.slow)])
def test_a_training_that_was_ruined_is_brought_back(ranks, plant):
    """NaN in all gradients of a step: back to the last good state, a tenth of the rate, and on to a good end."""
    last = (plant - 1) // 50 * 50
    run(ranks, RUINED)
    cell = begin(ranks, f"losses, rate = ruined({plant})", ring="3/50")
    with pytest.raises(NotSteered, match=r"The ring has \d states? that all|its ring has no state yet"):
        ranks.loop.rewind(9)
    until(lambda: all(f"has stood still since step {last}" in text for text in texts(cell).values()))
    ranks.loop.pause()
    back = ranks.loop.rewind()
    assert f"The state of step {last} is loaded" in back.words
    ranks.loop.set("opt.lr=0.001")
    ranks.loop.resume()
    assert cell.wait(PATIENCE)

    assert cell.outcome == "ok"
    assert [act.words for act in cell.acts][-3:] == ["pause", f"rewind {last}", "set opt.lr=0.001"]
    code = f"[rate, losses[{plant}] != losses[{plant}], losses[-1] == losses[-1], losses[-1] < losses[0]]"
    found = values(run(ranks, code))
    assert found == {rank: [0.001, True, True, True] for rank in range(4)}
