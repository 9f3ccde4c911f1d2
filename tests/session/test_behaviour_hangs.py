"""A run in which nobody moves any more is told of, and not ended."""

from __future__ import annotations

import os
import signal

import pytest

from jupyter_dtrain import Settings
from jupyter_dtrain.core.events import Sample
from jupyter_dtrain.core.stacks import describe_stacks
from tests.session.cells import Notes, pids, run, same, until, values

PREPARE = """
import ctypes, os, time
import torch, torch.distributed as dist
from mpi4py import MPI
rank = int(os.environ["RANK"])
dist.init_process_group()
t = torch.ones(3)
dist.all_reduce(t)
"""


class Samples(Notes):
    """A view that keeps for how long each rank has not moved at most."""

    def __init__(self):
        super().__init__()
        self.still = {}

    def feed(self, batch, now):  # noqa: ARG002 — the protocol's shape
        """Keep the most."""
        for event in batch.events:
            if isinstance(event.body, Sample):
                self.still[batch.rank] = max(event.body.still, self.still.get(batch.rank, 0.0))


@pytest.fixture(scope="module")
def watched(launch):
    """Three ranks of which is told after two seconds."""
    session = launch(n=3, settings=Settings(hang_notice=2, interrupt_release=0.2))
    run(session, PREPARE)
    yield session
    if not session.closed:
        session.stop()


def hang(session, code):
    """The notice that a run of ``code`` makes; it is interrupted then."""
    notes = Notes()
    cell = session.run(code, wait=False, view=notes)
    until(lambda: notes.words)
    assert not cell.done
    session.interrupt()
    assert cell.wait(20)
    assert cell.outcome == "interrupted"
    return notes.words[0].splitlines()


@pytest.mark.slow
def test_ranks_in_different_collectives(watched):
    """Each place with its ranks, and which collective differs."""
    said = hang(watched, "if rank == 2:\n    dist.broadcast(t, 0)\n    dist.barrier()\nelse:\n    dist.all_reduce(t)")
    assert "No rank has moved for 2 s." == said[0]
    assert said[1].startswith("  Ranks 0-1: waiting in all_reduce, run 2, line 5")
    assert said[2].startswith("  Rank 2: waiting in ")
    assert (
        "is not the same on all ranks: all_reduce of float[3] on ranks 0-1; broadcast of float[3] on rank 2." in said[3]
    )
    assert said[4].startswith("Nothing was ended")
    assert same(3.0) == values(run(watched, "x = torch.ones(1); dist.all_reduce(x); float(x)"))


def test_different_shapes(watched):
    """gloo lets some ranks pass, so the others wait for nobody; what those did is told as well."""
    said = hang(watched, "dist.all_reduce(torch.ones(5 if rank == 1 else 3))")
    assert "Rank 1 has not moved for 2 s." == said[0]
    assert said[2].endswith("on all ranks: all_reduce of float[3] on ranks 0,2; all_reduce of float[5] on rank 1.")


def test_a_rank_that_does_not_come(watched):
    """It is named with where it is, and with what it has not come to; in groups that were made again, too."""
    said = hang(watched, "time.sleep(60) if rank == 0 else dist.all_reduce(t)")
    assert said[1].endswith("line 1: time.sleep(60) if rank == 0 else dist.all_reduce(t)")
    assert "  Rank 0 has not come to collective 1, all_reduce of float[3]." == said[-2]


@pytest.mark.slow
def test_a_rank_that_is_stopped(watched):
    """Nobody takes it for dead; when it goes on, so does the run."""
    notes = Notes()
    cell = watched.run("dist.barrier()\ndist.barrier()\nrank if rank != 1 else time.sleep(0.5)", wait=False, view=notes)
    assert cell.wait(20)
    cell = watched.run("time.sleep(1)\ndist.all_reduce(t)\nrank", wait=False, view=notes)
    os.kill(pids(watched)[1], signal.SIGSTOP)
    until(lambda: notes.words)
    stopped = [rank.state for rank in watched.world.ranks]
    os.kill(pids(watched)[1], signal.SIGCONT)
    assert cell.wait(20)
    assert ["running", "stopped", "running"] == stopped
    until(lambda: watched.world.ranks[1].state == "idle")
    assert {0: 0, 1: 1, 2: 2} == values(cell)
    assert "  Rank 1: stopped (SIGSTOP); SIGCONT lets it go on" in notes.words[0].splitlines()
    assert 1 == len(notes.words)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("while MPI.COMM_WORLD.allreduce(time.monotonic() < end, MPI.LAND): pass", id="mpi"),
        pytest.param(
            "go = torch.ones(1)\n"
            "while go:\n"
            "    go[0] = time.monotonic() < end\n"
            "    time.sleep(0.05 * rank)\n"
            "    dist.all_reduce(go, dist.ReduceOp.MIN)",
            id="torch",
        ),
    ],
)
def test_whoever_moves_is_not_told_of(watched, code):
    """In the loop of a cell that says nothing; for twice as long as a notice takes."""
    notes = Notes()
    cell = watched.run(f"end = time.monotonic() + 4\n{code}", wait=False, view=notes)
    assert cell.wait(30)
    assert ("ok", []) == (cell.outcome, notes.words)


def test_whoever_works_says_so(watched):
    """Each rank for itself: in a loop of Python, in native code, in a call of torch that goes through code of ours."""
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


@pytest.mark.slow
def test_native_code_that_keeps_the_lock(watched):
    """It lets nobody ask, so it is seen from outside: the line of the cell, and what that has called."""
    notes = Notes()
    cell = watched.run("if rank == 1: ctypes.PyDLL(None).sleep(7)", wait=False, view=notes)
    until(lambda: notes.words)
    stacks = describe_stacks(watched.stacks([1], timeout=0.5))
    assert cell.wait(20)
    assert cell.outcome == "ok"
    lines = notes.words[0].splitlines()
    assert "Rank 1 has not moved for 2 s." == lines[0]
    assert lines[1].endswith("line 1: if rank == 1: ctypes.PyDLL(None).sleep(7)")
    assert lines[1].startswith("  Rank 1: in ")
    assert "sleep" in lines[1].partition(",")[0]
    assert stacks.startswith(f"Rank 1: no answer, in native code\n    run {cell.number}, line 1: if rank == 1:")
    assert " in sleep" in stacks.splitlines()[2]


@pytest.mark.slow
def test_native_frames_of_a_rank_that_answers(watched):
    """On demand: below the line of the cell, what it is in; of idle ranks nothing."""
    cell = watched.run("if rank == 1: ctypes.CDLL(None).sleep(5)", wait=False, view=None)
    until(lambda: cell.outcomes.keys() == {0, 2})
    plain = describe_stacks(watched.stacks([0, 1]))
    native = describe_stacks(watched.stacks([0, 1], native=True))
    assert cell.wait(20)
    assert f"Rank 0: idle\nRank 1: running\n    run {cell.number}, line 1: if rank == 1: " in plain
    assert plain in native
    assert " in sleep" in native.splitlines()[3]
