"""A run: one cell's execution on some ranks, folded from the events that they send.

One thread alone, the session's scheduler, writes a :class:`Run`; every other thread reads it or waits for its end.
A lock guards metrics and pipelines, because one event changes several parts of them.
Its memory is bounded: text beyond :data:`HEAD` characters per rank stays in the ranks' spools,
from where :meth:`Run.text` fetches it.

Under failure: a run ends when every rank's ``Finished`` event was applied, or when it is abandoned (an interrupt past
its deadline, the world gone); it never ends twice and never waits for a dead rank.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .divergence import Divergence
from .events import (
    Batch,
    Body,
    ClearOutput,
    Display,
    Dropped,
    Error,
    Event,
    Finished,
    Metrics,
    Outcome,
    Output,
    Progress,
    Result,
    Sample,
    Spent,
    Totals,
)
from .fold import RunFold, State
from .metrics import Columns, RunMetrics
from .pipelines import Timeline
from .steering import RecordedAct, recorded
from .step_time import SlowStep
from .stop_button import Latch
from .world import format_ranks

if TYPE_CHECKING:
    from typing_extensions import Self

HEAD = 4 << 20
"""Characters of a rank's text that a run keeps in memory: what a rank announces in full, and some."""

POINTS = 1 << 20
"""Points of a rank's metrics that a run keeps in memory."""

TOGETHER = 0.25
"""Seconds before the end of a rank in which errors of others may be its consequence.

The watch of a rank hears of its end a moment after the ranks that were connected to it.
"""

POLL = 0.02
"""Seconds between two looks of a coroutine that awaits a run."""

ReadSpool = Callable[["Run", int], Iterator[Event]]

Explain = Callable[["Run"], Exception | KeyboardInterrupt | None]
"""The exception for a run that has not ended well, or not yet; None for one that has."""


class _RankOutput:
    """What a run keeps of the output of one rank."""

    def __init__(self) -> None:
        self.head: list[Output] = []
        self.head_size = 0
        self.whole = True
        """Whether ``head`` is all that the rank printed."""
        self.totals = Totals()
        self.displays: list[Display] = []
        self.result: Result | None = None
        self.points = 0
        self.points_whole = True
        self.heard = time.monotonic()

    def take(self, body: Body) -> None:
        match body:
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
            case Dropped():
                self.whole = False


