"""How fast a kernel may send output without its server throwing output away.

Jupyter Server adds up the whole ``stream`` messages of a kernel over the last 3 s. It drops *every* output, of
whatever type, once they exceed 3 MB (``iopub_data_rate_limit`` 1 MB/s times ``rate_limit_window``) or once there are
more than 3000 messages of any type. Dropped output is lost. A :class:`Pace` is a token bucket whose burst plus three
seconds of refill stay below that limit by a tenth. (Source: ``ZMQChannelsWebsocketConnection._limit_rate``.)

Nothing here waits or fails: callers ask when they may send, and send late rather than never.
"""

from __future__ import annotations

import threading
from typing import Final

RATE: Final = 700_000
"""Bytes a second. With :data:`BURST`, 2.7 MB in any 3 s: a kernel's own prints need some room too."""

BURST: Final = 600_000
"""Bytes that may go at once after a quiet time."""

ENVELOPE: Final = 700
"""Bytes of headers around the content of one message."""

DISPLAY: Final = 1000
"""The price of a display, whatever its size: the server counts it among the messages, not among the bytes."""


class Pace:
    """A token bucket in bytes, safe to use from several threads.

    ``rate`` is in bytes a second, ``burst`` in bytes; times are ``time.monotonic()`` seconds.
    """

    def __init__(self, rate: float = RATE, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at: float | None = None
        self._lock = threading.Lock()

    def grant(self, now: float) -> int:
        """How many bytes may be sent at ``now``; 0 or less means none."""
        with self._lock:
            return int(self._fill(now))

    def spend(self, n: int, now: float) -> None:
        """Count ``n`` bytes as sent. The refill first pays back any bytes beyond the grant."""
        with self._lock:
            self._tokens = self._fill(now) - n

    def when(self, n: int, now: float) -> float:
        """The time, ``now`` or later, at which ``n`` bytes may be sent. More than a burst needs a full bucket."""
        with self._lock:
            missing = min(float(n), self._burst) - self._fill(now)
        return now if missing <= 0 else now + missing / self._rate

    def _fill(self, now: float) -> float:
        # A caller with an older clock reading than the last one must not take tokens back.
        if self._at is None or now > self._at:
            if self._at is not None:
                self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
        return self._tokens


FRONT_END: Final = Pace()
"""The pace that all views of this process share: they send through one kernel to one server."""
