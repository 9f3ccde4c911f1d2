"""The one unfinished line of a run that is worth watching: a progress bar, or a line that waits for its end.

Ranks that train together draw the same bar. The lowest rank that has one is shown, in a display that is redrawn in
place, at most once in :data:`REDRAW` seconds, however much the ranks print. The last state always comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .labels import label, metadata_of

if TYPE_CHECKING:
    from .outbox import Outbox

REDRAW: Final = 0.25
"""Seconds between two updates of the live line."""

UNFINISHED: Final = 0.200
"""Seconds after which an unfinished line that is no progress bar is shown."""

REST: Final = 2.0
"""Seconds after a rank's bar during which higher ranks' bars stay hidden: they are about to end alike."""


@dataclass
class _Line:
    rank: int
    stream: str
    text: str
    shown: str
    at: float
    rests: float | None = None
    """The bar was erased: until this time its rank may continue it before another rank's is shown."""


class LiveLine:
    """Shows the live line of a world of ``size`` ranks; ``name`` begins its display ids.

    Where ``live`` is false (the output cannot be redrawn), it shows nothing but still tells the ranks apart.
    """

    def __init__(self, outbox: Outbox, size: int, name: str, *, live: bool) -> None:
        self._outbox = outbox
        self._size = size
        self._name = name
        self._live = live
        self._count = 0
        self._line: _Line | None = None
        self._rested: tuple[int, float] | None = None  # the rank whose line ended last, and when its rest is over

    @property
    def shows(self) -> bool:
        """Whether an unfinished line is on display."""
        return self._line is not None

    def show(self, rank: int, stream: str, text: str, now: float) -> bool:
        """Show the unfinished line of ``rank`` as it is now; false if another rank's comes first."""
        line = self._line
        if (
            line is not None
            and line.rests is not None
            and now >= line.rests
            and (line.rank, line.stream) != (rank, stream)
        ):
            self._settle(now)
            line = None
        if line is None:
            if self.hides(rank, now):
                return False
            self._count += 1
            self._line = line = _Line(rank, stream, text, text, now)
            if self._live:
                data, metadata = self._content(line)
                self._outbox.display(data, metadata, self._id, moving=True)
            return True
        if (line.rank, line.stream) != (rank, stream):
            if rank >= line.rank:
                return False
            line.rank, line.stream = rank, stream
        line.text, line.rests = text, None
        self._redraw(now)
        return True

    def finish(self, rank: int, stream: str, text: str, now: float) -> bool:
        """Finish the line of ``rank``; true if it is on display, so that no other part needs to show it."""
        line = self._line
        if line is None or (line.rank, line.stream) != (rank, stream):
            return False
        line.text = text
        self._settle(now)
        return self._live

    def rest(self, rank: int, stream: str, now: float) -> None:
        """Note that the line of ``rank`` was erased; its last text stays until there is something new."""
        line = self._line
        if line is not None and (line.rank, line.stream) == (rank, stream) and line.rests is None:
            line.rests = now + REST

    def hides(self, rank: int, now: float) -> bool:
        """Whether a lower rank already shows the same line."""
        line = self._line
        if line is not None:
            return line.rank < rank and (line.rests is None or now < line.rests)
        return self._rested is not None and self._rested[0] < rank and now < self._rested[1]

    def close(self, now: float) -> None:
        """Leave the displayed line as it is."""
        if self._line is not None:
            self._settle(now)

    def tick(self, now: float) -> float | None:
        """Redraw the line if that is due; return when it is due next."""
        line = self._line
        if line is not None:
            self._redraw(now)
            if line.text != line.shown and self._live:
                return line.at + REDRAW
            return line.rests if line.rests is not None and line.rests > now else None
        if self._rested is not None and now < self._rested[1]:
            return self._rested[1]
        return None

    @property
    def _id(self) -> str:
        return f"{self._name}-live-{self._count}"

    def _content(self, line: _Line) -> tuple[dict[str, str], dict[str, object]]:
        text = label((line.rank,), self._size) + line.text
        metadata = metadata_of((line.rank,), {})
        metadata["dtrain"]["line"] = True  # JupyterLab's view of the output counts this display as a printed line
        return {"text/plain": text}, metadata

    def _redraw(self, now: float, *, force: bool = False) -> None:
        line = self._line
        if line is None or not self._live or line.text == line.shown or (now < line.at + REDRAW and not force):
            return
        line.shown, line.at = line.text, now
        self._outbox.update(*self._content(line), self._id)

    def _settle(self, now: float) -> None:
        self._redraw(now, force=True)
        line = self._line
        if line is not None:
            self._rested = (line.rank, now + REST if line.rests is None else line.rests)
        if self._live:
            self._outbox.settle(self._id)
        self._line = None
