"""Removes what a world has left whose guard and steward were both killed: processes of ranks, and folders.

The next start of this user calls it. It removes only what provably belonged to such a world:

* A *world* is dead when its listing, a file of this user in a folder of this user's, names this machine's boot and
  process ids as they are counted here, and the steward's id with its time of creation belongs to no process. So a world
  on another host, or in another container, that shares the home is never touched.
* A *process* is the world's when it is this user's, began after the steward, and has the world's id in the environment
  that it was started with. This process and those above it stay.
* A *folder* is the world's when its listing names it, it is this user's, and it is no link.

Under failure: it takes a few seconds at most, and what cannot be removed stays for the next start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from jupyter_dtrain.core.processes import CLOSE

from .worlds import Listing, dead_worlds

MARK: Final = "DTRAIN_WORLD"
"""The variable with the world's id, in the environment of its steward and of all processes that the steward starts."""
PATIENCE: Final = 3.0
"""Seconds that processes may take to be gone once they were killed."""

_log = logging.getLogger(__name__)


def remove_leftovers() -> None:
    """Remove what dead worlds of this user have left on this machine."""
    for listing in dead_worlds():
        try:
            if _may_live(listing):
                continue
            left = _end_processes(listing)
            if left:
                _log.warning("Processes of the world %s cannot be ended: %s", listing.id, left)
                continue
            # The listing's own folder comes last: without it nothing shows what is left.
            for folder in listing.folders:
                if _is_own(Path(folder)):
                    shutil.rmtree(folder, ignore_errors=True)
        except (OSError, psutil.Error) as error:
            _log.warning("The remains of world %s cannot be removed: %s", listing.id, error)


def _may_live(listing: Listing) -> bool:
    """Whether the steward's id names a process of the world after all: its time of creation moves with the clock."""
    try:
        process = psutil.Process(listing.steward)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == listing.id)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _end_processes(listing: Listing) -> list[int]:
    """Kill the processes of a dead world. Returns the ids of those that are still there after :data:`PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while left := _processes_of(listing):
        if time.monotonic() > deadline:
            break
        end_processes(left, 0.2)
    return [process.pid for process in left]


def _processes_of(listing: Listing) -> list[psutil.Process]:
    found = []
    for process, world in marked_processes():
        with contextlib.suppress(psutil.Error):
            if world == listing.id and process.create_time() >= listing.created - CLOSE:
                found.append(process)
    return found


def marked_processes() -> list[tuple[psutil.Process, str]]:
    """The processes of this user that belong to any world, each with the world's id.

    This process and those above it are none of them: a notebook may have been started from a rank.
    """
    spared = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.pid not in spared
                and process.uids().real == os.getuid()
                and process.status() != psutil.STATUS_ZOMBIE
                and (world := process.environ().get(MARK))
            ):
                found.append((process, world))
    return found


def end_processes(processes: Sequence[psutil.Process], patience: float) -> list[psutil.Process]:
    """Kill ``processes``. Returns those that are still there after ``patience`` seconds."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()  # it looks at the time of creation first: no other process with this id is killed
    left: list[psutil.Process] = psutil.wait_procs(processes, timeout=patience)[1]
    return left


def _is_own(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False
