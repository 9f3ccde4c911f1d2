"""Python's debugger in ranks: its commands do what they do elsewhere, and nothing of it is left in the next cell."""

from __future__ import annotations

import pytest

from jupyter_dtrain.wire.agent_messages import ReadPosition
from jupyter_dtrain.wire.prompt_messages import Evaluate
from tests.session.cells import begin, fail, run, same, texts, values
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


REPEATED = """
def loop():
    seen = []
    for step in range(4):
        seen.append(step)
        if step in STOPS: breakpoint()
        step += 0
    return seen
loop()
"""


def test_the_next_breakpoint_stops_in_the_cell(world):
    """And not in the debugger itself, which another breakpoint has trace all code."""
    stopped = Stopped(world, REPEATED.replace("STOPS", "(1, 3)"), "0", [0])
    stopped.tell("b 9, step > 100", 0)
    assert "loop()" in stopped.tell("c", 0)
    assert stopped.tell("p step", 0) == "3\n"
    assert stopped.tell("c", 0) is None

    assert stopped.cell.wait(PATIENCE)
    assert stopped.cell.outcome == "ok"


LOOKING = """
import pdb
def loop():
    breakpoint()
    try: 1 / 0
    except ZeroDivisionError as error: pdb.post_mortem(error.__traceback__)
    after = 'reached'
    return after
loop()
"""


@pytest.mark.parametrize("word", ["q", "c"])
def test_a_look_at_an_error_leaves_breakpoints(world, word):
    """The cell goes on after the look, and stops where it was to stop."""
    stopped = Stopped(world, LOOKING, "0", [0])
    assert "Breakpoint" in stopped.tell("b 9", 0)
    assert "1 / 0" in stopped.tell("c", 0)
    assert "return after" in stopped.tell(word, 0)
    assert stopped.tell("p after", 0) == "'reached'\n"
    assert stopped.tell("c", 0) is None

    assert stopped.cell.wait(PATIENCE)
    assert stopped.cell.outcome == "ok"


def test_commands_of_a_breakpoint_print_into_the_cell(world):
    """Where they go on by themselves. A list of commands is asked for once."""
    stopped = stop(world, [1])
    stopped.tell("b inner")
    assert stopped.tell("commands") == ""
    for command in ("silent", "p x * 1000"):
        assert stopped.tell(command) == ""
    stopped.tell("c")
    stopped.tell("b 13")
    said = stopped.tell("c")
    assert "return total" in said
    assert "000" not in said
    assert stopped.tell("c") is None

    assert stopped.cell.wait(PATIENCE)
    printed = texts(stopped.cell)[1].split()
    assert [word for word in printed if word.endswith("000")] == ["1000", "2000", "3000", "4000", "5000"]


@pytest.mark.parametrize("word", ["c", "q"])
def test_variables_of_a_stopped_function_end_with_it(world, word):
    """No frame outlives the cell in the debugger."""
    code = """
import gc, weakref
class Large: pass
def train():
    large = Large()
    global kept
    kept = weakref.ref(large)
    breakpoint()
    large
train()
"""
    stopped = Stopped(world, code, "0", [0])
    stopped.tell("display large", 0)
    assert stopped.tell(word, 0) is None
    assert stopped.cell.wait(PATIENCE)

    world.free("0")
    assert values(run(world, "gc.collect(); kept() is None", "0")) == {0: True}


@pytest.mark.parametrize(("start", "lines"), [("pdb.Pdb().set_trace()", []), ("breakpoint()", ["debug len('a')", "c"])])
def test_debuggers_of_others_leave_stop_alone(world, start, lines):
    """After one, an interrupt ends the cell as ever, and no debugger starts."""
    handler = "import signal; signal.getsignal(signal.SIGINT).__qualname__"
    before = values(run(world, handler, "0"))
    code = "import pdb\n{}\nprint('on', flush=True)\nsteps = 1\nwhile True: steps += 1"
    stopped = Stopped(world, code.format(start), "0", [0])
    for line in lines:
        assert stopped.tell(line, 0) is not None
    world.answer("c", 0)
    until(lambda: texts(stopped.cell)[0].endswith("on\n"))
    world.interrupt()

    assert stopped.cell.wait(PATIENCE)
    assert stopped.cell.errors[0].ename == "KeyboardInterrupt"
    assert values(run(world, handler, "0")) == before


