"""Ranks that wait in MPI beside its collectives: in a window, a file, a large message, a thread."""

from __future__ import annotations

import psutil
import pytest

from jupyter_dtrain import Settings
from jupyter_dtrain.core.causes import summary
from tests.session.cells import REFUSALS, Notes, fail, pids, run, same, texts, values, without_files
from tests.steward.until import until

PREPARE = """
import asyncio, os, tempfile
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
import numpy
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor
rank = int(os.environ["RANK"])
big = numpy.ones(1_000_000)
kept = object()
kept_id = id(kept)
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
"""
LOOK = "MPI.COMM_WORLD.allreduce(1), id(kept) == kept_id"
WINDOW = "win = MPI.Win.Allocate(8, comm=MPI.COMM_WORLD)\nwin.Fence()\n"
FILE = """
path = MPI.COMM_WORLD.bcast(tempfile.mktemp() if rank == 0 else None)
file = MPI.File.Open(MPI.COMM_WORLD, path, MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE)
"""


@pytest.fixture(scope="module")
def waiting(launch):
    """Three ranks, which are released soon."""
    session = launch(n=3, settings=Settings(release_grace=0.5, interrupt_raise=1.5, interrupt_timeout=2.0))
    run(session, PREPARE)
    yield session
    session.stop()


@pytest.mark.parametrize(
    ("before", "wait", "call"),
    [
        (WINDOW, "win.Fence()", "Win.Fence"),
        (FILE, "file.Sync()", "File.Sync"),
        ("", "MPI.COMM_WORLD.Send(big, dest=1)", "Send"),
        ("", "request = MPI.COMM_WORLD.Isend(big, dest=1)\nrequest.Wait()", "Wait"),
        ("", "MPI.COMM_WORLD.gather(big, root=1)\nMPI.COMM_WORLD.Barrier()", "gather"),
    ],
    ids=["window", "file", "send", "isend", "gather"],
)
def test_a_rank_raises_while_others_wait_in_mpi(waiting, before, wait, call):
    """They come free, and the next cell runs on all ranks, with the same objects."""
    processes = pids(waiting)
    cell = fail(
        waiting, f"{before}if rank == 1: raise ValueError('a bug')\n{wait}\nMPI.COMM_WORLD.Barrier()", timeout=20
    )

    assert same("error") == cell.outcomes
    assert "ValueError" == cell.errors[1].ename
    # MPI may end a message as if it had arrived; then the call after it fails.
    assert {cell.errors[rank].waited for rank in (0, 2)} <= {call, "Barrier"}
    after = run(waiting, LOOK)
    assert same((3, True)) == values(after)
    assert processes == pids(waiting)
    name = {"Win.Fence": "win", "File.Sync": "file"}.get(call)
    if name:
        words = f"{name}: ranks were released there. Make it again"
        assert all(words in text for text in texts(after).values()), texts(after)
        run(waiting, f"del {name}")


HOLDERS = """
class Trainer:
    shared = MPI.COMM_WORLD
    @property
    def world(self): return MPI.COMM_WORLD
class Slots:
    __slots__ = ("comm",)
trainer, slots, groups, barrier = Trainer(), Slots(), {"data": [MPI.COMM_WORLD.Dup()]}, MPI.COMM_WORLD.Barrier
slots.comm = MPI.COMM_WORLD
"""


@pytest.mark.parametrize(
    "wait",
    [
        "jupyter_dtrain.comm.Barrier()",
        "trainer.shared.Barrier()",
        "trainer.world.Barrier()",
        "slots.comm.recv(source=1)",
        "groups['data'][-1].bcast(None, root=1)",
        "barrier()",
        "list(map(MPI.COMM_WORLD.allreduce, [1]))",
        "partial(MPI.COMM_WORLD.bcast, None, 1)()",
        "getattr(MPI.COMM_WORLD, 'Barrier')()",
        "MPI.COMM_WORLD.irecv(source=1).wait()",
        "[MPI.COMM_WORLD.irecv(source=1)][0].wait()",
        "pkl5.Intracomm(MPI.COMM_WORLD).bcast(None, root=1)",
    ],
)
def test_ranks_that_wait_are_found_however_the_call_is_written(waiting, wait):
    """No code of the user's runs to find the communicator."""
    run(waiting, f"import jupyter_dtrain\nfrom functools import partial\nfrom mpi4py.util import pkl5\n{HOLDERS}")
    cell = fail(waiting, f"if rank == 1: raise ValueError('a bug')\n{wait}\nMPI.COMM_WORLD.Barrier()", timeout=20)

    assert same("error") == cell.outcomes
    assert same((3, True)) == values(run(waiting, LOOK))


