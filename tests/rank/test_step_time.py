"""Where a rank's main thread spends a cell's time, as a real thread sees it by the frameworks' words for functions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from jupyter_dtrain.plugins.framework import Doing, Framework
from jupyter_dtrain.rank import step_time
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.step_time import SHORTEST, StepTimer

LONG = 0.6
"""Seconds of each activity."""
MOST = 0.7 * LONG
"""A busy machine delays looks; most of the time is seen all the same."""
LABELS = {
    "loads": Doing("data"),
    "reduces": Doing("communication", "all_reduce"),
    "saves": Doing("checkpoint"),
    "learns": Doing("backward"),
    "passes": Doing("forward"),
}


class Made(Framework):
    """Does in functions of these names what their labels say, and in calls of ``time.sleep(PAUSE)`` a copy."""

    name = "made"

    def part_of(self, code):
        return LABELS.get(code.co_name)

    def part_at(self, _frame, call):
        named = call is not None and [getattr(one, "id", None) for one in call.args] == ["PAUSE"]
        return Doing("copy") if named else None

    def sleeps(self, part):
        return "all_reduce" if part == "backward" else ""


PAUSE = LONG


def loads():
    time.sleep(LONG)


def reduces(seconds=LONG):
    time.sleep(seconds)


def saves():
    reduces()


def learns(inner=None):
    if inner is None:
        time.sleep(LONG)
    else:
        inner()


def passes(inner):
    inner()


def sleeps():
    time.sleep(LONG)


def copies():
    time.sleep(PAUSE)


def computes():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass


@pytest.fixture
def timer_of(monkeypatch):
    """Make a timer whose cell is this file, for a plug-in."""
    made = []

    def make(plugin=Made):
        # pytest's own folder is a library's here, as are the files of others' environments.
        monkeypatch.setattr(step_time, "is_library", lambda file: file != __file__)
        timer = StepTimer(Plugins([("made", plugin())], print), {__file__: "cell [1]"}.get)
        made.append(timer)
        return timer

    yield make
    for timer in made:
        timer.end()


@pytest.fixture
def seen(timer_of):
    """The window of an activity, which must last."""

    def seen(activity, plugin=Made):
        timer = timer_of(plugin)
        timer.begin(on=True)
        timer.go()
        activity()
        window = timer.take(7)
        timer.end()
        return window

    return seen


@pytest.mark.parametrize(
    ("activity", "part"),
    [
        pytest.param(loads, "data", id="data"),
        pytest.param(reduces, "communication", id="communication"),
        pytest.param(saves, "checkpoint", id="saving in which ranks meet"),
        pytest.param(sleeps, "other", id="other"),
        pytest.param(computes, "other", id="computing"),
        pytest.param(copies, "copy", id="a native call"),
        pytest.param(lambda: passes(sleeps), "forward", id="forward"),
        pytest.param(lambda: passes(lambda: learns(sleeps)), "backward", id="backward in forward"),
        pytest.param(lambda: passes(loads), "data", id="data in forward"),
        pytest.param(lambda: learns(reduces), "communication", id="communication in backward"),
    ],
)
def test_a_part_gets_the_time_that_its_functions_take(seen, activity, part):
    """Of several on the stack, the one that says most counts."""
    window = seen(activity)

    assert max(window.parts, key=window.parts.get) == part
    assert window.parts[part] > MOST
    assert window.seconds == pytest.approx(sum(window.parts.values()), abs=0.01)
    assert (window.step, window.looks > 0) == (7, True)


def test_communication_is_told_by_its_calls(seen):
    assert seen(reduces).calls["all_reduce"] > MOST
    assert seen(loads).calls == {}


def test_a_backward_pass_that_sleeps_waits_for_others(seen, monkeypatch):
    """Only natively: what Python does in it is the user's own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    assert seen(learns).parts.get("communication", 0.0) > MOST
    assert "communication" not in seen(lambda: learns(sleeps)).parts
    assert "communication" not in seen(lambda: learns(computes)).parts


def test_the_lines_are_those_of_the_cell(seen):
    window = seen(loads)
    line = window.lines[0]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()

    assert (line.file, line.part) == ("cell [1]", "data")
    assert line.seconds > MOST
    assert source[line.line - 1].strip() == "activity()"  # the function itself is the framework's


def test_code_without_lines_is_told_by_the_line_of_its_function(seen):
    """The interpreter adds some, and libraries make some."""
    made = computes.__code__
    without = types.FunctionType(made.replace(**{"co_linetable": b""}), globals())  # noqa: PIE804 — 3.10 has it as well

    window = seen(without)

    assert {(line.line, line.part) for line in window.lines} == {(made.co_firstlineno, "other")}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
def test_a_thread_waits_for_a_processor_that_others_have_and_not_while_it_sleeps(seen):
    all_cores = os.sched_getaffinity(0)
    core = {max(all_cores)}
    os.sched_setaffinity(0, core)  # the main thread's, and that of processes which it starts
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        busy = seen(computes)
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, all_cores)

    assert busy.delayed > LONG / 4
    assert seen(sleeps).delayed < LONG / 4


def test_memory_that_grows_is_read_as_it_grows(seen):
    kept = []

    def grow():
        for _ in range(10):
            kept.append(bytearray(os.urandom(1)) * 10_000_000)
            time.sleep(0.15)

    held = seen(grow).memory

    assert 3 <= len(held) <= 10
    assert held[-1] - held[0] > 30e6


