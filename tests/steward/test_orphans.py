"""Processes that a rank has started do not outlive it, however it started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import Session, Settings
from jupyter_dtrain.wire.agent_messages import SendSignal
from tests.processes import loose_segments, wait_for_segments, wait_until_gone
from tests.steward.until import PATIENCE, child_named, runs, state_of, steward_of, until

HELD_UP = 1.5
"""Seconds; a watch that waits for an orphan answers after two."""

START_CHILDREN = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "300"])
detached = subprocess.Popen(["sleep", "300"], start_new_session=True)
daemon = subprocess.run(
    ["bash", "-c", "setsid nohup sleep 300 > /dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
)
stubborn = subprocess.Popen(["bash", "-c", "trap '' TERM INT HUP; while true; do sleep 1; done"])
children = [child.pid, detached.pid, int(daemon.stdout), stubborn.pid]
"""

IGNORE_SIGNALS = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
"""


def start_children(session: Session) -> dict[int, list[int]]:
    """Have every rank start processes; their ids."""
    session.run(START_CHILDREN, view=None)
    return session.pull("children")


def test_stop_leaves_nothing_that_ranks_have_started(launch, mark) -> None:
    """Children, detached ones, daemons, and such that ignore signals."""
    session = launch(n=2)
    children = start_children(session)
    alive = [runs(pid) for pids in children.values() for pid in pids]
    session.stop()

    assert all(alive)
    assert wait_until_gone(mark, patience=0) == []


def test_a_dead_rank_leaves_nothing_that_it_has_started(launch, mark) -> None:
    """Its watch ends its children; those of the other rank go on."""
    session = launch(n=2)
    children = start_children(session)
    os.kill(session.world.ranks[1].pid, signal.SIGKILL)
    until(lambda: not any(map(runs, children[1])))
    others = [runs(pid) for pid in children[0]]
    session.stop()

    assert all(others)
    assert wait_until_gone(mark, patience=0) == []


def test_the_death_of_a_rank_with_many_children_is_known_in_full(launch, mark) -> None:
    """Its watch ends them all in a few looks at the machine's processes, and reports before the steward gives it up."""
    session = launch(n=2)
    many = "import subprocess\nchildren = [subprocess.Popen(['sleep', '300']).pid for _ in range(200)]"
    session.run(many, ranks=1, view=None)
    [children] = session.pull("children", ranks=1).values()
    os.kill(session.world.ranks[1].pid, signal.SIGKILL)
    until(lambda: session.world.ranks[1].state == "dead")
    words = session.world.ranks[1].words
    until(lambda: not any(map(runs, children)))
    session.stop()

    assert words.startswith("rank 1 was killed (SIGKILL)")
    assert wait_until_gone(mark, patience=0) == []


