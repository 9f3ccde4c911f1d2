"""The output of a run's cell, made again from the ranks' spools.

A page that was reloaded has lost what the kernel sent before, and JupyterLab gives it nothing of what the kernel still
sends. The spools have all of it, so a :class:`Replay` reads them and paints the cell as the kernel did, with the same
view: equal lines of several ranks once, figures in their places, the panel above. It needs no kernel.

It lacks the few lines that the kernel itself adds while the cell runs, such as "Interrupted by …", and updates of
displays of earlier cells: those are outputs of other cells.

Under failure: the next reading tries an unreadable spool again. The memory of a replay is bounded as that of a cell's
view is, and :class:`Replays` keeps few of them.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core import causes
from jupyter_dtrain.core.events import Batch, CommMessage, Display, Event, Finished, Metrics, Output, Result, Started
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.world import size_at
from jupyter_dtrain.view import saved
from jupyter_dtrain.view.cell import CellView
from jupyter_dtrain.view.document import MIME, document
from jupyter_dtrain.view.pace import Pace
from jupyter_dtrain.view.panel import PATIENCE, metadata_of_panel, title_of
from jupyter_dtrain.view.run_state import RunState

from .messages import CellOutputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jupyter_dtrain.core.events import MimeBundle
    from jupyter_dtrain.store.source import SpoolFolder
    from jupyter_dtrain.view.painter import StreamName

READING: Final = 1.0
"""Seconds that one answer may spend on reading; a long run comes in several answers."""
DOCUMENT_BYTES: Final = 60_000
"""The size of the panel's document while the run goes on."""
KEEP: Final = 10.0
"""Seconds between two documents of a run that goes on: the page draws what comes with the stream."""
MOST: Final = 4
"""Replays to keep for each world."""
IDLE: Final = 60.0
"""Seconds after which a replay goes that no page has asked for."""

_UNSEEN = (Output, Display, Metrics, CommMessage)  # events that say nothing about how a cell ended
_PANEL: Final = "panel"


@dataclass
class _Output:
    content: dict[str, Any]
    changed: int


class Transcript:
    """The outputs of one cell so far, as in a notebook, for a page that asks again and again for what has changed.

    It is a :class:`~jupyter_dtrain.view.painter.Painter`. Text is only ever appended, and a display keeps its place, so
    a page that has everything up to a version needs only the outputs that were changed after it: the bytes that it gets
    grow with what is shown, not with how often it asks.
    """

    live = True
    paced = False
    erases = True

    def __init__(self) -> None:
        self.version = 0
        """Increases with each change."""
        self._outputs: list[_Output] = []
        self._places: dict[str, int] = {}

    def since(self, version: int) -> list[tuple[int, dict[str, Any]]]:
        """The outputs that were added or changed after ``version``, each with its place."""
        return [(place, output.content) for place, output in enumerate(self._outputs) if output.changed > version]

    def stream(self, name: StreamName, text: str) -> None:
        """Append text."""
        self._add({"output_type": "stream", "name": name, "text": text})

    def display(
        self,
        data: MimeBundle,
        metadata: dict[str, Any],
        display_id: str | None = None,
        *,
        moving: bool = False,  # noqa: ARG002 — every display can change
    ) -> None:
        """Append a rich output."""
        if display_id is not None:
            self._places[display_id] = len(self._outputs)
        self._add({"output_type": "display_data", "data": data, "metadata": metadata})

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Replace the content of a display."""
        if (place := self._places.get(display_id)) is None:
            return
        self.version += 1
        content = {"output_type": "display_data", "data": data, "metadata": metadata}
        self._outputs[place] = _Output(content, self.version)

    def settle(self, display_id: str) -> None:
        """Do nothing: every update was taken."""

    def error(self, ename: str, evalue: str, traceback: list[str]) -> None:
        """Append the exception that ended the cell."""
        self._add({"output_type": "error", "ename": ename, "evalue": evalue, "traceback": traceback})

    def _add(self, content: dict[str, Any]) -> None:
        self.version += 1
        self._outputs.append(_Output(content, self.version))


class _Deaf:
    """Takes the messages of ranks' widgets: their displays stay, and the kernel answers for them when it is idle."""

    def hear(self, rank: int, message: CommMessage) -> None:
        """Do nothing."""

    def idle(self, rank: int) -> None:
        """Do nothing."""


