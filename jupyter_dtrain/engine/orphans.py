"""The processes that a dead rank has left behind: the watch adopts them, and ends them.

The watch is the subreaper of its host's ranks, so an orphan keeps two traces of its rank: its Linux session, which is
the rank's unless the process has left it; and the rank's number in the environment that its program was started with.
A process that has left the session, and was forked without a program of its own, stays until the world ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import psutil

from jupyter_dtrain.wire.reports import rank_in

PATIENCE: Final = 2.0
"""Seconds in which killed processes are gone."""


def end_orphans(ended: Mapping[int, int], living: Collection[int]) -> None:
    """Kill what the ranks ``ended`` (numbers by process id) left, until none is left; ``living``: pids of other ranks.

    Without other ranks it kills every process beneath this one.
    """
    deadline = time.monotonic() + PATIENCE
    while (left := _find(ended, living)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.2)


def _find(ended: Mapping[int, int], living: Collection[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.pid not in living and child.pid not in ended and (not living or _is_from(child, ended)):
                found += [child, *child.children(recursive=True)]
    return [process for process in found if _runs(process)]


def _is_from(process: psutil.Process, ended: Mapping[int, int]) -> bool:
    with contextlib.suppress(OSError):
        if os.getsid(process.pid) in ended:
            return True
    numbers: Iterable[int] = ended.values()
    return rank_in(process.environ()) in {number for number in numbers if number >= 0}


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
