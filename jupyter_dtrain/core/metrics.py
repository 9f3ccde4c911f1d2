"""Metrics as columns: the points that a run keeps, and the figures that stand for them.

Pure data, without numpy: a column is an :class:`array.array`, which numpy, pandas and matplotlib take as it is.
Nothing here fails on NaN or the infinities.

Everything that shows a run reads its figures here, so that a cell, its panel, the sidebar, lists and comparisons show
the same: the step, the steps and samples per second (:class:`RankSteps`, :func:`speed`), the last and the lowest value
of a metric (:func:`newest_value`, :func:`current`, :func:`lowest`), and a slow rank (:func:`slowest`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from .events import Series

if TYPE_CHECKING:
    import pandas as pd

STEPS_PER_SECOND: Final = "steps/s"
"""The metric by which a framework tells how fast an optimizer steps."""
SAMPLES_PER_SECOND: Final = "samples/s"
"""The metric by which a framework tells how many samples the rank reads for these steps."""

_NAMES: Final = 32  # metrics of a rank that may determine its steps
_SLOW: Final = 0.1  # the share by which a step must be longer than the others' median to make its rank the slow one
_NOTICED: Final = 1e-4  # seconds: a smaller difference between two steps has no cause that a person could mend
_ENOUGH: Final = 20, 5.0  # steps, and seconds, of each rank without which a difference may be chance


class Columns(NamedTuple):
    """The points of one metric on one rank, in the order in which they were logged: columns of equal length."""

    steps: array[int]
    """int64"""
    times: array[float]
    """Seconds since the epoch."""
    values: array[float]

    @classmethod
    def empty(cls) -> Columns:
        """No points yet."""
        return cls(array("q"), array("d"), array("d"))

    def extend(self, more: Series | Columns) -> None:
        """Append points, or what a rank has sent. Raises :class:`ValueError` for columns of different lengths."""
        steps, times, values = unpack(more) if isinstance(more, Series) else more
        self.steps.extend(steps)
        self.times.extend(times)
        self.values.extend(values)

    def copy(self) -> Columns:
        """The same points, apart from what is added here later."""
        return Columns(self.steps[:], self.times[:], self.values[:])

    def thinned(self, points: int) -> Columns:
        """At most about ``points`` of the points: both ends, and those that :meth:`selected` keeps of each stretch."""
        size = len(self.values)
        if size <= points:
            return self
        keep = _landmarks(self.values, size, -(-2 * size // max(2, points)))
        return self._picked([*([0] if keep[0] else []), *keep, *([size - 1] if keep[-1] < size - 1 else [])])

    def selected(self, size: int, stretch: int) -> Columns:
        """The lowest, the highest and the first non-number of each ``stretch`` among the first ``size`` points."""
        return self._picked(_landmarks(self.values, size, stretch))

    def _picked(self, keep: list[int]) -> Columns:
        return Columns(
            array("q", [self.steps[index] for index in keep]),
            array("d", [self.times[index] for index in keep]),
            array("d", [self.values[index] for index in keep]),
        )


def _landmarks(values: array[float], size: int, stretch: int) -> list[int]:
    keep: list[int] = []
    for first in range(0, size, stretch):
        block = values[first : min(first + stretch, size)]
        total = sum(block)
        if total - total == 0:
            low, high = first + block.index(min(block)), first + block.index(max(block))
            keep += (low,) if low == high else (low, high) if low < high else (high, low)
            continue
        finite = [value for value in block if value - value == 0]
        strange = next((index for index, value in enumerate(block) if value - value != 0), None)
        found = {first + block.index(pick(finite)) for pick in (min, max)} if finite else set()
        if strange is not None:  # else the sum alone went beyond what a float can hold
            found.add(first + strange)
        keep += sorted(found)
    return keep


def pack(name: str, columns: Columns, left_out: int = 0) -> Series:
    """``columns`` as a part of an event."""
    steps, times, values = (_little(column).tobytes() for column in columns)
    return Series(name, steps, times, values, left_out)


def unpack(series: Series) -> Columns:
    """The columns of a part of an event. Raises :class:`ValueError` for columns of different lengths."""
    columns = Columns(_column("q", series.steps), _column("d", series.times), _column("d", series.values))
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"The columns of {series.name!r} have different lengths.")
    return columns


def _column(kind: Literal["q", "d"], data: bytes) -> array[Any]:
    column: array[Any] = array(kind)
    column.frombytes(data)
    return _little(column)


def _little(column: Any) -> array[Any]:
    """``column`` in little-endian byte order on a host of another order, or back."""
    same: array[Any] = column
    if sys.byteorder == "big":
        same = column[:]
        same.byteswap()
    return same


def is_main(name: str) -> bool:
    """Whether a metric comes before others; learning rates and the like do not."""
    return not (name.endswith("/s") or name.partition("/")[0] in {"lr", "grad_norm"})


def is_loss(name: str) -> bool:
    """Whether the metric ``name`` is a loss."""
    return "loss" in name.lower()


def is_finite(value: float) -> bool:
    """Whether ``value`` is neither NaN nor infinite."""
    return value - value == 0


def current(newest: Mapping[int, tuple[int, float]]) -> dict[int, float]:
    """The newest values of the ranks that have come as far as any, from each rank's newest step and value.

    A rank that is behind has no current value. It was lost, say, and its last value is as old as its end.
    """
    furthest = max((step for step, _ in newest.values()), default=0)
    return {rank: value for rank, (step, value) in newest.items() if step == furthest}


def newest_value(newest: Mapping[int, tuple[int, float]]) -> float | None:
    """The last value of a metric: the mean over its :func:`current` ranks. None without ranks."""
    values = current(newest).values()
    return sum(values) / len(values) if values else None


def last_step(steps: Mapping[str, int]) -> int | None:
    """The step after which another run goes on with one whose metrics have come to ``steps``; None without metrics.

    That of its losses, where it has any: a value of another kind may be logged with a step of its own, such as a
    number of samples.
    """
    kinds = ([step for name, step in steps.items() if fits(name)] for fits in (is_loss, is_main, lambda _: True))
    return next((max(found) for found in kinds if found), None)


def newest_points(series: Mapping[int, Columns]) -> dict[int, tuple[int, float]]:
    """The newest step and value of a metric on each rank that has points."""
    return {rank: (columns.steps[-1], columns.values[-1]) for rank, columns in series.items() if columns.values}


def last_values(metrics: Mapping[str, Mapping[int, Columns]]) -> list[float]:
    """The newest value of each main metric on each rank: one that is not finite makes a run ``ok, but NaN``."""
    return [value for name in metrics if is_main(name) for _, value in newest_points(metrics[name]).values()]


def lowest(values: Iterable[float | None]) -> float | None:
    """The lowest finite value; None without one. A list calls that of a loss, on whichever rank, the best."""
    return min((value for value in values if value is not None and is_finite(value)), default=None)


class StepTime(NamedTuple):
    """How many steps a rank has made in how much time."""

    steps: int
    seconds: float
    samples: float = 0.0
    """The samples that it read for them; 0 where that is not known."""

    @property
    def mean(self) -> float:
        """Seconds per step."""
        return self.seconds / self.steps


class Speed(NamedTuple):
    """How fast a run is, from its first step to its newest: means over that time."""

    steps: float | None = None
    """Steps per second, of the rank that is furthest ahead; None where no rank has made two."""
    samples: float | None = None
    """Samples per second, of all ranks together; None where that is not known."""


class RankSteps:
    """The steps of one rank, and the time that they took, from its metrics in the order in which they come.

    Where a framework counts an optimizer's steps, ``steps/s`` has their number and their seconds. Else the metric that
    is furthest ahead determines them, with the times of its first and its newest point.
    """

    def __init__(self, first: int = 0) -> None:
        """``first``: the step from which the rank counts, above 0 in a run that goes on with another one."""
        self._ends: dict[str, tuple[int, float, int, float]] = {}
        """First step and time, and newest step and time, by metric."""
        self._first = self._counted = first
        """The newest step that a framework has counted is ``_counted``."""
        self._steps, self._seconds, self._samples = 0, 0.0, 0.0

    @classmethod
    def of(cls, metrics: Mapping[str, Mapping[int, Columns]], first: int = 0) -> dict[int, RankSteps]:
        """The steps of each rank of a run that counts from ``first``, by rank, from all points of the run."""
        points: dict[int, dict[str, Columns]] = {}
        for name, series in metrics.items():
            for rank, columns in series.items():
                points.setdefault(rank, {})[name] = columns
        found = {rank: cls(first) for rank in sorted(points)}
        for rank, steps in found.items():
            steps.take(points[rank])
        return found

    def take(self, points: Mapping[str, Columns]) -> None:
        """Take new points, by metric. Those of ``samples/s`` come together with those of ``steps/s``."""
        for name, (steps, times, _) in points.items():
            if steps and (name in self._ends or len(self._ends) < _NAMES):
                first = self._ends[name][:2] if name in self._ends else (steps[0], times[0])
                self._ends[name] = (*first, steps[-1], times[-1])
        took: dict[int, float] = {}
        # A point of steps/s is the rate since the one before, the first that since the first step.
        rates = points.get(STEPS_PER_SECOND, Columns.empty())
        for step, rate in zip(rates.steps, rates.values, strict=True):
            made, self._counted = step - self._counted, step
            if made > 0 and rate > 0 and is_finite(rate):
                took[step] = made / rate
                self._steps += made
                self._seconds += took[step]
        samples = points.get(SAMPLES_PER_SECOND, Columns.empty())
        self._samples += sum(
            rate * took.get(step, 0.0) for step, rate in zip(samples.steps, samples.values, strict=True)
        )

    @property
    def newest(self) -> tuple[int, float] | None:
        """The newest step and its time, of the metric that is furthest ahead; None before the first."""
        end = max((end[2:] for end in self._ends.values()), default=None)
        return None if end is None or end[0] < 0 else end

    @property
    def step(self) -> int | None:
        """The newest step of the rank; None before the first."""
        return None if self.newest is None else self.newest[0]

    @property
    def made(self) -> int | None:
        """How many steps a framework has counted in this run; else those of the metric that is furthest ahead.

        It only grows.
        """
        return self._steps or (None if self.step is None else max(0, self.step - self._first))

    @property
    def time(self) -> StepTime | None:
        """The steps so far, without the first, whose beginning no point shows; None until there are any."""
        if self._steps:
            return StepTime(self._steps, self._seconds, self._samples)
        ends = [(last, until - since, last - first) for first, since, last, until in self._ends.values()]
        _, seconds, steps = max((end for end in ends if end[1] > 0 and end[2] > 0), default=(0, 0.0, 0))
        return StepTime(steps, seconds) if steps else None


def speed(ranks: Mapping[int, RankSteps]) -> Speed:
    """The speed of a run whose ranks have made the steps ``ranks``."""
    times = {rank: took for rank, steps in sorted(ranks.items()) if (took := steps.time) is not None}
    if not times:
        return Speed()
    ahead = max(times, key=lambda rank: ranks[rank].step or 0)
    samples = sum(took.samples for took in times.values())
    longest = max(took.seconds for took in times.values())
    return Speed(1 / times[ahead].mean, samples / longest if samples else None)


class Slow(NamedTuple):
    """The rank whose steps take longer than the others'."""

    rank: int
    more: float
    """How much longer, as a share of the median of the other ranks: 0.1 is 10 %."""


