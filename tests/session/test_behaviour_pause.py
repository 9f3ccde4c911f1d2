"""A rank that is stopped for a while comes back as it was."""

from __future__ import annotations

import pytest

from tests.session.cells import pids, run, same, until, values

PAUSE = """
import os, signal, subprocess
me = os.getpid()
subprocess.Popen(['sh', '-c', f'sleep {seconds}; kill -CONT {{me}}'])
os.kill(me, signal.SIGSTOP)
'back'
"""


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_rank_that_was_stopped_comes_back(world, seconds):
    """Same process, same variables; the others worked meanwhile, and the next cell runs everywhere."""
    run(world, "kept = [1, 2]")
    before = pids(world)
    cell = world.run(PAUSE.format(seconds=seconds), 1, wait=False, view=None)
    until(lambda: cell.fold.ranks[1].started, patience=seconds + 20)  # it may stop before it is heard of
    meanwhile = values(run(world, "'working'", ranks="0,2"))

    assert cell.wait(seconds + 30)
    assert cell.outcome == "ok"
    assert cell.elapsed >= seconds
    assert {0: "working", 2: "working"} == meanwhile
    assert {1: "back"} == values(cell)
    assert before == pids(world)
    assert same([1, 2]) == world["kept"]
    assert same(2) == values(run(world, "1 + 1"))
