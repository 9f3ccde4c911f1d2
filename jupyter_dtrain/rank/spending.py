"""How the main thread of a rank spends a cell's time: with work, or waiting for ranks, data or a processor.

A thread looks at the main thread every :data:`PERIOD` and asks the frameworks what its innermost frame does. The time
since the last look counts for that. Linux says how much of it the thread had a processor, and how much it waited for
one; for the rest it was blocked. Time blocked in a call that waits for other ranks is communication. A framework whose
waits use a processor, as MPI's do, is asked too. So the numbers are those of a sample, good to a few per cent of a run
of seconds; a cell pays less than 1 % for them.

Communication that goes on beside the work, as DDP's does while the backward pass computes, is no time lost and does
not count. Under failure: what cannot be read counts as work.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyter_dtrain.core.events import Spent
from jupyter_dtrain.plugins.sources import called_in

if TYPE_CHECKING:
    from .plugins import Plugins

PERIOD: Final = 0.02
"""Seconds between two looks."""


class _Clock(NamedTuple):
    """Seconds, so far: of the wall, with a processor, and waiting for one."""

    now: float
    ran: float
    delayed: float


class Spending:
    """Observes the main thread during the cells that want it."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._main = threading.main_thread()
        self._off = threading.Event()
        self._thread: threading.Thread | None = None
        self._before = self._began = _Clock(0.0, 0.0, 0.0)
        self._communication = self._data = self._processor = 0.0

    def begin(self, *, on: bool) -> None:
        """Begin a cell; ``on``: whether it wants its time observed."""
        self._stop()
        if not on:
            return
        self._communication = self._data = self._processor = 0.0
        self._off = threading.Event()
        self._before = self._began = self._read()
        self._thread = threading.Thread(target=self._loop, args=(self._off,), name="dtrain-spending", daemon=True)
        self._thread.start()

    def end(self) -> Spent | None:
        """End the cell; return how it spent its time, or None where that was not observed."""
        if self._thread is None:
            return None
        self._stop()
        seconds = self._read().now - self._began.now
        return Spent(round(seconds, 4), *(round(x, 4) for x in (self._communication, self._data, self._processor)))

    def _stop(self) -> None:
        self._off.set()
        if self._thread is not None:
            self._thread.join(1.0)
            self._thread = None

    def _loop(self, off: threading.Event) -> None:
        while not off.wait(PERIOD):
            with contextlib.suppress(Exception):
                self._look()

    def _look(self) -> None:
        frame = sys._current_frames().get(self._main.ident or 0)  # noqa: SLF001 — documented in spite of its name
        before, self._before = self._before, self._read()
        passed = self._before.now - before.now
        delayed = min(passed, self._before.delayed - before.delayed)
        blocked = max(0.0, passed - delayed - (self._before.ran - before.ran)) if self._before.ran else 0.0
        self._processor += delayed
        if frame is None:
            return
        call = called_in(frame)
        if self._plugins.waits(frame, call, idle=False) is not None:
            self._communication += passed - delayed
        elif self._plugins.waits(frame, call, idle=True) is not None:
            self._communication += blocked
        elif self._plugins.fetches(frame):
            self._data += passed - delayed

    def _read(self) -> _Clock:
        ran = delayed = 0.0
        with contextlib.suppress(OSError, ValueError):
            # The main thread's own number is that of its process; Python may know another one, of before a fork.
            words = Path(f"/proc/self/task/{os.getpid()}/schedstat").read_text(encoding="ascii").split()
            ran, delayed = int(words[0]) / 1e9, int(words[1]) / 1e9
        return _Clock(time.monotonic(), ran, delayed)
