"""A run: one cell's execution on some ranks, folded from the events that they send.

One thread alone, the session's fold thread, writes a :class:`Run`; every other thread reads it or waits for its end.
A lock guards metrics and pipelines, because one event changes several parts of them.
Its memory is bounded: text beyond :data:`HEAD` characters per rank stays in the ranks' spools,
from where :meth:`Run.text` fetches it.

Under failure: a run ends when every rank's ``Finished`` event was applied, or when it is abandoned (an interrupt past
its deadline, the world gone); it never ends twice and never waits for a dead rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

from .divergence import Divergence, Divergences
from .elastic_end import ElasticEnd, elastic_end
from .events import (
    Batch,
    Checked,
    ClearOutput,
    Display,
    Dropped,
    Error,
    Event,
    Finished,
    Metrics,
    Outcome,
    Output,
    PipelineStep,
    Progress,
    Reading,
    Result,
    Sample,
    Spent,
    Started,
    Totals,
    worst,
)
from .metrics import RunMetrics, is_main, newest
from .pipelines import Pipelines, Timeline
from .readings import Readings
from .stop_button import Latch
from .world import format_ranks

HEAD = 4 << 20
"""Characters of a rank's text that a run keeps in memory: what a rank announces in full, and some."""

POINTS = 1 << 20
"""Points of a rank's metrics that a run keeps in memory."""

TOGETHER = 0.25
"""Seconds before the end of a rank in which errors of others may be its consequence.

The watch of a rank hears of its end a moment after the ranks that were connected to it.
"""

ReadSpool = Callable[["Run", int], Iterator[Event]]


class RunClock:
    """The time of a run: since its first rank began, and in the end what its slowest rank took.

    The session, panels and the server each have one, and come to the same: they get the same events.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._ended: float | None = None
        self._took: list[float] = []

    def begin(self, when: float) -> None:
        """A rank began, by its event; from here on this process' own clock counts, which nobody sets."""
        here = time.monotonic() - max(0.0, time.time() - when)
        self._began = here if self._began is None else min(self._began, here)

    def rank_ended(self, seconds: float) -> None:
        """A rank has reported how long it took."""
        self._took.append(seconds)

    def stop(self) -> None:
        """No rank goes on, or nobody waits for those that do."""
        self._ended = time.monotonic()

    def seconds(self, *, over: bool) -> float | None:
        """The time until now, or the whole where all ranks have ended; None before the first has begun."""
        if over and self._took:
            return max(self._took)
        return None if self._began is None else max(0.0, (self._ended or time.monotonic()) - self._began)


