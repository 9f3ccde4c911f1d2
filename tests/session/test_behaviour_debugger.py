"""Python's debugger in ranks: its commands do what they do elsewhere, and nothing of it is left in the next cell."""

from __future__ import annotations

import pytest

from tests.session.cells import begin, fail, run, same, values
from tests.steward.until import PATIENCE, until

LOOP = """
import os, sys
me = int(os.environ['RANK'])
def inner(x):
    doubled = x * 2
    return doubled
def loop():
    total = 0
    for step in range(6):
        total += inner(step)
        if step == 0 and me in STOPS: breakpoint()
    return total
loop()
"""
TRACING = "import sys; sys.gettrace() is not None"


class Stopped:
    """A cell whose debuggers a test leads."""

    def __init__(self, world, code, ranks, at):
        self.world = world
        self.cell = begin(world, code, ranks, ask=True)
        until(lambda: set(world.prompts) == set(at))

    def tell(self, line, rank=1):
        """Type a line on one rank; what the debugger prints. None where the rank asks nothing more."""
        asked = self.world.prompts[rank].number
        self.world.answer(line, rank)

        def told():
            prompt = self.world.prompts.get(rank)
            return rank not in self.cell.unfinished or (prompt is not None and prompt.number > asked)

        until(told)
        return self.world.prompts[rank].said if rank in self.world.prompts else None


def stop(world, at, code=LOOP):
    """Begin the loop, and wait until the ranks ``at`` stand at its breakpoint."""
    return Stopped(world, code.replace("STOPS", str(at)), None, at)


def test_a_breakpoint_has_a_condition_of_rank_and_value(world):
    """It is set on both; only one of them stops there, and looks at its frames."""
    stopped = stop(world, [0, 1])
    for rank in (0, 1):
        assert "Breakpoint" in stopped.tell("b inner, rank == 1 and x == 3", rank)
    assert stopped.tell("c", 0) is None
    assert "inner()" in stopped.tell("c")
    assert stopped.tell("p x, me") == "(3, 1)\n"
    assert "loop()" in stopped.tell("up")
    assert stopped.tell("p step") == "3\n"
    assert stopped.tell("p nothing") == "*** NameError: name 'nothing' is not defined\n"
    assert "inner()" in stopped.tell("down")
    assert "run " in stopped.tell("w")
    assert "doubled = x * 2" in stopped.tell("l")
    assert "Deleted breakpoint" in stopped.tell("cl 1")
    assert stopped.tell("!x = 100") == ""
    assert stopped.tell("c") is None

    assert stopped.cell.wait(PATIENCE)
    assert values(stopped.cell) == {0: 30, 1: 224, 2: 30}
    assert values(run(world, TRACING)) == same(False)


def test_steps_lead_into_functions_and_over_them(world):
    """And out of them."""
    stopped = stop(world, [1])
    # From where it first stands, which is another line in Python 3.13.
    assert any("total += inner(step)" in stopped.tell("n") for _ in range(4))
    assert "--Call--" in stopped.tell("s")
    assert "--Return--" in stopped.tell("r")
    assert stopped.tell("p __return__") == "2\n"
    assert "loop()" in stopped.tell("n")
    assert stopped.tell("c") is None

    assert stopped.cell.wait(PATIENCE)
    assert values(stopped.cell) == same(30)


@pytest.mark.parametrize("word", ["q", None])
def test_quitting_ends_the_cell_on_its_rank(world, word):
    """Even where the code catches all exceptions; nothing traces the next cell."""
    caught = LOOP.replace("\nloop()\n", "\nwhile True:\n    try: loop(); break\n    except Exception: pass\n")
    stopped = stop(world, [1], caught)
    stopped.tell("b inner")
    assert stopped.tell(word) is None

    assert stopped.cell.wait(PATIENCE)
    assert {rank: error.ename for rank, error in stopped.cell.errors.items()} == {1: "CellQuit"}
    assert stopped.cell.outcome == "interrupted"
    with pytest.raises(KeyboardInterrupt, match="Rank 1 quit at a debugger's prompt"):
        stopped.cell.result()
    assert values(run(world, TRACING)) == same(False)


def test_an_error_is_looked_at_after_it_was_raised(world):
    """In the innermost frame of the user's own code."""
    fail(world, "import json\ndef parse(text):\n    return json.loads(text)\nparse('{')")
    stopped = Stopped(world, "get_ipython().run_line_magic('debug', '')", "0", [0])
    assert "parse()" in world.prompts[0].said
    assert stopped.tell("p text", 0) == "'{'\n"
    assert "loads()" in stopped.tell("d", 0)
    assert stopped.tell("q", 0) is None

    assert stopped.cell.wait(PATIENCE)
    assert stopped.cell.outcome == "ok"
