"""What a view keeps of a metric: all of a short series, an even selection of a long one.

A :class:`History` holds at most ``room`` points, whatever comes: of each stretch of the series the lowest, the highest
and the first that is no number. Nothing here fails on NaN or the infinities.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.metrics import Columns

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLOCK: Final = 4
"""Kept points that are merged into two or three when there are too many."""


class History:
    """The points of one metric on one rank, evenly thinned to at most ``room``."""

    def __init__(self, room: int) -> None:
        self._room = max(2 * _BLOCK, room)
        self._kept = Columns.empty()
        self._tail = Columns.empty()  # a stretch that is not complete
        self._stretch = 1
        self.count = 0
        """Points that were added."""
        self.last = float("nan")
        """The newest value."""
        self.step = -1
        """The newest step."""

    def add(self, points: Columns) -> None:
        """Append points."""
        if not points.values:
            return
        self.count += len(points.values)
        self.last, self.step = points.values[-1], points.steps[-1]
        if self._stretch == 1:
            _extend(self._kept, points)
        else:
            _extend(self._tail, points)
            whole = len(self._tail.values) // self._stretch * self._stretch
            _extend(self._kept, selected(self._tail, whole, self._stretch))
            for column in self._tail:
                del column[:whole]
        self._fit()

    def limit(self, room: int) -> None:
        """Keep at most ``room`` points from now on."""
        self._room = max(2 * _BLOCK, room)
        self._fit()

    def _fit(self) -> None:
        while len(self._kept.values) > self._room:
            self._kept = selected(self._kept, len(self._kept.values), _BLOCK)
            self._stretch = _BLOCK if self._stretch == 1 else 2 * self._stretch

    @property
    def columns(self) -> Columns:
        """What is kept."""
        if not self._tail.values:
            return self._kept
        found = self._kept.copy()
        _extend(found, self._tail)
        return found


def thinned(columns: Columns, points: int) -> Columns:
    """At most about ``points`` of the points, evenly, with the extremes of each stretch."""
    size = len(columns.values)
    if size <= points:
        return columns
    return selected(columns, size, -(-2 * size // max(2, points)))


def selected(columns: Columns, size: int, stretch: int) -> Columns:
    """Of each ``stretch`` of the first ``size`` points the lowest, the highest and the first that is no number."""
    values = columns.values
    keep: list[int] = []
    for first in range(0, size, stretch):
        block = values[first : min(first + stretch, size)]
        total = sum(block)
        if total - total == 0:
            keep += _in_order(first + block.index(min(block)), first + block.index(max(block)))
            continue
        finite = [value for value in block if value - value == 0]
        strange = next((index for index, value in enumerate(block) if value - value != 0), None)
        found = {first + block.index(pick(finite)) for pick in (min, max)} if finite else set()
        if strange is not None:  # else the sum alone went beyond what a float can hold
            found.add(first + strange)
        keep += sorted(found)
    return Columns(
        array("q", [columns.steps[index] for index in keep]),
        array("d", [columns.times[index] for index in keep]),
        array("d", [values[index] for index in keep]),
    )


def _in_order(one: int, other: int) -> Iterable[int]:
    if one == other:
        return (one,)
    return (one, other) if one < other else (other, one)


def _extend(columns: Columns, more: Columns) -> None:
    columns.steps.extend(more.steps)
    columns.times.extend(more.times)
    columns.values.extend(more.values)
