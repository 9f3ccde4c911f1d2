"""The one fold of a run's events: everybody who shows, judges or stores a run holds a :class:`RunFold` and reads there.

The session's :class:`~.run.Run`, the panel beside its cell, the server and the store get the same events by different
ways and at different times. Each gives them to a fold of its own, so they come to the same states, outcome, time,
steps and values. What a reader keeps beyond that, such as text, points or rows of a table, is its own.

Under failure: an event that came before changes nothing, and neither does one after the rank's end. Memory is bounded
by the number of ranks, of metrics (``most_names``) and by the size limits of events; points and text are not kept.
Nothing here waits or raises: a metric whose columns have different lengths is left out.

A cell that goes on without a rank that dies (an elastic run) has not failed because of it. So its outcome is that of
the other ranks and of those that joined it in the place of lost ones. The store, which has outcomes but no events,
comes to the same by the same function, :func:`elastic_end`.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from .divergence import Divergences
from .events import (
    OUTCOMES,
    PAUSES,
    RUNNING,
    Acted,
    Checked,
    Error,
    Event,
    Finished,
    Metrics,
    Outcome,
    PipelineStep,
    Progress,
    PromptClosed,
    PromptOpened,
    Reading,
    Sample,
    Started,
    Steered,
    StepParts,
    worst,
)
from .metrics import Columns, RankSteps, StepTime, is_main
from .pipelines import Pipelines
from .readings import Readings
from .step_time import SlowStep, StepTimes
from .world import count_ranks

_MARKS: Final = 24
"""Reports of a rank, the newest ones, in which it may turn out to be slow."""

MOST_ACTS: Final = 1000
"""Acts on the loop of a run that are remembered."""

State = Outcome | Literal["sent", "running"]
"""How far a rank is in a run: it has not begun the cell (``sent``), works on it, or how it ended."""


class RankFold:
    """What the events of one rank say, so far. Times of day are seconds since the epoch."""

    def __init__(self) -> None:
        self.next_seq = 0
        """The number of the first event that was not taken yet."""
        self.pid = 0
        """The process that the rank was when it began."""
        self.host = ""
        self.spool = ""
        """The path, on the steward's machine, of the log of its events."""
        self.above = 0
        """The lines of the notebook's cell above the source, which the lines of tracebacks count."""
        self.started: float | None = None
        """When the rank began the cell."""
        self.heard: float | None = None
        """When the newest event of the rank happened."""
        self.sample: Sample | None = None
        self.bars: dict[int, Progress] = {}
        """The bars of its loops, by their number."""
        self.prompt: PromptOpened | None = None
        """What it asks a person, for whom it waits; None while it asks nothing."""
        self.held: Steered | None = None
        """The event since which it stands between two steps, as a person has asked for; None while it does not."""
        self.acts = False
        """Whether it carries out an act there: that may hang, as any code of a cell."""
        self.error: Error | None = None
        self.failed = 0.0
        """When the error of the rank came."""
        self.outcome: Outcome | None = None
        """How the rank ended the cell; None while it works on it."""
        self.words = ""
        """What happened to the rank, in words, where its outcome alone does not say it."""
        self.elapsed: float | None = None
        """Seconds that the cell took on this rank."""
        self.ended: float | None = None
        self.finished: Finished | None = None
        """The rank's last event; None where it ended without one."""
        self.reported = False
        """Whether an event of its own says how it ended, and how long that took."""
        self.names: dict[str, None] = {}
        """The metrics that it has logged, in the order of their first points."""
        self.steps = RankSteps()
        self.marks: deque[tuple[int, float]] = deque(maxlen=_MARKS)
        """Its newest steps, with their times."""
        self.clock: float | None = None
        """When it began, on this process' own clock, which nobody sets; None where the run was read from a file."""

    @property
    def state(self) -> State:
        """How far the rank is in the run, or how it ended."""
        return self.outcome or ("sent" if self.started is None else "running")

    @property
    def recent(self) -> StepTime | None:
        """The steps of the newest reports and the time that they took; None where there were none."""
        if not self.marks:
            return None
        (first, since), (last, until) = self.marks[0], self.marks[-1]
        return StepTime(last - first, until - since) if last > first and until > since else None


