"""Whether processes work, wait for a processor, or rest: so a slow start or cell differs from one that hangs.

Under failure: a process that cannot be read counts as one that rests.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

import psutil

LOOK = 1.0
"""Seconds between two looks."""
LEAST = 0.03
"""Processes that used so many processor seconds since the last look that found work have worked again."""
BUSY = 2.0
"""A machine is busy when more processes than this want each core at the same time."""

_BUSY_WITH = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)


class Work:
    """The processor time of some processes and of all their descendants. One thread at a time may use it."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._used: dict[int, float] = {}
        """Processor seconds of each process, when they were last seen to work."""
        self._since: dict[int, float] = {}
        """Processor seconds of each process at the last call of :meth:`step`."""
        self._now: dict[int, float] = {}
        self._looked = self._worked = time.monotonic()

    def step(self) -> None:
        """Note that the processes have made a step: :meth:`spent` counts from now on."""
        self._since = dict(self._now)

    def rest(self) -> float:
        """Seconds since one of the processes last used a processor, waited for one, or waited for a disk."""
        self._look()
        return time.monotonic() - self._worked

    def spent(self) -> float:
        """Processor seconds since the last step, of the process that used most."""
        self._look()
        return max((used - self._since.get(pid, 0.0) for pid, used in self._now.items()), default=0.0)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        self._now, busy = self._measure()
        # One that has ended must not hide what the others use.
        gained = sum(max(0.0, used - self._used.get(pid, 0.0)) for pid, used in self._now.items())
        if busy or gained > LEAST:
            self._worked, self._used = now, self._now

    def _measure(self) -> tuple[dict[int, float], bool]:
        found: dict[int, float] = {}
        busy = False
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(pid)
                for one in (top, *top.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        busy = busy or one.status() in _BUSY_WITH
                        times = one.cpu_times()
                        found[one.pid] = times.user + times.system
        return found, busy


def work_beneath(process: psutil.Process) -> tuple[float, bool]:
    """The processor seconds of all processes that ``process`` and those beneath it have started, ended ones included.

    And whether one of them uses a processor now, waits for one, or waits for a disk.
    """
    seconds, busy = 0.0, False
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        seconds = times.children_user + times.children_system
        for one in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                busy = busy or one.status() in _BUSY_WITH
                times = one.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds, busy


def describe_load() -> str:
    """How busy this machine is, in words; empty where it is not."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"this machine is busy: load {load:.0f} on {cores} cores" if load > BUSY * cores else ""
