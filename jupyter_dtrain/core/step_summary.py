"""Where the time of a run's steps goes, in so few numbers that a panel can show them live and the store can keep them.

:func:`summarise` makes them from the ranks' reports: the shares of each rank, the reasons why the steps are slow, and
the course of the run: the mean over its ranks and, of few ranks, each rank's own. Its size is bounded by the number of
ranks, and its cost in a long run is that of some reports of some ranks.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from .step_time import PARTS, SlowStep, calls_of, shares_of

if TYPE_CHECKING:
    from .events import StepParts
    from .fold import RunFold
    from .step_time import RankTime

POINTS: Final = 120
"""Points of a course."""
FEW: Final = 8
"""Ranks with a course of their own; in larger worlds only ranks that are slow have one."""
SLOW: Final = 4
"""Reasons that are kept, and slow ranks with a course of their own."""
CALLS: Final = 4
"""Calls of communication that are told apart."""
_LEAST: Final = 0.005  # the share of a step that a call takes on some rank
_AVERAGED: Final = 32  # ranks, evenly chosen, that the mean course is made from
_FINE: Final = 255  # parts of a step


class RankShares(msgspec.Struct, frozen=True, array_like=True):
    """How one rank spends the time of a step."""

    rank: int
    seconds: float
    """Of a step."""
    shares: list[float]
    """0 to 1, of the parts of the summary, in their order."""
    calls: list[float] = []
    """0 to 1, of the calls of the summary, in their order; of runs of earlier versions, none."""


class Course(msgspec.Struct, frozen=True, array_like=True):
    """How ranks spent the time of their steps over the run, in stretches of equally many steps."""

    ranks: list[int]
    """Empty for the mean over all."""
    first: float
    """The step at which the first stretch begins."""
    width: float
    """Steps of a stretch."""
    seconds: str
    """Of a step, for each stretch: little-endian float32 in base64; NaN where no steps were seen."""
    shares: str
    """Of each part after the other, for each stretch: bytes in base64, where 255 is a whole step."""


class StepSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of a run's steps goes."""

    parts: list[str]
    """Those of :data:`.PARTS` that there are, in the order in which they are drawn."""
    ranks: list[RankShares]
    """The shares of the last seconds while the run goes on, of the whole run at its end."""
    slow: list[SlowStep] = []
    """Why its steps are slow, the costliest reason first."""
    courses: list[Course] = []
    """The mean over the ranks first."""
    batches: int = 1
    """Batches of a step, whose gradients are accumulated."""
    on_host: bool = False
    """Whether a GPU computes, so that the host's clock shows when work was launched, not when it was done."""
    calls: list[str] = []
    """The calls in which ranks wait for each other, the longest first, such as ``all_gather``: what communication
    consists of. Further ones are left out."""

    @property
    def mean(self) -> RankShares:
        """The mean over all ranks; its ``rank`` is -1."""
        return mean_of(self.ranks)


def mean_of(ranks: Sequence[RankShares]) -> RankShares:
    """The mean of at least one rank's shares; its ``rank`` is -1."""
    count = len(ranks)
    shares, calls = (
        [sum(column) / count for column in zip(*rows, strict=True)]
        for rows in ([one.shares for one in ranks], [one.calls for one in ranks])
    )
    return RankShares(-1, sum(one.seconds for one in ranks) / count, shares, calls)


