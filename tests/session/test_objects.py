"""Large values: by memory that the session lends, or in messages where ranks cannot reach that; none is kept."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from jupyter_dtrain import DistributedError, TransferFailed
from jupyter_dtrain.client import rank_requests
from jupyter_dtrain.wire.values import LARGE, Parcel
from tests.session.cells import REFUSALS, begin, pids, run, same, until, values, without_files
from tests.session.test_behaviour_values import wait_for

FRESH_WORLD = True
pytestmark = pytest.mark.here("the memory of ranks is looked at, and ranks on other hosts can reach none")
MIB = 1 << 20
BIG = 64 * MIB
"""Bytes of an array whose memory stands out in that of a process."""
SUM = "float(got.sum()), got.flags.writeable"


@pytest.fixture
def ways(monkeypatch) -> list[bool]:
    """For each parcel that this process sends, whether it uses memory."""
    used = []

    def keep(*args):
        parcel = pack(*args)
        if parcel.values:
            used.append(parcel.memory is not None)
        return parcel

    pack = rank_requests.pack
    monkeypatch.setattr(rank_requests, "pack", keep)
    return used


def lent(pid: int | str = "self") -> list[str]:
    """The lent memory that a process has open."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except OSError:  # closed meanwhile
            continue
    return [name for name in found if name.startswith("/memfd:dtrain-")]


