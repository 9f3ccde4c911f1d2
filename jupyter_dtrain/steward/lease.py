"""The lease: the client that keeps the world alive, and until when.

One client drives the world: it runs cells, and it renews the lease. Others observe, and cannot renew. Another client
becomes the driver when it takes over, or when the driver has left or its process is gone. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.processes import still_runs
from jupyter_dtrain.core.world import Client


class Lease:
    """The lease of one world."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._end = self._clock() + seconds
        self._driver: Client | None = None
        self._has_left = False
        self._lock = threading.RLock()

    @property
    def driver(self) -> Client | None:
        """The client that drives the world; None before the first has joined."""
        return self._driver

    @property
    def is_driven(self) -> bool:
        """Whether the driver is attached and its process runs."""
        with self._lock:
            driver = self._driver
            return driver is not None and not self._has_left and still_runs(driver.pid, driver.created)

    def check_driver(self, client: str) -> None:
        """Raise :class:`Refused` unless the client with this id drives the world."""
        driver = self._driver
        if driver is None:
            raise Refused("No notebook controls this world: %distributed attach in one takes control.")
        if driver.id != client:
            raise Refused(f"This world is controlled by {driver.words}; only that client can do this.")

    @property
    def left(self) -> float:
        """Seconds until the lease ends; below 0 afterwards."""
        return self._end - self._clock()

    def begin_again(self) -> None:
        """Start the lease anew, because the world has just started."""
        with self._lock:
            self._end = self._clock() + self._seconds

    def join(self, client: Client, *, take_over: bool) -> bool:
        """Let ``client`` join; return whether it became the driver by that."""
        with self._lock:
            old = self._driver
            if not take_over and old is not None and old.id != client.id and self.is_driven:
                return False
            self._driver, self._has_left = client, False
            self._end = self._clock() + self._seconds
            return old is None or old.id != client.id

    def leave(self, client: str) -> None:
        """Let the client with this id leave; the lease runs on, and the next client to join becomes the driver."""
        with self._lock:
            if self._driver is not None and self._driver.id == client:
                self._has_left = True

    def renew(self, client: str, *, auto: bool) -> bool:
        """Note that the client with this id lives. Return whether it drives the world, which renews the lease.

        ``auto``: whether it sends plain cells to the ranks too.
        """
        with self._lock:
            if self._driver is None or self._driver.id != client:
                return False
            self._driver = msgspec.structs.replace(self._driver, auto=auto)
            self._end = self._clock() + self._seconds
            return True
