"""What holds the memory of ranks, without any framework: names, sizes, old outputs, and how to let go of them."""

from __future__ import annotations

import pytest

from jupyter_dtrain import BadRequest, RanksBusy, RanksDead
from tests.session.cells import begin, fail, run, same, until, values
from tests.steward.until import PATIENCE

HELD = """
import weakref
class Big(bytearray): pass
class Config:
    table = bytearray(3_000_000)
    @property
    def trap(self): raise SystemExit("user code ran")
    def __getattr__(self, name): raise SystemExit("user code ran")
class Slotted:
    __slots__ = ("held", "unset")
config, slotted = Config(), Slotted()
config.blob = bytearray(2_000_000)
slotted.held = bytearray(2_100_000)
results = [{}, {"logits": [bytearray(2_200_000)]}]
again = results[1]["logits"][0]
def outer():
    kept = bytearray(2_300_000)
    return lambda: kept
inner = outer()
"""
MOST = 50


def names(report, rank=0):
    """The names of what a rank holds, by size."""
    return {round(piece.size, -3): piece.names for piece in report.ranks[rank].largest}


def old(report, rank=0):
    """The names of what only old outputs keep."""
    return [piece.names for piece in report.ranks[rank].largest if piece.old]


@pytest.fixture(scope="module")
def held(world):
    """The shared world with some large variables."""
    run(world, HELD)
    return world


def test_each_name_leads_to_what_it_holds(held):
    """Through attributes, slots, items, closures and classes; memory with two names counts once; no user code runs."""
    found = held.memory(most=MOST)

    assert (
        names(found).items()
        >= {
            3_000_000: ["Config.table"],
            2_000_000: ["config.blob"],
            2_100_000: ["slotted.held"],
            2_200_000: ["again", 'results[1]["logits"][0]'],
            2_300_000: ["inner's kept"],
        }.items()
    )
    mine = found.ranks[0]
    assert mine.named["cpu"] == sum(piece.size for piece in mine.largest) < 12_000_000
    assert not mine.cut
    assert not mine.unread
    own = mine.footprint
    assert own.peak >= own.rss > mine.named["cpu"]
    assert 0 < own.pss <= own.rss
    assert own.shm >= 0


def test_pieces_that_are_alike_share_a_row(held):
    """One that only a rank has is a row of its own."""
    run(held, "alone = bytearray(4_000_000)", 1)
    lines = str(held.memory(most=MOST)).splitlines()
    run(held, "del alone", 1)

    assert lines[0].endswith("on 3 ranks")
    (shared,) = [line for line in lines if "config.blob" in line]
    (single,) = [line for line in lines if "alone" in line]
    assert shared.split()[-1] == "all"
    assert single.split()[-1] == "1"


def test_what_only_outputs_and_the_last_error_keep_is_marked_and_let_go_of(held):
    """Variables stay, also one that user code has called ``_``, and those that an old output is, too."""
    held.free()
    run(held, "del_seen = []\ndef note(value):\n    del_seen.append(weakref.ref(value))\n    return value")
    run(held, "note(Big(5_000_000))")
    run(held, "both = Big(5_100_000)\nboth")
    fail(held, "def bad():\n    lost = note(Big(5_200_000))\n    1 / 0\nbad()")
    run(held, "import os\nmine = os.getpid")
    marked = held.memory(most=MOST)
    alive = values(run(held, "both = None if 0 else both\nprint()\n[ref() is not None for ref in del_seen]"))
    freed = held.free()
    after = held.memory(most=MOST)
    gone = values(run(held, "[ref() is None for ref in del_seen], len(both), config.blob == bytearray(2_000_000)"))

    (error, *_), (output, *_) = old(marked)
    assert error == "the last error: bad().lost"
    assert output.startswith("Out[")
    assert 10_000_000 < marked.ranks[0].old["cpu"] < 10_500_000
    assert "%distributed free lets go of it" in str(marked)
    assert alive == same([True, True])
    assert freed.ranks[0].outputs >= 2
    assert freed.ranks[0].error
    assert freed.ranks[0].host > 1_000_000
    assert str(freed).count("let go of") == len(str(freed).splitlines())
    assert not old(after)
    assert gone == same(([True, True], 5_100_000, True))