def slowest(times: Mapping[int, StepTime]) -> Slow | None:
    """The rank whose steps take over 10 % longer than the others' median; None if there is none.

    Ranks that have made few steps, or for a short time, are not compared: what one step takes is chance.
    """
    known = {rank: took.mean for rank, took in times.items() if took.steps >= _ENOUGH[0]}
    known = {rank: seconds for rank, seconds in known.items() if times[rank].seconds >= _ENOUGH[1]}
    if len(known) < 2:  # noqa: PLR2004 — slower than another
        return None
    worst = max(known, key=known.__getitem__)
    usual = median(seconds for rank, seconds in known.items() if rank != worst)
    enough = known[worst] > max((1 + _SLOW) * usual, usual + _NOTICED)
    return Slow(worst, known[worst] / usual - 1) if enough else None


def import_pandas() -> Any:
    """The module :mod:`pandas`, which only data frames need. Raises :class:`ImportError` where it is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("A data frame needs pandas, which is not installed here: pip install pandas") from None
    return pd


class RunMetrics(Mapping[str, Mapping[int, Columns]]):
    """The points that the ranks of a run have logged: ``metrics["loss"][0].values`` are the losses of rank 0."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = list(ranks)
        self._series: dict[str, dict[int, Columns]] = {}

    def add(self, rank: int, series: Series) -> int:
        """Append what a rank has sent; how many points there are now in that series."""
        return self.append(rank, series.name, series)

    def append(self, rank: int, name: str, points: Series | Columns) -> int:
        """Append points to a series; how many there are now in it."""
        columns = self._series.setdefault(name, {}).setdefault(rank, Columns.empty())
        columns.extend(points)
        return len(columns.values)

    def replace(self, rank: int, name: str, columns: Columns) -> None:
        """Set all points of a series."""
        self._series.setdefault(name, {})[rank] = columns

    def __getitem__(self, name: str) -> Mapping[int, Columns]:
        return self._series[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._series))

    def __len__(self) -> int:
        return len(self._series)

    def __repr__(self) -> str:
        points = {name: sum(len(columns.values) for columns in ranks.values()) for name, ranks in self._series.items()}
        return f"<metrics {', '.join(f'{name}: {count} points' for name, count in points.items()) or 'none'}>"

    def to_pandas(self) -> pd.DataFrame:
        """A :class:`pandas.DataFrame` with the columns name, rank, step, time (UTC) and value.

        Raises :class:`ImportError` where pandas is not installed.
        """
        pd = import_pandas()
        parts = [
            pd.DataFrame({"name": name, "rank": rank, "step": part.steps, "time": part.times, "value": part.values})
            for name, ranks in self._series.items()
            for rank, part in sorted(ranks.items())
        ]
        if not parts:
            return pd.DataFrame({"name": [], "rank": [], "step": [], "time": [], "value": []})
        frame = pd.concat(parts, ignore_index=True)
        frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
        return frame