class Run:
    """One cell's execution on some ranks.

    :meth:`wait`, :meth:`exception` and :meth:`result` wait for its end, and so does ``await run``: that is
    :meth:`result` while the event loop goes on; to cancel it, as :func:`asyncio.wait_for` does, ends the wait and not
    the run. Everything else answers at once, also while it runs.
    """

    def __init__(
        self,
        number: int,
        source: str,
        ranks: list[int],
        size: int,
        read_spool: ReadSpool,
        world_id: str = "",
        *,
        fold: RunFold | None = None,
        explain: Explain = lambda _: None,
    ) -> None:
        """``fold``: where another reader folds the events already, so that nobody calls :meth:`apply`."""
        self.world_id = world_id
        """The id of its world; with ``number`` the key by which the store knows the run."""
        self.number = number
        """Its number. It counts on from the stored runs of worlds that had the same name."""
        self.source = source
        self.ranks = list(ranks)
        self.size = size
        """Ranks in the world."""
        self.busy: list[int] = []
        """Ranks that were still working when an interrupt's deadline ended the run."""
        self.timed_out = False
        self.why_interrupted = ""
        """What of this process has interrupted it, in words: its notebook, or the timeout; empty for another client."""
        self.not_sent = ""
        """Why the cell never went out to the ranks, in words; empty when it did."""
        self.world_end = ""
        """Why the world has ended, where that is why the ranks were lost; empty if it is not known."""
        self.joined: list[Run] = []
        """The runs that have joined it, oldest first."""
        self.fold = RunFold(ranks) if fold is None else fold
        """What the events of the run say."""
        self._outputs = {rank: _RankOutput() for rank in ranks}
        self._metrics = RunMetrics(ranks)
        # A signal handler may read while the main thread, which it interrupts, is reading.
        self._folding = threading.RLock()
        self._read_spool = read_spool
        self._explain = explain
        self._created = time.monotonic()
        self._ended: float | None = None
        self._done = Latch()

    # Reading.

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._done.is_open

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted: by a person, by ``timeout``, or as the run before it did not end well."""
        return self.fold.interrupted

    @interrupted.setter
    def interrupted(self, interrupted: bool) -> None:
        self.fold.interrupted = interrupted

    @property
    def abandoned(self) -> bool:
        """Whether the whole world went away under it."""
        return self.fold.abandoned

    @abandoned.setter
    def abandoned(self, abandoned: bool) -> None:
        self.fold.abandoned = abandoned

    @property
    def elastic(self) -> bool:
        """Whether the cell goes on without ranks that die."""
        return self.fold.elastic

    @property
    def joins(self) -> int | None:
        """The elastic run that its ranks have joined, each in the place of one that was lost in it."""
        return self.fold.joins

    @property
    def outcome(self) -> Outcome | Literal["running"]:
        """``running``; ``interrupted`` after an interrupt; else the worst outcome of a rank.

        An elastic run is not lost while other ranks, or those that joined it, ended well: see :attr:`remark`.
        """
        if self._ended is None:
            return "running"
        return "interrupted" if self.busy or self.interrupted else self.fold.end.outcome

    @property
    def remark(self) -> str:
        """The fate of the ranks that an elastic run has lost, once it has ended well; else empty."""
        return self.fold.end.remark if self.outcome == "ok" else ""

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """How each rank ended; ranks that have not are left out."""
        return self.fold.outcomes

    @property
    def states(self) -> dict[int, State]:
        """The state of each rank: ``sent`` before it begins the cell, ``running``, or its outcome."""
        return self.fold.states

    @property
    def lost(self) -> dict[int, str]:
        """The ranks that were lost, and what happened to each, in words."""
        return self.fold.lost

    @property
    def pids(self) -> dict[int, int]:
        """The process that each rank was when it began."""
        return self.fold.pids

    @property
    def above(self) -> int:
        """The lines of the notebook's cell above ``source``, which the lines of tracebacks count."""
        return max((part.above for part in self.fold.ranks.values()), default=0)

    @property
    def results(self) -> dict[int, Result]:
        """The value of the cell's last expression, by rank, as representations."""
        return {rank: part.result for rank, part in self._outputs.items() if part.result is not None}

    @property
    def outputs(self) -> dict[int, list[Display]]:
        """The rich outputs of each rank, in order."""
        return {rank: list(part.displays) for rank, part in self._outputs.items()}

    @property
    def errors(self) -> dict[int, Error]:
        """The exceptions that ended the cell, by rank."""
        return self.fold.errors

    @property
    def failed_after_a_death(self) -> set[int]:
        """The ranks whose error came when another rank had died, as far as the time of that is known."""
        parts = self.fold.ranks
        deaths = {
            rank: part.ended or 0.0
            for rank, part in parts.items()
            if part.finished is not None and part.finished.outcome == "lost"
        }
        return {
            rank
            for rank in self.errors
            if any(when < parts[rank].failed + TOGETHER for other, when in deaths.items() if other != rank)
        }

    @property
    def metrics(self) -> RunMetrics:
        """All points so far, in order: those that ranks have logged, and those taken from their frameworks.

        Where a rank logged more than :data:`POINTS`, or faster than the wire takes, they are read from its log.
        Raises :class:`~jupyter_dtrain.core.errors.WorldLost` when that is out of reach.
        """
        found = RunMetrics(self.ranks)
        with self._folding:
            kept = {
                rank: {name: self._metrics[name][rank].copy() for name in self.fold.ranks[rank].names}
                for rank, part in self._outputs.items()
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
        """The newest value of each metric on each rank, without learning rates and the like; no log is read."""
        with self._folding:
            return self.fold.last_values

    @property
    def samples(self) -> dict[int, Sample]:
        """The newest sample of each rank: what it takes of its host."""
        return self.fold.samples

    @property
    def progress(self) -> dict[int, list[Progress]]:
        """The bars of each rank's loops, in the order in which they began."""
        return self.fold.bars

    @property
    def pipelines(self) -> list[Timeline]:
        """A recent step of each pipeline that trained: when its stages did what. In the order in which they began."""
        with self._folding:
            return list(self.fold.pipelines.timelines())

    @property
    def reading(self) -> list[str]:
        """How the ranks read their data while they train: the batch of all ranks, and warnings."""
        with self._folding:
            return [line.words for line in self.fold.readings.lines(self.fold.pipelines.microbatches)]

    @property
    def step_time(self) -> dict[int, dict[str, float]]:
        """The share of a step, 0 to 1, that each of its parts takes, by rank: of the last seconds, or of the whole run.

        Parts are those of :data:`~jupyter_dtrain.core.step_time.PARTS`, such as ``data`` and ``communication``: the
        time in which the rank waited for others, and which no work hides. Empty while no steps are seen.
        """
        with self._folding:
            return self.fold.step_times.shares(whole=self.done)

    @property
    def communication(self) -> dict[int, dict[str, float]]:
        """What the ``communication`` of :attr:`step_time` consists of: shares of a step, 0 to 1, by rank and call.

        Calls are named as in the sentences of :attr:`slow`, such as ``all_gather`` and ``reduce_scatter``, and the
        longest comes first. A rank that has not waited for others has none; empty while no steps are seen.
        """
        with self._folding:
            return self.fold.step_times.calls(whole=self.done)

    @property
    def slow(self) -> list[SlowStep]:
        """Why the steps are slow, the costliest reason first; empty where none is found, or the evidence is thin."""
        with self._folding:
            return self.fold.slow

    @property
    def batch(self) -> int | None:
        """Samples that a rank reads for one step, from the first loader that it trains from; None if none is seen."""
        with self._folding:
            return self.fold.readings.batch

    @property
    def divergence(self) -> Divergence | None:
        """Where the replicas of the checked model have parted; None where they have not, or nothing was checked."""
        return self.fold.divergences.first

    @property
    def checked(self) -> int:
        """How many steps a standing check has compared on all ranks."""
        return self.fold.divergences.checked

    @property
    def acts(self) -> list[RecordedAct]:
        """What persons have asked of its loop between two steps, oldest first: values, code, pauses."""
        with self._folding:
            return recorded(self.fold)

    @property
    def logs(self) -> dict[int, str]:
        """The path, on the machine of the notebook, of the whole log of each rank that has started."""
        return {rank: part.spool for rank, part in self.fold.ranks.items() if part.started is not None}

    if not TYPE_CHECKING:  # as for a Session's former names

        @property
        def spool(self) -> dict[int, str]:
            """The former name of :attr:`logs`."""
            words = "Run.spool is called Run.logs now. The former name works until the next release."
            warnings.warn(words, DeprecationWarning, stacklevel=2)
            return self.logs

    @property
    def totals(self) -> dict[int, Totals]:
        """How much each rank has printed, and its last lines."""
        return {rank: part.totals for rank, part in self._outputs.items()}

    @property
    def elapsed(self) -> float:
        """Seconds that the cell took on its slowest rank, or has taken so far since the first rank began it.

        Panel, sidebar and store show the same number. Before a rank has begun: seconds since the cell was submitted.
        """
        seconds = self.fold.elapsed
        return (self._ended or time.monotonic()) - self._created if seconds is None else seconds

    @property
    def steps(self) -> dict[int, dict[str, int]]:
        """How many steps each optimizer has made in the cell, by rank and variable, for ranks that have ended."""
        return {rank: end.steps for rank, end in self._ends.items()}

    @property
    def spent(self) -> dict[int, Spent]:
        """How each rank spent the time of the cell; of cells that took less than a second, nothing is known."""
        return {rank: end.spent for rank, end in self._ends.items() if end.spent is not None}

    @property
    def regroup(self) -> bool:
        """Whether the next cell needs new process groups.

        Some rank's group is unusable or half made, or a thread is left in a collective that will never be complete: all
        ranks have ended the cell, and one has no thread that could still come.
        """
        ends = list(self._ends.values())
        threads = {end.threads for end in ends}
        return any(end.regroup for end in ends) or {"", "waiting"} <= threads

    @property
    def _ends(self) -> dict[int, Finished]:
        """The last event of each rank that has sent it."""
        return {rank: part.finished for rank, part in self.fold.ranks.items() if part.finished is not None}

    def text(self, rank: int, stream: Literal["stdout", "stderr"] | None = None) -> str:
        """All text that ``rank`` printed, in order: of both streams, or of one; logs of libraries are in it.

        A long text is read from the rank's log. Raises :class:`KeyError` for a rank that the cell did not run on,
        and :class:`~jupyter_dtrain.core.errors.WorldLost` when the log is out of reach.
        """
        part = self._outputs[rank]
        outputs = list(part.head)
        if not part.whole:
            outputs = [event.body for event in self._read_spool(self, rank) if isinstance(event.body, Output)]
        return "".join(output.text for output in outputs if stream in (None, output.stream))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most ``timeout`` seconds (None: without a limit); whether it has come."""
        return self._done.wait(timeout)

    def exception(self, timeout: float | None = None) -> Exception | KeyboardInterrupt | None:
        """Wait for the end, and return what :meth:`.Session.run` raises for it; None if it ended well.

        That is a :class:`.DistributedError`, of which :class:`.RunTimeout` is one, for a run that has exceeded its own
        ``timeout``; or a :class:`.DistributedInterrupt` where a person has interrupted it.

        Raises :class:`.RunTimeout` where it has not ended within ``timeout`` seconds (None: without a limit); it goes
        on then, and :attr:`done` is false.
        """
        in_time = self.wait(timeout)
        failure = self._explain(self)
        if failure is not None and not in_time:
            raise failure
        return failure

    def result(self, timeout: float | None = None) -> Self:
        """Wait for the end; the run itself, if it ended well. Raises as :meth:`.Session.run`, and :meth:`exception`."""
        if failure := self.exception(timeout):
            raise failure
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """``await run``: as :meth:`result`, while the event loop goes on. Without a limit; a cancel ends the wait."""
        while not self.done:
            yield from asyncio.sleep(POLL).__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Run {self.number} on {format_ranks(self.ranks)}: {self.outcome}, {self.elapsed:.1f} s>"

    # Folding: the session's scheduler alone.

    def began_earlier(self, seconds: float) -> None:
        """Note that another client began the run ``seconds`` ago, so that :attr:`elapsed` counts from then."""
        self._created -= seconds

    def next_seq(self, rank: int) -> int:
        """The number of the first event of ``rank`` that was not applied yet."""
        return self.fold.ranks[rank].next_seq

    def heard(self, rank: int) -> float:
        """When this process last heard from ``rank``, in ``time.monotonic()`` seconds."""
        return self._outputs[rank].heard

    def note_heard(self, rank: int) -> None:
        """Note that ``rank`` has answered just now, with or without new events."""
        self._outputs[rank].heard = time.monotonic()

    def apply(self, batch: Batch) -> Batch | None:
        """Apply what is new in ``batch``; the new part of it, or None when a hole comes before it or all is old."""
        rank, part = self.fold.ranks[batch.rank], self._outputs[batch.rank]
        if batch.first > rank.next_seq or batch.last < rank.next_seq or rank.reported:
            return None
        first = rank.next_seq
        fresh = [event for event in batch.events if event.seq >= first]
        if len(fresh) < batch.last - first + 1:
            part.whole = False
        part.heard = time.monotonic()
        if batch.totals is not None:
            part.totals = batch.totals
        else:
            part.totals = _add_totals(part.totals, fresh)
        for event in fresh:
            self.keep(event)
            with self._folding:
                points = self.fold.take(event)
                if isinstance(event.body, Metrics):
                    self._keep_points(batch.rank, part, event.body, points or {})
        self.fold.skip_to(batch.rank, batch.last + 1)
        return Batch(batch.run, batch.rank, first, batch.last, fresh, batch.totals)

    def keep(self, event: Event) -> None:
        """Keep what an event brings to the output and the result of its rank."""
        self._outputs[event.rank].take(event.body)

    def _keep_points(self, rank: int, part: _RankOutput, metrics: Metrics, points: Mapping[str, Columns]) -> None:
        """Keep all points of a rank as long as there are few, and as long as none is missing."""
        part.points += sum(len(columns.values) for columns in points.values())
        part.points_whole &= part.points <= POINTS and not any(series.left_out for series in metrics.series)
        if part.points_whole:
            for name, columns in points.items():
                self._metrics.append(rank, name, columns)

    def joined_by(self, run: Run) -> None:
        """Note that ``run`` has begun on new ranks in the place of lost ones. Any thread may call it, also twice."""
        if run not in self.joined:
            self.joined.append(run)
            self.fold.joined.append(run.fold)

    def mark_lost(self, rank: int, words: str) -> None:
        """Note that ``rank`` is lost, with what happened to it in ``words``: no more events come from it."""
        self.fold.lose(rank, words)

    @property
    def unfinished(self) -> list[int]:
        """The ranks that have not ended the run."""
        return self.fold.unfinished

    def end(self) -> None:
        """End the run; ranks that are still unfinished are left behind as busy."""
        self.busy = [] if self.not_sent else self.unfinished
        self._ended = time.monotonic()
        self.fold.stop()

    def release(self) -> None:
        """Let waiting threads go on: everything was shown, or its view is not waited for."""
        self._done.open()


def _add_totals(totals: Totals, events: list[Event]) -> Totals:
    text = "".join(event.body.text for event in events if isinstance(event.body, Output) and not event.body.log)
    if not text:
        return totals
    size, lines = totals.bytes + len(text.encode("utf-8", "replace")), totals.lines + text.count("\n")
    return Totals(size, lines, [*totals.tail, *text.splitlines()][-20:])