class Replay:
    """The cell of run ``number`` in a world of ``size`` ranks. One thread at a time may use it."""

    def __init__(self, source: SpoolFolder, world: str, number: int, size: int, started: float, begun: Started) -> None:
        """``started``, ``begun``: the time and the content of the first event of the lowest rank of the run."""
        self.token = uuid.uuid4().hex[:12]
        """Tells it from another replay of the run, whose versions mean something else."""
        self.cell = begun.cell_id
        self.executed = begun.cell
        self.over = False
        self.asked = time.monotonic()
        self.lock = threading.Lock()
        self._source = source
        self._number = number
        self._ranks = list(begun.ranks)
        size = size_at(self._ranks, size)
        self._positions = dict.fromkeys(self._ranks, 0)
        self._waiting: dict[int, deque[Event]] = {rank: deque() for rank in self._ranks}
        self._more: set[int] = set()
        """Ranks whose spools have more than was read."""
        self._next = dict.fromkeys(self._ranks, 0)
        self._displayed: set[tuple[int, str | None]] = set()
        """The ids that each rank has displayed in this run."""
        self._now = started
        """The time of the newest event that the view got; the view's clock never goes back."""
        self._state = RunState(number, self._ranks, size)
        self._run = Run(number, begun.source, self._ranks, size, lambda *_: iter(()), world, fold=self._state.fold)
        self._transcript = Transcript()
        self._view = CellView(
            self._transcript,
            self._ranks,
            size,
            pace=Pace(),
            run=self._run,
            widgets=_Deaf(),
            clears="clear_output" in begun.source,
            sleep=lambda _seconds: None,
        )
        self._view.shows_bars = False
        self._metadata = metadata_of_panel(f"dtrain-{self.token}-panel", world, number)
        self._transcript.display({"text/plain": ""}, self._metadata, _PANEL)
        self._keep_at = 0.0

    def read(self, lost: Mapping[int, str], *, over: bool) -> bool:
        """Read what is new, for :data:`READING` seconds at most; whether there is more.

        ``lost``: the ranks that will send no more, and what happened to each. ``over``: no rank will send more.
        """
        end = time.monotonic() + READING
        while not self.over:
            for rank in self._run.unfinished:
                self._fetch(rank)
            read = self._feed()
            if not read and not self._more:
                break
            if time.monotonic() > end:
                return True
        if not self.over:
            self._view.tick(max(self._now, time.time()))
            for rank in [rank for rank in self._run.unfinished if over or rank in lost]:
                self._run.mark_lost(rank, lost.get(rank, "its log does not say how it ended"))
                self._run.abandoned = self._run.abandoned or rank not in lost
                self._view.idle(rank, self._now)
            self._show_panel()
            if not self._run.unfinished:
                self._close()
        return False

    def answer(self, since: int, *, more: bool) -> CellOutputs:
        """The changes after the version ``since``."""
        return CellOutputs(
            replay=self.token,
            version=self._transcript.version,
            outputs=self._transcript.since(since),
            cell=self.cell,
            executed=self.executed,
            more=more,
            over=self.over,
        )

    def _fetch(self, rank: int) -> None:
        """Read on in the spool of a rank whose events have all been shown."""
        waiting = self._waiting[rank]
        if waiting:
            return
        with contextlib.suppress(OSError):
            read = self._source.read(self._number, rank, self._positions[rank])
            self._positions[rank] = read.position
            waiting.extend(read.events)
            (self._more.add if read.more else self._more.discard)(rank)

    def _feed(self) -> bool:
        """Show the events that were read, in the order of their times; whether there were any."""
        # A rank with more in its spool is known only up to its last event that was read.
        read = (max(map(_time_of, self._waiting[rank])) for rank in self._more if self._waiting[rank])
        horizon = min(read, default=float("inf"))
        fed = False
        for batch in _batches(list(heapq.merge(*(self._due(rank, horizon) for rank in self._ranks), key=_time_of))):
            fed = True
            first, self._next[batch.rank] = self._next[batch.rank], batch.last + 1
            whole = msgspec.structs.replace(batch, first=first)
            self._now = max(self._now, batch.events[0].time)
            shown = [event for event in batch.events if self._is_here(event)]
            self._view.feed(msgspec.structs.replace(whole, events=shown), self._now)
            for event in batch.events:
                self._state.take(event)
                if isinstance(event.body, Result):
                    self._run.keep(event)
            if isinstance(batch.events[-1].body, Finished):
                self._more.discard(batch.rank)
                self._view.idle(batch.rank, self._now)
        return fed

    def _is_here(self, event: Event) -> bool:
        """Whether ``event`` shows in the cell of this run: an update may be of a display of an earlier cell."""
        body = event.body
        if not isinstance(body, Display) or body.display_id is None:
            return True
        if not body.update:
            self._displayed.add((event.rank, body.display_id))
        return (event.rank, body.display_id) in self._displayed

    def _due(self, rank: int, horizon: float) -> Iterator[Event]:
        waiting = self._waiting[rank]
        while waiting and waiting[0].time <= horizon:
            yield waiting.popleft()

    def _show_panel(self) -> None:
        """Keep the panel's document; there is a panel as soon as the kernel would show one."""
        now = time.monotonic()
        if now < self._keep_at or (not self._state.has_something and self._state.elapsed < PATIENCE):
            return
        self._keep_at = now + KEEP
        found = document(self._state.picture("running"), DOCUMENT_BYTES)
        data = {MIME: found, "text/plain": title_of(self._number, self._ranks)}
        self._transcript.update(data, self._metadata, _PANEL)

    def _close(self) -> None:
        self.over = True
        run = self._run
        if run.elastic and run.lost:
            for join in _joined(self._source, self._number):
                run.joined_by(join)
        run.end()
        self._view.close(run, self._now)
        run.release()
        data: dict[str, Any] = {"text/plain": ""}
        if self._state.has_something:
            picture = self._state.picture(run.outcome)
            picture.remark = run.remark
            data = saved.bundle(picture)
        self._transcript.update(data, self._metadata, _PANEL)
        if failure := causes.failure_of(run):
            self._transcript.error(type(failure).__name__, str(failure), causes.blocks(failure.run))


