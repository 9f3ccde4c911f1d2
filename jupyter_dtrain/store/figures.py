"""Metrics in short: the last, the lowest and the highest value of each over all ranks, without its points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from jupyter_dtrain.core.metrics import is_finite, newest_value

FIGURES: Final = """SELECT run, name, rank, step, last, best, best_step, highest, highest_step FROM series
    WHERE step IS NOT NULL AND kind = 'metric'"""
"""What each rank has of each metric of each run."""


class Figure(NamedTuple):
    """A metric of a run in short."""

    last: float | None
    """The mean over the ranks that have come as far as any; None where one is not finite."""
    low: float | None
    """The lowest finite value, on whichever rank."""
    low_step: int | None
    high: float | None
    high_step: int | None


def figures_of(rows: Iterable[tuple[Any, ...]]) -> dict[int, dict[str, Figure]]:
    """The metrics of each run in short, from the rows of :data:`FIGURES`."""
    found: dict[int, dict[str, list[tuple[Any, ...]]]] = {}
    for run, name, *figures in rows:
        found.setdefault(run, {}).setdefault(name, []).append(tuple(figures))
    return {run: {name: figure_of(ranks) for name, ranks in metrics.items()} for run, metrics in found.items()}


def figure_of(ranks: list[tuple[Any, ...]]) -> Figure:
    """A metric in short, from what each rank has of it: the rows of :data:`FIGURES` without run and name."""
    if len(ranks) == 1:
        _, _, last, low, low_step, high, high_step = ranks[0]
        return Figure(last, low, low_step, high, high_step)
    mean = newest_value({rank: (step, math.nan if last is None else last) for rank, step, last, *_ in ranks})
    lows = [(low, step) for _, _, _, low, step, *_ in ranks if low is not None]
    highs = [(high, step) for *_, high, step in ranks if high is not None]
    low = min(lows, key=_first, default=(None, None))
    high = max(highs, key=_first, default=(None, None))
    return Figure(mean if mean is not None and is_finite(mean) else None, *low, *high)


def _first(pair: tuple[float, int | None]) -> float:
    return pair[0]
