"""Runs that go on with the training of others: the chain that they form, and its metrics as one.

Under failure: :class:`StoreFailed`. A run of the chain that was deleted is left out of it, and those before it are not.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from jupyter_dtrain.core.metrics import Columns, RunMetrics

from .file import StoreFile

LONGEST: Final = 200
"""Runs of a chain that are followed."""

# UNION, not UNION ALL: a damaged file may have a circle.
_CHAIN: Final = f"""WITH RECURSIVE chain(id, resumes) AS (
        SELECT id, resumes FROM runs WHERE id = ?
        UNION SELECT runs.id, runs.resumes FROM runs JOIN chain ON runs.id = chain.resumes LIMIT {LONGEST}
    ) SELECT id FROM chain"""  # noqa: S608 — our own number
_CONTINUED: Final = "SELECT id FROM runs WHERE resumes = ? AND NOT deleted ORDER BY id LIMIT ?"


class Segment(NamedTuple):
    """The share of one run in the metrics of a chain."""

    run: int
    first_step: int
    """The step from which on the points are its own."""
    since: float
    """Seconds of training before it."""


class Resumed(Protocol):
    """A run of a chain; see :class:`~.stored_run.StoredRun`."""

    id: int
    ranks: list[int]
    started: float
    first_step: int

    @property
    def elapsed(self) -> float:
        """Seconds."""

    @property
    def metrics(self) -> Mapping[str, Mapping[int, Columns]]:
        """All points, by name and rank."""


def chain_of(store: StoreFile, run: int) -> list[int]:
    """The run and those that it goes on with, the oldest first. Raises :class:`StoreFailed`."""
    rows = store.ask(lambda db: db.execute(_CHAIN, (run,)).fetchall()) or []
    return [found for (found,) in reversed(rows)]


def continued_by(store: StoreFile, run: int) -> list[int]:
    """The runs that go on with this one. Raises :class:`StoreFailed`."""

    def look(db: sqlite3.Connection) -> list[int]:
        return [found for (found,) in db.execute(_CONTINUED, (run, LONGEST))]

    return store.ask(look) or []


def joined(runs: Sequence[Resumed]) -> tuple[RunMetrics, list[Segment]]:
    """The metrics of a chain of runs as those of one, and the share of each run, oldest first.

    What an earlier run has logged at or after the step with which a later one begins is left out: its training went on
    from a state before that. Times are those of training alone: the first run's start and the seconds spent since.
    """
    found = RunMetrics(sorted({rank for run in runs for rank in run.ranks}))
    segments: list[Segment] = []
    every = [run.metrics for run in runs]
    since = 0.0
    for place, (run, metrics) in enumerate(zip(runs, every, strict=True)):
        later = list(zip(runs[place + 1 :], every[place + 1 :], strict=True))
        shift = runs[0].started + since - run.started
        newest = run.started
        for name, ranks in metrics.items():
            end = min((_begins(other, points, name) for other, points in later), default=math.inf)
            for rank, columns in ranks.items():
                kept = _before(columns, end)
                if kept.values:
                    newest = max(newest, kept.times[-1])
                    times = array("d", [time + shift for time in kept.times])
                    found.append(rank, name, Columns(kept.steps, times, kept.values))
        segments.append(Segment(run.id, run.first_step, since))
        cut = any(other.first_step for other, _ in later)
        since += newest - run.started if cut and newest > run.started else run.elapsed
    return found, segments


def _begins(run: Resumed, metrics: Mapping[str, Mapping[int, Columns]], name: str) -> float:
    """The step from which on a run has the metric ``name`` for itself."""
    first = min((min(columns.steps) for columns in metrics.get(name, {}).values() if columns.steps), default=math.inf)
    return min(first, run.first_step or math.inf)


def _before(columns: Columns, end: float) -> Columns:
    if not columns.steps or max(columns.steps) < end:
        return columns
    keep = [place for place, step in enumerate(columns.steps) if step < end]
    return Columns(
        array("q", [columns.steps[place] for place in keep]),
        array("d", [columns.times[place] for place in keep]),
        array("d", [columns.values[place] for place in keep]),
    )
