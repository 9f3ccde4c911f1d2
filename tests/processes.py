"""Which processes a test has left behind."""

from __future__ import annotations

import os
import time

import psutil

LEFT_BEHIND_PATIENCE = 10.0
"""Seconds that processes of a test may take to be gone once it is over."""


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
    """What is left of :func:`processes_of` after at most ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while (left := processes_of(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
