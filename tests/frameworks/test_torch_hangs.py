"""A run in which no rank moves in PyTorch's groups: the report names the collectives that do not fit together."""

from __future__ import annotations

import re

import pytest

from jupyter_dtrain import Settings
from tests.session.cells import Notes, Samples, hang, run, same, values

PREPARE = """
import os, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group()
t = torch.ones(3)
dist.all_reduce(t)
"""


@pytest.fixture(scope="module")
def watched(launch):
    """Three ranks whose hang is reported after two seconds."""
    pytest.importorskip("torch")
    session = launch(n=3, settings=Settings(hang_notice=2, interrupt_release=0.2))
    run(session, PREPARE)
    yield session
    session.stop()


@pytest.mark.slow
def test_ranks_in_different_collectives(watched):
    """Each place with its ranks, and which collective differs."""
    said = hang(watched, "if rank == 2:\n    dist.broadcast(t, 0)\n    dist.barrier()\nelse:\n    dist.all_reduce(t)")
    assert "No rank has moved for 2 s." == said[0]
    assert re.match(r"  Ranks 0-1: waiting in all_reduce, run \d+, line 5", said[1])
    assert said[2].startswith("  Rank 2: waiting in ")
    assert (
        "is not the same on all ranks: all_reduce of float[3] on ranks 0-1; broadcast of float[3] on rank 2." in said[3]
    )
    assert said[4].startswith("Nothing was ended")
    assert same(3.0) == values(run(watched, "x = torch.ones(1); dist.all_reduce(x); float(x)"))


@pytest.mark.slow
def test_different_shapes(watched):
    """gloo lets some ranks pass, so the others wait in vain; the report has the collectives of all."""
    said = hang(watched, "dist.all_reduce(torch.ones(5 if rank == 1 else 3))")
    assert "Rank 1 has not moved for 2 s." == said[0]
    assert said[1] == "  Ranks 0,2: has ended the cell"
    assert said[3].endswith("on all ranks: all_reduce of float[3] on ranks 0,2; all_reduce of float[5] on rank 1.")


@pytest.mark.slow  # as in a world of MPI alone, in test_behaviour_hangs
def test_a_rank_that_does_not_come(watched):
    """It is named with where it is, and with what it has not reached; in groups that were made again, too."""
    run(watched, "dist.destroy_process_group()\ndist.init_process_group()")
    said = hang(watched, "time.sleep(60) if rank == 0 else dist.all_reduce(t)")
    assert said[1].endswith("line 1: time.sleep(60) if rank == 0 else dist.all_reduce(t)")
    assert "  Rank 0 has not reached collective 1, all_reduce of float[3]." == said[-2]


def test_correct_collectives_with_other_shapes_on_each_rank_are_no_difference(watched):
    """The notice names the rank that has ended the cell, and the line of the cell that called the function."""
    code = """
def step():
    dist.scatter(t, [t, t, t] if rank == 0 else None, 0)
    dist.broadcast(torch.ones(6) if rank == 0 else torch.ones(2, 3), 0)
    dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1, 1], [1, 1, 1])
    if rank > 0:
        dist.all_reduce(t)

step()
"""
    cell = Notes()
    said = hang(watched, code, cell)
    place = f"run {cell.run}, line 7: dist.all_reduce(t) (called from run {cell.run}, line 9: step())"
    assert said[:3] == [
        "Ranks 1-2 have not moved for 2 s.",
        "  Rank 0: has ended the cell",
        f"  Ranks 1-2: waiting in all_reduce, {place}",
    ]
    assert "the same" not in "".join(said)


@pytest.mark.slow
def test_ranks_that_move_are_not_reported(watched):
    """They move in the loop of a silent cell, for twice as long as a notice takes."""
    code = """
end = time.monotonic() + 4
go = torch.ones(1)
while go:
    go[0] = time.monotonic() < end
    time.sleep(0.05 * rank)
    dist.all_reduce(go, dist.ReduceOp.MIN)
"""
    notes = Notes()
    cell = watched.run(code, wait=False, view=notes)

    assert cell.wait(30)
    assert ("ok", []) == (cell.outcome, notes.words)


@pytest.mark.slow
def test_ranks_that_work_say_so(watched):
    """Each rank works alone: in a loop of Python, in native code, in a call of torch through the package's code."""
    code = """
end = time.monotonic() + 4
w = torch.rand(1500, 1500, requires_grad=True)
while time.monotonic() < end and rank == 0: pass
while time.monotonic() < end and rank == 1: w.data = (w.data @ w.data).clamp(0, 1)
while time.monotonic() < end and rank == 2: ((w @ w) @ w).sum().backward()
"""
    view = Samples()
    cell = watched.run(code, wait=False, view=view)
    assert cell.wait(30)
    assert "ok" == cell.outcome
    assert {0, 1, 2} == view.still.keys()
    assert max(view.still.values()) < 2
