"""Where the time of a run's steps goes, as people see it: rows of shares for a front end, and lines of text.

Ranks that spend their time alike share a row; those that are slow, and those that are unlike the others, have one of
their own. So the size does not grow with the world. ``labextension/src/stepTime.ts`` draws what :func:`packed` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from jupyter_dtrain.core.step_summary import Course, RankShares, StepSummary, mean_of
from jupyter_dtrain.core.step_time import PARTS, SlowStep
from jupyter_dtrain.core.world import count_ranks, percent

from .labels import duration

COLOURS: Final = {
    "data": "#E69F00",
    "copy": "#F5D879",
    "forward": "#8CC7EE",
    "backward": "#0072B2",
    "compiled": "#3D9BD1",
    "optimizer": "#5D3A9B",
    "communication": "#D55E00",
    "device": "#D895BE",
    "checkpoint": "#00785A",
    "logging": "#7CC9AE",
    "other": "#A6A6A6",
}
"""Of each part, the same as in the front end: neighbours in a bar differ in lightness, with any colour vision."""

ROWS: Final = 16
"""Rows of a run; a world of at most so many ranks has a row for each."""

_ALONE: Final = 8  # slow ranks with a row of their own
_ALIKE: Final = 0.08  # how far a share may be from that of the ranks whose row it joins
_WIDER: Final = 1.5  # the growth of that distance while there are too many rows
_SMALL: Final = 0.03  # shares below are left out of a line of text
_LINES: Final = 6  # groups of ranks in the text
_TEXT: Final = 600  # characters of a sentence


class StepRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How some ranks spend the time of a step: the mean of ranks that are alike."""

    ranks: str
    """In words, such as `ranks 0-3,5`."""
    count: int
    """How many they are."""
    seconds: float
    """Of a step."""
    shares: list[float]
    """0 to 1, of the parts in their order."""
    slow: int
    """1 if they make the others wait, or cause what the first sentence says; else 0."""
    calls: list[float] = []
    """0 to 1, of the calls in their order: what communication consists of."""


class StepTimePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of a run's steps goes."""

    parts: list[str]
    """The parts that there are, in the order in which they are drawn."""
    rows: list[StepRow]
    mean: StepRow
    """Of all ranks."""
    slow: list[SlowStep] = []
    """Why the steps are slow, the costliest reason first."""
    courses: list[Course] = []
    """Over the run: the mean of all ranks first."""
    batches: int = 1
    """Batches of a step, whose gradients are accumulated."""
    on_host: bool = False
    """Whether times are those of the host's clock, while a GPU computes."""
    calls: list[str] = []
    """The calls in which ranks wait for each other, such as `all_gather`, the longest first."""


def packed(summary: StepSummary) -> StepTimePart:
    """``summary`` for a front end, in at most :data:`ROWS` rows."""
    return StepTimePart(
        summary.parts,
        [_row(group, ranks_of_blame(summary)) for group in groups(summary, each=ROWS)],
        _row(summary.ranks, set()),
        [_shorter(one) for one in summary.slow],
        summary.courses,
        summary.batches,
        summary.on_host,
        summary.calls,
    )


def ranks_of_blame(summary: StepSummary) -> set[int]:
    """The ranks that cause a slowness which the others do not."""
    size = len(summary.ranks)
    return {rank for one in summary.slow if len(one.ranks) < size for rank in one.ranks}


def groups(summary: StepSummary, *, each: int) -> list[list[RankShares]]:
    """The ranks of each row, in order of their lowest rank. Up to ``each`` ranks have one each."""
    if len(summary.ranks) <= each:
        return [[one] for one in summary.ranks]
    slow = ranks_of_blame(summary)
    alone = [[one] for one in summary.ranks if one.rank in slow]
    if len(alone) > _ALONE or not each:
        alone = []
    shown = {one.rank for group in alone for one in group}
    far = _ALIKE
    while True:
        found: list[list[RankShares]] = []
        for one in summary.ranks:
            if one.rank in shown:
                continue
            blamed = one.rank in slow
            fits = (group for group in found if (group[0].rank in slow) == blamed and _distance(group[0], one) <= far)
            group = next(fits, None)
            if group is None:
                found.append([one])
            else:
                group.append(one)
        if len(alone) + len(found) <= (each or ROWS):
            return sorted([*alone, *found], key=lambda group: group[0].rank)
        far *= _WIDER