@pytest.mark.parametrize(
    ("start", "lines"),
    [
        ("breakpoint()", ["b 2", "commands"]),
        ("import IPython.core.debugger as d; d.Pdb().set_trace()", []),
        ("import pdb; pdb.Pdb().set_trace()", []),
    ],
)
def test_stop_ends_each_prompt_of_a_debugger(world, start, lines):
    """Once is enough."""
    stopped = Stopped(world, f"{start}\nafter = 1", "0", [0])
    for line in lines:
        assert stopped.tell(line, 0) is not None
    world.interrupt()

    assert stopped.cell.wait(PATIENCE)
    # Not by force, which comes later where a debugger asks again.
    assert stopped.cell.errors[0].evalue == "it was interrupted at a debugger's prompt"


def test_stop_at_the_debugger_of_a_failed_cell_ends_it(world):
    """Nothing of it is left in the next cell."""
    run(world, "%pdb on", "0")
    try:
        stopped = Stopped(world, "breakpoint()\n1 / 0", "0", [0])
        stopped.tell("b 3", 0)
        for _ in ("at the breakpoint", "after the error"):
            assert "1 / 0" in stopped.tell("c", 0)
        world.interrupt()
        assert stopped.cell.wait(PATIENCE)
    finally:
        left = run(world, f"%pdb off\nimport bdb\nkept = list(bdb.Breakpoint.bplist)\n{TRACING}, kept", "0")
    assert values(left) == {0: (False, [])}


def test_the_debugger_of_a_failed_cell_hides_no_error(world):
    """Where nobody can answer, however often the code has asked before."""
    run(world, "%pdb on", "0")
    code = "for text in 'aa':\n    try: input(text)\n    except RuntimeError: pass\n1 / 0"
    try:
        cells = [fail(world, code, "0"), fail(world, code.replace("input(text)", "breakpoint()"), "0")]
    finally:
        run(world, "%pdb off", "0")
    assert [cell.errors[0].ename for cell in cells] == ["ZeroDivisionError"] * 2


def test_breakpoints_are_turned_off_as_python_does_it(world):
    """By PYTHONBREAKPOINT=0."""
    code = "import os; os.environ['PYTHONBREAKPOINT'] = '0'\nbreakpoint(); del os.environ['PYTHONBREAKPOINT']; 'on'"
    assert values(run(world, code, "0")) == {0: "on"}


@pytest.mark.parametrize(
    "call", ["breakpoint(header='here we are')", "import pdb; pdb.set_trace(header='here we are')"]
)
def test_a_header_is_shown(world, call):
    """Before where it stands."""
    stopped = Stopped(world, f"{call}\nafter = 1", "0", [0])
    assert world.prompts[0].said.startswith("here we are\n")
    assert stopped.tell("c", 0) is None
    assert stopped.cell.wait(PATIENCE)


def test_the_debugger_of_a_thread_leaves_the_trace_function_of_the_cell(world):
    """It is the person's own."""
    code = """
import sys, threading
def traced(*_): return None
def work(): breakpoint()
thread = threading.Thread(target=work)
thread.start(); thread.join()
sys.settrace(traced)
"""
    stopped = Stopped(world, code, "0", [0])
    assert stopped.tell("c", 0) is None
    assert stopped.cell.wait(PATIENCE)
    assert values(run(world, "found = sys.gettrace() is traced; sys.settrace(None); found", "0")) == {0: True}


WAITING = """
import os, threading, weakref
from mpi4py import MPI
class Large: pass
def ask():
    input()
    MPI.COMM_WORLD.Barrier()
    return True
def wait():
    large = Large()
    kept = weakref.ref(large)
    MPI.COMM_WORLD.Barrier()
    del large
    return kept() is None
def work():
    thread = threading.Thread(target=MPI.COMM_WORLD.Barrier)
    thread.start()
    while thread.is_alive(): pass
    return True
[ask, wait, work][int(os.environ["RANK"])]()
"""


def test_a_rank_that_waits_answers_and_keeps_nothing(world):
    """It says what it cannot answer. One whose main thread works does not answer, though another thread waits."""
    cell = begin(world, WAITING, ask=True)

    def ask(rank, question):
        return world._requests.ask_agents([rank], PATIENCE, question)[rank]

    until(lambda: all(ask(rank, ReadPosition(waits=True)).waits is not None for rank in (1, 2)))
    assert "Large object" in ask(1, Evaluate(cell.number, "p large")).text
    assert ask(1, Evaluate(cell.number, "p")).text == "*** p needs an expression, as in p loss."
    assert "answers p, pp, whatis, w and args, not 'b'" in ask(1, Evaluate(cell.number, "b 3")).text
    assert ask(2, Evaluate(cell.number, "p thread")).waits == ""
    world.answer("on", 0)

    assert cell.wait(PATIENCE)
    assert values(cell) == same(True)
