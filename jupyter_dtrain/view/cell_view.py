"""The view of a cell: its panel, and below it its output.

If one part fails, it is logged and gets no more calls; the other part goes on.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_dtrain.core.causes import output_of
from jupyter_dtrain.core.stacks import describe_stacks

from .cell import CellView
from .comms import CellWidgets
from .painter import KernelPainter, TextPainter, painter_for_cell
from .panel import Panel
from .widget import Actions

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Batch, MimeBundle
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.stacks import Stacks

    from .comms import CommRelay
    from .painter import Painter, StreamName
    from .protocol import RunView
    from .rich import Known

T = TypeVar("T")

_log = logging.getLogger("jupyter_dtrain")


def view_of_cell(
    run: Run,
    interrupt: Callable[[], None],
    stacks: Callable[[], Stacks],
    relay: CommRelay,
    hosts: Mapping[int, str],
    known: Known,
    profile: Callable[[], dict[str, Any]],
    answer: Callable[[int, dict[int, int], str | None], None],
    **options: Any,
) -> RunView:
    """The view of ``run`` for the cell that runs in this thread; ``options`` are those of :class:`CellView`.

    The panel's buttons call ``interrupt``, ``stacks`` and ``profile``, and its fields ``answer`` with the run's number,
    the numbers of prompts by rank, and a line. ``relay`` is the session's, for widgets that ranks make; ``hosts`` are
    those of the world's ranks; ``known`` are the displays with an id in the session's cells.
    """
    painter = painter_for_cell()
    actions = Actions(
        interrupt,
        lambda: describe_stacks(stacks()),
        partial(output_of, run),
        lambda: run.done,
        profile,
        partial(answer, run.number),
    )
    notebook = isinstance(painter, KernelPainter)
    panel = Panel(
        painter,
        run.number,
        run.ranks,
        run.size,
        display_id=f"dtrain-{uuid.uuid4().hex[:12]}-panel",
        world=run.world_id,
        hosts=hosts,
        actions=actions if notebook else None,
        with_svg=not isinstance(painter, TextPainter),
    )
    below = _Below(painter, panel.reserve) if notebook else painter
    if isinstance(painter, TextPainter) and painter.live and not options.get("paint_errors"):
        options["line"] = lambda: panel.line
    widgets = CellWidgets(relay, painter) if isinstance(painter, KernelPainter) else None
    clears = "clear_output" in run.source
    cell = CellView(
        below,
        run.ranks,
        run.size,
        run=run,
        widgets=widgets,
        known=known if notebook else None,
        clears=clears,
        **options,
    )
    return PanelAndCell(panel, cell, painter_is_live=notebook)


class PanelAndCell:
    """Shows one run in its panel and in the cell's output; a :class:`~jupyter_dtrain.view.protocol.RunView`."""

    def __init__(self, panel: Panel, cell: CellView, *, painter_is_live: bool) -> None:
        self._panel: Panel | None = panel
        self._cell: CellView | None = cell
        self._above = painter_is_live

    def feed(self, batch: Batch, now: float) -> None:
        """Take the next events of one rank."""
        self._on_both(lambda view: view.feed(batch, now))

    def idle(self, rank: int, now: float) -> None:
        """Note that ``rank`` will send no more."""
        self._on_both(lambda view: view.idle(rank, now))

    def note(self, words: str, now: float) -> None:
        """Note an event of the run that comes from no rank."""
        self._on_both(lambda view: view.note(words, now))

    def stand(self, topic: str, words: str, now: float, over: str = "") -> None:
        """Show words for as long as they are true."""
        self._on_both(lambda view: view.stand(topic, words, now, over))

    def tick(self, now: float) -> float | None:
        """Do what is due; returns the time of the next wanted call."""
        wanted = self._on_both(lambda view: view.tick(now))
        return min((time for time in wanted if time is not None), default=None)

    def close(self, run: Run, now: float) -> None:
        """Show the end of the run."""
        panel = self._panel
        if panel is not None and self._above and panel.has_something:
            self._on_panel(lambda view: view.reserve())
        elif panel is not None and self._above:
            self._on_panel(lambda view: view.close(run, now))
            self._panel = None
        if self._cell is not None:
            self._on_cell(lambda view: view.close(run, now))
        self._on_panel(lambda view: view.close(run, now))

    def _on_both(self, call: Callable[[RunView], T]) -> list[T | None]:
        if self._cell is not None:
            self._cell.shows_bars = self._panel is None or not self._panel.is_live
        # The panel first, so that its place is above the cell's output.
        return [self._on_panel(call), self._on_cell(call)]

    def _on_panel(self, call: Callable[[Panel], T]) -> T | None:
        if self._panel is None:
            return None
        try:
            return call(self._panel)
        except Exception:  # noqa: BLE001 — whatever fails, the run goes on, and so does the other part
            _log.exception("The panel of a distributed cell has failed; its output is still shown.")
            self._panel = None
            return None

    def _on_cell(self, call: Callable[[CellView], T]) -> T | None:
        if self._cell is None:
            return None
        try:
            return call(self._cell)
        except Exception:  # noqa: BLE001 — whatever fails, the run goes on, and so does the other part
            _log.exception("The output of a distributed cell can no longer be shown; the run itself goes on.")
            self._cell = None
            return None


class _Below:
    """A painter that calls ``first`` before it paints anything."""

    def __init__(self, painter: Painter, first: Callable[[], None]) -> None:
        self._painter = painter
        self._first = first
        self.live = painter.live
        self.paced = painter.paced
        self.erases = painter.erases

    def stream(self, name: StreamName, text: str) -> None:
        """Show text."""
        self._first()
        self._painter.stream(name, text)

    def display(
        self, data: MimeBundle, metadata: dict[str, Any], display_id: str | None = None, *, moving: bool = False
    ) -> None:
        """Show a rich output."""
        self._first()
        self._painter.display(data, metadata, display_id, moving=moving)

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Replace the content of a display."""
        self._painter.update(data, metadata, display_id)

    def settle(self, display_id: str) -> None:
        """A display has its last content."""
        self._painter.settle(display_id)