def test_a_name_of_the_users_own_is_none_of_ipythons(held):
    """``_``, bound by a loop, is a variable."""
    run(held, "for _ in [bytearray(6_000_000)]: pass")
    assert names(held.memory(most=MOST))[6_000_000] == ["_"]
    held.free()
    assert values(run(held, "size = len(_)\nsize")) == same(6_000_000)
    run(held, "del _")


def test_the_memory_of_a_running_cell_has_names_and_is_not_let_go_of(held, meeting):
    """The variables of the functions that run now; what the look has seen dies with its function."""
    going = begin(
        held,
        f"import time, pathlib\ndef train():\n    batch = [Big(7_000_000)]\n    ref = weakref.ref(batch[0])\n"
        f"    while not pathlib.Path({str(meeting / 'go')!r}).exists(): time.sleep(0.01)\n"
        f"    batch.clear()\n    return ref() is None\ntrain()",
    )
    found = held.memory(most=MOST)
    with pytest.raises(RanksBusy, match=r"Cannot free memory: ranks 0-2 are still working on run \d+\."):
        held.free()
    (meeting / "go").touch()
    assert going.wait(PATIENCE)

    assert names(found)[7_000_000] == ["train().batch[0]"]
    assert "config.blob" in str(found)
    assert "Gradients are left out while a cell runs" in str(found)
    assert values(going) == same(True)


def test_arrays_and_their_views_count_once(held):
    """The row has the size of all that they share."""
    pytest.importorskip("numpy")
    run(held, "import numpy\nwhole = numpy.ones((1000, 1000))\npart = whole[3]\nflat = memoryview(whole)")
    (piece,) = [one for one in held.memory(most=MOST).ranks[0].largest if "whole" in one.names]
    run(held, "del whole, part, flat")

    assert piece.names == ["whole", "part", "flat.obj"]
    assert (piece.size, piece.shape, piece.dtype, piece.device) == (8_000_000, [1000, 1000], "float64", "cpu")


def test_the_names_that_are_left_out_are_counted(held):
    """The most that was asked for comes from each rank."""
    found = held.memory([0, 2], most=2)

    assert list(found.ranks) == [0, 2]
    assert len(found.ranks[2].largest) == 2
    assert f", 2 of {found.ranks[2].pieces} (-n shows more)" in str(found)


def test_ranks_that_are_not_there_are_refused(held):
    """As everywhere."""
    with pytest.raises(BadRequest, match="There is no rank 7"):
        held.memory("7")
    with pytest.raises(BadRequest, match="There is no rank 7"):
        held.free("7")
    with pytest.raises(BadRequest, match="at least 1 piece"):
        held.memory(most=0)


PAUSE = """
import os, signal, subprocess
subprocess.Popen(['sh', '-c', f'sleep 3; kill -CONT {os.getpid()}'])
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_rank_that_does_not_answer_is_named(held, process_at):
    """The others are shown."""
    paused = held.run(PAUSE, 1, wait=False, view=None)
    until(lambda: process_at(held, 1).status() == "stopped")
    found = held.memory(timeout=1.0)
    assert paused.wait(PATIENCE)

    assert found.ranks[1] is None
    assert "Rank 1: no answer." in str(found)
    assert "config.blob" in names(found)[2_000_000]


def test_a_rank_that_is_dead_is_named(launch):
    """The others are shown, and let go of what they have; a look that finds no rank says so."""
    with launch(n=2) as session:
        session.kill(1)
        found, none = session.memory(), session.memory("1")
        with pytest.raises(RanksDead, match="Rank 1 was killed"):
            session.free()
        freed = session.free("0")

    assert str(found).splitlines()[-1] == "Rank 1: dead."
    assert str(none) == "Rank 1: dead."
    assert list(freed.ranks) == [0]