class ActFold:
    """What the events say about one act of a person on the loop of a run."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.kind = ""
        self.words = ""
        """What was asked for, such as ``set opt.lr=1e-4``."""
        self.by = ""
        self.step = 0
        """The step after which it was done, counted from the beginning of the cell."""
        self.at: int | None = None
        """The newest step of the metrics by then, which charts show."""
        self.time = 0.0
        """When the first rank began it."""
        self.found: dict[int, Acted] = {}
        """What became of it on each rank that is done with it."""

    @property
    def failed(self) -> list[int]:
        """The ranks on which what it ran has raised."""
        return sorted(rank for rank, one in self.found.items() if not one.ok)


class RunFold:
    """What the events of a run on ``ranks`` say so far: states, outcome, time, steps and newest values."""

    def __init__(self, ranks: Iterable[int] = (), *, most_names: int | None = None) -> None:
        """``most_names``: metrics of which the newest values are kept; None for all."""
        self.ranks: dict[int, RankFold] = {rank: RankFold() for rank in sorted(ranks)}
        """What the events say about each rank, by its number."""
        self.elastic = False
        """Whether the cell goes on without ranks that die."""
        self.joins: int | None = None
        """The number of the elastic run that its ranks have joined, each in the place of one that was lost in it."""
        self.joined: list[RunFold] = []
        """The runs that have joined it, oldest first."""
        self.interrupted = False
        """Whether a person, a timeout or the end of an earlier run has ended it."""
        self.abandoned = False
        """Whether the world ended during the run, or ranks ended of which nothing says how."""
        self.newest: dict[str, dict[int, tuple[int, float]]] = {}
        """The newest step and value of each metric on each rank."""
        self.pipelines = Pipelines()
        """The actions of pipelines' stages."""
        self.readings = Readings()
        """How the ranks read their data."""
        self.step_times = StepTimes(len(self.ranks))
        """Where the time of the ranks' steps goes."""
        self.first_step = 0
        """The step from which its metrics count: above 0 where it goes on with another run."""
        self.divergences = Divergences(list(self.ranks))
        """Where the replicas of a checked model have parted."""
        self.acts: dict[int, ActFold] = {}
        """What persons have asked of its loop, by the numbers of the acts, oldest first."""
        self._most_names = most_names
        self._began: float | None = None
        """When the first rank began, on this process' own clock, which nobody sets."""
        self._stopped: float | None = None
        """When nobody waited any longer for the ranks that go on."""

    def rank(self, rank: int) -> RankFold:
        """What the events say about ``rank``; a rank that was not in the run takes part from now on."""
        return self.ranks.setdefault(rank, RankFold())

    # Folding.

    def take(self, event: Event) -> dict[str, Columns] | None:  # noqa: C901, PLR0912 — one case per event
        """Take an event; return its points by metric, or None where it came before or the rank has ended.

        Readers may leave out kinds of events that they have no use for: numbers that are missing in between are no
        fault.
        """
        part = self.rank(event.rank)
        # Not `part.outcome`: events of a rank that was given up as lost may still come, and its own word on its end
        # is better than ours. Only that word closes the rank.
        if event.seq < part.next_seq or part.reported:
            return None
        part.next_seq, part.heard = event.seq + 1, event.time
        points: dict[str, Columns] = {}
        match event.body:
            case Started() as started:
                self._begin(part, started, event.time)
            case Metrics() as metrics:
                for series in metrics.series:
                    with contextlib.suppress(ValueError):  # columns of different lengths: nobody can show them
                        points.setdefault(series.name, Columns.empty()).extend(series)
                self._take_points(event.rank, part, points)
            case Sample() as sample:
                part.sample = sample
                self.step_times.take(event.rank, sample)
            case StepParts() as window:
                # The step that a rank reports is that of whichever metric came last, such as the number of an epoch.
                made = window.step if part.steps.made is None else part.steps.made
                self.step_times.take(event.rank, msgspec.structs.replace(window, step=made))
            case Progress() as bar:
                part.bars[bar.bar] = bar
            case PipelineStep() as step:
                self.pipelines.take(event.rank, step)
            case Reading() as reading:
                self.readings.take(event.rank, reading)
            case Checked() as checked:
                self.divergences.take(event.rank, checked)
            case PromptOpened() as prompt:
                part.prompt = prompt
            case PromptClosed():
                part.prompt = None
            case Steered() as steered:
                self._steer(event.rank, part, steered, event.time)
            case Error() as error:
                part.error, part.failed = error, event.time
            case Finished() as finished:
                part.finished = finished
                self._end_rank(part, finished.outcome, finished.words, event.time, finished.elapsed)
                part.reported = True
        return points

    def _steer(self, rank: int, part: RankFold, steered: Steered, when: float) -> None:
        match steered.phase:
            case "held":
                part.held = steered
                if steered.kind in PAUSES:
                    self._act(steered, when).found[rank] = Acted()
            case "left":
                part.held, part.acts = None, False
            case "begun":
                part.acts = True
                self._act(steered, when)
            case "done":
                part.acts = False
                self._act(steered, when).found[rank] = steered.found or Acted()

    def _act(self, steered: Steered, when: float) -> ActFold:
        """The act that an event is about; the oldest of too many is forgotten."""
        act = self.acts.get(steered.number)
        if act is None:
            act = self.acts[steered.number] = ActFold(steered.number)
            act.kind, act.words, act.by, act.step = steered.kind, steered.words, steered.by, steered.step
            act.at, act.time = steered.at, when
            for number in list(self.acts)[:-MOST_ACTS]:
                del self.acts[number]
        return act

    def skip_to(self, rank: int, seq: int) -> None:
        """Ignore the events of ``rank`` before number ``seq`` from now on, whether or not they came."""
        part = self.rank(rank)
        part.next_seq = max(part.next_seq, seq)

    def lose(self, rank: int, words: str, when: float | None = None, outcome: Outcome = "lost") -> bool:
        """Note that ``rank`` sends no more events; return whether the rank was not known to have ended.

        A rank whose own events said how it ended keeps that outcome.

        ``words``: what happened to it. ``when``: the time, now if None. ``outcome``: how its cell ended all the same,
        where a client knows it.
        """
        part = self.rank(rank)
        if part.outcome is not None:
            if part.outcome == "lost" and words:
                part.words = words
            return False
        began, clock = (part.started, part.clock) if part.started is not None else (self.started, self._began)
        # Where the rank began while this process was there, this process' own clock measures: the hosts' clocks differ,
        # and a time of day may be set in between. A run that was read from a file has only times of day.
        if when is None and clock is not None:
            elapsed: float | None = time.monotonic() - clock
        else:
            elapsed = None if began is None else max(0.0, (time.time() if when is None else when) - began)
        self._end_rank(part, outcome, words, time.time() if when is None else when, elapsed)
        return True

    def _begin(self, part: RankFold, started: Started, when: float) -> None:
        part.pid, part.host, part.spool, part.above = started.pid, started.host, started.spool, started.above
        part.started = when
        self.elastic = self.elastic or started.elastic
        self.joins = started.joins if self.joins is None else self.joins
        part.steps = RankSteps(started.context.first_step)
        self.first_step = max(self.first_step, started.context.first_step)
        # A host whose clock is ahead must not put the beginning into the future: the elapsed time would be negative.
        part.clock = time.monotonic() - max(0.0, time.time() - when)
        self._began = part.clock if self._began is None else min(self._began, part.clock)

    def _take_points(self, rank: int, part: RankFold, points: Mapping[str, Columns]) -> None:
        part.steps.take(points)
        if part.steps.newest is not None:
            part.marks.append(part.steps.newest)
        for name, columns in points.items():
            if columns.values and self._keeps(name):
                part.names[name] = None
                self.newest.setdefault(name, {})[rank] = (columns.steps[-1], columns.values[-1])

    def _keeps(self, name: str) -> bool:
        return self._most_names is None or name in self.newest or len(self.newest) < self._most_names

    def _end_rank(self, part: RankFold, outcome: Outcome, words: str, ended: float, elapsed: float | None) -> None:
        part.words, part.ended, part.elapsed = words, ended, elapsed
        part.prompt = part.held = None
        part.acts = False
        part.outcome = outcome  # last: other threads take it for the sign that the others are there

    def stop(self) -> None:
        """Let the time of the run stand still: no one waits any longer for the ranks that go on."""
        if self.unfinished:
            self._stopped = self._stopped or time.monotonic()

    # Reading.

    @property
    def unfinished(self) -> list[int]:
        """The ranks that have not ended the run."""
        return [rank for rank, part in self.ranks.items() if part.outcome is None]

    @property
    def prompts(self) -> dict[int, PromptOpened]:
        """What ranks ask a person, for whom they wait; while there is any, time limits of the run stand still."""
        return {rank: prompt for rank, part in self.ranks.items() if (prompt := part.prompt) is not None}

    @property
    def stands(self) -> bool:
        """Whether it waits for a person: ranks ask one, or are held between two steps and carry out nothing there."""
        parts = self.ranks.values()
        held = any(part.held is not None for part in parts) and not any(part.acts for part in parts)
        return held or any(part.prompt is not None for part in parts)

    @property
    def paused(self) -> int | None:
        """The step after which all ranks that go on are paused; None where one is not."""
        held = [self.ranks[rank].held for rank in self.unfinished]
        steps = [one.step for one in held if one is not None and one.kind in PAUSES]
        return max(steps) if steps and len(steps) == len(held) else None

    @property
    def states(self) -> dict[int, State]:
        """How far each rank is in the run, or how it ended."""
        return {rank: part.state for rank, part in self.ranks.items()}

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """How each rank ended; ranks that have not are left out."""
        return {rank: part.outcome for rank, part in self.ranks.items() if part.outcome is not None}

    @property
    def lost(self) -> dict[int, str]:
        """The ranks that were lost, and what happened to each, in words."""
        return {rank: part.words for rank, part in self.ranks.items() if part.outcome == "lost"}

    @property
    def errors(self) -> dict[int, Error]:
        """The exceptions that ended the cell, by rank."""
        return {rank: part.error for rank, part in self.ranks.items() if part.error is not None}

    @property
    def pids(self) -> dict[int, int]:
        """The process that each rank was when it began."""
        return {rank: part.pid for rank, part in self.ranks.items() if part.started is not None}

    @property
    def samples(self) -> dict[int, Sample]:
        """The newest sample of each rank: what it takes of its host."""
        return {rank: part.sample for rank, part in self.ranks.items() if part.sample is not None}

    @property
    def bars(self) -> dict[int, list[Progress]]:
        """The bars of each rank's loops, in the order in which they began."""
        return {rank: [part.bars[bar] for bar in sorted(part.bars)] for rank, part in self.ranks.items() if part.bars}

    @property
    def started(self) -> float | None:
        """When the first rank began; None before that."""
        return min((part.started for part in self.ranks.values() if part.started is not None), default=None)

    @property
    def ended(self) -> float | None:
        """When the last rank ended; None while one has not."""
        return None if self.unfinished else max((part.ended or 0.0 for part in self.ranks.values()), default=None)

    @property
    def end(self) -> ElasticEnd:
        """How the run has ended as far as its ranks have, without regard to an interrupt.

        An elastic run is not lost while other ranks, or those that joined it, ended well: its remark says which.
        """
        if self.elastic and not self.abandoned:
            return elastic_end(self.outcomes, [join.states for join in self.joined])
        return ElasticEnd(worst(self.outcomes.values()), "")

    @property
    def outcome(self) -> Outcome | Literal["running"]:
        """``running`` while a rank is; ``interrupted`` after an interrupt; else the worst outcome of a rank."""
        if self.unfinished:
            return "running"
        return "interrupted" if self.interrupted else self.end.outcome

    @property
    def remark(self) -> str:
        """The fate of the ranks that an elastic run has lost, once it has ended well; else empty."""
        return self.end.remark if self.outcome == "ok" else ""

    @property
    def elapsed(self) -> float | None:
        """Seconds since the first rank began; in the end, what the slowest rank took. None before the first.

        Of ranks that were lost without a word it is not known how long they took. Where there are no others, their time
        counts until they were given up.
        """
        if not self.unfinished and self._stopped is None:
            parts = list(self.ranks.values())
            ended = [part for part in parts if part.reported] or parts
            return max((part.elapsed for part in ended if part.elapsed is not None), default=None)
        return None if self._began is None else max(0.0, (self._stopped or time.monotonic()) - self._began)

    @property
    def step(self) -> int | None:
        """The step of the run, which is that of the rank that is furthest ahead; None where no rank reports one."""
        steps = [part.steps.step for part in self.ranks.values()]
        return max((step for step in steps if step is not None), default=None)

    @property
    def steps(self) -> dict[int, RankSteps]:
        """The steps of each rank that has reported metrics."""
        return {rank: part.steps for rank, part in self.ranks.items() if part.steps.newest is not None}

    @property
    def names(self) -> list[str]:
        """The metrics in the order in which the ranks, one after the other, have first logged them.

        The order in which the ranks' events have come here is another one for each reader.
        """
        return list(dict.fromkeys(name for _, part in sorted(self.ranks.items()) for name in part.names))

    @property
    def slow(self) -> list[SlowStep]:
        """Why its steps are slow, the costliest reason first: of the last seconds, or of the whole run at its end."""
        return self.slow_steps(whole=not self.unfinished)

    def slow_steps(self, *, whole: bool) -> list[SlowStep]:
        """:attr:`slow`, of the ``whole`` run or of the last seconds."""
        return self.step_times.findings(
            list(self.ranks) if whole else self.unfinished,
            whole=whole,
            batches=self.readings.batches,
            pipelines=self.pipelines.timelines(),
        )

    @property
    def last_values(self) -> list[float]:
        """The newest value of each metric on each rank, without learning rates and the like."""
        return [value for name in self.newest if is_main(name) for _, value in self.newest[name].values()]


