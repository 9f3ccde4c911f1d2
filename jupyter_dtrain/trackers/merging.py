"""The points that several ranks log of one metric as one series: at each step a mean, a lowest and a highest value.

Ranks log at their own pace, and a step may come twice, where a loop begins again. So a point's place in its rank's
series is ``(turn, step, nth)``: the turn grows when the step falls, ``nth`` counts points at one step. Points of one
place belong together, and leave in this order, so that the place of the last one says how far a tracker is.

A step waits for the ranks that have not come to it: for those that log the metric up to :data:`PATIENCE` seconds, for
those that never have only until they are heard of after it. What comes later than that is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from jupyter_dtrain.core.events import Series
from jupyter_dtrain.core.metrics import Columns

from .state import Key

PATIENCE: Final = 120.0
"""Seconds that a step waits for a rank that has logged the metric before."""
GRACE: Final = 15.0
"""Seconds that it waits for one that has not, and that has said nothing since."""
LATER: Final = 1.0
"""Seconds after the point at which such a rank must have said something, for the clocks of two hosts."""


class Point(NamedTuple):
    """What the ranks have logged of a metric at one step."""

    name: str
    place: Key
    time: float
    """Seconds since the epoch, on the lowest rank that has it."""
    values: dict[int, float]
    """By rank."""

    @property
    def step(self) -> int:
        """The step as it was logged."""
        return self.place[1]

    def told(self, *, ranks: bool) -> dict[str, float]:
        """The values by name: the mean as ``NAME``; of several ranks also ``NAME/min`` and ``NAME/max``.

        ``ranks``: also each rank's own, as ``NAME/rank-3``.
        """
        values = self.values.values()
        found = {self.name: sum(values) / len(values)}
        if len(values) > 1:
            found |= {f"{self.name}/min": min(values), f"{self.name}/max": max(values)}
        if ranks:
            found |= {f"{self.name}/rank-{rank}": value for rank, value in sorted(self.values.items())}
        return found


class _Logged(NamedTuple):
    place: Key
    time: float
    value: float
    arrived: float


class Merger:
    """Merges the points of one metric."""

    def __init__(self, name: str, sent: Key | None) -> None:
        """``sent``: the place up to which points have left already."""
        self._name = name
        self._sent = sent
        self._last: dict[int, Key] = {}
        """The place of each rank's newest point."""
        self._waiting: dict[int, deque[_Logged]] = {}

    def add(self, rank: int, series: Series, arrived: float) -> None:
        """Add points of ``rank``, in the order in which it has logged them. ``arrived``: a monotonic time."""
        columns = Columns.empty()
        columns.extend(series)
        waiting = self._waiting.setdefault(rank, deque())
        place = self._last.get(rank)
        for step, when, value in zip(columns.steps, columns.times, columns.values, strict=True):
            if place is None:
                place = (0, step, 0)
            elif step == place[1]:
                place = (*place[:2], place[2] + 1)
            else:
                place = (place[0] + (step < place[1]), step, 0)
            if self._sent is None or place > self._sent:
                waiting.append(_Logged(place, when, value, arrived))
        if place is not None:
            self._last[rank] = place

    def take(self, ranks: Collection[int], heard: Mapping[int, float], now: float, most: int) -> list[Point]:
        """The points that are complete, in their order, at most ``most``.

        ``ranks``: those that may still log; ``heard``: when each rank that has begun said its last; ``now``: a
        monotonic time.
        """
        found: list[Point] = []
        while len(found) < most and (ready := self._next(ranks, heard, now)) is not None:
            found.append(ready)
            self._sent = ready.place
        return found

    @property
    def waits(self) -> bool:
        """Whether points have come that have not left."""
        return any(self._waiting.values())

    def _next(self, ranks: Collection[int], heard: Mapping[int, float], now: float) -> Point | None:
        heads = {rank: one[0] for rank, one in self._waiting.items() if one}
        if not heads:
            return None
        place = min(head.place for head in heads.values())
        here = sorted(rank for rank, head in heads.items() if head.place == place)
        first = heads[here[0]]
        arrived = min(heads[rank].arrived for rank in here)
        if any(self._is_awaited(rank, first.time, now - arrived, heard) for rank in self._silent(ranks, heads)):
            return None
        return Point(self._name, place, first.time, {rank: self._waiting[rank].popleft().value for rank in here})

    @staticmethod
    def _silent(ranks: Iterable[int], heads: Mapping[int, _Logged]) -> Iterable[int]:
        return (rank for rank in ranks if rank not in heads)

    def _is_awaited(self, rank: int, when: float, waited: float, heard: Mapping[int, float]) -> bool:
        if rank in self._last:
            return waited < PATIENCE
        return heard.get(rank, 0.0) < when + LATER and waited < GRACE
