"""The calls that a run's view gets.

A thread of the run's own calls every method (see :mod:`jupyter_dtrain.client.painting`). A view should return soon,
``close`` within about 3 s, and not raise. One that blocks delays neither Stop nor the news of a death, and a cell that
has ended goes on without it after a few seconds. One that raises is left out from then on.
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
        """Note that ``rank`` finished its part of the run, or died: no more events of it come."""

    def note(self, words: str, now: float) -> None:
        """Show a line or more of text about the run that comes from no rank."""

    def stand(self, topic: str, words: str, now: float, over: str = "") -> None:
        """Show ``words`` about the run for as long as they are true, in place of the last ones about ``topic``.

        Empty words: the last ones are true no longer. ``over`` says so where text that was shown cannot be taken back.
        """

    def tick(self, now: float) -> float | None:
        """Do what is due; returns the time of the next wanted call, ``None`` for not before the next :meth:`feed`."""

    def close(self, run: Run, now: float) -> None:
        """The run ended: show everything that is still held and leave the final state. This call comes once, last."""