def _distance(one: RankShares, other: RankShares) -> float:
    slower = abs(one.seconds - other.seconds) / max(one.seconds, other.seconds)
    return max([slower, *(abs(own - its) for own, its in zip(one.shares, other.shares, strict=True))])


def _row(group: Sequence[RankShares], slow: set[int]) -> StepRow:
    mean = mean_of(group)
    names = [one.rank for one in group]
    return StepRow(
        count_ranks(names),
        len(names),
        float(f"{mean.seconds:.4g}"),
        [round(share, 4) for share in mean.shares],
        int(names[0] in slow),
        [round(share, 4) for share in mean.calls],
    )


def _shorter(one: SlowStep) -> SlowStep:
    """``one`` in bounded length: a line of a user's may have any file name."""
    return msgspec.structs.replace(one, ranks=one.ranks[:ROWS], words=one.words[:_TEXT], advice=one.advice[:_TEXT])


def sentences(summary: StepSummary) -> list[str]:
    """Why the steps are slow, and what to try: a line for each reason."""
    return [str(_shorter(one)) for one in summary.slow]


def lines(summary: StepSummary) -> list[str]:
    """The shares of a step as text, a line for each group of ranks that are alike."""
    found = groups(summary, each=0)
    slow = ranks_of_blame(summary)
    # The slow ones come first, then the largest groups.
    found = sorted(found, key=lambda group: (group[0].rank not in slow, -len(group)))[:_LINES]
    shown = sorted(found, key=lambda group: group[0].rank)
    names = [count_ranks([one.rank for one in group]) for group in shown]
    means = [mean_of(group) for group in shown]
    took = [duration(mean.seconds) for mean in means]
    width, room = max(map(len, names)), max(map(len, took))
    rows = [
        f"{name.ljust(width)}  {time.rjust(room)}  {shares_in_words(summary, mean)}"
        for name, time, mean in zip(names, took, means, strict=True)
    ]
    title = "Time of a step" + (f" of {summary.batches} batches{_each_batch(summary)}" if summary.batches > 1 else "")
    title += ", by the host's clock" if summary.on_host else ""
    hidden = len(summary.ranks) - sum(map(len, shown))
    return [f"{title}:", *(f"  {row}" for row in rows), *([f"  and {hidden} more ranks"] if hidden else [])]


def _each_batch(summary: StepSummary) -> str:
    """The time that a batch spends in the model, where it was measured."""
    mean = summary.mean
    spent = dict(zip(summary.parts, mean.shares, strict=True))
    if not spent.get("forward") or not spent.get("backward"):
        return ""
    each = mean.seconds * (spent["forward"] + spent["backward"]) / summary.batches
    return f", each {duration(each)} forward and backward"


def shares_in_words(summary: StepSummary, one: RankShares) -> str:
    """``forward pass 32 %, communication 31 % (all_gather 20 %, reduce_scatter 11 %)``: without very small shares."""
    calls = _large(summary.calls, one.calls)
    split = calls[0][0] if len(calls) == 1 else ", ".join(f"{call} {percent(share)}" for call, share in calls)
    split = f" ({split})" if split else ""
    return ", ".join(
        f"{name_of(part)} {percent(share)}{split if part == 'communication' else ''}"
        for part, share in _large(summary.parts, one.shares)
    )


def _large(names: Sequence[str], shares: Sequence[float]) -> list[tuple[str, float]]:
    return [(name, share) for name, share in zip(names, shares, strict=True) if share >= _SMALL]


def name_of(part: str) -> str:
    """The name of a part, for a legend."""
    return PARTS.get(part, part).removeprefix("the ")