class _RankPart:
    """The events of one rank so far."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.started: Started | None = None
        self.head: list[Output] = []
        self.head_size = 0
        self.whole = True
        self.totals = Totals()
        self.displays: list[Display] = []
        self.points = 0
        self.points_whole = True
        self.sample: Sample | None = None
        self.bars: dict[int, Progress] = {}
        self.result: Result | None = None
        self.error: Error | None = None
        self.failed = 0.0
        """When the error came."""
        self.finished: Finished | None = None
        self.ended = 0.0
        """When the rank ended the cell, or died."""
        self.heard = time.monotonic()

    def apply(self, event: Event) -> None:  # noqa: C901, PLR0912 — one case per event
        match event.body:
            case Started() as started:
                self.started = started
            case Output() as output:
                if self.whole and self.head_size + len(output.text) <= HEAD:
                    self.head.append(output)
                    self.head_size += len(output.text)
                else:
                    self.whole = False
            case Display() as display:
                self.displays.append(display)
            case ClearOutput() as clear:
                if not clear.wait:
                    self.displays.clear()
            case Result() as result:
                self.result = result
            case Error() as error:
                self.error, self.failed = error, event.time
            case Sample() as sample:
                self.sample = sample
            case Progress() as bar:
                self.bars[bar.bar] = bar
            case Dropped():
                self.whole = False
            case Finished() as finished:
                self.finished, self.ended = finished, event.time


class Run:
    """One cell's execution on some ranks. Everything but :meth:`wait` answers at once, also while it runs."""

    def __init__(
        self, number: int, source: str, ranks: list[int], size: int, read_spool: ReadSpool, world_id: str = ""
    ) -> None:
        self.world_id = world_id
        """The id of its world; with ``number`` the key by which the store knows the run."""
        self.number = number
        """Counts the runs of a world, from 1."""
        self.source = source
        self.ranks = list(ranks)
        self.size = size
        """Ranks in the world."""
        self.busy: list[int] = []
        """Ranks that were still working when an interrupt's deadline ended the run."""
        self.interrupted = False
        """Whether the run was interrupted: by a person, by ``timeout``, or as the run before it did not end well."""
        self.timed_out = False
        self.not_sent = ""
        """Why the cell never went out to the ranks, in words; empty when it did."""
        self.lost: dict[int, str] = {}
        """The ranks that were lost, and what happened to each, in words."""
        self.world_end = ""
        """Why the world has ended, where that is why the ranks were lost; empty if it is not known."""
        self.elastic = False
        """Whether its cell goes on without ranks that die."""
        self.joins: int | None = None
        """The elastic run that its ranks have joined, each in the place of one that was lost in it."""
        self.joined: list[Run] = []
        """The runs that have joined it, oldest first."""
        self.abandoned = False
        """Whether the whole world went away under it."""
        self._parts = {rank: _RankPart() for rank in ranks}
        self._metrics = RunMetrics(ranks)
        self._newest: dict[tuple[str, int], float] = {}
        """The newest value of each metric on each rank, also of those whose points are not kept."""
        self._pipelines = Pipelines()
        self._readings = Readings()
        self._divergences = Divergences(ranks)
        # A signal handler may read while the main thread, which it interrupts, is reading.
        self._folding = threading.RLock()
        self._read_spool = read_spool
        self._created = time.monotonic()
        self._ended: float | None = None
        self._clock = RunClock()
        self._done = Latch()

    # Reading.

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._done.is_open

    @property
    def outcome(self) -> Outcome | Literal["running"]:
        """``running``; ``interrupted`` after an interrupt; else the worst outcome of a rank.

        An elastic run is not lost while other ranks, or those that joined it, ended well: see :attr:`remark`.
        """
        if self._ended is None:
            return "running"
        return "interrupted" if self.busy or self.interrupted else self._end.outcome

    @property
    def remark(self) -> str:
        """The fate of the ranks that an elastic run has lost, once it has ended well; else empty."""
        return self._end.remark if self.outcome == "ok" else ""

    @property
    def _end(self) -> ElasticEnd:
        if not self.elastic or self.abandoned:
            return ElasticEnd(worst(self.outcomes.values()), "")
        return elastic_end(self.outcomes, [join.states for join in self.joined])

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """How each rank ended; ranks that have not are left out."""
        ended: dict[int, Outcome] = {}
        for rank, part in self._parts.items():
            if rank in self.lost:
                ended[rank] = "lost"
            elif part.finished is not None:
                ended[rank] = part.finished.outcome
        return ended

    @property
    def states(self) -> dict[int, Outcome | Literal["sent", "running"]]:
        """How far each rank is: it has not begun the cell (``sent``), works on it, or how it ended."""
        outcomes = self.outcomes
        return {
            rank: outcomes.get(rank) or ("sent" if part.started is None else "running")
            for rank, part in self._parts.items()
        }

    @property
    def pids(self) -> dict[int, int]:
        """The process that each rank was when it began."""
        return {rank: part.started.pid for rank, part in self._parts.items() if part.started is not None}

    @property
    def above(self) -> int:
        """The lines of the notebook's cell above ``source``, which the lines of tracebacks count."""
        return max((part.started.above for part in self._parts.values() if part.started is not None), default=0)

    @property
    def results(self) -> dict[int, Result]:
        """The value of the cell's last expression, by rank, as representations."""
        return {rank: part.result for rank, part in self._parts.items() if part.result is not None}

    @property
    def outputs(self) -> dict[int, list[Display]]:
        """The rich outputs of each rank, in order."""
        return {rank: list(part.displays) for rank, part in self._parts.items()}

    @property
    def errors(self) -> dict[int, Error]:
        """The exceptions that ended the cell, by rank."""
        return {rank: part.error for rank, part in self._parts.items() if part.error is not None}

    @property
    def failed_after_a_death(self) -> set[int]:
        """The ranks whose error came when another rank had died, as far as the time of that is known."""
        parts = self._parts
        deaths = {
            rank: part.ended
            for rank, part in parts.items()
            if rank in self.lost and part.finished is not None and part.finished.outcome == "lost"
        }
        return {
            rank
            for rank in self.errors
            if any(when < parts[rank].failed + TOGETHER for other, when in deaths.items() if other != rank)
        }

    @property
    def metrics(self) -> RunMetrics:
        """All points so far, in order: those that ranks have logged, and those taken from their frameworks.

        Where a rank logged more than :data:`POINTS`, or faster than the wire takes, they are read from its spool.
        Raises :class:`~jupyter_dtrain.core.errors.WorldLost` when that is out of reach.
        """
        found = RunMetrics(self.ranks)
        with self._folding:
            kept = {
                rank: {name: ranks[rank].copy() for name, ranks in self._metrics.items() if rank in ranks}
                for rank, part in self._parts.items()
                if part.points_whole
            }
        for rank in self.ranks:
            if rank in kept:
                for name, columns in kept[rank].items():
                    found.replace(rank, name, columns)
                continue
            for event in self._read_spool(self, rank):
                if isinstance(event.body, Metrics):
                    for series in event.body.series:
                        found.add(rank, series)
        return found

    @property
    def last_values(self) -> list[float]:
        """The newest value of each metric on each rank, without learning rates and the like; no spool is read."""
        with self._folding:
            return [value for (name, _), value in self._newest.items() if is_main(name)]

    @property
    def samples(self) -> dict[int, Sample]:
        """The newest sample of each rank: what it takes of its host."""
        return {rank: part.sample for rank, part in self._parts.items() if part.sample is not None}

    @property
    def progress(self) -> dict[int, list[Progress]]:
        """The bars of each rank's loops, in the order in which they began."""
        return {rank: [part.bars[bar] for bar in sorted(part.bars)] for rank, part in self._parts.items() if part.bars}

    @property
    def pipelines(self) -> list[Timeline]:
        """A recent step of each pipeline that trained: when its stages did what. In the order in which they began."""
        with self._folding:
            return list(self._pipelines.timelines())

    @property
    def reading(self) -> list[str]:
        """How the ranks read their data while they train: the batch of all ranks, and warnings."""
        with self._folding:
            return [line.words for line in self._readings.lines(self._pipelines.microbatches)]

    @property
    def batch(self) -> int | None:
        """Samples that a rank reads for one step, from the first loader that it trains from; None if none is seen."""
        with self._folding:
            return self._readings.batch

    @property
    def divergence(self) -> Divergence | None:
        """Where the replicas of the checked model have parted; None where they have not, or nothing was checked."""
        return self._divergences.first

    @property
    def checked(self) -> int:
        """How many steps a standing check has compared on all ranks."""
        return self._divergences.checked

    @property
    def spool(self) -> dict[int, str]:
        """The path, on the steward's machine, of the whole log of each rank that has started."""
        return {rank: part.started.spool for rank, part in self._parts.items() if part.started is not None}

    @property
    def totals(self) -> dict[int, Totals]:
        """How much each rank has printed, and its last lines."""
        return {rank: part.totals for rank, part in self._parts.items()}

    @property
    def elapsed(self) -> float:
        """Seconds that the cell took on its slowest rank, or has taken so far since the first rank began it.

        Panel, sidebar and store show the same number. Before a rank has begun: seconds since the cell was submitted.
        """
        seconds = self._clock.seconds(over=self._ended is not None and not self.busy)
        return (self._ended or time.monotonic()) - self._created if seconds is None else seconds

    @property
    def steps(self) -> dict[int, dict[str, int]]:
        """How many steps each optimizer has made in the cell, by rank and variable, for ranks that have ended."""
        return {rank: part.finished.steps for rank, part in self._parts.items() if part.finished is not None}

    @property
    def spent(self) -> dict[int, Spent]:
        """How each rank spent the time of the cell, where that was asked for (``spending=True``)."""
        parts = {rank: part.finished for rank, part in self._parts.items()}
        return {rank: end.spent for rank, end in parts.items() if end is not None and end.spent is not None}

    @property
    def regroup(self) -> bool:
        """Whether the next cell needs new process groups.

        Some rank's group is unusable or half made, or a thread is left in a collective that will never be complete: all
        ranks have ended the cell, and one has no thread that could still come.
        """
        ends = [part.finished for part in self._parts.values() if part.finished is not None]
        threads = {end.threads for end in ends}
        return any(end.regroup for end in ends) or {"", "waiting"} <= threads

    def text(self, rank: int, stream: Literal["stdout", "stderr"] | None = None) -> str:
        """All text that ``rank`` printed, in order: of both streams, or of one; logs of libraries are in it.

        A long text is read from the rank's spool. Raises :class:`KeyError` for a rank that the cell did not run on,
        and :class:`~jupyter_dtrain.core.errors.WorldLost` when the spool is out of reach.
        """
        part = self._parts[rank]
        outputs = list(part.head)
        if not part.whole:
            outputs = [event.body for event in self._read_spool(self, rank) if isinstance(event.body, Output)]
        return "".join(output.text for output in outputs if stream in (None, output.stream))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most ``timeout`` seconds (None: without a limit); whether it has come."""
        return self._done.wait(timeout)

    def __repr__(self) -> str:
        return f"<Run {self.number} on {format_ranks(self.ranks)}: {self.outcome}, {self.elapsed:.1f} s>"

    # Folding: the session's fold thread alone.

    def began_earlier(self, seconds: float) -> None:
        """Another client began the run, so many seconds ago."""
        self._created -= seconds

    def next_seq(self, rank: int) -> int:
        """The number of the first event of ``rank`` that was not applied yet."""
        return self._parts[rank].next_seq

    def heard(self, rank: int) -> float:
        """When the last word of ``rank`` came, by ``time.monotonic()``."""
        return self._parts[rank].heard

    def note_heard(self, rank: int) -> None:
        """``rank`` has answered, with or without news."""
        self._parts[rank].heard = time.monotonic()

    def apply(self, batch: Batch) -> Batch | None:
        """Apply what is new in ``batch``; the new part of it, or None when a hole comes before it or all is old."""
        part = self._parts[batch.rank]
        if batch.first > part.next_seq or batch.last < part.next_seq or part.finished is not None:
            return None
        fresh = [event for event in batch.events if event.seq >= part.next_seq]
        first, part.next_seq = part.next_seq, batch.last + 1
        covered = batch.last - first + 1
        if len(fresh) < covered:
            part.whole = False
        part.heard = time.monotonic()
        if batch.totals is not None:
            part.totals = batch.totals
        else:
            part.totals = _add_totals(part.totals, fresh)
        for event in fresh:
            part.apply(event)
            with self._folding:
                self._take(batch.rank, part, event)
        return Batch(batch.run, batch.rank, first, batch.last, fresh, batch.totals)

    def _take(self, rank: int, part: _RankPart, event: Event) -> None:
        """Take what one event says of the whole run."""
        match event.body:
            case Started() as started:
                self.elastic = self.elastic or started.elastic
                self.joins = started.joins if self.joins is None else self.joins
                self._clock.begin(event.time)
            case Metrics() as metrics:
                self._keep_points(rank, part, metrics)
            case PipelineStep() as step:
                self._pipelines.take(rank, step)
            case Reading() as reading:
                self._readings.take(rank, reading)
            case Checked() as checked:
                self._divergences.take(rank, checked)
            case Finished() as finished:
                self._clock.rank_ended(finished.elapsed)
                if finished.outcome == "lost":
                    self.mark_lost(rank, finished.words)

    def _keep_points(self, rank: int, part: _RankPart, metrics: Metrics) -> None:
        for series in metrics.series:
            if (last := newest(series)) is not None:
                self._newest[series.name, rank] = last
            if series.left_out:
                part.points_whole = False
            if part.points_whole:
                part.points += len(series.values) // 8
                part.points_whole = part.points <= POINTS
            if part.points_whole:
                self._metrics.add(rank, series)

    def joined_by(self, run: Run) -> None:
        """``run`` has begun on new ranks, in the place of those that were lost; any thread may say so, also twice."""
        if run not in self.joined:
            self.joined.append(run)

    def mark_lost(self, rank: int, words: str) -> None:
        """Expect nothing more from ``rank``."""
        self.lost[rank] = words

    @property
    def unfinished(self) -> list[int]:
        """The ranks that have not ended the run."""
        return [rank for rank, part in self._parts.items() if part.finished is None and rank not in self.lost]

    def end(self) -> None:
        """End the run; ranks that are still unfinished are left behind as busy."""
        self.busy = [] if self.not_sent else self.unfinished
        self._ended = time.monotonic()
        self._clock.stop()

    def release(self) -> None:
        """Let waiting threads go on: everything was shown, or its view is not waited for."""
        self._done.open()


def _add_totals(totals: Totals, events: list[Event]) -> Totals:
    text = "".join(event.body.text for event in events if isinstance(event.body, Output) and not event.body.log)
    if not text:
        return totals
    size, lines = totals.bytes + len(text.encode("utf-8", "replace")), totals.lines + text.count("\n")
    return Totals(size, lines, [*totals.tail, *text.splitlines()][-20:])
