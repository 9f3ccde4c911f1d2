"""The stored points of a metric: all of a short series, an even selection of a long one.

A :class:`History` holds at most ``room`` points: from each stretch of the series the lowest, the highest and the first
that is no number. Nothing here fails on NaN or the infinities.
"""

from __future__ import annotations

from typing import Final

from jupyter_dtrain.core.metrics import Columns

_BLOCK: Final = 4
"""Number of stored points to merge into two or three when there are too many."""

_LONG: Final = 64  # points of an incomplete stretch that may wait for merging


class History:
    """The points of one metric on one rank, evenly thinned to at most ``room``."""

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
            _extend(self._kept, points)
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
        _extend(found, _essence(self._tail))
        if self.count and (not found.steps or found.steps[-1] != self._newest.steps[0]):
            _extend(found, self._newest)
        return found

    def _add_stretches(self, points: Columns) -> None:
        size, at = len(points.values), 0
        while at < size:
            if not self._tailed and (whole := (size - at) // self._stretch * self._stretch):
                _extend(self._kept, _part(points, at, at + whole).selected(whole, self._stretch))
                at += whole
                continue
            end = min(size, at + self._stretch - self._tailed)
            _extend(self._tail, _essence(_part(points, at, end)))
            self._tailed += end - at
            at = end
            if self._tailed == self._stretch:
                _extend(self._kept, _essence(self._tail))
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


def _extend(columns: Columns, more: Columns) -> None:
    columns.steps.extend(more.steps)
    columns.times.extend(more.times)
    columns.values.extend(more.values)