class Replays:
    """The replays of one world."""

    def __init__(self, source: SpoolFolder, world: str) -> None:
        self._source = source
        self._world = world
        self._lock = threading.Lock()
        self._found: dict[int, Replay] = {}

    def answer(
        self, run: int, size: int, token: str, since: int, lost: Mapping[int, str], *, over: bool
    ) -> CellOutputs | None:
        """The output of the cell of ``run`` after that which the page has: None where there is no such run.

        ``size``: how many ranks the world has now. ``lost``: the ranks that will send no more, and what happened to
        each. ``over``: no rank will send more. Reads files, for a second at most.
        """
        replay = self._find(run, size)
        if replay is None:
            return None
        with replay.lock:
            more = replay.read(lost, over=over)
            return replay.answer(since if token == replay.token else 0, more=more)

    def _find(self, run: int, size: int) -> Replay | None:
        with self._lock:
            now = time.monotonic()
            for number, replay in list(self._found.items()):
                if now > replay.asked + IDLE:
                    del self._found[number]
            if run not in self._found:
                if (found := self._source.beginning(run)) is None:
                    return None
                while len(self._found) >= MOST:
                    del self._found[min(self._found, key=lambda number: self._found[number].asked)]
                self._found[run] = Replay(self._source, self._world, run, size, *found)
            self._found[run].asked = now
            return self._found[run]


def _joined(source: SpoolFolder, number: int) -> Iterator[Run]:
    """The runs that have joined the elastic run ``number``, as far as :data:`READING` seconds suffice to read them."""
    end = time.monotonic() + READING
    for run in sorted(run for run in source.runs() if run > number):
        found = source.beginning(run)
        if found is None or found[1].joins != number:
            continue
        ranks = list(found[1].ranks)
        join = Run(run, found[1].source, ranks, size_at(ranks, 1), lambda *_: iter(()))
        for rank in ranks:
            position, more = 0, True
            with contextlib.suppress(OSError):
                while more and time.monotonic() < end:
                    events, position, more = source.read(run, rank, position)
                    kept = [event for event in events if not isinstance(event.body, _UNSEEN)]
                    if events:
                        join.apply(Batch(run, rank, events[0].seq, events[-1].seq, kept))
        join.end()
        yield join


def _batches(events: list[Event]) -> Iterator[Batch]:
    """``events`` in batches of one rank each."""
    start = 0
    for place, event in enumerate(events):
        if place + 1 == len(events) or events[place + 1].rank != event.rank:
            part = events[start : place + 1]
            yield Batch(event.run, event.rank, part[0].seq, event.seq, part)
            start = place + 1


def _time_of(event: Event) -> float:
    return event.time
