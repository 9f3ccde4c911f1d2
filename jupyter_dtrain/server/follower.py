"""Follows the runs of one world, those that go on and the newest, by the ranks' spools.

Any thread that has time to read files may poll a :class:`Follower`, one call at a time. Its memory is bounded, whatever
the ranks send: see :mod:`jupyter_dtrain.view.run_state`. It skips printed text; :func:`tail` reads the end of it.

Under failure: the next poll tries an unreadable spool again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.causes import told_below
from jupyter_dtrain.core.events import Error, Event, Output, Started, decode
from jupyter_dtrain.core.structs import UNREADABLE
from jupyter_dtrain.core.world import size_at
from jupyter_dtrain.view.document import document, status
from jupyter_dtrain.view.points import News, Packet, PointQueue
from jupyter_dtrain.view.prompts import prompt_words
from jupyter_dtrain.view.run_state import RunState
from jupyter_dtrain.view.timelines import LIVE_BYTES, packed
from jupyter_dtrain.wire.spool import spool_path

from .attention import Judge
from .messages import RunSummary

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jupyter_dtrain.core.hangs import HangDetector
    from jupyter_dtrain.store.source import SpoolFolder
    from jupyter_dtrain.view.document import Picture

    from .attention import RunFinding

SKIPPED: Final = ("output", "display", "clear_output", "result", "comm", "media")
"""Events that say nothing about how a run goes."""

DOCUMENT_BYTES: Final = 60_000
"""The size limit of the document that starts a stream."""

POINTS: Final = 2500
"""The most points in one message: about 13 kB."""

ASKED: Final = 2.0
"""Seconds for which ranks have asked a person when that needs attention, and have asked no one when it needs none."""

JUDGE: Final = 2.0
"""Seconds between two looks for what needs attention."""

TAIL_BYTES: Final = 128 << 10
"""The bytes at a spool's end in which :func:`tail` looks for printed text."""


class FollowedRun:
    """One run: what its events say, what of it was reported, and what is due.

    The polling thread gives it events and takes it as lost; everything else is for the server's event loop.
    """

    def __init__(self, number: int, size: int, started: float, begun: Started, hosts: Mapping[int, str]) -> None:
        self.number = number
        self.ranks = list(begun.ranks)
        self.size = size = size_at(self.ranks, size)
        self.source = begun.source
        self.cell_id = begun.cell_id
        self.started = started
        """Seconds since the epoch."""
        self.run_state = RunState(number, self.ranks, size, hosts)
        self.fold = self.run_state.fold
        """What the events of the run say."""
        self.shown: dict[int, Any] = {}
        self.waits: dict[int, str] = {}
        self.judge = Judge()
        self.points = PointQueue(POINTS)
        self.sequence = 0
        """Counts the messages with points."""
        self.pipelines = 0
        """The version of the pipelines in the last message."""
        self.positions = dict.fromkeys(self.ranks, 0)
        self.quiet: set[int] = set()
        """The ranks from which the last reading got no events."""
        self.heard: list[Event] = []
        """The events since the last :meth:`look`."""
        self.doomed: dict[int, str] = {}
        """Ranks that will write nothing more, with what happened to each: their logs may have more to read."""
        self.news = True
        """Whether something has changed since the last message."""
        self.flush_at = 0.0
        """When the pages get the next message about it, in ``time.monotonic()`` seconds."""
        self.failed = 0
        """How many ranks had failed when that was last reported."""
        self.asks = False
        """Whether it was reported that ranks ask a person."""
        self._asks_since: float | None = None
        """Since when that is no longer so, or not yet."""
        self.over = False
        """Whether its end was reported."""
        self.hang_detector: HangDetector | None = None
        """The monitor gives one to a run that goes on."""
        self._step: int | None = None
        """The step of the run; it changes seldom, because every change goes to all pages."""
        self._judge_at = 0.0
        self.lock = threading.RLock()
        """Held while taking events and while making messages: the next message must continue the document."""

    @property
    def alarming(self) -> bool:
        """Whether it ended without a request to end it, and no rank's end explains why."""
        if "interrupted" in self.fold.states.values():
            return False
        return self.fold.outcome == "error" or (self.fold.outcome == "lost" and self.fold.abandoned)

    def take(self, rank: int, events: list[Event]) -> None:
        """Take events of ``rank``, in order."""
        self.heard += events
        with self.lock:
            for event in events:
                found = self.run_state.take(event)
                if found is None:
                    continue
                self.news = True
                for name, columns in found:
                    self.points.add(name, rank, columns)
                    self.judge.take(name, rank, columns)

    def doom(self, rank: int, words: str) -> None:
        """``rank`` writes nothing more: lose it once its log has been read to the end. Any thread."""
        self.doomed[rank] = words

    def lose(self, rank: int, words: str) -> None:
        """Record the death of ``rank``, which will send no more events."""
        self.news |= self.fold.lose(rank, words)

    def picture(self, *, with_metrics: bool) -> Picture:
        """The whole state, for drawing."""
        unfinished = self.fold.unfinished
        found = self.run_state.picture(self.fold.outcome, with_metrics=with_metrics)
        found.remark = self.fold.remark
        found.states = {**found.states, **{rank: self.shown[rank] for rank in unfinished if rank in self.shown}}
        found.words = {**found.words, **{rank: self.waits[rank] for rank in unfinished if rank in self.waits}}
        return found

    def summary(self) -> RunSummary:
        """The run in a few fields, for the list of worlds."""
        fold = self.fold
        return RunSummary(
            number=self.number,
            cell=self.cell_id,
            step=self._step,
            ranks=self.ranks,
            outcome=fold.outcome,
            started=self.started,
            ended=fold.ended,
            elapsed=None if fold.unfinished else self.run_state.elapsed,
            states=dict(Counter(map(self.run_state.shown, self.ranks))),
        )

    def look(self, now: float) -> list[RunFinding]:
        """The items that need the person's attention, if it is time to look; and whether the run hangs."""
        events, self.heard = self.heard, []
        if self.over:
            return []
        if self.hang_detector is not None:
            self.hang_detector.hear(events, now)
            self.hang_detector.tick(now)
        if now < self._judge_at and self.fold.unfinished:
            return []
        self._judge_at = now + JUDGE
        self._step = self.fold.step
        return self.judge.look(self.picture(with_metrics=False))

    def asked(self, now: float) -> str | None:
        """What ranks wait for that ask a person, if that is to be reported now; empty if they no longer do, else None.

        A prompt that a person answers at once is none, and a debugger goes on asking.
        """
        if bool(self.fold.prompts) == self.asks:
            self._asks_since = None
            return None
        self._asks_since = now if self._asks_since is None else self._asks_since
        if now < self._asks_since + ASKED and self.fold.unfinished:
            return None
        self.asks, self._asks_since = not self.asks, None
        return prompt_words(self.fold.prompts, self.fold.samples, self.fold.unfinished)

    def show(self, shown: dict[int, Any], waits: dict[int, str]) -> None:
        """Take the states of its unfinished ranks as :func:`.rank_state` folds them, and the calls in which they wait.

        They differ from those of ``run_state`` where a process is stopped or a rank waits for others.
        """
        with self.lock:
            if (shown, waits) != (self.shown, self.waits):
                self.shown, self.waits = shown, waits
                self.news = True

    def document(self) -> dict[str, Any]:
        """The document that starts a stream; the message with its ``seq`` continues it."""
        return {**document(self.picture(with_metrics=True), DOCUMENT_BYTES), "seq": self.sequence}

    def message(self) -> tuple[News, Packet | None]:
        """The changes since the last message."""
        self.news = False
        news = News(seq=self.sequence, status=status(self.picture(with_metrics=False)))
        if self.fold.pipelines.version != self.pipelines:
            self.pipelines = self.fold.pipelines.version
            pipelines = packed(self.fold.pipelines.timelines(), LIVE_BYTES)
            news = msgspec.structs.replace(news, pipelines=pipelines)
        packet = self.points.take()
        if packet is not None:
            news = msgspec.structs.replace(news, names=packet.names, series=packet.series)
            self.sequence += 1
        return news, packet


