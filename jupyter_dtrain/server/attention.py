"""The list of things that need the person's attention, found in the reports of worlds, newest first.

An item tells what the person has not done and must know; what a person asked for is none, whichever client it came
from, and neither is a run that ended well. An item stays until the person dismisses it or has dealt with it
(:meth:`Attention.settle`). Equal findings are one item with a count.

:class:`Attention` keeps the list. :class:`Judge` looks at one run and finds values that are not numbers, ranks whose
loss has left the others', and a slow rank. ``labextension/src/anomalies.ts`` finds the ranks that have left the others
once more, for the chart of a saved notebook, where there is no server: ``tests/server/apart.json`` has cases that both
must judge alike.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jupyter_dtrain.core.metrics import is_finite, is_loss, is_main
from jupyter_dtrain.view.labels import longer

if TYPE_CHECKING:
    from jupyter_dtrain.core.metrics import Columns
    from jupyter_dtrain.view.document import Picture

Kind = Literal["dead", "hung", "nan", "apart", "slow", "failed", "ended", "start", "asks"]
"""``ended`` is a world that ended by itself, ``start`` one that did not start; ``asks``: ranks are at a prompt."""
Level = Literal["error", "warning", "info"]
"""``info``: nothing is wrong."""

MOST: Final = 100
"""Items that are kept."""
TOLD: Final = 50_000
"""Findings to remember, so that none is shown twice: each rank of a large world may have several."""
LONG: Final = 10.0
"""A run of at least so many seconds reports its failure, because the person may be away."""

_NUMBERS = re.compile(r"\d+(?:[.:,]\d+)*")
_WINDOW: Final = 20  # the last points of a series, which give its present value
_FAR: Final = 6.0  # how many times the usual distance a rank must be away
_SLOW: Final = 0.25  # how much longer than the others a rank takes for a step
_TIMES: Final = 3  # consecutive looks that must agree


class Item(msgspec.Struct, frozen=True):
    """One thing to report, or several that are equal but for their numbers."""

    id: str
    """Identifies the item, however often a look repeats its finding."""
    kind: Kind
    level: Level
    world: str
    """The world's id."""
    name: str
    """The world's name."""
    run: int | None
    cell: str
    """The id of the run's cell in the notebook; empty if there is none or it is unknown."""
    ranks: list[int]
    words: str
    detail: str
    """More lines; empty if there are none."""
    time: float
    """Seconds since the epoch."""
    count: int = 1
    """The number of equal findings; everything else is the newest's, and ``ranks`` are those of all."""


