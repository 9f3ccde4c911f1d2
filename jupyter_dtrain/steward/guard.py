"""The steward's parent, which cleans up after a steward that was killed.

The parent-death signal ends controller and ``mpiexec``; but once ``mpiexec`` has killed the watches, the ranks' own
processes are out of reach. The guard is the subreaper of all of them, and sleeps until the steward ends. A steward that
has ended its world itself dismisses the guard.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import NoReturn

import psutil

from jupyter_dtrain.core.exits import describe_steward_end

from .processes import kill_descendants

PATIENCE = 2.0
"""Seconds that ``mpiexec`` may take to end its ranks and to remove its files."""
SCHEDULED_PATIENCE = 30.0
"""The same where a scheduler ends the ranks, on other hosts."""
COMMAND_PATIENCE = 30.0
"""Seconds that a scheduler's command may take."""


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