def test_pages_of_files_are_nobodys_memory(seen, tmp_path):
    """A data set that is mapped into memory fills it as it is read, and the host takes it back when it likes."""
    mmap = pytest.importorskip("mmap")
    file = tmp_path / "data"
    file.write_bytes(bytes(100_000_000))

    def read():
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for start in range(0, len(mapped), 10_000_000):
                assert not any(mapped[start : start + 10_000_000 : 4096])
                time.sleep(0.15)

    held = seen(read).memory

    assert held[-1] - held[0] < 30e6


def test_nothing_is_observed_unless_it_is_asked_for(timer_of):
    timer = timer_of()
    timer.begin(on=False)
    timer.go()
    loads()

    assert timer.take(1) is None
    assert timer.end() is None


def test_a_short_cell_gives_nothing(timer_of):
    """It ends before anything looks, or after too few looks for a window."""
    timer = timer_of()
    timer.begin(on=True)
    assert (timer.take(1), timer.end()) == (None, None)
    timer.begin(on=True)
    timer.go()
    time.sleep(SHORTEST / 5)

    assert timer.take(1) is None
    assert timer.end().seconds < SHORTEST


def test_a_window_begins_where_the_last_one_ended(timer_of):
    timer = timer_of()
    timer.begin(on=True)
    timer.go()
    loads()
    first = timer.take(1)
    reduces()
    second = timer.take(2)
    spent = timer.end()

    assert first.parts["data"] > MOST
    assert second.parts["communication"] > MOST
    assert second.parts.get("data", 0.0) < LONG - MOST
    assert spent.data > MOST
    assert spent.communication > MOST
    assert spent.seconds == pytest.approx(first.seconds + second.seconds, abs=LONG - MOST)


def test_a_second_cell_begins_from_nothing(timer_of):
    timer = timer_of()
    timer.begin(on=True)
    timer.go()
    reduces()
    timer.end()
    timer.begin(on=True)
    assert timer.end() is None
    timer.begin(on=True)
    timer.go()
    loads()

    assert timer.end().communication < LONG - MOST


def test_many_cells_leave_one_thread_and_no_descriptor(timer_of):
    timer = timer_of()

    def left():
        threads = [one for one in threading.enumerate() if one.name == "dtrain-step-time"]
        return len(list(Path("/proc/self/fd").iterdir())), len(threads)

    descriptors, threads = left()
    for _ in range(50):
        timer.begin(on=True)
        timer.go()
        timer.go()
        time.sleep(0.002)
        timer.end()
        timer.end()

    assert left() == (descriptors, threads + 1)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_plugin_that_raises_counts_as_other_code(seen, error):
    class Bad(Made):
        def part_of(self, *_, **__):
            raise error

        part_at = part_of

    window = seen(loads, Bad)

    assert window.parts["other"] > MOST
    assert "data" not in window.parts


def test_a_plugin_that_names_no_part_is_not_believed(seen):
    class Odd(Made):
        def part_of(self, _code):
            return Doing("lunch")

    assert seen(loads, Odd).parts.keys() <= {"other", "logging"}


def test_where_looks_are_dear_there_are_fewer(timer_of, monkeypatch):
    """Looks of ten milliseconds leave the rank its processor all the same; at 50 a second there would be 150."""

    def walk(self, innermost, own=StepTimer._walk):
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return own(self, innermost)

    monkeypatch.setattr(StepTimer, "_walk", walk)
    timer = timer_of()
    timer.begin(on=True)
    timer.go()
    time.sleep(5 * LONG)
    looks = timer.take(1).looks
    timer.end()

    assert looks < 50


def test_a_look_that_raises_is_left_out(timer_of, monkeypatch):
    """The next one is as good as any."""
    raised = []

    def walk(self, innermost, own=StepTimer._walk):
        if len(raised) < 3:
            raised.append(1)
            raise RuntimeError("no")
        return own(self, innermost)

    monkeypatch.setattr(StepTimer, "_walk", walk)
    timer = timer_of()
    timer.begin(on=True)
    timer.go()
    loads()
    window = timer.take(1)

    assert len(raised) == 3
    assert window.parts["data"] > LONG / 3


def test_time_in_which_nothing_could_look_stands_for_a_second_at_most(timer_of, monkeypatch):
    """A rank that was stopped for an hour has not computed for an hour."""
    timer = timer_of()
    timer.begin(on=True)
    timer.go()
    real = time.monotonic
    jump = [0.0]
    monkeypatch.setattr(
        step_time, "time", types.SimpleNamespace(**{**vars(time), "monotonic": lambda: real() + jump[0]})
    )

    def next_window():
        deadline = real() + 60
        while (window := timer.take(1)) is None:
            assert real() < deadline, "nothing looks"
            time.sleep(0.02)
        return window

    next_window()  # it looks by now: the hour passes between two looks
    stopped = real()
    jump[0] = 3600.0
    window = next_window()
    lasted = real() - stopped

    assert window.seconds < lasted + 1.5
    assert len(window.memory) <= lasted / step_time.MEMORY + 2


def test_the_stack_of_a_cell_ends_where_ipython_calls_it():
    """Else each look would go on through the kernel's own loop; the name is IPython's, of every version here."""
    import IPython.core.interactiveshell as shell

    assert shell.__file__.endswith(step_time._ABOVE)
    assert sys.modules["IPython"]
