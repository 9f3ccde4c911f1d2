"""The steward's parent, which cleans up after a steward that was killed.

The parent-death signal ends controller and ``mpiexec``; but what ranks have started is out of reach once ``mpiexec``
has killed the watches. The guard is subreaper of all that, sleeps until the steward ends, and is dismissed by a
steward that has ended its world itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import NoReturn

import psutil

from .processes import kill_descendants

PATIENCE = 2.0
"""Seconds that ``mpiexec`` may take to end its ranks and to remove its files."""


def guard(steward: int, folders: list[str]) -> NoReturn:
    """Wait for the steward's end; then end what is left of its world, and remove ``folders``."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.waitpid(steward, 0)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and psutil.Process().children():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)
    kill_descendants()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def dismiss(guardian: int) -> None:
    """The world was ended in order: the guard is not needed any more. For the steward."""
    if os.getppid() == guardian:
        with contextlib.suppress(ProcessLookupError):
            os.kill(guardian, signal.SIGKILL)