def summarise(fold: RunFold, *, points: int = POINTS, whole: bool = False) -> StepSummary | None:
    """Where the time of the steps of ``fold``'s run goes; None while no steps were seen. Courses have ``points``.

    ``whole``: judge the whole run also while it goes on, not its last seconds.
    """
    whole = whole or not fold.unfinished
    times = {rank: one for rank, one in sorted(fold.step_times.ranks.items()) if one.windows}
    reports = {rank: one.whole if whole else one.recent for rank, one in times.items()}
    reports = {rank: one for rank, one in reports.items() if one.step and one.seconds > 0}
    if not reports:
        return None
    shares = {rank: shares_of(one) for rank, one in reports.items()}
    waits = {rank: calls_of(one) for rank, one in reports.items()}
    calls = _longest(waits.values())
    parts = [part for part in PARTS if any(part in one.whole.parts for one in times.values())]
    slow = fold.slow_steps(whole=whole)[:SLOW]
    chosen = list(times) if len(times) <= FEW else _slow_ranks(slow, len(fold.ranks))
    stride = -(-len(times) // _AVERAGED)
    courses = [_course([], list(times.values())[::stride], parts, points)]
    if len(times) > 1:
        courses += [_course([rank], [times[rank]], parts, points) for rank in chosen if rank in times]
    ranks = [
        RankShares(
            rank,
            _short(one.seconds / (one.step or 1)),
            [_short(shares[rank].get(part, 0)) for part in parts],
            [_short(waits[rank].get(call, 0)) for call in calls],
        )
        for rank, one in reports.items()
    ]
    return StepSummary(
        parts,
        ranks,
        slow,
        [course for course in courses if course is not None],
        fold.readings.accumulation,
        any(one.busy is not None and {"device", "copy"} & set(one.whole.parts) for one in times.values()),
        calls,
    )


def _longest(waits: Collection[Mapping[str, float]]) -> list[str]:
    """The calls in which all ranks together wait longest, without those that hardly take time on any of them."""
    total: defaultdict[str, float] = defaultdict(float)
    for one in waits:
        for call, share in one.items():
            total[call] += share
    found = sorted(total, key=lambda call: -total[call])[:CALLS]
    return [call for call in found if any(one.get(call, 0.0) >= _LEAST for one in waits)]


def _slow_ranks(slow: Sequence[SlowStep], size: int) -> list[int]:
    """Some ranks that are slow, where the others are not."""
    return [rank for one in slow if len(one.ranks) < size for rank in one.ranks][:SLOW]


def _course(ranks: list[int], times: Sequence[RankTime], parts: Sequence[str], points: int) -> Course | None:
    """The course of the mean over ``times``; None without steps."""
    begins = [(one.step or 0) - sum(window.step or 0 for window in one.windows) for one in times]
    # A loop that began again counts on from where the one before it was.
    begins = [max(0, begin) for begin in begins]
    ends = [begin + sum(window.step or 0 for window in one.windows) for begin, one in zip(begins, times, strict=True)]
    first, last = min(begins), max(ends)
    count = min(points, last - first, max(len(one.windows) for one in times))
    if count < 1:
        return None
    width = (last - first) / count
    steps, seconds = [0.0] * count, [0.0] * count
    spent = {part: [0.0] * count for part in parts}
    for begin, one in zip(begins, times, strict=True):
        at = float(begin - first)
        for window in one.windows:
            if window.step:
                _spread(window, at / width, (at + window.step) / width, steps, seconds, spent)
                at += window.step
    each = [took / made if made else math.nan for took, made in zip(seconds, steps, strict=True)]
    fine = bytearray()
    for part in parts:
        for value, took in zip(spent[part], seconds, strict=True):
            fine.append(min(_FINE, round(_FINE * value / took)) if took else 0)
    return Course(ranks, first, _short(width), _floats(each), base64.b64encode(fine).decode())


def _spread(
    window: StepParts,
    begin: float,
    end: float,
    steps: list[float],
    seconds: list[float],
    spent: Mapping[str, list[float]],
) -> None:
    """Add a report, which covers the places from ``begin`` to ``end``, to the stretches that it meets."""
    for place in range(int(begin), min(len(steps), math.ceil(end))):
        share = (min(end, place + 1) - max(begin, place)) / (end - begin)
        steps[place] += share * (window.step or 0)
        seconds[place] += share * window.seconds
        for part, took in window.parts.items():
            if part in spent:
                spent[part][place] += share * took


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _floats(values: Sequence[float]) -> str:
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