@contextlib.contextmanager
def held_at_its_end(pid: int) -> Iterator[None]:
    """Within the block, a process that is killed stays on its way out, as one for which the kernel has to wait."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    seize, trace_exit, go_on, all_children = 0x4206, 0x40, 7, 0x40000000
    if ptrace(seize, pid, None, trace_exit) != 0:
        pytest.skip(f"this machine lets no test trace a process: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, all_children)
            ptrace(go_on, pid, None, None)
            os.waitpid(pid, all_children)


def test_an_orphan_that_does_not_end_holds_up_no_other_rank(launch, mark) -> None:
    """The watch answers requests to the other rank; it reports the death once the orphan has had its time."""
    session = launch(n=2)
    session.run("import subprocess; pid = subprocess.Popen(['sleep', '300']).pid", view=None)
    orphan = psutil.Process(session.pull("pid")[1])
    world, channel = session._link.bound()
    longest, answered = 0.0, 0
    with held_at_its_end(orphan.pid):
        os.kill(world.ranks[1].pid, signal.SIGKILL)
        began = time.monotonic()
        while session.world.ranks[1].state != "dead":
            assert time.monotonic() < began + PATIENCE
            asked = time.monotonic()
            channel.ask(world.ranks[0].watch, SendSignal(0, 0)).result(PATIENCE)
            longest = max(longest, time.monotonic() - asked)
            answered += orphan.status() == psutil.STATUS_TRACING_STOP
            time.sleep(0.05)
        reported = time.monotonic() - began
    kept = session.run("1 + 1", ranks=0, view=None).outcome
    session.stop()

    print(f"answered {answered} requests, each within {longest:.3f} s; the death was reported after {reported:.1f} s")
    assert answered
    assert longest < HELD_UP
    assert kept == "ok"
    assert wait_until_gone(mark) == []


def test_the_steward_ends_after_its_guard(launch, mark) -> None:
    """A world whose ``stop()`` has returned has no process left, even where the guard takes long to end."""
    session = launch(n=1)
    steward = steward_of(session)
    guard = psutil.Process(steward.ppid())
    with held_at_its_end(guard.pid):
        stop = threading.Thread(target=session.stop)
        stop.start()
        until(lambda: guard.status() == psutil.STATUS_TRACING_STOP)
        stop.join(0.2)
        waits = stop.is_alive() and steward.is_running()
    stop.join(PATIENCE)

    assert waits
    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.parametrize("code", ["while True: pass", f"{IGNORE_SIGNALS}\nwhile True: pass"], ids=["busy", "stubborn"])
def test_a_killed_steward_leaves_nothing_that_ranks_have_started(launch, mark, code) -> None:
    """The ranks are in a loop, or moreover ignore every signal that can be ignored."""
    session = launch(n=2)
    start_children(session)
    run = session.run(code, wait=False, view=None)
    until(lambda: sorted(run.logs) == run.ranks)
    steward_of(session).kill()

    assert wait_until_gone(mark) == []


@pytest.mark.parametrize("who", ["rank", "mpiexec"])
def test_a_stopped_process_does_not_hold_up_the_end(launch, mark, who) -> None:
    """SIGSTOP: such a process sees no SIGTERM."""
    session = launch(n=2, settings=Settings(stop_timeout=1))
    stopped = session.world.ranks[1].pid if who == "rank" else child_named(session, "prterun").pid
    os.kill(stopped, signal.SIGSTOP)
    session.stop()

    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.slow
def test_a_rank_that_ignores_signals_does_not_hold_up_the_end(launch, mark) -> None:
    """A rank that ignores SIGTERM or never leaves native code ends, too."""
    session = launch(n=2)
    run = session.run(f"{IGNORE_SIGNALS}\nwhile True: pass", wait=False, view=None)
    until(lambda: sorted(run.logs) == run.ranks)
    session.stop()

    assert run.outcomes == {0: "lost", 1: "lost"}
    assert wait_until_gone(mark, patience=0) == []


def test_a_killed_mpiexec_leaves_no_files(launch, mark) -> None:
    """The files that MPI shares among ranks are in a folder of the world's own, and go with it."""
    segments = loose_segments()
    session = launch(n=2)
    scratch = Path(session.request.scratch)
    there = sorted(path.name.split(".")[0] for path in scratch.iterdir())
    child_named(session, "prterun").kill()
    until(lambda: not state_of(session).healable)
    session.stop()

    assert there == ["multiprocessing", "ompi", "slots", "sm_segment", "sm_segment"]
    assert not scratch.exists()
    assert wait_for_segments(segments) == set()
    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.slow
def test_ranks_may_finish_what_they_must(launch, mark, tmp_path) -> None:
    """At a stop, ``finally`` in a cell and functions registered with ``atexit`` run to their end."""
    session = launch(n=2, settings=Settings(stop_timeout=30))
    session.run(
        f"""
import atexit, os, pathlib, time
rank = os.environ["RANK"]
def late(name):
    time.sleep(1)
    pathlib.Path({str(tmp_path)!r}, name + rank).touch()
atexit.register(late, "atexit-")
""",
        view=None,
    )
    run = session.run("try: time.sleep(300)\nfinally: late('finally-')", wait=False, view=None)
    until(lambda: sorted(run.logs) == run.ranks)
    session.stop()

    assert sorted(path.name for path in tmp_path.glob("*-?")) == ["atexit-0", "atexit-1", "finally-0", "finally-1"]
    assert wait_until_gone(mark, patience=0) == []
