"""The processes that a dead rank has left behind: the watch adopts them, and ends them.

The watch is the subreaper of its host's ranks, so an orphan keeps two traces of its rank: its Linux session, which is
the rank's unless the process has left it; and the rank's number in the environment that its program was started with.
A process that has left the session, and was forked without a program of its own, stays until the world ends.

Under failure: a killed process may still take seconds to end, such as one that the kernel has to wait for. The watch
looks again and again, serves the other ranks meanwhile, and goes on without that process after :data:`PATIENCE`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import psutil

from jupyter_dtrain.core.processes import has_not_ended
from jupyter_dtrain.core.world import rank_in

PATIENCE: Final = 2.0
"""Seconds in which killed processes are gone."""
SOON: Final = 0.01
"""Seconds until the second look; each further pause is twice as long as the one before."""
LONGEST: Final = 0.2


class Orphans:
    """The processes that ranks which ended at the same time have left. Not locked: the watch has one thread."""

    def __init__(self, ended: Mapping[int, int]) -> None:
        """``ended``: the numbers of the ranks, by process id."""
        self._ended = ended
        self._deadline = time.monotonic() + PATIENCE
        self._pause = SOON
        self.look_at = 0.0
        """When the next look is due (monotonic)."""

    def end(self, living: Collection[int]) -> bool:
        """Kill the processes that are left; return whether none is, or whether they had their time. Never waits.

        ``living``: the process ids of other ranks. Without other ranks every process beneath this one is killed.
        """
        left = [] if time.monotonic() > self._deadline else _find(self._ended, living)
        if not left:
            return True
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.look_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST)
        return False


def end_all() -> None:
    """Kill every process beneath this one. Returns when none is left, within :data:`PATIENCE` seconds."""
    orphans = Orphans({})
    while not orphans.end(()):
        time.sleep(max(0.0, orphans.look_at - time.monotonic()))


def _find(ended: Mapping[int, int], living: Collection[int]) -> list[psutil.Process]:
    """The living processes that ended ranks have left, from one look at all processes, which takes a moment."""
    beneath: dict[int, list[psutil.Process]] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            beneath.setdefault(process.ppid(), []).append(process)
    found: list[psutil.Process] = []
    for child in beneath.get(os.getpid(), ()):
        with contextlib.suppress(psutil.Error):
            if child.pid not in living and child.pid not in ended and (not living or _is_from(child, ended)):
                found.append(child)
    for process in found:  # it grows meanwhile
        found += beneath.get(process.pid, ())
    return [process for process in found if has_not_ended(process)]


def _is_from(process: psutil.Process, ended: Mapping[int, int]) -> bool:
    """Whether one of the ranks that have ended has started the process, by its session or its environment."""
    with contextlib.suppress(OSError):
        if os.getsid(process.pid) in ended:
            return True
    numbers: Iterable[int] = ended.values()
    return rank_in(process.environ()) in {number for number in numbers if number >= 0}