def memory(pid: int | str = "self") -> int:
    """The bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def nobody_holds_memory(world) -> bool:
    """Neither this process nor a rank."""
    return not any(lent(pid) for pid in ["self", *pids(world).values()])


def test_large_arrays_go_there_and_back(world, ways):
    """Pushed, sent with a cell, scattered; pulled from all ranks."""
    array = np.arange(LARGE, dtype=float)
    world.push({"got": array, "other": np.ones(LARGE)})
    assert same((array.sum(), True)) == values(run(world, SUM))
    assert same((array.sum() + 1, True)) == values(run(world, SUM, inputs={"got": array + 1 / LARGE}))
    world.scatter("part", np.arange(3 * LARGE))
    assert ways == [True] * 5

    pulled = world.pull_many(["part", "other"])
    assert {rank: part[0] for rank, part in pulled["part"].items()} == {0: 0, 1: LARGE, 2: 2 * LARGE}
    assert all(part.flags.writeable for part in pulled["part"].values())
    np.testing.assert_array_equal(world.gather("part"), np.arange(3 * LARGE))
    assert nobody_holds_memory(world)


def test_what_arrives_belongs_to_its_process_alone(world):
    """Neither the notebook nor another rank sees what a rank writes."""
    array = np.zeros(LARGE)
    world.push({"got": array})
    run(world, "import os\ngot += 1 + int(os.environ['RANK'])")

    assert array.sum() == 0
    assert {rank: got[-1] for rank, got in world.pull("got").items()} == {0: 1.0, 1: 2.0, 2: 3.0}


@pytest.mark.parametrize("refused", REFUSALS)
def test_ranks_that_cannot_open_the_memory_use_messages(world, ways, refused):
    """As those in another container or on another host; one is enough."""
    array = np.ones(LARGE)
    with without_files(world, refused, [1]):
        world.push({"got": array})
        run(world, "got *= 2", inputs={"got": array})
        pulled = world.pull("got")

    assert ways == [False, False]
    assert {rank: (got.sum(), got.flags.writeable) for rank, got in pulled.items()} == same((2.0 * LARGE, True))
    assert nobody_holds_memory(world)


def test_without_memory_here_messages_are_used(world, ways):
    """A limit that keeps this process from making large files, as where no memory is left."""
    array = np.ones(LARGE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, hard))
    try:
        world.push({"got": array})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert ways == [False]
    assert same((1.0 * LARGE, True)) == values(run(world, SUM))
    assert nobody_holds_memory(world)


def test_without_memory_in_a_rank_it_answers_in_messages(world):
    """The same limit there."""
    run(
        world,
        f"import numpy as np, resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        f"have = np.ones({LARGE})\nresource.setrlimit(resource.RLIMIT_FSIZE, ({LARGE}, hard))",
        ranks=1,
    )
    run(world, f"import numpy as np\nhave = np.ones({LARGE})", ranks="0,2")
    pulled = world.pull("have")
    run(world, "resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))", ranks=1)

    assert {rank: (got.sum(), got.flags.writeable) for rank, got in pulled.items()} == same((1.0 * LARGE, True))
    assert nobody_holds_memory(world)


def test_neither_side_keeps_the_memory(world):
    """After the variables are gone; a second copy would stand out."""
    array = np.ones(BIG // 8)
    here, there = memory(), {rank: memory(pid) for rank, pid in pids(world).items()}
    world.push({"got": array})
    assert nobody_holds_memory(world)
    grown = {rank: memory(pid) - there[rank] for rank, pid in pids(world).items()}
    assert all(BIG / 2 < more < 1.5 * BIG for more in grown.values()), grown

    pulled = world.pull("got")
    assert memory() - here < 3.5 * BIG
    assert pulled[2].sum() == BIG // 8
    del pulled
    run(world, "del got")
    grown = {rank: memory(pid) - there[rank] for rank, pid in pids(world).items()}
    assert all(more < BIG / 2 for more in grown.values()), grown
    assert memory() - here < BIG / 2


def test_the_memory_of_inputs_is_given_back_once_the_cell_has_begun(world, meeting, monkeypatch):
    """Not first at its end."""
    closed = []
    monkeypatch.setattr(Parcel, "close", lambda parcel: closed.append(parcel.memory.close()))
    cell = begin(world, wait_for(meeting / "go"), inputs={"got": np.ones(LARGE)})

    until(lambda: closed)
    assert nobody_holds_memory(world)
    assert not cell.done
    (meeting / "go").touch()
    assert cell.wait(20)


def test_the_memory_of_a_cell_that_is_never_sent_is_given_back(world, meeting):
    """It was queued behind one that failed."""
    first = begin(world, wait_for(meeting / "go") + "\n1 / 0")
    queued = world.run("pass", wait=False, view=None, inputs={"got": np.ones(LARGE)})
    assert len(lent()) == 1
    (meeting / "go").touch()

    assert first.wait(20)
    assert queued.wait(20)
    until(lambda: nobody_holds_memory(world))


def test_a_value_that_cannot_be_rebuilt_leaves_nothing(world):
    """Neither on its way to a rank, nor from one."""
    with pytest.raises(TransferFailed, match="'got' cannot be rebuilt here"):
        world.push({"got": Breaks(np.ones(LARGE))})
    with pytest.raises(DistributedError, match="'got' cannot be rebuilt here"):
        run(world, "pass", inputs={"got": Breaks(np.ones(LARGE))})
    code = "class Far:\n    def __reduce__(self): return (__import__, ('no_such_module', vars(self)))\nfar = Far()"
    run(world, f"{code}\nimport numpy\nfar.large = numpy.ones({LARGE})")
    with pytest.raises(TransferFailed, match=r"'far' of rank \d cannot be rebuilt here: ModuleNotFoundError"):
        world.pull("far")

    until(lambda: nobody_holds_memory(world))


def test_a_rank_that_is_killed_amid_a_push_leaves_nothing(world):
    """The others have the value; the next push reaches all ranks. The last test: it needs a new rank."""
    with pytest.raises(TransferFailed, match=r"Cannot push got\. Rank 1: "):
        world.push({"got": Kills(np.ones(LARGE), rank=1)})

    assert lent() == []
    assert {0: LARGE, 2: LARGE} == {rank: got.sum() for rank, got in world.pull("got", ranks="0,2").items()}
    world.replace()
    world.push({"got": np.ones(LARGE)})
    assert same((1.0 * LARGE, True)) == values(run(world, SUM))
    assert nobody_holds_memory(world)


class Breaks:
    """Has an array, and fails when it is rebuilt."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return (_fail, (self.array,))


class Kills:
    """Becomes its array; ends the process of one rank instead."""

    def __init__(self, array, rank):
        self.array, self.rank = array, rank

    def __reduce__(self):
        return (_kill, (self.array, self.rank))


def _fail(array):
    raise ValueError(array.size)


def _kill(array, rank):
    import os
    import signal

    if int(os.environ["RANK"]) == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return array
