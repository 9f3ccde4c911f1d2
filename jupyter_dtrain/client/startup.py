"""Waiting for a world to come up.

Under failure: the steward says within its own deadline why the world did not come up. A steward that has ended, or
never answers, gives another error than a slow one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_dtrain.core.errors import StartFailed, WorldLost
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.wire.steward_messages import ReadState, WorldState

if TYPE_CHECKING:
    from jupyter_dtrain.wire.requests import WorldRequest

    from .link import Link

POLL = 0.03
"""Seconds between two looks."""


class Startup:
    """One world's way from its steward's start, or from a restart, until all its ranks are ready."""

    def __init__(
        self,
        link: Link,
        request: WorldRequest,
        progress: Callable[[str], None],
    ) -> None:
        """``progress`` is called with a line of text whenever there is news."""
        self._listing = link.listing
        self._link = link
        self._request = request
        self._progress = progress
        self._began = time.monotonic()

    def wait(self, incarnation: int) -> WorldState:
        """The state of the world that runs. Raises :class:`StartFailed` with the reason when it does not."""
        name, said = self._listing.name, -1
        while True:
            state = self._ask_state()
            phase, size = state.phase, state.size
            if phase in ("failed", "ending") or state.incarnation != incarnation:
                raise StartFailed(f"World {name!r} did not start. {state.reason}")
            ready = state.world.size
            if ready != said:
                self._progress(f"Starting world {name!r}: {ready} of {size} ranks ready, {self._seconds:.1f} s")
                said = ready
            if phase == "running":
                return state
            time.sleep(POLL)

    def tell_end(self, size: int) -> None:
        """Report that the world is up and its ranks answer."""
        ranks = f"{size} rank{'s' if size > 1 else ''}"
        self._progress(f"World {self._listing.name!r} is up: {ranks} in {self._seconds:.1f} s")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _ask_state(self) -> WorldState:
        """The state of a world that starts; its steward may need a moment before it answers at all."""
        name = self._listing.name
        while True:
            try:
                return self._link.ask(ReadState(), timeout=1.0)
            except WorldLost:
                log = Path(self._request.folder) / "logs" / "steward.log"
                if not worlds.is_alive(self._listing):
                    said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                    raise StartFailed(f"The steward of world {name!r} ended. It said:\n{said}") from None
                if self._seconds > self._request.settings.start_timeout:
                    raise StartFailed(f"The steward of world {name!r} does not answer.") from None
