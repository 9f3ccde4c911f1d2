"""An interrupt ends what runs, on every rank, and nothing else."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from jupyter_dtrain import DistributedInterrupt, RanksBusy, RunTimeout, Settings
from jupyter_dtrain.core.causes import summary
from jupyter_dtrain.core.events import Finished
from jupyter_dtrain.wire.agent_messages import ReadEvents
from tests.session.cells import Notes, begin, fail, pids, run, same, texts, until, values

STUBBORN = """
import time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    try:
        time.sleep(0.05)
    except KeyboardInterrupt:
        pass
"""


class Moment(Notes):
    """A view that reports when the ranks have sent so many batches of events, or all."""

    def __init__(self, batches):
        super().__init__()
        self.came = threading.Event()
        self._left = batches
        self.feed(None, 0)

    def feed(self, batch, now):  # noqa: ARG002 — the protocol's shape
        """One more."""
        self._left -= batch is not None
        if self._left <= 0:
            self.came.set()

    def close(self, run, now):  # noqa: ARG002 — the protocol's shape
        """No more come."""
        self.came.set()


@pytest.fixture(scope="module")
def hasty(launch):
    """Three ranks, and a second of patience after an interrupt: too little for all but its first step."""
    session = launch(n=3, settings=Settings(interrupt_timeout=1, interrupt_release=60, interrupt_raise=60))
    yield session
    if not session.closed:
        session.stop()


def test_an_interrupt_reaches_every_rank_and_variables_stay(world):
    """session.interrupt() from another place than the cell."""
    before = pids(world)
    cell = begin(world, "kept = 7\nimport time\nwhile True: time.sleep(1)")
    world.interrupt()

    assert cell.wait(20)
    assert ("interrupted", same("interrupted")) == (cell.outcome, cell.outcomes)
    assert {"KeyboardInterrupt"} == {error.ename for error in cell.errors.values()}
    assert [] == cell.busy
    assert same(7) == world["kept"]
    assert same(2) == values(run(world, "1 + 1"))
    assert before == pids(world)


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import threading; threading.Event().wait()",
        "import asyncio; await asyncio.sleep(1000)",
        "import asyncio\nwhile True: await asyncio.sleep(0)",
        "import subprocess; subprocess.run(['sleep', '1000'])",
        "!sleep 1000",
        "%%bash\nsleep 1000",
        "import queue; queue.Queue().get()",
        "import socket\na, b = socket.socketpair()\na.recv(1)",
        "while True: print('x' * 1000)",
    ],
)
def test_an_interrupt_ends_whatever_the_cell_waits_for(world, code):
    """A loop, a lock, an await, a child, a socket, a flood of text."""
    cell = world.run(code, wait=False, view=None)
    until(lambda: all(part.started for part in cell.fold.ranks.values()))
    world.interrupt()

    assert cell.wait(20)
    assert ("interrupted", []) == (cell.outcome, cell.busy)
    assert same(2) == values(run(world, "1 + 1"))


def test_an_interrupt_while_ipython_loads_a_magic_leaves_it_usable(world, tmp_path):
    """IPython imports what provides a magic when it is first used."""
    (tmp_path / "late_magics.py").write_text(LATE)
    manager = "get_ipython().magics_manager"
    known = run(world, f"import sys; sys.path.insert(0, {str(tmp_path)!r}); hasattr({manager}, 'load_lazy')")
    if values(known) != same(True):
        pytest.skip("this IPython imports all of its magics when it starts")
    run(world, f"{manager}.register_lazy('late', 'late_magics:Late')")
    cell = world.run("%late", wait=False, view=None)
    until(lambda: all("loading" in cell.text(rank) for rank in range(3)))
    world.interrupt()

    assert cell.wait(20)
    assert same("interrupted") == cell.outcomes
    assert same(7) == values(run(world, "%late"))


LATE = """
from IPython.core.magic import Magics, line_magic, magics_class
import time
print("loading", flush=True)
time.sleep(1)

@magics_class
class Late(Magics):
    @line_magic
    def late(self, line): return 7