@pytest.mark.parametrize(
    "wait",
    [
        "thread = Thread(target=lambda: MPI.COMM_WORLD.Barrier()); thread.start(); thread.join()",
        "pool.submit(lambda: MPI.COMM_WORLD.Barrier()).result()",
        "thread = Thread(target=MPI.COMM_WORLD.allreduce, args=(1,)); thread.start(); thread.join()",
        "pool.submit(MPI.COMM_WORLD.allreduce, 1).result()",
        "await asyncio.to_thread(MPI.COMM_WORLD.allreduce, 1)",
        "with MPICommExecutor() as executor: print(executor and list(executor.map(abs, [-1])))",
    ],
    ids=["thread", "pool", "thread of the method", "pool with the method", "asyncio", "executor"],
)
def test_a_rank_raises_while_threads_of_others_wait(waiting, wait):
    """A thread counts that the cell has started, or whose result it awaits."""
    cell = fail(waiting, f"if rank == 1: raise ValueError('a bug')\n{wait}\nMPI.COMM_WORLD.Barrier()", timeout=20)

    assert same("error") == cell.outcomes
    assert same((3, True)) == values(run(waiting, LOOK))


@pytest.mark.parametrize("wait", ["MPI.Win.Allocate(8, comm=MPI.COMM_WORLD)", "MPI.COMM_WORLD.allreduce(1)"])
def test_a_rank_that_another_ones_release_reaches_first_counts_as_released(waiting, wait):
    """What revokes a communicator reaches all of its ranks, perhaps before each has been asked to release."""
    cell = fail(waiting, f"if rank == 1: MPI.COMM_WORLD.Revoke(); raise ValueError('a bug')\n{wait}", timeout=20)

    assert all(cell.errors[rank].released for rank in (0, 2))
    assert summary(cell).startswith("ValueError: a bug (rank 1); ranks 0,2 stopped because of that")
    assert same((3, True)) == values(run(waiting, LOOK))


@pytest.mark.parametrize("refused", REFUSALS)
def test_ranks_that_can_open_no_files_are_released_and_run_more_cells(waiting, refused):
    """Where they wait is found without files, and nothing on the way of a long text needs one."""
    with without_files(waiting, refused, [0, 2]):
        cell = fail(waiting, "if rank == 1: raise ValueError('a bug')\nMPI.COMM_WORLD.Barrier()", timeout=20)
        after = run(waiting, f"print('long ' * 50_000)\n{LOOK}", timeout=20)

    assert {0: "Barrier", 2: "Barrier"} == {rank: cell.errors[rank].waited for rank in (0, 2)}
    assert same((3, True)) == values(after)
    assert all("long " * 50_000 in text for text in texts(after).values())


@pytest.mark.parametrize("end", ["", "if rank == 1: raise ValueError('a bug')\n"], ids=["ends", "fails"])
def test_a_thread_that_a_cell_leaves_in_a_collective_takes_no_part_in_the_next_one(waiting, end):
    """The cell may have ended well on all ranks."""
    cell = waiting.run(
        f"{end}if rank == 0:\n    left = Thread(target=MPI.COMM_WORLD.allreduce, args=(100,))\n    left.start()",
        view=None,
        wait=False,
    )
    assert cell.wait(20)
    assert ("error" if end else "ok") == cell.outcome
    after = run(waiting, LOOK)

    assert same((3, True)) == values(after)
    assert "A thread that an earlier cell had left in allreduce was released" in texts(after)[0]
    assert {0: False} == values(run(waiting, "left.join(20); left.is_alive()", [0]))


