"""Worlds of several sizes, many cells, many worlds."""

from __future__ import annotations

import psutil
import pytest

from tests.session.cells import run, same, until, values
from tests.steward.until import running


@pytest.mark.parametrize("n", [1, 2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_a_world_of_any_size_works(launch, n, process_at):
    """All ranks answer, values come back, MPI connects all; at the end nothing is left."""
    with launch(n=n) as session:
        cell = run(session, "from mpi4py import MPI\nprint('hello')\nMPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)")
        session.push({"a": 1})
        processes = [process_at(session, rank) for rank in range(session.world.size)]

        assert same(n * (n - 1) // 2, n) == values(cell)
        assert ["hello\n"] * n == [cell.text(rank) for rank in range(n)]
        assert same(1, n) == session["a"]
        assert session.world.size == n

    assert [] == running(processes)


@pytest.mark.slow
def test_a_hundred_cells_leave_nothing_behind_in_this_process(world):
    """The numbers of descriptors and threads do not grow with the number of cells."""
    me = psutil.Process()
    for k in range(10):
        run(world, str(k))
    world.push({"a": 1})
    descriptors, threads = me.num_fds(), me.num_threads()
    for k in range(100):
        run(world, f"print({k}); {k}")
    _, channel = world._link.bound()

    until(lambda: me.num_fds() <= descriptors)
    until(lambda: me.num_threads() <= threads)
    until(lambda: not channel._futures)


@pytest.mark.slow
def test_ten_worlds_in_a_row_leave_nothing(launch, process_at):
    """Start, one cell, stop; descriptors and threads of this process are as before."""
    me = psutil.Process()
    seen = []
    for _ in range(10):
        with launch(n=2) as session:
            processes = [process_at(session, rank) for rank in range(session.world.size)]
            assert same(2, 2) == values(run(session, "1 + 1"))
        assert [] == running(processes)
        seen.append((me.num_fds(), me.num_threads()))

    assert seen[-1] <= seen[1]


@pytest.mark.slow
def test_two_worlds_live_side_by_side(launch, world):
    """Each has its own names, variables and numbers; the newest is the current one."""
    from jupyter_dtrain import current

    with launch(n=1) as other:
        assert other.name != world.name
        run(other, "here = 'other'")
        run(world, "here = 'world'")

        assert same("other", 1) == other["here"]
        assert same("world") == world["here"]
        assert current() is other
    assert current() is not other


@pytest.mark.parametrize("way", ["push", "inputs"])
def test_a_rank_holds_a_value_once(world, way):
    """It keeps no message until the next one comes."""
    value, size = bytes(80_000_000), 80_000_000
    held = psutil.Process(world.world.ranks[0].pid).memory_info
    before = held().rss
    if way == "push":
        world.push({"sent": value}, [0])
    else:
        run(world, "pass", [0], inputs={"sent": value})
    until(lambda: held().rss < before + 1.5 * size)
    assert [size] == list(values(run(world, "len(sent)", [0])).values())
    run(world, "del sent", [0])