"""


def test_an_interrupt_of_the_waiting_thread_reaches_the_ranks(world):
    """The notebook's stop button sends SIGINT in the middle of run()."""

    def press() -> None:
        until(lambda: (one := world.last_run) and one.source == code and all(t.bytes for t in one.totals.values()))
        os.kill(os.getpid(), signal.SIGINT)

    code = "print('begun', flush=True)\nimport time\ntime.sleep(1000)"
    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(DistributedInterrupt) as caught:
        run(world, code)
    presser.join()

    assert isinstance(caught.value, KeyboardInterrupt)
    assert [] == caught.value.busy
    assert same("interrupted") == caught.value.run.outcomes


def test_a_timeout_interrupts_the_cell(world):
    """The run says that it was the timeout."""
    with pytest.raises(RunTimeout, match="timeout") as caught:
        run(world, "import time; time.sleep(1000)", timeout=0.3)

    assert caught.value.run.timed_out
    assert same("interrupted") == caught.value.run.outcomes


def test_a_cell_that_ends_before_its_timeout_is_not_concerned(world):
    """The timeout does not reach the next cell either."""
    run(world, "1", timeout=0.5)

    assert run(world, "import time; time.sleep(0.7)").outcome == "ok"


def test_a_cell_that_cleans_up_ends_as_interrupted(world):
    """finally and except run, and what they print is there."""
    cell = begin(world, "import time\ntry:\n    time.sleep(1000)\nfinally:\n    print('cleaned')")
    world.interrupt()

    assert cell.wait(20)
    assert cell.outcome == "interrupted"
    assert same("begun\ncleaned\n") == texts(cell)


def test_the_interrupt_of_a_wait_in_mpi_has_its_line(world):
    """MPI comes back with an error of its own before Python raises the interrupt."""
    cell = begin(world, "import jupyter_dtrain\ndef wait():\n    jupyter_dtrain.comm.recv()\nwait()")
    world.interrupt()

    assert cell.wait(20)
    assert cell.outcome == "interrupted"
    for error in cell.errors.values():
        assert error.ename == "KeyboardInterrupt"
        assert [(5, "wait()"), (4, "jupyter_dtrain.comm.recv()")] == [
            (frame.line, frame.source) for frame in error.frames if frame.cell
        ]


def test_an_await_that_was_stopped_comes_after_the_cause(world):
    """It is an interrupt like others, though asyncio has another name for it."""
    fails = "import asyncio, jupyter_dtrain\nif jupyter_dtrain.comm.rank == 1: raise ValueError('x')"
    cell = begin(world, f"{fails}\nawait asyncio.sleep(1000)")
    until(lambda: 1 in cell.errors)
    world.interrupt()

    assert cell.wait(20)
    assert {"CancelledError"} == {cell.errors[rank].ename for rank in (0, 2)}
    assert summary(cell) == "Interrupted; ValueError: x (rank 1)"


def test_an_exception_in_the_clean_up_is_shown(world):
    """It is the rank's error; the run as a whole was interrupted."""
    cell = begin(world, "import time\ntry:\n    time.sleep(1000)\nfinally:\n    1 / 0")
    world.interrupt()

    assert cell.wait(20)
    assert cell.outcome == "interrupted"
    assert {"ZeroDivisionError"} == {error.ename for error in cell.errors.values()}


def test_a_keyboard_interrupt_of_the_cells_own_is_an_error(world):
    """No client asked for it."""
    assert same("error") == fail(world, "raise KeyboardInterrupt").outcomes


def test_queued_cells_end_without_having_been_sent(world):
    """An interrupt stops the queue, too."""
    cell = begin(world, "import time; time.sleep(1000)")
    queued = [world.run("never = 1", wait=False, view=None) for _ in range(3)]
    world.interrupt()

    for each in (cell, *queued):
        assert each.wait(20)
    assert ["interrupted"] * 4 == [each.outcome for each in (cell, *queued)]
    assert all(each.not_sent for each in queued)
    assert same(False) == values(run(world, "'never' in globals()"))


def test_an_interrupt_of_an_idle_world_does_nothing(world):
    """It does not reach the next cell either."""
    world.interrupt()

    assert same(1) == values(run(world, "1"))


