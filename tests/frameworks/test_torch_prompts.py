"""A training with DDP whose rank stops at a debugger's prompt: the others wait in all_reduce, and nothing else happens.

A notebook drives it, by a real kernel whose person answers. A hang would show within half a second.
"""

from __future__ import annotations

import time

import pytest

from tests.magics.notebook import Notebook
from tests.steward.until import stays

pytest.importorskip("torch")

HANG = 0.5
START = """%%distributed
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ['RANK'])
torch.set_num_threads(1)
dist.init_process_group('gloo')

def train(stops_at=None):
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    torch.nn.init.constant_(model.module.weight, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        loss = model(torch.randn(4, 3)).square().mean()
        if rank == 1 and step == stops_at: breakpoint()
        total = loss.detach().clone()
        dist.all_reduce(total)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return round(total.item(), 6)
"""
TRAINED = "%%distributed\ntrain()"
STOPS = "%%distributed\ntrain(stops_at=6)"


def results(cell):
    """The results that a cell shows, without the table of its metrics."""
    return [text for text in cell.display_texts if text.startswith("[")]


@pytest.fixture(scope="module")
def notebook(home, long_hold, tmp_path_factory):
    """A notebook with three ranks and a process group."""
    # Who quits does not wait for the grace.
    settings = {"JUPYTER_DTRAIN_HANG_NOTICE": str(HANG), "JUPYTER_DTRAIN_RELEASE_GRACE": "60"}
    notebook = Notebook(tmp_path_factory.mktemp("notebook"), **settings)
    notebook.ok("%load_ext jupyter_dtrain\n%distributed start -n 3", 60)
    notebook.ok(START, 60)
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def losses(notebook):
    """What the ranks show whose training nobody stops."""
    return results(notebook.ok(TRAINED))


@pytest.mark.parametrize("seconds", [4 * HANG, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_rank_stops_amid_a_training_while_the_others_wait(notebook, losses, seconds):
    """Nothing counts as hung, nobody is released, all are asked, and the losses are those of a run without a stop."""
    cell = notebook.send(STOPS, answers=[])
    cell.wait_for(lambda cell: cell.asked)
    stays(lambda: not cell.idle and "moved" not in cell.said and "released" not in cell.said, seconds)

    cell.answers = ["c"]
    notebook.type("@all p step, type(loss).__name__")
    cell.wait()
    table = [line for line in cell.lines if " | " in line]

    assert table == [
        "ranks 0,2 (wait in all_reduce) | (6, 'Tensor')",
        "rank 1                         | (6, 'Tensor')",
    ], cell.said
    assert results(cell) == losses


def test_each_rank_says_its_own_loss(notebook, losses):
    """Those that wait are asked where they are."""
    cell = notebook.send(STOPS, answers=["@all p loss", "c"]).wait()
    table = {line.partition(" | ")[0].strip(): line.partition(" | ")[2] for line in cell.lines if " | " in line}

    assert set(table) == {"rank 0 (waits in all_reduce)", "rank 1", "rank 2 (waits in all_reduce)"}, cell.said
    assert len({words for words in table.values() if words.startswith("tensor(")}) == 3
    assert results(cell) == losses


def test_quitting_frees_the_others_and_the_next_cell_trains(notebook, losses):
    """Whoever quits does not wait for the grace that a failed rank's peers have."""
    cell = notebook.send(STOPS, answers=[])
    cell.wait_for(lambda cell: cell.asked)
    began = time.monotonic()
    notebook.type("q")
    cell.wait()

    assert time.monotonic() - began < 10
    assert "Rank 1 quit at a debugger's prompt" in cell.traceback
    assert "ranks 0,2 waited in all_reduce and were released" in cell.traceback
    assert results(notebook.ok(TRAINED)) == losses


def test_the_breakpoint_of_torch_stops_one_rank(notebook):
    """Its own debugger asks in the notebook, too; the others wait in its barrier."""
    code = "%%distributed\nloss = rank + 0.5\ndist.breakpoint(1)\nloss"
    cell = notebook.send(code, answers=["up", "p loss", "!loss = 7.5", "c"]).wait()

    assert {asked for asked, _ in cell.asked} == {"rank 1: (Pdb) "}
    assert "[1] 1.5" in cell.lines
    assert results(cell) == ["[0] 0.5", "[1] 7.5", "[2] 2.5"]


def test_stop_ends_the_debugger_of_torch(notebook, losses):
    """It catches KeyboardInterrupt, and would ask again."""
    cell = notebook.send("%%distributed\ndist.breakpoint(1)", answers=[])
    cell.wait_for(lambda cell: cell.asked)
    notebook.interrupt()
    cell.wait()

    assert len(cell.asked) == 1
    assert "Interrupted" in cell.said or "KeyboardInterrupt" in cell.said
    assert "Rank 1: running" not in cell.err
    assert results(notebook.ok(TRAINED)) == losses