def asked_alike(prompts: Mapping[int, PromptOpened]) -> list[list[int]]:
    """The ranks of ``prompts``, those together that ask the same for the same time; a debugger's each by itself."""
    groups: dict[object, list[int]] = {}
    for rank, one in sorted(prompts.items()):
        key = rank if one.kind == "debugger" else (one.kind, one.text, one.nth)
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


class ElasticEnd(NamedTuple):
    """The end of an elastic run."""

    outcome: Outcome
    remark: str
    """The fate of the ranks that were lost, where the outcome is ok: ``rank 1 was replaced``; else empty."""


def elastic_end(own: Mapping[int, str | None], joined: Iterable[Mapping[int, str | None]]) -> ElasticEnd:
    """The end of an elastic run whose ranks ended as ``own`` says.

    ``joined``: the same for each run that joined it, oldest first. A rank of those that has no outcome yet, whatever it
    has instead, works in the place of the lost one. One that was interrupted there has found nothing to join, or was
    stopped with all others.
    """
    last = {rank: outcome for rank, outcome in own.items() if outcome is not None}
    replaced: set[int] = set()
    for join in joined:
        for rank, outcome in join.items():
            if own.get(rank) == "lost" and outcome != "interrupted":
                last[rank] = outcome if outcome in OUTCOMES and outcome != RUNNING else "ok"
                replaced.add(rank)
    lost = sorted(rank for rank, outcome in last.items() if outcome == "lost")
    others = [outcome for outcome in last.values() if outcome != "lost"]
    outcome = worst(others if "ok" in others else list(last.values()))
    if outcome != "ok":
        return ElasticEnd(outcome, "")
    said = [_ranks(sorted(replaced - {*lost}), "replaced"), _ranks(lost, "lost")]
    return ElasticEnd("ok", ", ".join(part for part in said if part))


def _ranks(ranks: list[int], became: str) -> str:
    return f"{count_ranks(ranks)} {'were' if len(ranks) > 1 else 'was'} {became}" if ranks else ""
