"""Processes and shared memory that a test has left behind; other tests may run beside it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import psutil

LEFT_BEHIND_PATIENCE = 10.0
"""Seconds that processes of a test may take to be gone once it is over."""
SHARED_MEMORY = Path("/dev/shm")


def processes_of(marker: str) -> list[str]:
    """Living processes, other than this one, whose environment or command line holds ``marker``."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(marker in word for word in words):
            found.append(f"{process.pid}: {' '.join(words[:4])}")
    return found


def wait_until_gone(marker: str, patience: float = LEFT_BEHIND_PATIENCE) -> list[str]:
    """The rest of :func:`processes_of` after at most ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while (left := processes_of(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def loose_segments() -> set[str]:
    """Shared memory that lies in no world's folder and that no process has mapped: nothing removes it any more."""
    names = {path.name for path in SHARED_MEMORY.iterdir() if not path.is_dir()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            names -= set(re.findall(rf"{SHARED_MEMORY}/([^/\s]+)", maps.read_text()))
    return names


def wait_for_segments(before: set[str], patience: float = 5.0) -> set[str]:
    """The :func:`loose_segments` that are not in ``before``, after at most ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while (left := loose_segments() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
