"""Lets MPI work in a rank that is idle.

MPI takes messages in only while some thread calls it. A rank whose cell has ended calls it no more; so MPI never
refuses a large message to it, and the sender waits on, even after both have revoked the communicator.

It works between cells alone. A cell's own calls make MPI work, and two threads there have cost a rank its release.

Under failure: the thread ends by itself; a call that raises ends it at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import ModuleType

LASTS = 2.0
"""Seconds after a release: longer than the steward takes to look again, and to release again."""
PAUSE = 0.001
ENDING = 1.0
"""Seconds in which the thread ends once it was asked to; it takes a few milliseconds."""


class MpiProgress:
    """Drives MPI for a while, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0
        self._runs = False
        self._in_cell = False
        self._thread: threading.Thread | None = None

    def begin_cell(self) -> None:
        """Stop while a cell runs: this method returns once the thread has ended."""
        with self._lock:
            self._in_cell, self._until = True, 0.0
            thread = self._thread
        if thread is not None:
            thread.join(ENDING)

    def end_cell(self) -> None:
        """Note that the cell has ended, so that :meth:`drive` may begin."""
        with self._lock:
            self._in_cell = False

    def drive(self, mpi: ModuleType) -> None:
        """Have MPI work for :data:`LASTS` seconds from now, if no cell runs. Returns at once.

        It needs ``THREAD_MULTIPLE``.
        """
        with self._lock:
            if self._in_cell:
                return
            self._until = time.monotonic() + LASTS
            if self._runs:
                return
            self._runs = True
            self._thread = threading.Thread(target=self._run, args=(mpi,), name="dtrain-mpi-progress", daemon=True)
            self._thread.start()

    def _run(self, mpi: ModuleType) -> None:
        with contextlib.suppress(mpi.Exception):
            while self._goes_on():
                mpi.COMM_SELF.Iprobe()
                time.sleep(PAUSE)
        with self._lock:
            self._runs = False

    def _goes_on(self) -> bool:
        with self._lock:
            self._runs = time.monotonic() < self._until
            return self._runs
