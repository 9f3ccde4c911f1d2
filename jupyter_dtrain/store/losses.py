"""The last, lowest and highest value of each metric of a run, beside its points: a long list of runs reads no points.

The writer keeps them of each metric, and the highest value, too, with each block that it writes. A list shows those of
losses unless a person chooses others; the last value of any main metric tells whether a run ended well. Files of the
versions before that get them from their points, by the functions that :func:`register` adds to SQLite.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from jupyter_dtrain.core.events import Series
from jupyter_dtrain.core.metrics import Columns, is_finite, is_loss, is_main, lowest, newest_value, unpack

MOST: Final = 4
"""Losses of one run that a list shows."""

NEWEST: Final = (
    "SELECT run, name, rank, step, last, best FROM series WHERE step IS NOT NULL AND run IN ({runs}) ORDER BY id"
)
"""The newest step and value and the lowest value of each metric on each rank, of some runs."""

_WRITE: Final = """UPDATE series SET last = :last, step = :step,
    best_step = CASE WHEN :low IS NULL OR best <= :low THEN best_step ELSE :low_step END,
    best = CASE WHEN :low IS NULL OR best <= :low THEN best ELSE :low END,
    highest_step = CASE WHEN :high IS NULL OR highest >= :high THEN highest_step ELSE :high_step END,
    highest = CASE WHEN :high IS NULL OR highest >= :high THEN highest ELSE :high END WHERE id = :series"""


class Loss(msgspec.Struct, frozen=True):
    """A loss of a stored run."""

    name: str
    last: float | None
    """The newest value, the mean over the ranks that have come as far as any; None where one is not finite."""
    best: float | None
    """The lowest finite value, on whichever rank."""
    step: int
    """The step of the newest value."""


class Newest(NamedTuple):
    """The newest values of a run's main metrics."""

    losses: list[Loss]
    """The losses to show, at most :data:`MOST`."""
    values: list[float]
    """The newest values of all main metrics on all ranks; NaN for one that is not finite."""


NONE: Final = Newest([], [])
"""The newest values of a run that has logged no metric."""


def write(db: sqlite3.Connection, series: int, parts: Iterable[Series]) -> None:
    """Note the newest points of the metric in row ``series``. Raises :class:`sqlite3.Error`."""
    columns = Columns.empty()
    for part in parts:
        columns.extend(part)
    low, high = extreme(columns, min), extreme(columns, max)
    # SQLite has no NaN: it stores NULL.
    values: dict[str, float | None] = {"last": columns.values[-1], "step": columns.steps[-1], "series": series}
    values |= {"low": low[0], "low_step": low[1], "high": high[0], "high_step": high[1]}
    db.execute(_WRITE, values)


def extreme(columns: Columns, pick: Callable[[Iterable[float]], float]) -> tuple[float | None, int | None]:
    """The lowest or the highest finite value, as ``pick`` says, and its first step; None twice without one."""
    values: Sequence[float] = columns.values
    if not is_finite(sum(values)):  # rarely, and a migration reads all points of all runs
        values = [value for value in values if is_finite(value)]
    if not values:
        return None, None
    found = pick(values)
    return found, columns.steps[columns.values.index(found)]


def newest(rows: Iterable[tuple[int, str, int, int, float | None, float | None]]) -> dict[int, Newest]:
    """The newest values of each run, from the rows of :data:`NEWEST`."""
    runs: dict[int, dict[str, list[tuple[int, int, float | None, float | None]]]] = {}
    for run, name, rank, step, last, best in rows:
        if not is_main(name):
            continue
        runs.setdefault(run, {}).setdefault(name, []).append((rank, step, last, best))
    found = {}
    for run, metrics in runs.items():
        points = {
            name: {rank: (step, math.nan if last is None else last) for rank, step, last, _ in rows}
            for name, rows in metrics.items()
        }
        losses = [
            Loss(
                name,
                finite(newest_value(points[name])),
                lowest(best for *_, best in rows),
                max(step for step, _ in points[name].values()),
            )
            for name, rows in metrics.items()
            if is_loss(name)
        ]
        found[run] = Newest(_main(losses), [value for ranks in points.values() for _, value in ranks.values()])
    return found


def finite(value: float | None) -> float | None:
    """``value``; None for what is no number, and for the infinities."""
    return value if value is not None and is_finite(value) else None


def register(db: sqlite3.Connection) -> None:
    """Add the functions by which migrations read blocks: three of one block, and one of all blocks of a series."""
    for name, read in (
        ("last_value", lambda columns: columns.values[-1]),
        ("lowest_value", lambda columns: lowest(columns.values)),
        ("last_step", lambda columns: columns.steps[-1]),
    ):
        db.create_function(name, 1, lambda data, read=read: read(unpack(Series("", data, data, data))))
    # The stub wants a class whose blocks have any number of columns.
    db.create_aggregate("figures", 3, _Figures)  # type: ignore[arg-type]


class _Figures:
    """Last, lowest and highest value of a series with their steps, as JSON, from its blocks in any order."""

    def __init__(self) -> None:
        self._blocks: dict[int, Columns] = {}

    def step(self, number: int, steps: bytes, amounts: bytes) -> None:
        """Take a block; SQLite calls it."""
        self._blocks[number] = unpack(Series("", steps, amounts, amounts))

    def finalize(self) -> str | None:
        """All of them, in the order of the columns that the migration sets."""
        points = Columns.empty()
        for _, block in sorted(self._blocks.items()):
            points.extend(block)
        if not points.values:
            return None
        last = finite(points.values[-1]), points.steps[-1]
        return msgspec.json.encode([*last, *extreme(points, min), *extreme(points, max)]).decode()


def _main(losses: list[Loss]) -> list[Loss]:
    """Without what was observed beside a loss of the same name that the cell logged itself; ``loss`` itself first.

    The others come as they were stored, and on a busy machine a validation's may be stored before the training's.
    """
    names = {loss.name for loss in losses}
    found = [
        loss
        for loss in losses
        if loss.name.removesuffix(" (backward)") == loss.name or loss.name.removesuffix(" (backward)") not in names
    ]
    return sorted(found, key=lambda loss: loss.name != "loss")[:MOST]