class Follower:
    """Follows the runs that go on, and the newest one also when it has ended."""

    def __init__(self, source: SpoolFolder, size: int) -> None:
        """``size``: ranks of the world."""
        self._source = source
        self.size = size
        self.hosts: dict[int, str] = {}
        """The host of each rank of the world."""
        self.runs: dict[int, FollowedRun] = {}
        """The followed runs by number, in the order in which they were found."""
        self._left: set[int] = set()
        """Runs that were followed."""

    def poll(self, going_on: Collection[int] | None) -> bool:
        """Read new events; whether there are more already. ``going_on``: the runs that do, None where unknown."""
        newest = max(self._source.runs(), default=0)
        for number in sorted({newest, *(going_on or ())} - self.runs.keys() - self._left - {0}):
            self._begin(number)
        more = False
        for run in self.runs.values():
            doomed = dict(run.doomed)
            more |= self._read(run)
            for rank in run.quiet & doomed.keys():
                run.lose(rank, doomed[rank])
            if going_on is not None and run.number not in going_on and run.number != newest:
                # The steward said so before this reading, so nothing more will come.
                for rank in [rank for rank in run.fold.unfinished if rank in run.quiet]:
                    run.lose(rank, "its log does not say how it ended")
                    run.fold.abandoned = True
        return more

    def leave(self) -> None:
        """Stop following the runs that have ended, except the newest: their ends were reported."""
        for number, run in list(self.runs.items()):
            if not run.fold.unfinished and number != max(self.runs):
                self._left.add(number)
                del self.runs[number]

    def _begin(self, number: int) -> None:
        if (found := self._source.beginning(number)) is None:
            return
        when, begun = found
        run = self.runs[number] = FollowedRun(number, self.size, when, begun, self.hosts)
        if begun.joins in self.runs:
            self.runs[begun.joins].fold.joined.append(run.fold)

    def _read(self, run: FollowedRun) -> bool:
        more = False
        for rank in run.fold.unfinished:
            run.quiet.add(rank)
            with contextlib.suppress(OSError):
                read = self._source.read(run.number, rank, run.positions[rank])
                if read.position != run.positions[rank]:
                    run.quiet.discard(rank)
                run.positions[rank] = read.position
                more |= read.more
                run.take(rank, read.events)
        return more


def tail(folder: str, run: int, rank: int) -> tuple[str, bool]:
    """The end of the output of ``rank`` in ``run`` with its error, and whether there is more before it.

    Raises :class:`OSError`.
    """
    path = spool_path(folder, run, rank)
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().split(b"\n")[1 if size > TAIL_BYTES else 0 :]
    text: list[str] = []
    error: Error | None = None
    for line in lines:
        if not any(kind in line[:200] for kind in (b'"type":"output"', b'"type":"error"')):
            continue
        with contextlib.suppress(*UNREADABLE):
            match decode(line).body:
                case Output(log=False) as output:
                    text.append(output.text)
                case Error() as found:
                    error = found
    said = "".join(text)
    return said if error is None else told_below(said, error), size > TAIL_BYTES
