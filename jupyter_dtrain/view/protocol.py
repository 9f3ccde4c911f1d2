"""What the thread that folds a run asks of whatever shows it.

Every method is called from that one thread, returns soon (``close`` within about 3 s) and does not raise: a view that
cannot show anything more goes quiet instead, so that a closed terminal never stops a run from being folded.
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
        """``rank`` finished its part of the run, or died: it will say no more."""

    def note(self, words: str, now: float) -> None:
        """Something happens to the run that no rank says: a line or more of text."""

    def tick(self, now: float) -> float | None:
        """Do what is due; returns the time of the next wanted call, ``None`` for not before the next :meth:`feed`."""

    def close(self, run: Run, now: float) -> None:
        """The run ended: show everything that is still held and leave the final state. Called once, last."""
