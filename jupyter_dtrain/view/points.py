"""Points on their way to a front end: gathered between two messages, thinned to a message's size, packed in columns.

``labextension/src/receiver.ts`` reads the result of :meth:`PointQueue.take`.
"""

from __future__ import annotations

from array import array
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from jupyter_dtrain.core.metrics import Columns

from .document import Status, even_steps, little
from .timelines import PipelinePart


class SeriesRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The points of one metric of one rank; evenly spaced steps are their first and their distance."""

    name: int
    """Its place in the names."""
    rank: int
    count: int
    first: int | UnsetType = UNSET
    distance: int | UnsetType = UNSET


class News(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The changes in a run since the last message."""

    seq: int
    """Counts the messages with points."""
    status: Status
    pipelines: list[PipelinePart] = []
    """All pipelines; present if one of them has a newer step."""
    names: list[str] = []
    series: Annotated[list[list[Any]], msgspec.Meta(extra={"rows": SeriesRow})] = []

    @property
    def size(self) -> int:
        """Bytes, about, without points."""
        size = 90 * len(self.status.ranks) + sum(len(lane.actions) for one in self.pipelines for lane in one.lanes)
        size += sum(len(one.said) + len(one.text) for one in self.status.prompts)
        shares = self.status.step_time
        return size if shares is UNSET else size + sum(len(one.seconds) + len(one.shares) for one in shares.courses)


class Packet(NamedTuple):
    """The points of one message."""

    names: list[str]
    """Names of the metrics."""
    series: list[list[Any]]
    """For each metric of each rank: its index in ``names``, the rank, the number of points; and, for even steps,
    the first and their distance."""
    values: bytes
    """float32, little-endian, of all series one after the other."""
    steps: bytes
    """float64, of the series whose steps are not even."""

    @property
    def size(self) -> int:
        """Size in bytes, about."""
        return len(self.values) + len(self.steps) + 20 * len(self.series)


class PointQueue:
    """A bounded queue: it thins a series that no message takes."""

    def __init__(self, most: int) -> None:
        """``most``: points of one message, over all series; each series has at least two."""
        self._most = most
        self._waiting: dict[tuple[str, int], Columns] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, name: str, rank: int, points: Columns) -> None:
        """Add points of one metric of one rank; they follow the points that were added before."""
        waiting = self._waiting.setdefault((name, rank), Columns.empty())
        waiting.extend(points)
        if len(waiting.values) > self._most:
            self._waiting[name, rank] = waiting.thinned(self._most // 2)

    def clear(self) -> None:
        """Drop all points, because the front end got them in another way."""
        self._waiting.clear()

    def take(self) -> Packet | None:
        """All waiting points, thinned; None without any."""
        if not self._waiting:
            return None
        share = min(1.0, self._most / sum(len(columns.values) for columns in self._waiting.values()))
        values, steps = array("f"), array("d")
        names: dict[str, int] = {}
        series: list[list[Any]] = []
        for (name, rank), columns in self._waiting.items():
            few = columns.thinned(max(2, int(len(columns.values) * share)))
            even = even_steps(few.steps)
            index = names.setdefault(name, len(names))
            series.append([index, rank, len(few.values), *(even or ())])
            values.extend(array("f", few.values))
            if even is None:
                steps.extend(array("d", few.steps))
        self._waiting.clear()
        return Packet(list(names), series, little("f", values), little("d", steps))
