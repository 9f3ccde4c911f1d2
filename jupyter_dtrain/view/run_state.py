"""A panel's knowledge of its run: the newest state of each rank, and its metrics, thinned.

It is bounded: :data:`POINTS` points over all series, :data:`MOST_NAMES` metrics; the rest is counted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal

from jupyter_dtrain.core.causes import as_seen, told_briefly
from jupyter_dtrain.core.divergence import Divergences
from jupyter_dtrain.core.events import (
    Checked,
    Error,
    Event,
    Finished,
    Metrics,
    PipelineStep,
    Progress,
    Reading,
    Sample,
    Started,
)
from jupyter_dtrain.core.metrics import Columns, RankSteps, StepTime, is_main, unpack
from jupyter_dtrain.core.pipelines import Pipelines
from jupyter_dtrain.core.readings import Readings
from jupyter_dtrain.core.run import RunClock

from .document import Picture, in_order, stepped
from .history import History
from .labels import number, took
from .rank_state import WORKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyter_dtrain.core.causes import Seen
    from jupyter_dtrain.core.events import Outcome

MOST_NAMES: Final = 200
"""Metrics to follow; Run.metrics has all."""

POINTS: Final = 1 << 18
"""Points to keep, over all series."""

_ROOM: Final = (64, 4000)  # points of one series, at least and at most
_MARKS: Final = 24  # reports of a rank, the newest ones, in which it may turn out to be slow


class RunState:
    """The state of run number ``run`` on ``ranks``, in a world of ``size`` ranks, gathered from its events."""

    def __init__(self, run: int, ranks: Sequence[int], size: int, hosts: Mapping[int, str] | None = None) -> None:
        """``hosts``: those of the ranks, as far as they are known before the ranks begin."""
        self._run = run
        self._ranks = sorted(ranks)
        self._size = size
        self._samples: dict[int, Sample] = {}
        self._bars: dict[int, dict[int, Progress]] = {}
        self._hosts: dict[int, str] = {rank: host for rank, host in (hosts or {}).items() if rank in self._ranks}
        self._histories: dict[str, dict[int, History]] = {}
        self._series = 0
        self._thinned = False
        self._unseen: set[str] = set()
        self._steps: dict[int, RankSteps] = {}
        self._marks: dict[int, deque[tuple[int, float]]] = {}
        self.pipelines = Pipelines()
        """The actions of pipelines' stages."""
        self._readings = Readings()
        self.states: dict[int, Outcome | Literal["sent", "running"]] = dict.fromkeys(self._ranks, "sent")
        """The state of each rank, or how it ended."""
        self.pids: dict[int, int] = {}
        """The process that each rank was when it began."""
        self.words: dict[int, str] = {}
        """The end of each rank that was lost, failed or was released, in words."""
        self._errors: dict[int, Error] = {}
        self._clock = RunClock()
        self._divergences = Divergences(self._ranks)
        self._reach = dict.fromkeys(self._ranks, 0)

    @property
    def unfinished(self) -> list[int]:
        """The ranks that have not ended the run."""
        return [rank for rank, state in self.states.items() if state in WORKING]

    @property
    def elapsed(self) -> float:
        """Seconds since the first rank began; in the end, what the slowest rank took. The store has the same number.

        Every reader of a run computes it from the same events, so all show the same, however late they got them.
        """
        return self._clock.seconds(over=not self.unfinished) or 0.0

    @property
    def has_something(self) -> bool:
        """Whether there are metrics, progress or pipelines."""
        return bool(self._histories) or bool(self._bars) or bool(self.pipelines)

    @property
    def step(self) -> int | None:
        """The step of the run, which is that of the rank that is furthest ahead; None where no rank reports one."""
        return max((steps.step for steps in self._steps.values() if steps.step is not None), default=None)

    @property
    def line(self) -> str:
        """How the run goes, in a line: its time, its step and its first loss on the lowest rank that logs it."""
        said = [took(self.elapsed)]
        if self.step is not None:
            said.append(f"step {self.step:,}")
        for name in [name for name in in_order(self._histories) if is_main(name)][:1]:
            rank = min(self._histories[name])
            said.append(f"{name} {number(self._histories[name][rank].newest)}")
        return f"Run {self._run}: {', '.join(said)}"

    def take(self, event: Event) -> list[tuple[str, Columns]] | None:
        """Take the next event of a rank: returns its points by metric, or None if it changes nothing."""
        found = self._take(event)
        if found is not None:
            self._reach[event.rank] = event.seq + 1
        return found

    def _take(self, event: Event) -> list[tuple[str, Columns]] | None:  # noqa: C901 — one case per event
        rank = event.rank
        match event.body:
            case Started() as started:
                self.states[rank] = "running"
                self._hosts[rank] = started.host
                self.pids[rank] = started.pid
                self._clock.begin(event.time)
            case Metrics() as metrics:
                return self._take_metrics(rank, metrics)
            case Sample() as sample:
                self._samples[rank] = sample
            case Progress() as bar:
                self._bars.setdefault(rank, {})[bar.bar] = bar
            case PipelineStep() as step:
                self.pipelines.take(rank, step)
            case Reading() as reading:
                self._readings.take(rank, reading)
            case Checked() as checked:
                self._divergences.take(rank, checked)
            case Error() as error:
                self._errors[rank] = error
                self.words[rank] = told_briefly(error)
            case Finished() as finished:
                self.states[rank] = finished.outcome
                self._clock.rank_ended(finished.elapsed)
                if finished.words:
                    self.words[rank] = finished.words
            case _:
                return None
        return []

    def shown(self, rank: int) -> Seen:
        """The state of ``rank`` as people see it; see :func:`.as_seen`."""
        return as_seen(self.states[rank], self._errors.get(rank))

    def gone(self, rank: int) -> None:
        """Note that ``rank`` will send no more: if it has not reported its end, it is lost."""
        if self.states[rank] in WORKING:
            self.states[rank] = "lost"
            if not self.unfinished:
                self._clock.stop()

    def picture(self, outcome: Any, *, with_metrics: bool = True) -> Picture:
        """The whole state as it is now, with or without copies of the metrics, and pipelines."""
        metrics = {}
        if with_metrics:
            for name, ranks in self._histories.items():
                metrics[name] = {rank: history.columns for rank, history in ranks.items()}
        recent = None
        if outcome == "running":
            ends = {rank: (*marks[0], *marks[-1]) for rank, marks in self._marks.items()}
            moved = {rank: StepTime(last - first, until - since) for rank, (first, since, last, until) in ends.items()}
            recent = {rank: time for rank, time in moved.items() if time.steps > 0 and time.seconds > 0}
        return Picture(
            self._run,
            self._size,
            self._ranks,
            outcome,
            self.elapsed,
            metrics,
            {rank: self.shown(rank) for rank in self.states},
            self._samples,
            {rank: [bars[number] for number in sorted(bars)] for rank, bars in self._bars.items()},
            self._hosts,
            self.words,
            left_out=len(self._unseen),
            thinned=self._thinned,
            timelines=self.pipelines.timelines() if with_metrics else [],
            reach=list(self._reach.values()),
            reading=self._readings.lines(self.pipelines.microbatches),
            divergence=self._divergences.first,
            **stepped(self._steps, recent),
        )

    def _take_metrics(self, rank: int, metrics: Metrics) -> list[tuple[str, Columns]]:
        self._thinned = self._thinned or any(series.left_out for series in metrics.series)
        points = {series.name: unpack(series) for series in metrics.series}
        steps = self._steps.setdefault(rank, RankSteps())
        steps.take(points)
        if steps.newest is not None:
            self._marks.setdefault(rank, deque(maxlen=_MARKS)).append(steps.newest)
        return [(name, columns) for name, columns in points.items() if self._take_points(rank, name, columns)]

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
