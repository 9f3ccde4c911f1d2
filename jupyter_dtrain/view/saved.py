"""The saved form of a run in a notebook: a document that our JupyterLab extension draws, a picture, and text.

It is made from plain data, so a run from the store looks like one that has just ended. No representation is larger
than :data:`~jupyter_dtrain.view.document.SAVED_BYTES`. Where matplotlib is missing or fails, there is no picture.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.metrics import (
    SAMPLES_PER_SECOND,
    STEPS_PER_SECOND,
    RankSteps,
    current,
    is_finite,
    last_values,
    newest_points,
)
from jupyter_dtrain.core.notices import anchor_of_reason, pointer
from jupyter_dtrain.core.world import count_ranks

from . import step_time
from .document import MIME, Picture, document, in_order, stepped
from .drawing import svg
from .labels import ending, number, speeds, took
from .rank_summary import standing
from .timelines import caption, letters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyter_dtrain.core.events import MimeBundle
    from jupyter_dtrain.core.metrics import Columns, StepTime

_LISTED: Final = 30  # metrics in the text
_RANKS: Final = 8  # ranks whose values the text lists one by one
_WORDS: Final = 400  # characters about the end of one rank
_NAME: Final = 40  # characters of a metric's name in the text


def bundle(picture: Picture, *, with_svg: bool = True) -> MimeBundle:
    """All representations of ``picture``, by MIME type."""
    if not picture.steps:  # a run from the store, which has all of its points
        for name, value in stepped(RankSteps.of(picture.metrics, picture.first_step)).items():
            setattr(picture, name, value)
    # Through JSON once, so that front ends get the same data as from a notebook file.
    data: MimeBundle = {MIME: json.loads(json.dumps(document(picture)))}
    drawn = svg(picture) if with_svg and (picture.metrics or picture.timelines) else None
    if drawn is not None:
        data["image/svg+xml"] = drawn
    data["text/plain"] = text(picture)
    return data


def text(picture: Picture) -> str:
    """The run in a few lines: how it ended, the last value of each metric on each rank, and the steps of pipelines."""
    ranks = list(picture.ranks)
    ended = ending(picture.outcome, last_values(picture.metrics), picture.remark)
    head = f"Run {picture.run} on {count_ranks(ranks)}: {ended}, {took(picture.elapsed)}"
    if picture.thinned:
        head += " (points thinned; Run.metrics has all of them)"
    if picture.steps:
        head += f", step {max(picture.steps.values()):,}"
    head += "".join(f", {words}" for words in speeds(picture.speed))
    reading = [f"{'Warning: ' if line.fault else ''}{line.words}" for line in picture.reading]
    spent, kinds = picture.step_time, [line.anchor for line in picture.reading]
    if spent is not None and spent.slow:
        reading += [*step_time.sentences(spent), *step_time.lines(spent)]
        kinds += [anchor_of_reason(one.kind) for one in spent.slow]
    names = in_order(picture.metrics)
    rows = [_row(name, picture.metrics[name], ranks, picture.pace) for name in names[:_LISTED]]
    width = max((len(row[0]) for row in rows), default=0)
    columns = max((len(row) for row in rows), default=0)
    widths = [max((len(row[index]) for row in rows if index < len(row)), default=0) for index in range(columns)]
    lines = [head, *(f"  {line}" for line in reading)]
    if len(ranks) > _RANKS and picture.outcome != "running":
        lines += [f"  {line}" for line in _standing(picture)]
    if len(ranks) <= _RANKS and rows:
        titles = [f"rank {rank}" for rank in ranks]
        widths = [width, *(max(len(title), widths[index + 1]) for index, title in enumerate(titles))]
        rows.insert(0, ["last value", *titles])
        widths[0] = max(width, len(rows[0][0]))
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(widths[index + 1]) for index, cell in enumerate(row[1:]))]
        lines.append("  " + "  ".join(cells).rstrip())
    hidden = len(names) - _LISTED
    hidden = max(0, hidden) + picture.left_out
    if hidden:
        lines.append(f"  and {hidden} more metrics: Run.metrics has them")
    for timeline in picture.timelines:
        lines.append(f"  {caption(timeline)}")
        lines += [f"    {line}" for line in letters(timeline)]
    # The cell has the errors of the others.
    lost = [words for rank, words in sorted(picture.words.items()) if picture.states.get(rank, "dead") == "dead"]
    lines += [words[:_WORDS] for words in lost[:_RANKS]]
    if len(lost) > _RANKS:
        lines.append(f"and {len(lost) - _RANKS} more ranks are dead")
    return "\n".join([*lines, *filter(None, [pointer(kinds)])])


def _standing(picture: Picture) -> list[str]:
    """The odd ranks, state by state, and hosts whose ranks are all alike, in few lines; none without an odd rank."""
    states = {rank: picture.states.get(rank, "dead") for rank in picture.ranks}
    found = standing(states, picture.hosts)
    by_state: dict[str, list[int]] = {}
    for rank in found.odd:
        by_state.setdefault(states[rank], []).append(rank)
    if not by_state:
        return []
    lines = [f"{state}: {_placed(ranks, picture.hosts)}" for state, ranks in by_state.items()]
    if found.more:
        lines.append(f"and {found.more} more ranks that are not {found.common}")
    return [*lines, f"{found.common}: all others"]


def _placed(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Ranks by host: ``rank 17 (gpu2), ranks 24-31 (gpu3)``; those of hosts beyond some are counted."""
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts.get(rank, ""), []).append(rank)
    named = [count_ranks(own) + (f" ({host})" if host else "") for host, own in by_host.items()]
    hidden = sum(len(own) for own in list(by_host.values())[_RANKS:])
    return ", ".join(named[:_RANKS]) + (f" and {hidden} more" if hidden else "")


def mean_of(name: str) -> str:
    """The title of a speed in a table: the mean of a run."""
    return f"{name}, mean"


def values_of(
    name: str, series: Mapping[int, Columns], times: Mapping[int, StepTime]
) -> tuple[str, dict[int, tuple[int, float]]]:
    """A metric's name in a table, and its newest step and value by rank; for a speed, the mean of all ``times``."""
    newest = newest_points(series)
    mean = {STEPS_PER_SECOND: lambda took: took.steps, SAMPLES_PER_SECOND: lambda took: took.samples}.get(name)
    if mean is None or not all(rank in times and mean(times[rank]) for rank in newest):
        return name, newest
    means = {rank: (step, mean(times[rank]) / times[rank].seconds) for rank, (step, _) in newest.items()}
    return mean_of(name), means


def _row(name: str, series: Mapping[int, Columns], ranks: list[int], times: Mapping[int, StepTime]) -> list[str]:
    name, newest = values_of(name, series, times)
    name = name if len(name) <= _NAME else name[: _NAME - 1] + "…"
    if len(ranks) <= _RANKS:
        return [name, *(number(newest[rank][1] if rank in newest else None) for rank in ranks)]
    last = current(newest)
    finite = {rank: value for rank, value in last.items() if is_finite(value)}
    if not finite:
        return [name, "no finite value"]
    mean = sum(finite.values()) / len(finite)
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    words = f"mean {number(mean)}, from {number(finite[low])} (rank {low}) to {number(finite[high])} (rank {high})"
    strange = [rank for rank in last if rank not in finite]
    return [name, words + (f"; not finite on {count_ranks(strange)}" if strange else "")]
