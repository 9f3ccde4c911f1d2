"""Lets MPI work in a rank that is idle.

MPI takes messages in only while some thread calls it. A rank whose cell has ended calls it no more; so a large message
to it is never refused, and its sender waits on, even after both have revoked the communicator.

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


class Progress:
    """Drives MPI for a while, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0
        self._runs = False

    def drive(self, mpi: ModuleType) -> None:
        """Have MPI work for :data:`LASTS` seconds from now. Returns at once; needs ``THREAD_MULTIPLE``."""
        with self._lock:
            self._until = time.monotonic() + LASTS
            if self._runs:
                return
            self._runs = True
        threading.Thread(target=self._run, args=(mpi,), name="dtrain-mpi-progress", daemon=True).start()

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