class Attention:
    """The list of the findings that the person has not dismissed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """The list calls ``changed`` after every change."""
        self._items: dict[str, Item] = {}
        """The items, by what makes two findings equal."""
        self._told: dict[str, None] = {}
        self._changed = changed

    @property
    def items(self) -> list[Item]:
        """All items, newest first."""
        return sorted(self._items.values(), key=lambda item: -item.time)

    def add(
        self,
        kind: Kind,
        level: Level,
        world: tuple[str, str],
        words: str,
        *,
        run: int | None = None,
        cell: str = "",
        ranks: list[int] | None = None,
        detail: str = "",
        mark: str = "",
    ) -> None:
        """Add a finding, unless it is known. ``world``: id and name; ``mark``: distinct for its kind and run."""
        key = f"{world[0]}:{run}:{kind}:{mark}"
        if key in self._told:
            return
        self._told[key] = None
        while len(self._told) > TOLD:
            self._told.pop(next(iter(self._told)))
        same = f"{world[1]}:{kind}:{_NUMBERS.sub('#', words)}"
        found = Item(key, kind, level, *world, run, cell, ranks or [], words, detail, time.time())
        if (known := self._items.pop(same, None)) is not None:
            all_ranks = sorted({*known.ranks, *found.ranks})
            found = msgspec.structs.replace(found, id=known.id, ranks=all_ranks, count=known.count + 1)
        self._items[same] = found
        while len(self._items) > MOST:
            self._items.pop(next(iter(self._items)))
        self._changed()

    def dismiss(self, key: str | None) -> None:
        """Remove the item with this id, or all of them; its findings do not come back."""
        self._keep(lambda item: key is not None and item.id != key)
        self._changed()

    def settle(
        self,
        world: str,
        kinds: Collection[Kind],
        *,
        cell: str | None = None,
        before: int = 0,
        run: int | None = None,
    ) -> None:
        """Remove the items of these kinds that a person has dealt with, or that are over, in the world ``world``.

        ``cell``: only those of its runs ``before`` this number. ``run``: only those of this run.
        """

        def stays(item: Item) -> bool:
            other_run = cell is not None and (item.cell != cell or (item.run or 0) >= before)
            other_run = other_run or (run is not None and item.run != run)
            return item.world != world or item.kind not in kinds or other_run

        if self._keep(stays):
            self._changed()

    def _keep(self, stays: Callable[[Item], bool]) -> bool:
        """Remove all other items; whether there were any."""
        before = len(self._items)
        self._items = {same: item for same, item in self._items.items() if stays(item)}
        return len(self._items) < before


class RunFinding(msgspec.Struct, frozen=True):
    """A finding of one look at a run."""

    kind: Kind
    level: Level
    words: str
    ranks: list[int]
    mark: str
    detail: str = ""


class Judge:
    """Looks at one run again and again; some findings must hold for several looks. Its memory is bounded."""

    def __init__(self) -> None:
        self._streaks: dict[str, int] = {}
        self._recent: dict[str, dict[int, deque[tuple[int, float]]]] = {}
        """The newest finite points, with their steps, by metric and rank."""
        self._strange: dict[str, dict[int, tuple[int, float]]] = {}
        """The first value that is not a number, with its step, by metric and rank."""

    def take(self, name: str, rank: int, points: Columns) -> None:
        """Take new points of a metric."""
        bad = next((place for place, value in enumerate(points.values) if not is_finite(value)), None)
        if bad is not None:
            self._strange.setdefault(name, {}).setdefault(rank, (points.steps[bad], points.values[bad]))
        if is_main(name) and is_loss(name):
            recent = self._recent.setdefault(name, {}).setdefault(rank, deque(maxlen=_WINDOW))
            newest = zip(points.steps[-_WINDOW:], points.values[-_WINDOW:], strict=True)
            recent.extend((step, value) for step, value in newest if is_finite(value))

    def look(self, picture: Picture) -> list[RunFinding]:
        """The present findings, which may repeat those of earlier looks. ``picture`` needs no metrics."""
        found = list(self._find_strange())
        lasting = {f"{one.kind}:{one.mark}": one for one in (*self._find_apart(), *_slow(picture))}
        self._streaks = {key: self._streaks.get(key, 0) + 1 for key in lasting}
        return found + [one for key, one in lasting.items() if self._streaks[key] >= _TIMES]

    def _find_strange(self) -> Iterator[RunFinding]:
        for name, bad in self._strange.items():
            first = min(bad, key=lambda rank: bad[rank][0])
            step, value = bad[first]
            others = f", and on {len(bad) - 1} more" if len(bad) > 1 else ""
            kind = "NaN" if math.isnan(value) else "infinite"
            yield RunFinding(
                "nan", "error", f"{name} is {kind} on rank {first}, step {step}{others}", sorted(bad), name
            )

    def _find_apart(self) -> Iterator[RunFinding]:
        for name, recent in self._recent.items():
            for rank, where in outliers(_without_those_behind(recent)).items():
                words = f"{name} of rank {rank} is {where} the others'"
                yield RunFinding("apart", "warning", words, [rank], f"{name}:{rank}")


def _without_those_behind(recent: Mapping[int, Sequence[tuple[int, float]]]) -> dict[int, list[float]]:
    """The newest values of each rank. One that is far behind, such as one that has died, has none to compare."""
    logged = {rank: points for rank, points in recent.items() if points}
    since = max(logged.values(), key=lambda points: points[-1][0])[0][0] if logged else 0
    return {rank: [value for _, value in points] for rank, points in logged.items() if points[-1][0] >= since}


def outliers(recent: Mapping[int, Sequence[float]]) -> dict[int, str]:
    """The ranks whose newest values have left the others', and where; none with fewer than three ranks."""
    nows = {}
    for rank, values in recent.items():
        mean = sum(values) / len(values)
        nows[rank] = mean, (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    if len(nows) < 3:  # noqa: PLR2004 — two ranks cannot show which one is wrong
        return {}
    middle = median(mean for mean, _ in nows.values())
    spread = 1.4826 * median(abs(mean - middle) for mean, _ in nows.values())
    limit = max(_FAR * spread, 3 * median(noise for _, noise in nows.values()), 0.02 * abs(middle), 1e-12)
    away = {rank: mean - middle for rank, (mean, _) in nows.items()}
    far = {rank: "above" if by > 0 else "below" for rank, by in away.items() if abs(by) > limit}
    return far if 2 * len(far) < len(nows) else {}


def _slow(picture: Picture) -> list[RunFinding]:
    spent = picture.step_time
    if picture.outcome == "running" and spent is not None and spent.slow:
        # It says why, so it takes the place of the sentence below, which says only that.
        one = spent.slow[0]
        return [RunFinding("slow", "warning", one.words, one.ranks, f"{one.kind}:{one.ranks[:1]}", one.advice)]
    slow = picture.slow
    if picture.outcome != "running" or slow is None or slow.more <= _SLOW:
        return []
    words = f"Steps of rank {slow.rank} take {longer(slow.more)}"
    return [RunFinding("slow", "warning", words, [slow.rank], str(slow.rank))]
