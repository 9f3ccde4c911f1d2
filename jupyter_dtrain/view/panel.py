"""The panel of one run: a widget above the cell's output while the run goes on, then its saved form.

A panel appears once there is something to show: a metric, a progress bar, a prompt, or a run that lasts
:data:`PATIENCE` seconds. Earlier output goes below an empty display, which the panel fills later; a run with nothing to
show leaves it empty. Points go to the front end a few times a second, thinned to :data:`BYTES_PER_SECOND`. The panel's
own memory is bounded too; every two seconds it copies that for pages that open later. Where widgets are impossible,
only the saved form appears.

A panel that fails goes quiet: neither the run nor the cell's text suffers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.world import count_ranks

from . import drawing, saved, widget
from .document import MIME, document, status
from .pace import DISPLAY, FRONT_END, Pace
from .points import News, PointQueue
from .run_state import RunState
from .timelines import LIVE_BYTES, packed

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Batch
    from jupyter_dtrain.core.run import Run

    from .painter import Painter
    from .widget import Actions, WidgetLink

PATIENCE: Final = 2.0
"""Seconds after which a run without metrics or progress gets a panel."""

PER_SECOND: Final = 6.0
"""The largest number of messages with points per second, in the first :data:`LIVELY` seconds of a panel."""

LIVELY: Final = 3.0
CALM_PERIOD: Final = 0.5
"""Seconds between two messages after that: each takes 2 ms of a core that ranks of the same host may need."""

GATHER: Final = 0.03
"""Seconds to wait for more news after the first: ranks send theirs at the same moments."""

BYTES_PER_SECOND: Final = 1_000_000
"""Bytes of points a second, about."""

KEEP_PERIOD: Final = 2.0
"""Seconds between two copies for late pages; longer where copying takes more than 3 % of the time."""

KEPT_BYTES: Final = 60_000
"""The largest size of such a copy."""

DRAWING: Final = 2.0
"""Seconds for which the end of a cell waits for matplotlib; after that there is no picture."""

_EMPTY: Final = {"text/plain": ""}  # no height in a notebook; without any type nbconvert would complain
_CHUNK: Final = int(BYTES_PER_SECOND / PER_SECOND / 4)  # points of one message
_SHARE: Final = 0.03


class Panel:
    """Shows one run through ``painter``; a :class:`~jupyter_dtrain.view.protocol.RunView`.

    ``ranks`` run the cell, in a world of ``size`` ranks; ``run`` is the run's number, ``world`` the world's id.
    ``hosts``: those of the ranks, as far as known. ``actions``: what a widget may request; None where widgets are
    impossible. ``display_id`` belongs to the panel's display.
    """

    def __init__(
        self,
        painter: Painter,
        run: int,
        ranks: Sequence[int],
        size: int,
        *,
        display_id: str,
        world: str = "",
        hosts: Mapping[int, str] | None = None,
        actions: Actions | None = None,
        pace: Pace = FRONT_END,
        with_svg: bool = True,
    ) -> None:
        self._painter = painter
        self._display_id = display_id
        self._metadata = metadata_of_panel(display_id, world, run)
        self._actions = actions
        self._pace = pace
        self._with_svg = with_svg
        self._gathered = RunState(run, ranks, size, hosts)
        self._title = title_of(run, ranks)
        self._pending = PointQueue(_CHUNK)
        self._sequence = 0
        self._began: float | None = None
        self._reserved = False
        self._over = False
        self._link: WidgetLink | None = None
        self._loading: threading.Thread | None = None
        self._maker: Callable[[Actions, bytes], WidgetLink] | None = None
        self._told = 0  # the version of the pipelines that the front end has
        self._news = False  # the front end lacks something
        self._stale = True  # so does the copy
        self._next_send = 0.0
        self._next_keep = 0.0
        self._calm_from = 0.0

    # Events of the run.

    def feed(self, batch: Batch, now: float) -> None:
        """Take the next events of one rank."""
        if self._began is None:
            self._began = now
        for event in batch.events:
            points = self._gathered.take(event)
            if points is None:
                continue
            if not self._news:
                self._next_send = max(self._next_send, now + GATHER)
            self._news = self._stale = True
            if self._actions is not None:
                for name, columns in points:
                    self._pending.add(name, batch.rank, columns)
        self.tick(now)

    def idle(self, rank: int, now: float) -> None:
        """Note that ``rank`` will send no more."""
        self._gathered.fold.lose(rank, "")
        self._news = self._stale = True
        self.tick(now)

    def note(self, words: str, now: float) -> None:
        """Do nothing: notes belong to the cell's output."""

    def stand(self, topic: str, words: str, now: float, over: str = "") -> None:
        """Do nothing: such words belong to the cell's output."""

    def tick(self, now: float) -> float | None:
        """Send what is due; returns the time of the next wanted call, or ``None``."""
        if self._began is None:
            self._began = now
        if self._over or self._actions is None:
            return None
        if self._link is None:
            return self._show(now)
        if now >= self._next_send and (self._news or self._pending):
            self._send(now)
        if now >= self._next_keep and self._stale:
            self._keep(now)
        wanted = []
        if self._news or self._pending:
            wanted.append(self._next_send)
        if self._stale:
            # Pending points must be sent before a copy; asked again at once, there would be nothing to do yet.
            wanted.append(max(self._next_keep, self._next_send) if self._pending else self._next_keep)
        return min(wanted, default=None)

    def close(self, run: Run, now: float) -> None:
        """Replace the widget, at the end of the run, by what the notebook saves, or by nothing."""
        del now
        for rank, words in run.lost.items():
            self._gathered.fold.lose(rank, words)
        picture = self._gathered.picture(run.outcome)
        picture.remark = run.remark
        if self._link is not None and self._pending:
            self._send(time.monotonic())
        self._over = True
        if self.has_something:
            self._fill(saved.bundle(picture, with_svg=self._with_svg and _can_draw()))
        elif self._link is not None:
            self._fill(dict(_EMPTY))
        if self._link is not None:
            # Last: a listener that hears of the end then finds the final display.
            self._link.end(_packed({**document(picture, KEPT_BYTES), "seq": self._sequence}))

    # Its display.

    @property
    def is_live(self) -> bool:
        """Whether the panel shows the run while it goes on, or is about to."""
        return self._actions is not None

    @property
    def has_something(self) -> bool:
        """Whether there is anything worth saving."""
        return self._gathered.has_something

    @property
    def line(self) -> str:
        """The run in a line, for a terminal, which has no panel."""
        return self._gathered.line

    def reserve(self) -> None:
        """Reserve the panel's place above everything that is painted from now on."""
        if not self._reserved and not self._over:
            self._reserved = True
            self._paint(lambda: self._painter.display(dict(_EMPTY), self._metadata, self._display_id))

    def _fill(self, data: dict[str, Any]) -> None:
        if not self._reserved:
            self._reserved = True
            self._paint(lambda: self._painter.display(data, self._metadata, self._display_id))
        else:
            self._paint(lambda: self._painter.update(data, self._metadata, self._display_id))
        self._paint(lambda: self._painter.settle(self._display_id))

    def _paint(self, paint: Callable[[], None]) -> None:
        if self._painter.paced:
            self._pace.spend(DISPLAY, time.monotonic())
        paint()

    def _show(self, now: float) -> float | None:
        """Make the widget once there is something to show and its modules are imported."""
        assert self._began is not None
        assert self._actions is not None
        if not self.has_something and not self._gathered.fold.prompts and now < self._began + PATIENCE:
            return self._began + PATIENCE
        if self._loading is None:
            self._loading = threading.Thread(target=self._load, name="dtrain-panel", daemon=True)
            self._loading.start()
            return now + 0.02
        if self._maker is None:
            if self._loading.is_alive():
                return now + 0.02
            self._actions = None  # widgets are impossible here
            return None
        begun = {**self._document(), "seq": self._sequence}
        self._link = self._maker(self._actions, _packed(begun))
        self._pending.clear()
        # A notebook that is saved now, and opened without this kernel, has no widget but the document.
        self._fill({widget.VIEW: self._link.view, MIME: begun, "text/plain": self._title})
        self._calm_from = now + LIVELY
        self._next_send, self._next_keep = now + 1 / PER_SECOND, now + KEEP_PERIOD
        self._news = self._stale = False
        return None

    def _load(self) -> None:
        self._maker = widget.load()
        if self._maker is not None:
            drawing.prepare()  # importing it at the end of the cell would take half a second

    # Messages to the front end.

    def _send(self, now: float) -> None:
        assert self._link is not None
        picture = self._gathered.picture("running", with_metrics=False)
        news = News(seq=self._sequence, status=status(picture))
        pipelines = self._gathered.fold.pipelines
        if pipelines.version != self._told:
            self._told = pipelines.version
            news = msgspec.structs.replace(news, pipelines=packed(pipelines.timelines(), LIVE_BYTES))
        size = news.size
        buffers: list[bytes] = []
        if (packet := self._pending.take()) is not None:
            news = msgspec.structs.replace(news, names=packet.names, series=packet.series)
            buffers = [packet.values, packet.steps]
            size += packet.size
            self._sequence += 1
        self._link.send({"type": "news", **msgspec.to_builtins(news)}, buffers)
        self._news = False
        lively = buffers and now < self._calm_from
        self._next_send = now + max(1 / PER_SECOND if lively else CALM_PERIOD, size / BYTES_PER_SECOND)

    def _keep(self, now: float) -> None:
        assert self._link is not None
        if self._pending:
            return  # a copy has only points that were sent: the next tick sends, then copies
        began = time.perf_counter()
        self._link.keep(_packed({**self._document(), "seq": self._sequence}))
        self._stale = False
        self._next_keep = now + max(KEEP_PERIOD, (time.perf_counter() - began) / _SHARE)

    def _document(self) -> dict[str, Any]:
        return document(self._gathered.picture("running"), KEPT_BYTES)


def metadata_of_panel(display_id: str, world: str, run: int) -> dict[str, Any]:
    """The metadata of a panel's display, by which JupyterLab's extension finds it, and its run on the server."""
    return {"dtrain": {"panel": display_id, "world": world, "run": run}}


def title_of(run: int, ranks: Sequence[int]) -> str:
    """A panel of a run that goes on, as text."""
    return f"Run {run} on {count_ranks(sorted(ranks))} is shown here while it runs."


def _can_draw() -> bool:
    """Whether the modules for a picture are ready: the very first import of matplotlib takes long."""
    thread = threading.Thread(target=drawing.prepare, name="dtrain-drawing", daemon=True)
    thread.start()
    thread.join(DRAWING)
    return not thread.is_alive()


def _packed(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
