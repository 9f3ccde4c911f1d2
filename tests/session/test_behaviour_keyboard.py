"""Code that would end a rank fails at once with an error that names the fix."""

from __future__ import annotations

import pytest

from tests.session.cells import fail, pids, run, same


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit", "quit"])
def test_leaving_is_refused(world, code):
    """A rank that left would be a hole in the world."""
    before = pids(world)
    cell = fail(world, code)

    assert {True} == {"%distributed stop" in error.evalue for error in cell.errors.values()}
    assert before == pids(world)


def test_sys_exit_is_an_error_and_the_rank_lives(world):
    """A notebook does the same."""
    cell = fail(world, "import sys; alive = 1; sys.exit(3)")

    assert same(("SystemExit", "3")) == {rank: (e.ename, e.evalue) for rank, e in cell.errors.items()}
    assert same(1) == world["alive"]
    assert run(world, "1").outcome == "ok"