def test_threads_that_meet_in_a_collective_after_the_cell_go_on(waiting):
    """A rank that comes late has a thread of its own for it."""
    run(
        waiting,
        """
from threading import Event
go, group, sums = Event(), MPI.COMM_WORLD, []
def add():
    if rank == 1: go.wait()
    sums.append(group.allreduce(1))
later = Thread(target=add)
later.start()
""",
    )
    run(waiting, "go.set()")

    assert same([3]) == values(run(waiting, "later.join(20); sums"))


def test_the_communicator_in_which_a_rank_waits_is_revoked_first(waiting):
    """The wait would miss it while it looks whether the revocation of another was meant."""
    run(
        waiting,
        """
class Told(MPI.Intracomm):
    def Revoke(self):
        order.append("part" if self is part else "world")
        super().Revoke()

order = []
part = Told(MPI.COMM_WORLD.Split(0, rank))
MPI.COMM_WORLD = Told(MPI.COMM_WORLD)
""",
    )
    fail(waiting, "if rank == 1: raise ValueError('a bug')\npart.Barrier()", timeout=20)
    found = values(run(waiting, f"del part\norder[:2], {LOOK}"))

    # The revocation of one of them may end the other's wait before it is asked to release.
    assert ["part", "world"] in (found[0][0], found[2][0])
    assert {value[1:] for value in found.values()} == {(3, True)}


HELD = """
if rank == 1: win.Lock(1, MPI.LOCK_EXCLUSIVE)
MPI.COMM_WORLD.Barrier()
if rank == 1: raise ValueError('a bug')
win.Lock(1, MPI.LOCK_EXCLUSIVE) if rank == 0 else win.Lock_all()
"""
UNMET = """
others = MPI.COMM_WORLD.group.Incl([1])
if rank == 1: raise ValueError('a bug')
if rank == 0:
    win.Start(others)
    win.Complete()
else:
    win.Post(others)
    win.Wait()
"""


@pytest.mark.parametrize(
    ("wait", "calls"),
    [(HELD, ({"Win.Lock"}, {"Win.Lock_all"})), (UNMET, ({"Win.Start", "Win.Complete"}, {"Win.Wait"}))],
    ids=["a lock that is held", "a partner who does not come"],
)
def test_a_wait_that_cannot_be_released_is_reported_at_once(waiting, wait, calls):
    """The report names the fix: Stop and kill end it, and a restart makes the world whole."""
    notes = Notes()
    cell = waiting.run(f"{WINDOW}{wait}", wait=False, view=notes)
    # It is reported again when another rank comes to wait.
    told = until(lambda: next((words for words in notes.words if "%distributed kill 0,2" in words), ""), 10)

    assert told.startswith("Cannot be released: ")
    for rank, possible in zip((0, 2), calls, strict=True):
        assert any(f"rank {rank} in {call}" in told for call in possible), told
    waiting.interrupt()
    assert cell.wait(20)
    assert [0, 2] == cell.busy
    waiting.kill(cell.busy)
    waiting.restart()
    run(waiting, PREPARE)
    assert same((3, True)) == values(run(waiting, LOOK))


def test_a_recovery_that_an_interrupt_cut_on_some_ranks_succeeds_in_the_next_cell(waiting):
    """The ranks that were interrupted have begun to make MPI's world again, and the late one has not."""
    fail(waiting, "if rank == 1: raise ValueError('a bug')\nMPI.COMM_WORLD.Barrier()", timeout=20)
    early, late = (psutil.Process(waiting.world.ranks[rank].pid) for rank in (0, 1))
    threads = early.num_threads()
    late.suspend()
    try:
        cut = waiting.run("'never'", wait=False, view=None)
        until(lambda: early.num_threads() > threads)  # one of them waits in MPI
        waiting.interrupt()
        ended = cut.wait(20)
    finally:
        late.resume()
    until(lambda: not waiting.world.dead and all(rank.state == "idle" for rank in waiting.world.ranks))
    found = values(run(waiting, LOOK))

    assert ended
    # On a busy machine the release that follows an interrupt may come first: it raises MPI's error in their recovery.
    assert cut.outcome == "interrupted"
    assert {cut.outcomes[0], cut.outcomes[2]} <= {"interrupted", "error"}
    assert same((3, True)) == found
