"""The nodes that a scheduler lends to a world: a thread asks for them, then looks at them until the world ends.

Under failure: a place in a queue has no deadline, and a person, or the steward's end, can give it up at any moment.
After :meth:`Nodes.give_back` the world has neither nodes nor a place in the queue, as far as the scheduler answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from jupyter_dtrain.core.errors import DtrainError, StartFailed
from jupyter_dtrain.core.start_failures import AGAIN, StartFailure
from jupyter_dtrain.launch.launcher import Allocation, Look

EVERY: Final = 20.0
"""Seconds between two looks: somebody may shorten or prolong the time."""
WARNING: Final = 300.0
"""Seconds before the end of the time, at which the user is warned."""
PATIENCE: Final = 25.0
"""Seconds that a look which is under way may take."""

_log = logging.getLogger(__name__)


class Nodes:
    """All methods but :meth:`give_back` return at once."""

    def __init__(
        self,
        allocation: Allocation,
        *,
        say: Callable[[str], None],
        got: Callable[[], None],
        failed: Callable[[StartFailure], None],
        seen: Callable[[Look, bool], None],
    ) -> None:
        """``say`` gets how far the place in the queue is, in words; ``got`` and ``failed`` tell how the wait ended.

        ``seen`` gets each look at the nodes, and whether :meth:`look_soon` asked for it. A thread of this object calls
        all four.
        """
        self._allocation = allocation
        self._say, self._got, self._failed, self._seen = say, got, failed, seen
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        """Set where the next look should come at once."""
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="dtrain-nodes", daemon=True)

    def start(self) -> None:
        """Begin to ask for the nodes."""
        self._thread.start()

    def look_soon(self) -> None:
        """Something on the nodes has ended: look why."""
        self._ending = True
        self._wanted.set()

    def give_back(self) -> None:
        """Give the nodes, or the place in the queue, back. Takes seconds."""
        self._stopped.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        self._allocation.give_back()

    def _run(self) -> None:
        try:
            self._allocation.get(self._say, self._stopped)
        except StartFailed as error:
            self._failed(StartFailure(error.reason, error.cure, error.log))
            return
        except Exception as error:  # noqa: BLE001 — a start that fails must say so, whatever it was
            _log.exception("The world gets no nodes")
            words = str(error) if isinstance(error, DtrainError) else f"{type(error).__name__}: {error}"
            self._failed(StartFailure(words, AGAIN))
            return
        if not self._stopped.is_set():
            self._got()
        while not self._stopped.is_set():
            self._wanted.clear()
            ending, self._ending = self._ending, False
            try:
                found = self._allocation.look(ending=ending)
            except Exception:  # noqa: BLE001 — the next look may tell
                _log.exception("The scheduler cannot be asked")
            else:
                self._seen(found, ending)
            self._wanted.wait(EVERY)


def time_left(ends: float) -> str:
    """The time until ``ends`` (seconds since the epoch) in words; empty where there is no end."""
    if not ends:
        return ""
    minutes = max(0, int((ends - time.time()) / 60))
    if minutes < 1:
        return "less than a minute left"
    if minutes < 120:
        return f"{minutes} min left"
    return f"{minutes // 60} h {minutes % 60} min left" if minutes < 2880 else f"{minutes // 1440} days left"
