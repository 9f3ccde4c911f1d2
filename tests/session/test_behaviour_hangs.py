"""A run in which no rank moves any more is reported, and goes on."""

from __future__ import annotations

import pytest

from jupyter_dtrain import Settings
from jupyter_dtrain.core.stacks import describe_stacks
from tests.session.cells import Notes, Samples, hang, run, until, values

PREPARE = """
import ctypes, hashlib, os, subprocess, sys, time
from mpi4py import MPI
rank = int(os.environ["RANK"])
world = MPI.COMM_WORLD
"""


@pytest.fixture(scope="module")
def watched(launch):
    """Three ranks whose hang is reported after two seconds."""
    session = launch(n=3, settings=Settings(hang_notice=2, interrupt_release=0.2))
    run(session, PREPARE)
    yield session
    if not session.closed:
        session.stop()


def test_a_rank_that_does_not_come(watched):
    """Each place with its ranks, and what the others wait in."""
    said = hang(watched, "time.sleep(60) if rank == 0 else world.Barrier()")

    assert "No rank has moved for 2 s." == said[0]
    assert said[1].endswith("line 1: time.sleep(60) if rank == 0 else world.Barrier()")
    assert said[2].startswith("  Ranks 1-2: waiting in Barrier, ")
    assert said[-1].startswith("Nothing was ended")
    run(watched, "world = MPI.COMM_WORLD\nworld.Barrier()")


@pytest.mark.slow
def test_a_rank_that_is_stopped(watched, process_at):
    """It does not count as dead; when it goes on, so does the run, and the notice is taken back."""
    notes = Notes()
    cell = watched.run(
        "world.Barrier()\nworld.Barrier()\nrank if rank != 1 else time.sleep(0.5)", wait=False, view=notes
    )
    assert cell.wait(20)
    cell = watched.run("time.sleep(1)\nworld.Barrier()\nrank", wait=False, view=notes)
    process_at(watched, 1).suspend()
    until(lambda: notes.words)
    stopped = [rank.state for rank in watched.world.ranks]
    process_at(watched, 1).resume()
    assert cell.wait(20)
    assert ["running", "stopped", "running"] == stopped
    until(lambda: watched.world.ranks[1].state == "idle")
    assert {0: 0, 1: 1, 2: 2} == values(cell)
    assert "  Rank 1: stopped (SIGSTOP); SIGCONT lets it go on" in notes.words[0].splitlines()
    assert [""] == notes.words[1:]


@pytest.mark.slow
def test_ranks_that_move_are_not_reported(watched):
    """They move in the loop of a silent cell, for twice as long as a notice takes."""
    notes = Notes()
    code = "end = time.monotonic() + 4\nwhile world.allreduce(time.monotonic() < end, MPI.LAND): pass"
    cell = watched.run(code, wait=False, view=notes)

    assert cell.wait(30)
    assert ("ok", []) == (cell.outcome, notes.words)


def test_ranks_that_work_say_so(watched):
    """Each rank works alone: in a loop of Python, in native code."""
    code = """
end = time.monotonic() + 4
while time.monotonic() < end and rank == 0: pass
while time.monotonic() < end and rank > 0: hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 1_000_000)
"""
    view = Samples()
    cell = watched.run(code, wait=False, view=view)

    assert cell.wait(30)
    assert "ok" == cell.outcome
    assert {0, 1, 2} == view.still.keys()
    assert max(view.still.values()) < 2


WORK = "import time; end = time.monotonic() + 4\nwhile time.monotonic() < end: pass"


@pytest.mark.slow
def test_a_rank_does_not_hang_while_its_child_processes_work(watched):
    """It waits for them at one line. A rank whose child processes rest is reported."""
    notes = Notes()
    wait_for = "if rank == 0: subprocess.run({})\nworld.Barrier()"
    cell = watched.run(wait_for.format(f"[sys.executable, '-c', {WORK!r}]"), wait=False, view=notes)
    assert cell.wait(30)
    said = hang(watched, wait_for.format("['sleep', '60']"))

    assert ("ok", []) == (cell.outcome, notes.words)
    assert said[1].startswith("  Rank 0: in run, ")
    run(watched, "world = MPI.COMM_WORLD\nworld.Barrier()")


@pytest.mark.slow
def test_native_code_that_keeps_the_lock(watched):
    """The rank cannot answer, so its watch looks from outside: the line of the cell, and the call in that line."""
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
    """A request gets the line of the cell, and below it the native frames; idle ranks have none."""
    cell = watched.run("if rank == 1: ctypes.CDLL(None).sleep(5)", wait=False, view=None)
    until(lambda: cell.outcomes.keys() == {0, 2})
    plain = describe_stacks(watched.stacks([0, 1]))
    native = describe_stacks(watched.stacks([0, 1], native=True))
    assert cell.wait(20)
    assert f"Rank 0: idle\nRank 1: running\n    run {cell.number}, line 1: if rank == 1: " in plain
    assert plain in native
    assert " in sleep" in native.splitlines()[3]
