"""A rank that fails does not keep the others: ranks that wait for it are released, and the next cell goes on."""

from __future__ import annotations

import pytest

from jupyter_dtrain import DistributedError, DistributedInterrupt
from tests.session.cells import begin, fail, pids, run, same, texts, values

PREPARE = """
import os, time
from mpi4py import MPI
rank = int(os.environ["RANK"])
kept = object()
kept_id = id(kept)
"""
ADD = "MPI.COMM_WORLD.allreduce(1)"


@pytest.fixture(scope="module")
def waiting(launch):
    """Three ranks that can wait for each other."""
    session = launch(n=3)
    run(session, PREPARE)
    yield session
    session.stop()


def test_one_raises_while_others_are_in_a_collective(waiting):
    """One block, the root first. A rank may come there long after, or not give up at first."""
    before = pids(waiting)
    code = """
if rank == 1: raise ValueError('a bug')
if rank == 0: time.sleep(3.5)
for _ in range(2):
    try:
        MPI.COMM_WORLD.allreduce(1)
    except RuntimeError:
        print('once more')
MPI.COMM_WORLD.Barrier()
"""
    cell = fail(waiting, code)
    with pytest.raises(DistributedError, match=r"^ValueError: a bug \(rank 1\); ranks .* stopped") as caught:
        raise DistributedError(cell)
    shown = "\n".join(caught.value._render_traceback_())

    assert "ValueError" == cell.errors[1].ename
    assert same("error") == cell.outcomes
    assert shown.index("ValueError") < shown.index("waited in Barrier and were released")
    assert "MPI_ERR" not in shown
    assert before == pids(waiting)
    assert same(3) == values(run(waiting, ADD))
    assert same(True) == values(run(waiting, "id(kept) == kept_id"))


def test_ranks_that_do_not_wait_are_not_released(waiting):
    """A rank that computes is left alone, and the group is as it was."""
    generation = waiting._link.world.generation
    code = """
if rank == 1: raise ValueError('a bug')
end = time.monotonic() + 3.5
while time.monotonic() < end: sum(range(1000))
'finished'
"""
    cell = fail(waiting, code)
    assert {0: "ok", 1: "error", 2: "ok"} == cell.outcomes
    assert {0: "finished", 2: "finished"} == values(cell)
    assert waiting._link.world.generation == generation
    assert same(3) == values(run(waiting, ADD))


@pytest.mark.parametrize("victim", [0, 2])
def test_one_raises_while_others_are_in_mpi(waiting, victim):
    """MPI's world is made again; what still holds the old one is named, with the line that mends it.

    A name that the cell binds by itself needs no words.
    """
    run(waiting, "world = MPI.COMM_WORLD\npart = world.Split(0, rank)")
    where = "part.Barrier()" if victim else "world.allreduce(1)"
    cell = fail(waiting, f"if rank == {victim}: raise ValueError('a bug')\n{where}")
    assert "ValueError" == cell.errors[victim].ename
    assert same("error") == cell.outcomes

    own = "" if victim else "part = MPI.COMM_WORLD.Split(0, rank)\n"
    added = run(waiting, f"{own}MPI.COMM_WORLD.allreduce(1)")
    assert same(3) == values(added)
    notes = set(texts(added).values())
    assert len(notes) == 1
    (note,) = notes
    assert "world is MPI's previous world" in note
    assert "`world = MPI.COMM_WORLD`" in note
    assert ("part: made from MPI's previous world" in note) == (not own)
    assert same([0, 1, 2]) == values(run(waiting, "MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)"))
    assert same(True) == values(run(waiting, "import jupyter_dtrain; jupyter_dtrain.comm is MPI.COMM_WORLD"))
    run(waiting, "del world, part")


def test_an_interrupt_frees_ranks_that_all_wait(waiting):
    """No rank stays behind, and the next cell finds a whole world."""
    before = pids(waiting)
    cell = begin(waiting, "MPI.COMM_WORLD.recv(source=0) if rank == 1 else MPI.COMM_WORLD.Barrier()")
    waiting.interrupt()

    assert cell.wait(20)
    assert ("interrupted", []) == (cell.outcome, cell.busy)
    assert before == pids(waiting)
    assert same(3) == values(run(waiting, ADD))
    with pytest.raises(DistributedInterrupt):
        raise DistributedInterrupt(cell)