def test_an_interrupt_that_races_the_end_of_a_cell_does_no_harm(world):
    """Three come after each batch of the ranks, from before the start to after the end; the next cell works."""
    before = pids(world)
    for k in range(30):
        view = Moment(k % 10)
        cell = world.run("print('begun', flush=True)\n'ended'", wait=False, view=view)
        assert view.came.wait(20)
        world.interrupt()
        assert cell.wait(20)
        assert cell.outcome in ("ok", "interrupted")
        assert same(k) == values(run(world, str(k)))

    assert before == pids(world)


@pytest.mark.slow
def test_an_interrupt_in_the_middle_of_a_print_tears_nothing(world):
    """Ten interrupts into a loop that spools each line: no line missing, no number missing, all can be read again."""
    world_now, channel = world._link.bound()
    for _ in range(10):
        cell = begin(world, "n = 0\nwhile True:\n    print(n, 'x' * 2000, flush=True)\n    n += 1")
        world.interrupt()
        assert cell.wait(20)
        for rank in cell.ranks:
            lines = cell.text(rank).splitlines()[1:]
            assert [f"{k} {'x' * 2000}" for k in range(len(lines) - 1)] == lines[:-1]
            events, seq = [], 0
            while True:
                question = channel.ask(world_now.ranks[rank].engine, ReadEvents(cell.number, seq))
                batch = question.result(10).batch
                if batch is None:
                    break
                events += batch.events
                seq = batch.last + 1
            assert list(range(len(events))) == [event.seq for event in events]
            assert isinstance(events[-1].body, Finished)
            assert "".join(getattr(e.body, "text", "") for e in events) == cell.text(rank)


@pytest.mark.slow
def test_a_rank_that_ignores_the_interrupt_is_named_and_left_behind(hasty):
    """The run ends by its deadline; the rank refuses cells until it has ended by itself."""
    code = f"import os\nif os.environ['RANK'] == '1':{STUBBORN.format(seconds=4).replace(chr(10), chr(10) + '    ')}"
    cell = begin(hasty, code + "\nelse:\n    time.sleep(1000)".replace("time", "__import__('time')"))
    hasty.interrupt()

    assert cell.wait(20)
    assert ("interrupted", [1]) == (cell.outcome, cell.busy)
    assert {0: "interrupted", 2: "interrupted"} == cell.outcomes
    assert hasty.world.ranks[1].state == "running"
    with pytest.raises(RanksBusy, match=f"Rank 1 is still working on run {cell.number}, .* %distributed kill 1"):
        run(hasty, "1")
    with pytest.raises(RanksBusy, match="rank 1 is still working"):
        hasty.push({"a": 1})
    assert {0: 1, 2: 1} == values(run(hasty, "1", ranks="0,2"))
    until(lambda: hasty.world.ranks[1].state == "idle")
    assert same(2) == values(run(hasty, "2"))


def test_waiting_ends_with_the_ranks_that_are_busy(hasty):
    """The exception names them and the fix."""
    with pytest.raises(RunTimeout, match=r"still busy: rank 2 \(%distributed kill 2 ends it\)") as caught:
        run(hasty, STUBBORN.format(seconds=3), ranks=2, timeout=0.2)

    assert [2] == caught.value.run.busy
    until(lambda: hasty.world.ranks[2].state == "idle")
    assert same(3) == values(run(hasty, "3"))


def test_ranks_in_a_barrier_are_named_and_free_once_it_is_met(hasty):
    """MPI waits in native code; the missing rank comes later."""
    cell = begin(hasty, "from mpi4py import MPI\nmet = 0\nMPI.COMM_WORLD.Barrier()\nmet = 1", ranks="0-1")
    hasty.interrupt()
    assert cell.wait(20)
    busy = cell.busy
    run(hasty, "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nmet = 1", ranks=2)
    until(lambda: {"idle"} == {rank.state for rank in hasty.world.ranks})

    assert [0, 1] == busy
    assert same(4) == values(run(hasty, "4"))


def test_the_stacks_of_a_busy_world_show_the_line_of_the_cell(world):
    """Answered while the main threads work."""
    cell = begin(world, "import time\ntime.sleep(1000)", ranks="0-1")
    stacks = world.stacks()
    world.interrupt()

    assert cell.wait(20)
    assert ["time.sleep(1000)"] * 2 == [stacks[rank].frames[0].source for rank in (0, 1)]
    assert [] == stacks[2].frames
