"""Metrics as columns: the points that a run keeps.

Pure data, without numpy: a column is an :class:`array.array`, which numpy, pandas and matplotlib take as it is.
Nothing here fails on NaN or the infinities.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .events import Series

if TYPE_CHECKING:
    import pandas as pd


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

    def extend(self, series: Series) -> None:
        """Append what a rank has sent. Raises :class:`ValueError` for columns of different lengths."""
        steps, times, values = unpack(series)
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


def newest(series: Series) -> float | None:
    """The last value of a part of an event; None where it has no points."""
    values = _column("d", series.values[-8:])
    return values[0] if values else None


def _column(kind: Literal["q", "d"], data: bytes) -> array[Any]:
    column: array[Any] = array(kind)
    column.frombytes(data)
    return _little(column)


def _little(column: Any) -> array[Any]:
    """``column`` in the byte order of the wire, or back."""
    same: array[Any] = column
    if sys.byteorder == "big":
        same = column[:]
        same.byteswap()
    return same


def is_main(name: str) -> bool:
    """Whether a metric comes before others; learning rates and the like do not."""
    return not (name.endswith("/s") or name.partition("/")[0] in {"lr", "grad_norm"})


class RunMetrics(Mapping[str, Mapping[int, Columns]]):
    """The points that the ranks of a run have logged: ``metrics["loss"][0].values`` are the losses of rank 0."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = list(ranks)
        self._series: dict[str, dict[int, Columns]] = {}

    def add(self, rank: int, series: Series) -> int:
        """Append points; how many there are now in that series."""
        columns = self._series.setdefault(series.name, {}).setdefault(rank, Columns.empty())
        columns.extend(series)
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
        import pandas as pd

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
