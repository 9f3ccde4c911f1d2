"""Processes that may not outlive the steward.

Every child asks the kernel for SIGTERM at its parent's death, and orphans of children come back to the steward, which
is their subreaper: it collects those that end, and when a world ends, it kills every process that is left beneath it.

Under failure: :func:`guard` cleans up after a steward that was killed. The parent-death signal ends controller and
``mpiexec``; but once ``mpiexec`` has killed the watches, the ranks' own processes are out of reach. The guard, the
steward's parent, is the subreaper of all of them, and sleeps until the steward ends. A steward that has ended its world
itself dismisses the guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NoReturn

import psutil

from jupyter_dtrain.core.exits import describe_steward_end
from jupyter_dtrain.core.processes import has_not_ended

PATIENCE = 2.0
"""Seconds that ``mpiexec`` may take to end its ranks and to remove its files."""
SCHEDULED_PATIENCE = 30.0
"""The same where a scheduler ends the ranks, on other hosts."""
COMMAND_PATIENCE = 30.0
"""Seconds that a scheduler's command may take."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make orphans beneath this process its children."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """For ``preexec_fn``: SIGTERM when the thread that started this process ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def await_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Return as soon as the process has ended, and after ``seconds`` at the latest.

    Popen.wait with a timeout looks every 50 ms.
    """
    if process.poll() is not None:
        return
    deadline = time.monotonic() + seconds
    # Another thread may collect it meanwhile. Linux before 5.3 has no such descriptor, nor has a Python built for it.
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)
        finally:
            os.close(descriptor)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.01, deadline - time.monotonic()))


def end_processes(processes: Iterable[subprocess.Popen[bytes] | None], patience: float) -> None:
    """Send SIGTERM to all, and SIGKILL to those that have not ended ``patience`` seconds later.

    Returns when they have ended, and ``patience`` seconds after SIGKILL at the latest.
    """
    left = [process for process in processes if process is not None]
    for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
        left = [process for process in left if process.poll() is None]
        for process in left:
            end(process)
        deadline = time.monotonic() + patience
        for process in left:
            await_process(process, deadline - time.monotonic())


def collect_orphans(own: Collection[int]) -> None:
    """Collect the exit statuses of the ended processes that this one inherited; those of ``own`` it leaves alone.

    No other process can: a process whose parent ended before it stays a zombie until its new parent collects it.
    """
    with contextlib.suppress(ChildProcessError):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if child.pid not in own and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def kill_descendants(patience: float = 3.0, spare: Collection[int] = ()) -> list[int]:
    """Kill all processes beneath this one; returns the pids that still exist after ``patience`` seconds.

    Call it once this process has waited for the children that it started itself: it collects what is left of all.
    ``spare``: the ids of children that stay, with all beneath them.
    """
    me = psutil.Process()
    deadline = time.monotonic() + patience
    while True:
        collect_orphans(spare)
        alive = [child for child in _beneath(me, spare) if has_not_ended(child)]
        if not alive or time.monotonic() > deadline:
            return [child.pid for child in alive]
        for child in alive:
            with contextlib.suppress(psutil.Error):
                child.kill()
        time.sleep(0.02)


def _beneath(process: psutil.Process, spare: Collection[int]) -> Iterable[psutil.Process]:
    for child in process.children():
        if child.pid not in spare:
            yield child
            with contextlib.suppress(psutil.Error):
                yield from child.children(recursive=True)


def describe_descendants() -> str:
    """All processes beneath this one, as ``name pid (state) under parent``; for a log."""
    words = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words.append(f"{child.name()} {child.pid} ({child.status()}) under {child.ppid()}")
    return ", ".join(words) or "no processes"


def abort_children(process: subprocess.Popen[bytes] | None) -> None:
    """Send SIGABRT to the children of ``process``: Python processes then print where they are."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children() if process is not None else []:
            child.send_signal(signal.SIGABRT)


def is_running(pid: int) -> bool:
    """Whether a process has this id and is more than an exit status that waits to be collected."""
    try:
        return has_not_ended(psutil.Process(pid))
    except psutil.Error:
        return False


def tail(path: Path, lines: int = 15) -> str:
    """The last ``lines`` of a log; empty when there is none."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def guard(steward: int, folders: list[str], commands: list[list[str]]) -> NoReturn:
    """Wait for the steward's end; then end the rest of its world, and remove ``folders``.

    ``commands`` give back what a scheduler has lent to the world.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(steward, 0)
    if code := os.waitstatus_to_exitcode(status):
        # The log of a steward that was killed says nothing; a client that waits for the world's start has it open.
        os.write(2, f"{describe_steward_end(code)}\n".encode())
    for command in commands:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=COMMAND_PATIENCE, check=False
            )
    deadline = time.monotonic() + (SCHEDULED_PATIENCE if commands else PATIENCE)
    while time.monotonic() < deadline and psutil.Process().children():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)
    kill_descendants()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def dismiss(guardian: int) -> None:
    """End the guard, after an orderly end of the world. The steward calls it, and then ends last."""
    if os.getppid() == guardian:
        with contextlib.suppress(ProcessLookupError):
            os.kill(guardian, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while os.getppid() == guardian and time.monotonic() < deadline:
        time.sleep(0.002)
