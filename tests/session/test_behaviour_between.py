"""What a cell leaves behind may run between two cells: it ends no rank, and the next cell shows what it raised."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.stacks import describe_stacks
from tests.magics.notebook import plain
from tests.session.cells import begin, fail, pids, run, same, texts, until, values

SET_UP = """
import asyncio, gc, os, signal, sys, threading, time
from pathlib import Path
folder, loop = Path({folder!r}), asyncio.get_event_loop()
go, done = folder / "go", folder / str(os.getpid())
def late(*_):
    if go.exists():
        done.touch()
        raise {raised}
class Late:
    __del__ = late
async def task():
    while not go.exists():
        await asyncio.sleep(0.01)
    late()
def begin(act, *arguments):
    def work():
        while not go.exists():
            time.sleep(0.01)
        act(*arguments)
    threading.Thread(target=work).start()
"""
TIDY = """
gc.callbacks.clear()
loop.remove_signal_handler(signal.SIGALRM)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
"""
ALARM = "begin(os.kill, os.getpid(), signal.SIGALRM)"


@pytest.mark.parametrize(
    ("raised", "code", "origin"),
    [
        ("TimeoutError('too long')", f"signal.signal(signal.SIGALRM, late); {ALARM}", "SIGALRM"),
        ("KeyboardInterrupt", f"signal.signal(signal.SIGALRM, late); {ALARM}", "SIGALRM"),
        ("SystemExit(3)", "begin(loop.call_soon_threadsafe, late)", "event loop"),
        ("SystemExit(4)", f"loop.add_signal_handler(signal.SIGALRM, late); {ALARM}", "event loop"),
        ("KeyboardInterrupt", "running = loop.create_task(task())", "event loop"),
        ("loop.stop() or SystemExit", "begin(loop.call_soon_threadsafe, late)", "event loop"),
        ("ValueError('here')", "objects = [Late()]; begin(objects.clear)", "function late"),
        ("ValueError('here')", "gc.callbacks.append(late); begin(gc.collect)", "function late"),
        ("ValueError('here')", "begin(late)", "Exception in thread"),
        ("ValueError('here')", "begin(loop.call_soon_threadsafe, late)", "Exception in callback late"),
    ],
)
def test_what_runs_between_two_cells_ends_no_rank(world, meeting, raised, code, origin):
    """The next cell names the origin and the line, and the variables are there."""
    before = pids(world)
    run(world, SET_UP.format(folder=str(meeting), raised=raised))
    fail(world, f"kept = 5; {code}; raise ValueError")
    (meeting / "go").touch()
    until(lambda: all((meeting / str(pid)).exists() for pid in before.values()))

    said = dict.fromkeys(before, "")

    def shown():
        cell = run(world, f"{TIDY}kept")
        assert same(5) == values(cell)
        # One rank's thread may tell it later than another's.
        # Python 3.13 colours what it prints about a thread.
        said.update({rank: said[rank] + plain(text) for rank, text in texts(cell).items()})
        return all(origin in text and "in late" in text for text in said.values())

    until(shown)
    assert before == pids(world)


@pytest.mark.parametrize("name", ["trace", "profile"])
def test_a_trace_function_that_raises_harms_at_most_the_cell_that_it_traces(world, meeting, name):
    """Between cells it would run in the rank's own code. Python drops it when it raises."""
    before, go = pids(world), meeting / "go"
    run(world, f"import os, sys\ndef late(*_):\n    if os.path.exists({str(go)!r}): raise OSError\nsys.set{name}(late)")
    assert same(True) == values(run(world, f"sys.get{name}() is late"))
    go.touch()
    cell = world.run("(lambda: 1)()", wait=False, view=None)

    assert cell.wait(20)
    assert {"OSError"} >= {error.ename for error in cell.errors.values()}
    assert same(2) == values(run(world, "1 + 1"))
    assert before == pids(world)


def test_a_task_factory_that_raises_harms_only_the_tasks_of_cells(world):
    """The rank's own requests are tasks of the same loop."""
    run(world, "import asyncio\nloop = asyncio.get_event_loop()\ndef late(*_, **__): raise OSError")
    run(world, "loop.set_task_factory(late)")
    cell = fail(world, "await asyncio.create_task(asyncio.sleep(0))", timeout=20)

    assert same("OSError") == {rank: error.ename for rank, error in cell.errors.items()}
    assert same(True) == values(run(world, "loop.get_task_factory() is late"))
    run(world, "loop.set_task_factory(None)")
    assert same(2) == values(run(world, "1 + 1"))


def test_a_handler_that_raises_while_the_cell_waits_in_an_await_ends_that_cell(world):
    """Its exception comes out of the await, as it would come out of a call."""
    code = """
import asyncio, os, signal, threading
def late(*_): raise TimeoutError("too long")
before = signal.signal(signal.SIGALRM, late)
async def wait(): await asyncio.sleep(1000)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGALRM)).start()
try: await wait()
finally: signal.signal(signal.SIGALRM, before)
"""
    cell = fail(world, code, timeout=20)

    for error in cell.errors.values():
        assert (error.ename, error.evalue) == ("TimeoutError", "too long")
        assert [frame.function for frame in error.frames if frame.cell] == ["", "wait", "late"]
    assert same(2) == values(run(world, "1 + 1"))


@pytest.mark.parametrize(
    ("wait", "place"),
    [
        ("await work()", "in work: await asyncio.sleep(1000)"),
        ("await asyncio.create_task(work())", "in work: await asyncio.sleep(1000)"),
        ("await asyncio.gather(asyncio.sleep(0), work())", "in work: await asyncio.sleep(1000)"),
    ],
)
def test_a_cell_that_awaits_is_shown_with_its_place(world, wait, place):
    """Its frames are on no thread's stack."""
    cell = begin(world, f"import asyncio\nasync def work():\n    await asyncio.sleep(1000)\n{wait}")
    until(lambda: place in describe_stacks(world.stacks()))
    found = describe_stacks(world.stacks())
    world.interrupt()

    assert f", line 5: {wait}" in found
    assert cell.wait(20)
    assert cell.outcome == "interrupted"


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    try: await asyncio.sleep(1000)\n    except asyncio.CancelledError: pass",
        "async def work():\n    while True: time.sleep(0.01)\nawait asyncio.create_task(work())",
        "def work():\n    while True: time.sleep(0.01)\nloop.call_soon(work)\nawait asyncio.sleep(1000)",
    ],
)
def test_stop_ends_a_cell_that_awaits_whatever_it_does(world, code):
    """It swallows its cancellation, or other code holds the loop up."""
    before = pids(world)
    cell = begin(world, f"import asyncio, time\nloop = asyncio.get_running_loop()\n{code}")
    world.interrupt()

    assert cell.wait(30)
    assert (cell.outcome, cell.busy) == ("interrupted", [])
    assert same(2) == values(run(world, "1 + 1"))
    assert before == pids(world)
