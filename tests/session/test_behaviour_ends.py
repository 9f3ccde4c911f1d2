"""A cell always ends, whatever happens at its end; its cause is shown, and the next cell works on all ranks."""

from __future__ import annotations

import time

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jupyter_dtrain import DistributedError, DistributedInterrupt
from jupyter_dtrain.core.settings import Settings
from tests import hostile
from tests.session.cells import fail, run, same, values

LONG = 40.0
"""Seconds; a cell here takes about three at most."""

SETUP = """
import threading, time
import jupyter_dtrain
from mpi4py import MPI
gate = threading.Event()
comm = jupyter_dtrain.comm
rank = comm.Get_rank()
"""
ONE_FAILS = "if rank == 1:\n    exec({source!r}, globals())\ncomm.Barrier()"


@pytest.fixture(scope="module")
def world(launch):
    """Two ranks, which release soon."""
    with launch(n=2, settings=Settings(release_grace=0.2)) as session:
        yield session


# A draw takes seconds, so a failure is told as it was found.
@settings(max_examples=15, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(st.one_of(hostile.exceptions(), hostile.results()), hostile.POINTS, st.booleans())
def test_a_cell_ends_whatever_is_thrown_at_its_end(world, source, points, alone):
    """``alone``: the other rank waits for the one that fails."""
    code = f"exec({hostile.logged(points)!r})\n"
    code += ONE_FAILS.format(source=source) if alone and "Hostile" in source else source
    began = time.monotonic()
    try:
        cell = run(world, SETUP + code, timeout=20)
    except (DistributedError, DistributedInterrupt) as error:
        cell = error.run
    hostile.in_time(began, LONG)

    if "Hostile" in source:
        failed = [1] if alone else [0, 1]
        assert {cell.errors[rank].ename for rank in failed} == {"Hostile"}
        assert set(cell.outcomes.values()) == {"error"}
        assert "Hostile" in str(DistributedError(cell))
    assert same(2, ranks=2) == values(run(world, "gate.set(); 1 + 1"))


def test_a_message_that_never_comes_holds_up_no_rank(world):
    """The ranks that wait are released meanwhile, and the variables are kept."""
    code = "class Mute(Exception):\n    def __str__(self): time.sleep(1000)\nkept = 1\nraise Mute"
    cell = fail(world, SETUP + ONE_FAILS.format(source=code))

    assert cell.errors[1].ename == "Mute"
    assert cell.errors[1].evalue.startswith("<its text was not ready after ")
    assert cell.errors[0].waited == "Barrier"
    assert values(run(world, "kept if rank == 1 else 0")) == {0: 0, 1: 1}


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(3)"])
def test_a_message_that_raises_is_an_error_like_others(world, raised):
    """The error is of a kind that ends programs, but the rank lives on."""
    code = f"class Mute(Exception):\n    def __str__(self): raise {raised}\nkept = 2\nraise Mute"
    cell = fail(world, SETUP + ONE_FAILS.format(source=code))

    assert (cell.outcomes, cell.errors[1].ename) == ({0: "error", 1: "error"}, "Mute")
    assert cell.errors[1].evalue.startswith("<its text could not be made: ")
    assert cell.errors[0].waited == "Barrier"
    assert values(run(world, "kept if rank == 1 else 0")) == {0: 0, 1: 2}


def test_a_keyboard_interrupt_of_ones_own_is_shown_before_the_ranks_that_waited(world):
    """No person pressed Stop."""
    cell = fail(world, SETUP + "if rank == 0: raise KeyboardInterrupt('mine')\ncomm.Barrier()")

    assert str(DistributedError(cell)) == "KeyboardInterrupt: mine (rank 0); rank 1 stopped because of that"
