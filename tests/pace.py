"""The pace of this machine: how much longer than promised a thing may take on it, now."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Self

PERIOD: Final = 0.5
"""Seconds between two measurements."""
LEAST: Final = 2.0
"""Seconds of slack on a machine without any other work."""
FACTOR: Final = 40.0
"""Seconds of slack for each second that the smallest program takes: 0.02 s on a quick machine."""
SLOWEST: Final = 3
"""So many of the slowest measurements count: one alone may be an accident."""


def slack() -> float:
    """Seconds that may be added to a promised time whose end was just now."""
    return _slack([_smallest() for _ in range(SLOWEST)])


def _smallest() -> float:
    """Seconds that the smallest program takes."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    return time.monotonic() - began


def _slack(slowest: list[float]) -> float:
    return LEAST + FACTOR * (sum(slowest) / len(slowest) if slowest else 0.0)


class Pace:
    """Times the smallest program over and over, on a thread of its own.

    It competes for the processors with all that goes on, as the ranks do, and needs none of the package.
    """

    def __init__(self) -> None:
        self._measured: deque[tuple[float, float]] = deque(maxlen=10_000)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="pace", daemon=True)

    def slack(self, since: float) -> float:
        """Seconds that may be added to a promised time; ``since``: ``time.monotonic()`` when it began."""
        slowest = sorted((took for when, took in list(self._measured) if when >= since), reverse=True)[:SLOWEST]
        return _slack(slowest)

    def _measure(self) -> None:
        while not self._over.wait(PERIOD):
            self._measured.append((time.monotonic(), _smallest()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
