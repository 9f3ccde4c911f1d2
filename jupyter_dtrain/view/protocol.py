"""The interface between the thread that folds a run and the views that show it.

Only that thread calls these methods. Each returns soon (``close`` within about 3 s) and does not raise: a view that
fails goes quiet, so that a closed terminal never stops a run from being folded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Batch
    from jupyter_dtrain.core.run import Run


class RunView(Protocol):
    """A view of one run while it goes on. All times are ``time.monotonic()`` seconds."""

    def feed(self, batch: Batch, now: float) -> None:
        """Take the next events of one rank: in order, without gaps or duplicates."""

    def idle(self, rank: int, now: float) -> None:
        """Note that ``rank`` finished its part of the run, or died: it will send no more."""

    def note(self, words: str, now: float) -> None:
        """Show ``words``, one or more lines about an event of the run that comes from no rank."""

    def tick(self, now: float) -> float | None:
        """Do what is due; returns the time of the next wanted call, ``None`` for not before the next :meth:`feed`."""

    def close(self, run: Run, now: float) -> None:
        """Show everything that is still held, and the final state, at the end of the run. Called once, last."""
