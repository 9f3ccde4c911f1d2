"""Outgoing text and displays, in order, gathered into few messages and held to the server's pace.

The first text after a quiet time goes at once; what follows within :data:`GATHER` goes together. When the pace has
nothing to give, everything waits. All text is sent in the end; of the displays that wait, at most :data:`BACKLOG`, the
newest, so that a flood of displays ends with its run and later cells do not wait for it. When the painter fails (a
closed terminal, a dead kernel connection), that is logged once and the outbox swallows the rest: the other parts of the
view go on.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from .pace import DISPLAY, ENVELOPE, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_dtrain.core.events import MimeBundle

    from .painter import Painter, StreamName

GATHER: Final = 0.050
"""Seconds during which text is gathered after text went out."""

CHUNK: Final = 64_000
"""UTF-8 bytes of text in one message, at most, unless a single line with its label is longer."""

DRAIN: Final = 3.0
"""Seconds that :meth:`Outbox.drain` waits for the pace, at most."""

BACKLOG: Final = 2000
"""Displays that may wait for the pace: about as many as :meth:`Outbox.drain` has the time to send."""

_STEP: Final = 0.050

_log = logging.getLogger("jupyter_dtrain")


@dataclass
class _Text:
    stream: StreamName
    parts: list[str]
    size: int

    @property
    def cost(self) -> int:
        # As JSON: a line end or quote takes two bytes, an escape character six.
        return ENVELOPE + len(json.dumps("".join(self.parts), ensure_ascii=False).encode())


@dataclass
class _Rich:
    kind: Literal["display", "update", "settle", "left out"]
    display_id: str | None
    data: MimeBundle = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    moving: bool = False

    @property
    def cost(self) -> int:
        return DISPLAY if self.kind in ("display", "update") else 0

    @property
    def is_caption(self) -> bool:
        return bool(self.metadata.get("dtrain", {}).get("caption"))


class Outbox:
    """The way from one view to its painter.

    ``sleep`` is the function with which :meth:`drain` waits, in seconds.
    """

    def __init__(self, painter: Painter, pace: Pace, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._painter = painter
        self._pace = pace if painter.paced else None
        self._sleep = sleep
        self._queue: deque[_Text | _Rich] = deque()
        self._updates: dict[str, _Rich] = {}
        self._displays: deque[_Rich] = deque()  # those of the queue
        self._never: set[str] = set()  # ids of displays that were left out
        self._sent = float("-inf")
        self._price: int | None = None  # of the first message, once calculated
        self.broken = False
        """Whether the painter has failed; then nothing is painted any more."""
        self.left_out = 0
        """Displays that were not sent, because more came than the server takes."""

    def text(self, stream: StreamName, text: str) -> None:
        """Add text, in whole lines."""
        if self.broken or not text:
            return
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Text) and last.stream == stream and last.size + size <= CHUNK:
            last.parts.append(text)
            last.size += size
            if len(self._queue) == 1:
                self._price = None
        else:
            self._queue.append(_Text(stream, [text], size))

    def display(
        self, data: MimeBundle, metadata: dict[str, Any], display_id: str | None, *, moving: bool = False
    ) -> None:
        """Add a rich output. ``moving``: see :meth:`Painter.display`."""
        display = _Rich("display", display_id, data, metadata, moving)
        self._add(display)
        if self._pace is not None and not self.broken:
            self._displays.append(display)
            self._leave_out()

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Replace the content of a display; this also replaces an older update that has not gone yet."""
        if display_id in self._never:
            return
        waiting = self._updates.get(display_id)
        if waiting is not None:
            waiting.data, waiting.metadata = data, metadata
            return
        update = _Rich("update", display_id, data, metadata)
        if not self.broken:
            self._updates[display_id] = update
        self._add(update)

    def settle(self, display_id: str) -> None:
        """Note that a display has its last content."""
        self._add(_Rich("settle", display_id))

    def send(self, now: float) -> float | None:
        """Send what may go; returns when the next may, ``None`` if nothing is left."""
        while self._queue:
            wanted = self._wanted(now)
            if wanted > now:
                return wanted
            self._paint(now)
        return None

    def drain(self, now: float) -> float:
        """Send everything, waiting for the pace in steps of 50 ms up to :data:`DRAIN`, then no longer.

        Returns the time at the end.
        """
        end = now + DRAIN
        while self._queue:
            if now < end and self._pace is not None and (wait := self._pace.when(self._cost(), now) - now) > 0:
                step = min(wait, _STEP)
                self._sleep(step)
                now += step
                continue
            self._paint(now)
        return now

    def _wanted(self, now: float) -> float:
        wanted = now
        if self._pace is not None:
            wanted = self._pace.when(self._cost(), now)
        # A message with another one behind it cannot grow any more: only the last is worth waiting for.
        if len(self._queue) == 1 and isinstance(self._queue[0], _Text):
            wanted = max(wanted, self._sent + GATHER)
        return wanted

    def _cost(self) -> int:
        if self._price is None:
            self._price = self._queue[0].cost
        return self._price

    def _leave_out(self) -> None:
        """Of the displays that wait, leave out the oldest that are too many, each together with its caption."""
        orphan = False
        while self._displays and (len(self._displays) > BACKLOG or orphan):
            oldest = self._displays.popleft()
            orphan = oldest.is_caption
            self.left_out += not orphan
            oldest.kind, oldest.data = "left out", {}
            if oldest is self._queue[0]:
                self._price = None
            if oldest.display_id is not None:
                self._never.add(oldest.display_id)
                if (update := self._updates.pop(oldest.display_id, None)) is not None:
                    update.kind, update.data = "left out", {}

    def _add(self, message: _Rich) -> None:
        if not self.broken:
            self._queue.append(message)

    def _paint(self, now: float) -> None:
        if self._pace is not None:
            self._pace.spend(self._cost(), now)
        message = self._queue.popleft()
        self._price = None
        try:
            if isinstance(message, _Text):
                self._sent = now
                self._painter.stream(message.stream, "".join(message.parts))
            elif message.kind == "settle":
                self._painter.settle(message.display_id or "")
            elif message.kind == "update":
                self._updates.pop(message.display_id or "", None)
                self._painter.update(message.data, message.metadata, message.display_id or "")
            elif message.kind == "display":
                if self._displays and self._displays[0] is message:
                    self._displays.popleft()
                self._painter.display(message.data, message.metadata, message.display_id, moving=message.moving)
        except Exception:  # noqa: BLE001 - whatever the sink raises, the view's thread goes on
            self.broken = True
            self._queue.clear()
            self._updates.clear()
            self._displays.clear()
            _log.exception("The output of a distributed cell can no longer be shown; the run itself goes on.")
