"""The saved form of a run in a notebook: a document that our JupyterLab extension draws, a picture, and text.

It is made from plain data, so a run from the store looks like one that has just ended. No representation is larger
than :data:`~jupyter_dtrain.view.document.SAVED_BYTES`. Where matplotlib is missing or fails, there is no picture.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.metrics import is_main
from jupyter_dtrain.core.world import count_ranks

from .document import MIME, Picture, document, in_order
from .drawing import svg
from .labels import ending, number, took
from .standing import standing
from .timelines import caption, letters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jupyter_dtrain.core.events import MimeBundle
    from jupyter_dtrain.core.metrics import Columns

_LISTED: Final = 30  # metrics in the text
_RANKS: Final = 8  # ranks whose values the text lists one by one
_WORDS: Final = 400  # characters about the end of one rank
_NAME: Final = 40  # characters of a metric's name in the text


def bundle(picture: Picture, *, with_svg: bool = True) -> MimeBundle:
    """All representations of ``picture``, by MIME type."""
    if not picture.pace:
        picture.pace = paces(picture.metrics)
    if not picture.steps:
        picture.steps = {
            rank: max(columns.steps[-1], -1)
            for ranks in picture.metrics.values()
            for rank, columns in ranks.items()
            if columns.steps
        }
    # Through JSON once, so that front ends get the same data as from a notebook file.
    data: MimeBundle = {MIME: json.loads(json.dumps(document(picture)))}
    drawn = svg(picture) if with_svg and (picture.metrics or picture.timelines) else None
    if drawn is not None:
        data["image/svg+xml"] = drawn
    data["text/plain"] = text(picture)
    return data


def paces(metrics: Mapping[str, Mapping[int, Columns]]) -> dict[int, float]:
    """Seconds per step of each rank, from the times of its longest metric."""
    found: dict[int, float] = {}
    longest: dict[int, int] = {}
    for ranks in metrics.values():
        for rank, columns in ranks.items():
            steps, times = columns.steps, columns.times
            if len(steps) > max(1, longest.get(rank, 0)) and steps[-1] > steps[0] and times[-1] > times[0]:
                longest[rank] = len(steps)
                found[rank] = (times[-1] - times[0]) / (steps[-1] - steps[0])
    return found


def text(picture: Picture) -> str:
    """The run in a few lines: how it ended, the last value of each metric on each rank, and the steps of pipelines."""
    ranks = list(picture.ranks)
    ended = ending(picture.outcome, _last(picture), picture.remark)
    head = f"Run {picture.run} on {count_ranks(ranks)}: {ended}, {took(picture.elapsed)}"
    if picture.thinned:
        head += " (points thinned; Run.metrics has all of them)"
    newest = [step for step in picture.steps.values() if step >= 0]
    if newest:
        head += f", step {max(newest):,}"
    if picture.pace:
        middle = sorted(picture.pace.values())[len(picture.pace) // 2]
        head += f", {number(1 / middle)} steps/s"
    reading = [f"{'Warning: ' if line.fault else ''}{line.words}" for line in picture.reading]
    names = in_order(picture.metrics)
    rows = [_row(name, picture.metrics[name], ranks) for name in names[:_LISTED]]
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
    return "\n".join(lines)


def _last(picture: Picture) -> Iterator[float]:
    """The last value of each metric on each rank."""
    for name, series in picture.metrics.items():
        if is_main(name):
            yield from (columns.values[-1] for columns in series.values() if columns.values)


def _standing(picture: Picture) -> list[str]:
    """The odd ranks, state by state, and hosts whose ranks are all alike, in few lines; none without an odd rank."""
    states = {rank: picture.states.get(rank, "dead") for rank in picture.ranks}
    found = standing(states, picture.hosts, {})
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


def _row(name: str, series: Mapping[int, Columns], ranks: list[int]) -> list[str]:
    last = {rank: series[rank].values[-1] for rank in ranks if rank in series and series[rank].values}
    name = name if len(name) <= _NAME else name[: _NAME - 1] + "…"
    if len(ranks) <= _RANKS:
        return [name, *(number(last.get(rank)) for rank in ranks)]
    finite = {rank: value for rank, value in last.items() if math.isfinite(value)}
    if not finite:
        return [name, "no finite value"]
    mean = sum(finite.values()) / len(finite)
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    words = f"mean {number(mean)}, from {number(finite[low])} (rank {low}) to {number(finite[high])} (rank {high})"
    strange = [rank for rank in last if rank not in finite]
    return [name, words + (f"; not finite on {count_ranks(strange)}" if strange else "")]
