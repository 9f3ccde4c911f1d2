"""Waiting for a world to come up.

Under failure: the steward says why the world did not come up, see :mod:`jupyter_dtrain.steward.progress`. The error
differs for a steward that has ended, one that never answers, and one that is slow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from jupyter_dtrain.core.errors import StartFailed, WorldLost
from jupyter_dtrain.core.processes import Work
from jupyter_dtrain.core.start_failures import AGAIN, MEND, StartFailure, relevant
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
        self._log: BinaryIO | None = None
        with contextlib.suppress(OSError):
            # Open from the start on: a steward that is killed takes its folder along.
            self._log = open(Path(request.folder) / "logs" / "steward.log", "rb")  # noqa: SIM115 — closed in wait()

    def wait(self, incarnation: int) -> WorldState:
        """The state of the world that runs. Raises :class:`StartFailed` with the reason when it does not."""
        try:
            return self._wait(incarnation)
        finally:
            if self._log is not None:
                self._log.close()

    def _wait(self, incarnation: int) -> WorldState:
        name, said = self._listing.name, ("", "")
        while True:
            state = self._ask_state()
            if state.phase in ("failed", "ending") or state.incarnation != incarnation:
                failed = state.failure or StartFailure(state.reason, "")
                raise StartFailed(f"World {name!r} did not start. {failed.reason}", failed.cure, failed.log)
            if state.phase == "running":
                return state
            if (state.progress, state.busy) != said:
                said = state.progress, state.busy
                words = "; ".join(word for word in said if word)
                self._progress(f"Starting world {name!r}: {words}, {self._seconds:.1f} s")
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
        name, settings = self._listing.name, self._request.settings
        steward: Work | None = None
        while True:
            try:
                return self._link.ask(ReadState(), timeout=1.0)
            except WorldLost:
                if not worlds.is_alive(self._listing):
                    log = self._steward_said(patience=1.0)
                    mend = len(log.splitlines()) > 1  # the last line is its guard's, which names the signal
                    words = f"The main process of world {name!r} ended."
                    raise StartFailed(words, MEND if mend else AGAIN, log) from None
                # It may still answer while it works, or waits for a processor of a busy machine.
                steward = steward or Work([self._listing.steward])
                late = self._seconds > settings.start_timeout and steward.rest() > settings.start_timeout / 2
                if late or self._seconds > settings.longest_step:
                    raise StartFailed(
                        f"The main process of world {name!r} does not answer.",
                        "Start the world again, or give it more time with JUPYTER_DTRAIN_START_TIMEOUT "
                        f"(seconds, now {settings.start_timeout:g}).",
                        self._steward_said(),
                    ) from None

    def _steward_said(self, patience: float = 0.0) -> str:
        """The lines of the steward's log that tell about a failure; they may come within ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while self._log is not None:
            self._log.seek(0)
            text = relevant(self._log.read().decode(errors="replace"))
            if text or time.monotonic() > deadline:
                return text
            time.sleep(POLL)
        return ""
