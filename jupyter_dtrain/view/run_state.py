"""A panel's knowledge of its run: what the run's events say, and its metrics, thinned; and each rank's state in a word.

A :class:`RunState` is bounded: :data:`POINTS` points over all series, :data:`MOST_NAMES` metrics; the rest is counted.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.causes import as_seen, told_briefly
from jupyter_dtrain.core.events import (
    ClearOutput,
    CommMessage,
    Display,
    Dropped,
    Event,
    Finished,
    Metrics,
    Output,
    PromptClosed,
    PromptOpened,
    Result,
    Steered,
    StepParts,
)
from jupyter_dtrain.core.fold import RunFold
from jupyter_dtrain.core.metrics import Columns, is_main
from jupyter_dtrain.core.steering import recorded
from jupyter_dtrain.core.step_summary import summarise

from .document import Picture, in_order, stepped
from .document import RankState as RunRankState
from .labels import number, took

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyter_dtrain.core.causes import Seen
    from jupyter_dtrain.core.events import RankState
    from jupyter_dtrain.core.step_summary import StepSummary

MOST_NAMES: Final = 200
"""Metrics to follow; Run.metrics has all."""

POINTS: Final = 1 << 18
"""Points to keep, over all series."""

_ROOM: Final = (64, 4000)  # points of one series, at least and at most
_UNSEEN: Final = (Output, Display, ClearOutput, Result, CommMessage, Dropped)
_BLOCK: Final = 4
"""Number of stored points to merge into two or three when there are too many."""

SUMMARY_PERIOD: Final = 1.0
"""Seconds between two summaries of where the time of steps goes; ranks report about as often."""
SUMMARY_SHARE: Final = 0.02
"""The share of the time that such summaries may take in a large world, whose panel then gets them less often."""
LINGER: Final = 5.0
"""Seconds for which a sentence on slow steps stays after it no longer holds: at its limit it would come and go."""
DISTURBED: Final = 20.0
"""Seconds after a prompt in which nothing is said on slow steps: ranks that waited for the person took long ones."""
ASKED_SHARE: Final = 0.02
"""The share of a run's time that its ranks may have asked a person, if its end is to say why its steps were slow."""
LIVE_POINTS: Final = 60
"""Points of a course in a run that goes on."""

_LONG: Final = 64  # points of an incomplete stretch that may wait for merging


