"""The last and the best value of each loss of a run, beside its points, so that a long list of runs needs no points.

A loss is a metric whose name has "loss" in it. The writer keeps its figures with each block that it writes. Files of
the version before that get them from their points, by the functions that :func:`register` adds to SQLite.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable
from typing import Final

import msgspec

from jupyter_dtrain.core.events import Series
from jupyter_dtrain.core.metrics import Columns, unpack

MOST: Final = 4
"""Losses of one run that a list shows."""

SHOWN: Final = """SELECT run, name, CASE WHEN count(last) = count(*) THEN avg(last) END, avg(best), max(step)
    FROM series WHERE step IS NOT NULL AND run IN ({runs})
    GROUP BY run, name ORDER BY min(id)"""
"""Each loss of some runs: the mean over the ranks that have logged it, as the charts show it."""

_WRITE: Final = """UPDATE series SET last = :last, step = :step,
    best = CASE WHEN :low IS NULL OR best <= :low THEN best ELSE :low END WHERE id = :series"""


class Loss(msgspec.Struct, frozen=True):
    """A loss of a stored run, as the mean over the ranks that have logged it."""

    name: str
    last: float | None
    """The newest value; None where it is not finite on one of them."""
    best: float | None
    """The lowest finite value of each."""
    step: int
    """The step of the newest value."""


def is_loss(name: str) -> bool:
    """Whether the metric ``name`` is a loss."""
    return "loss" in name.lower()


def write(db: sqlite3.Connection, series: int, parts: Iterable[Series]) -> None:
    """Note the newest points of the loss in row ``series``. Raises :class:`sqlite3.Error`."""
    columns = Columns.empty()
    for part in parts:
        columns.extend(part)
    last, low = finite(columns.values[-1]), _lowest(columns.values)
    db.execute(_WRITE, {"last": last, "step": columns.steps[-1], "low": low, "series": series})


def shown(rows: Iterable[tuple[int, str, float | None, float | None, int]]) -> dict[int, list[Loss]]:
    """The losses to show of each run, from the rows of :data:`SHOWN`."""
    found: dict[int, list[Loss]] = {}
    for run, name, last, best, step in rows:
        found.setdefault(run, []).append(Loss(name, finite(last), finite(best), step))
    return {run: _main(losses) for run, losses in found.items()}


def finite(value: float | None) -> float | None:
    """``value``; None for what is no number, and for the infinities."""
    return value if value is not None and value - value == 0 else None


def register(db: sqlite3.Connection) -> None:
    """Add the functions by which a migration reads blocks: ``last_value``, ``lowest_value`` and ``last_step``."""
    for name, read in (
        ("last_value", lambda columns: columns.values[-1]),
        ("lowest_value", lambda columns: _lowest(columns.values)),
        ("last_step", lambda columns: columns.steps[-1]),
    ):
        db.create_function(name, 1, lambda data, read=read: read(unpack(Series("", data, data, data))))


def _lowest(values: array[float]) -> float | None:
    total = sum(values)
    if total - total == 0:
        return min(values, default=None)
    return min((value for value in values if value - value == 0), default=None)


def _main(losses: list[Loss]) -> list[Loss]:
    """Without what was observed beside a loss of the same name that the cell logged itself."""
    names = {loss.name for loss in losses}
    return [
        loss
        for loss in losses
        if loss.name.removesuffix(" (backward)") == loss.name or loss.name.removesuffix(" (backward)") not in names
    ][:MOST]
