"""The thread that shows one run: it alone calls the run's view.

A view may block: a terminal under Ctrl-S takes no more text, a pipe is full, a view of the user's own waits for
something. So the scheduler's thread never calls a view. It posts batches, notes and the end of the run to a
:class:`Painting` and goes on; stopping, interrupting and noticing a death wait for no view.

Its promises:

- The view gets everything in order, from one thread, and the end of the run last. A view that is behind gets the time
  at which a batch came, so that lines of several ranks which came together are still shown together.
- The queue of a view that is behind is bounded. Past :data:`BACKLOG` bytes a batch keeps only how its rank's cell
  began and ended, and the rank's totals, as if the rank had printed faster than it may announce. The view counts the
  rest; :class:`~jupyter_dtrain.core.run.Run` and the spool have it.
- The cell ends when its view has shown everything: output stands in its own cell, before the traceback. A view that
  has been in one call for :data:`STUCK` seconds when the run ends, or still shows the end after :data:`SHOWING`
  seconds, is not waited for any longer (see :meth:`Painting.is_late`). It goes on, and may still show the rest.
- A view that raises is logged and left out from then on; the run goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from jupyter_dtrain.core.events import Batch, Dropped, Error, Finished, Result, Started, Steered

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Totals
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.view import RunView

BACKLOG: Final = 32 << 20
"""Bytes that wait for a view: eight times the text that one rank announces in full."""
STUCK: Final = 6.0
"""Seconds after which a call that shows events has blocked: they take milliseconds."""
SHOWING: Final = 20.0
"""Seconds for the end of a run: three for the server's pace, two for matplotlib's import, one for a drawing, and three
times as much on a busy machine; a notebook that is saved by a program loses what comes later."""
PRESSED: Final = 1.0
"""Seconds that are left of it after a press of Stop."""
PERIOD: Final = 1.0
"""Seconds between two ticks of a view that wants none."""
BURST: Final = 64
"""Calls after which a busy view gets a tick all the same."""

_KEPT: Final = (Started, Result, Error, Steered, Dropped, Finished)
"""Events that a batch keeps when the backlog is full; a rank sends few of them in a run."""

_log = logging.getLogger(__name__)

Call = Callable[["RunView", float], object]


class _Feed:
    """A batch on its way to the view."""

    def __init__(self, batch: Batch, size: int) -> None:
        self.batch = batch
        self.size = size

    def __call__(self, view: RunView, now: float) -> None:
        view.feed(self.batch, now)


class _End:
    """The end of the run on its way to the view."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, view: RunView, now: float) -> None:
        view.close(self._run, now)


class Painting:
    """Shows one run. The scheduler's thread calls everything here; nothing waits."""

    def __init__(self, view: RunView | None, run: int) -> None:
        """``view``: None shows nothing. ``run``: its number."""
        self._run = run
        self._view = view
        self._shown: Callable[[], None] = lambda: None
        self._waiting: deque[tuple[Call, int, float]] = deque()
        self._news = threading.Condition()
        self._bytes = 0
        self._last: dict[int, _Feed] = {}
        """The newest batch of each rank that waits with its gaps; more of the rank is merged into it."""
        self._ticks = False
        self._now = 0.0
        """The newest time that the view has got: its clock never goes back."""
        self._busy_since: float | None = None
        """When the call began that shows events now."""
        self._show_by: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """The cell was sent: from now on the view gets ticks, too."""
        self._ticks = True
        self._post(lambda _view, _now: None)

    def feed(self, batch: Batch, totals: Totals) -> None:
        """Show ``batch``. ``totals``: all that its rank has printed up to its end."""
        if self._view is None:
            return
        size = len(msgspec.msgpack.encode(batch))
        with self._news:
            last = self._last.get(batch.rank)
            if last is None and self._bytes + size <= BACKLOG:
                feed = _Feed(batch, size)
            else:
                kept = [event for event in batch.events if isinstance(event.body, _KEPT)]
                if last is not None:
                    last.batch = Batch(
                        batch.run, batch.rank, last.batch.first, batch.last, [*last.batch.events, *kept], totals
                    )
                    return
                feed = _Feed(Batch(batch.run, batch.rank, batch.first, batch.last, kept, totals), 0)
                self._last[batch.rank] = feed
        self._post(feed, feed.size)

    def idle(self, rank: int) -> None:
        """``rank`` has finished its part of the run, or died."""
        self._post(lambda view, now: view.idle(rank, now))

    def note(self, words: str) -> None:
        """Show ``words`` with the run."""
        self._post(lambda view, now: view.note(words, now))

    def stand(self, topic: str, words: str, over: str = "") -> None:
        """Show ``words`` in place of the last ones about ``topic``; see :meth:`.RunView.stand`."""
        self._post(lambda view, now: view.stand(topic, words, now, over))

    def close(self, run: Run, now: float, shown: Callable[[], None]) -> None:
        """The run has ended: show everything, then end the view's thread. The view shows nothing that comes later.

        ``shown`` is called on any thread when the view has shown the end of the run, or has failed.
        """
        self._show_by = now + SHOWING
        if self._view is None and self._thread is None:
            shown()
            return
        self._shown = shown
        self._post(_End(run))
        self._closed = True

    def hurry(self, now: float) -> None:
        """The user has pressed Stop: wait little longer for the end of a run that has ended."""
        if self._show_by is not None:
            self._show_by = min(self._show_by, now + PRESSED)

    def is_late(self, now: float) -> bool:
        """Whether the end of the run is not to be waited for any longer. Asked after :meth:`close`."""
        since = self._busy_since
        stuck = since is not None and now - since > STUCK
        return stuck or (self._show_by is not None and now > self._show_by)

    def _post(self, call: Call, size: int = 0) -> None:
        if (self._view is None and self._thread is None) or self._closed:
            return
        with self._news:
            self._waiting.append((call, size, time.monotonic()))
            self._bytes += size
            self._news.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._paint, name="dtrain-view", daemon=True)
            self._thread.start()

    # The view's thread.

    def _paint(self) -> None:
        wake, called = time.monotonic() + PERIOD, 0
        while True:
            call, came = self._next(wake - time.monotonic())
            now = max(came, self._now)
            if isinstance(call, _End):
                self._call(call, time.monotonic())
                break
            if call is not None:
                self._call(call, now)
                called += 1
            if call is None or called >= BURST or not self._waiting:
                called = 0
                now = now if self._waiting else time.monotonic()
                wake = time.monotonic() + PERIOD
                wanted = self._call(lambda view, now: view.tick(now), now) if self._ticks else None
                if isinstance(wanted, (int, float)):
                    wake = min(wake, wanted)
        self._view = None
        self._shown()

    def _next(self, patience: float) -> tuple[Call | None, float]:
        """The next call, and the time at which it was posted."""
        with self._news:
            if not self._waiting and patience > 0:
                self._news.wait(patience)
            if not self._waiting:
                return None, time.monotonic()
            call, size, came = self._waiting.popleft()
            self._bytes -= size
            if isinstance(call, _Feed) and self._last.get(call.batch.rank) is call:
                del self._last[call.batch.rank]
            return call, came

    def _call(self, call: Call, now: float) -> object:
        """The view's answer; None where it fails."""
        if self._view is None:
            return None
        self._now, self._busy_since = now, None if isinstance(call, _End) else time.monotonic()
        try:
            return call(self._view, now)
        except Exception:  # noqa: BLE001 — a view may be anybody's code
            _log.exception("The view of run %s failed", self._run)
            self._view = None
            return None
        finally:
            self._busy_since = None