class History:
    """The points of one metric on one rank: all of a short series, an even selection of a long one.

    It holds at most ``room`` points: from each stretch of the series the lowest, the highest and the first that is no
    number. Nothing here fails on NaN or the infinities.
    """

    def __init__(self, room: int) -> None:
        self._room = max(2 * _BLOCK, room)
        self._kept = Columns.empty()
        self._stretch = 1
        self._tail = Columns.empty()  # the stored points of a stretch that is not complete
        self._tailed = 0  # points of that stretch
        self._newest = Columns.empty()
        self.count = 0
        """Number of points that were added."""

    def add(self, points: Columns) -> None:
        """Append ``points``, and thin the series if it has too many."""
        size = len(points.values)
        if not size:
            return
        self.count += size
        self._newest = _part(points, size - 1, size)
        if self._stretch == 1:
            self._kept.extend(points)
        else:
            self._add_stretches(points)
        self._fit()

    def limit(self, room: int) -> None:
        """Keep at most ``room`` points from now on."""
        self._room = max(2 * _BLOCK, room)
        self._fit()

    @property
    def newest(self) -> float | None:
        """The newest value; None before the first."""
        return self._newest.values[-1] if self._newest.values else None

    @property
    def columns(self) -> Columns:
        """The stored points, and the newest point."""
        found = self._kept.copy()
        found.extend(_essence(self._tail))
        if self.count and (not found.steps or found.steps[-1] != self._newest.steps[0]):
            found.extend(self._newest)
        return found

    def _add_stretches(self, points: Columns) -> None:
        size, at = len(points.values), 0
        while at < size:
            if not self._tailed and (whole := (size - at) // self._stretch * self._stretch):
                self._kept.extend(_part(points, at, at + whole).selected(whole, self._stretch))
                at += whole
                continue
            end = min(size, at + self._stretch - self._tailed)
            self._tail.extend(_essence(_part(points, at, end)))
            self._tailed += end - at
            at = end
            if self._tailed == self._stretch:
                self._kept.extend(_essence(self._tail))
                self._tail, self._tailed = Columns.empty(), 0
            elif len(self._tail.values) > _LONG:
                self._tail = _essence(self._tail)

    def _fit(self) -> None:
        while len(self._kept.values) > self._room:
            self._kept = self._kept.selected(len(self._kept.values), _BLOCK)
            self._stretch = _BLOCK if self._stretch == 1 else 2 * self._stretch


def _essence(columns: Columns) -> Columns:
    """The two or three points that represent a stretch."""
    size = len(columns.values)
    return columns.selected(size, size) if size else columns


def _part(columns: Columns, first: int, end: int) -> Columns:
    return Columns(columns.steps[first:end], columns.times[first:end], columns.values[first:end])


class RunState:
    """The state of run number ``run`` on ``ranks``, in a world of ``size`` ranks, gathered from its events."""

    def __init__(self, run: int, ranks: Sequence[int], size: int, hosts: Mapping[int, str] | None = None) -> None:
        """``hosts``: those of the ranks, as far as they are known before the ranks begin."""
        self.fold = RunFold(ranks, most_names=MOST_NAMES)
        """What the events of the run say."""
        self._run = run
        self._ranks = sorted(ranks)
        self._size = size
        self._hosts: dict[int, str] = {rank: host for rank, host in (hosts or {}).items() if rank in self._ranks}
        self._histories: dict[str, dict[int, History]] = {}
        self._series = 0
        self._thinned = False
        self._unseen: set[str] = set()
        self._reach = dict.fromkeys(self._ranks, 0)
        self._summary: StepSummary | None = None
        self._summarised = False  # as far as the fold is
        self._summary_at = -math.inf
        self._slow_until = -math.inf
        self._asked_at: float | None = None
        """When the first of the ranks that ask a person now has asked, in seconds since the epoch."""
        self._asked = 0.0
        """Seconds for which ranks have asked a person before that."""
        self._disturbed_until = -math.inf

    @property
    def words(self) -> dict[int, str]:
        """The end of each rank that was lost, failed or was released, in words."""
        found = {}
        for rank, part in self.fold.ranks.items():
            if words := part.words or ("" if part.error is None else told_briefly(part.error)):
                found[rank] = words
        return found

    @property
    def elapsed(self) -> float:
        """Seconds since the first rank began; in the end, what the slowest rank took."""
        return self.fold.elapsed or 0.0

    @property
    def has_something(self) -> bool:
        """Whether there are metrics, progress or pipelines."""
        return bool(self._histories) or bool(self.fold.pipelines) or any(part.bars for part in self.fold.ranks.values())

    @property
    def line(self) -> str:
        """How the run goes, in a line: its time, its step and its first loss on the lowest rank that logs it."""
        said = [took(self.elapsed)]
        if (step := self.fold.step) is not None:
            said.append(f"step {step:,}")
        for name in [name for name in in_order(self.fold.names) if is_main(name)][:1]:
            rank = min(self._histories[name])
            said.append(f"{name} {number(self._histories[name][rank].newest)}")
        return f"Run {self._run}: {', '.join(said)}"

    def take(self, event: Event) -> list[tuple[str, Columns]] | None:
        """Take the next event of a rank: returns its points by metric, or None if it changes nothing to see."""
        points = self.fold.take(event)
        if points is None or isinstance(event.body, _UNSEEN):
            return None
        self._reach[event.rank] = event.seq + 1
        if isinstance(event.body, StepParts):
            self._summarised = False
        elif isinstance(event.body, (PromptOpened, PromptClosed, Steered, Finished)):
            self._note_prompts(event.time)
        if not isinstance(event.body, Metrics):
            return []
        self._thinned = self._thinned or any(series.left_out for series in event.body.series)
        return [(name, columns) for name, columns in points.items() if self._take_points(event.rank, name, columns)]

    def shown(self, rank: int) -> Seen:
        """The state of ``rank`` as people see it; see :func:`.as_seen`."""
        part = self.fold.ranks[rank]
        return as_seen(part.state, part.error, asks=part.prompt is not None, held=part.held is not None)

    def picture(self, outcome: Any, *, with_metrics: bool = True) -> Picture:
        """The whole state as it is now, with or without copies of the metrics, and pipelines."""
        metrics = {}
        if with_metrics:
            for name in self.fold.names:
                metrics[name] = {rank: history.columns for rank, history in self._histories[name].items()}
        parts = self.fold.ranks
        recent = None
        if outcome == "running":
            recent = {rank: part.recent for rank, part in parts.items() if part.recent is not None}
        hosts = {rank: part.host for rank, part in parts.items() if part.started is not None}
        judged = self._is_judged(over=outcome != "running")
        steps = stepped(self.fold.steps, recent)
        return Picture(
            self._run,
            self._size,
            self._ranks,
            outcome,
            self.elapsed,
            metrics,
            {rank: self.shown(rank) for rank in parts},
            self.fold.samples,
            self.fold.bars,
            {**self._hosts, **hosts},
            self.words,
            left_out=len(self._unseen),
            thinned=self._thinned,
            timelines=self.fold.pipelines.timelines() if with_metrics else [],
            reach=list(self._reach.values()),
            reading=self.fold.readings.lines(self.fold.pipelines.microbatches),
            step_time=self._step_time(over=outcome != "running", judged=judged),
            divergence=self.fold.divergences.first,
            prompts=self.fold.prompts,
            acts=recorded(self.fold),
            paused=self.fold.paused,
            first_step=self.fold.first_step,
            **(steps if judged else {**steps, "slow": None}),
        )

    def _note_prompts(self, when: float) -> None:
        """Ranks may have begun to wait for a person, or wait no more."""
        if self.fold.stands:
            self._asked_at = when if self._asked_at is None else self._asked_at
        elif self._asked_at is not None:
            self._asked += max(0.0, when - self._asked_at)
            self._asked_at = None
            self._disturbed_until = time.monotonic() + DISTURBED

    def _is_judged(self, *, over: bool) -> bool:
        """Whether the time of steps says anything on them: that for which ranks have waited for a person does not."""
        if over:
            return self._asked <= ASKED_SHARE * self.elapsed
        return not self.fold.stands and time.monotonic() >= self._disturbed_until

    def _step_time(self, *, over: bool, judged: bool) -> StepSummary | None:
        """Where the time of the steps goes: made anew after news, at most once a second while the run goes on.

        Not ``judged``: it gives no reasons why they are slow.
        """
        now = time.monotonic()
        if over:
            self._summary = summarise(self.fold)
        elif not self._summarised and now >= self._summary_at:
            began = time.thread_time()
            before, self._summary = self._summary, summarise(self.fold, points=LIVE_POINTS)
            self._summarised = True
            if self._summary is not None and self._summary.slow:
                self._slow_until = now + LINGER
            elif self._summary is not None and before is not None and now < self._slow_until:
                self._summary = msgspec.structs.replace(self._summary, slow=before.slow)
            took = time.thread_time() - began
            self._summary_at = now + max(SUMMARY_PERIOD, took / SUMMARY_SHARE)
        if self._summary is not None and self._summary.slow and not judged:
            return msgspec.structs.replace(self._summary, slow=[])
        return self._summary

    def _take_points(self, rank: int, name: str, points: Columns) -> bool:
        if not points.values:
            return False
        if name not in self._histories and len(self._histories) >= MOST_NAMES:
            self._unseen.add(name)
            return False
        ranks = self._histories.setdefault(name, {})
        if rank not in ranks:
            self._series += 1
            ranks[rank] = History(self._room)
            if self._series & (self._series - 1) == 0:  # at 2, 4, 8, … series there is less room for each
                for others in self._histories.values():
                    for history in others.values():
                        history.limit(self._room)
        ranks[rank].add(points)
        return True

    @property
    def _room(self) -> int:
        return max(_ROOM[0], min(_ROOM[1], POINTS // max(1, self._series)))


def rank_state(
    process: RankState, in_run: RunRankState | None, *, over: bool, waits: bool, replaced: bool = False
) -> RankState | RunRankState:
    """The state of a rank in one word, which every place shows: cells, the sidebar and ``%distributed status``.

    The steward knows the rank's process, the rank's own events say how far it is in a run, and its agent knows the call
    in which it waits for other ranks.

    ``process``: by the steward. ``in_run``: by the rank's events, in the newest run that it takes part in; None without
    one. ``over``: whether that run has ended on all its ranks. ``waits``: whether it waits for other ranks.
    ``replaced``: whether another process was the rank in that run.
    """
    if process not in ("idle", "running", "waiting") or in_run is None:
        return process
    if in_run == "running" and waits:
        return "waiting"
    # A rank whose process lives was replaced since it was lost.
    return "idle" if over and (replaced or in_run in ("ok", "dead")) else in_run
