"""The actions of a pipeline's stages in a step: in words, as a chart of letters, and as data for a front end.

Sizes are bounded. Where there is no room, sends and receives are left out, then ranks, and the front end says so.
``labextension/src/gantt.ts`` reads the result of :func:`packed`.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from jupyter_dtrain.core.pipelines import COMPUTE, TRANSFER, Action, Timeline
from jupyter_dtrain.core.world import percent, quantity

from .labels import duration

if TYPE_CHECKING:
    from collections.abc import Mapping

LIVE_BYTES: Final = 16_000
"""The largest size of all timelines in one message."""

_COLUMNS: Final = 72  # letters of a lane
_LANES: Final = 16  # lanes as letters
_FINE: Final = 65_535  # parts of a step
_ROW: Final = 14  # bytes of an action: five numbers of two bytes as base64
_HEAD: Final = 400  # bytes of a timeline without its actions
_EMPTY: Final = "·"
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
NAMES: Final = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients", "G": "reduce"}
"""Names of the kinds in which a stage computes."""


class Lane(msgspec.Struct, frozen=True, array_like=True):
    """The actions of one rank in a step of a pipeline."""

    rank: int
    stages: list[int]
    actions: str
    """Kind, stage, micro-batch, start and length of each as uint16 in base64."""


class PipelinePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a pipeline."""

    schedule: str
    step: int
    ranks: int
    """The number of ranks; ``lanes`` may have fewer."""
    stages: int
    microbatches: int
    seconds: float
    words: str
    """The caption, with the size of the bubble."""
    lanes: list[Lane]
    transfers: bool = True
    """Whether the actions include sends and receives."""


def caption(timeline: Timeline) -> str:
    """Schedule, size, bubble, the step and its duration, and further remarks."""
    ranks, stages = len(timeline.lanes), timeline.stages
    size = quantity(ranks, "rank")
    if stages != ranks:
        size += f" ({stages} stages)"
    words = f"{timeline.schedule}, {size} {_TIMES} {timeline.microbatches} micro-batch"
    words += "es" if timeline.microbatches != 1 else ""
    words += f": bubble {percent(timeline.bubble)}"
    if timeline.theory is not None:
        words += f" (in theory {percent(timeline.theory)})"
    words += f", step {timeline.step:,} in {duration(timeline.seconds)}"
    if timeline.on_host:
        words += "; times show when the host launched work, not when the GPU did it"
    if timeline.left_out:
        words += f"; {timeline.left_out:,} actions are left out"
    return words


def letters(timeline: Timeline) -> list[str]:
    """A chart for a terminal: a line for each rank, in which each letter names what took most of that time."""
    lines = []
    kinds = ""
    lanes = sorted(timeline.lanes.items())
    title = max(len(f"rank {rank}") for rank, _ in lanes)
    for rank, actions in lanes[:_LANES]:
        lane = _letters(actions, timeline.seconds)
        kinds += lane
        lines.append(f"{f'rank {rank}'.ljust(title)}  {lane}")
    if len(lanes) > _LANES:
        lines.append(f"and {len(lanes) - _LANES} more ranks")
    names = [f"{kind} {name}" for kind, name in NAMES.items() if kind in kinds]
    lines.append(" " * (title + 2) + ", ".join([*names, f"{_EMPTY} bubble"]))
    return lines


def packed(timelines: Sequence[Timeline], limit: int) -> list[PipelinePart]:
    """``timelines`` for a front end, each in an equal share of about ``limit`` bytes as JSON."""
    return [_packed(timeline, limit // len(timelines)) for timeline in timelines]


def _packed(timeline: Timeline, room: int) -> PipelinePart:
    room -= _HEAD
    kinds = COMPUTE + TRANSFER
    if _ROW * sum(map(len, timeline.lanes.values())) > room:
        kinds = COMPUTE
    lanes: list[Lane] = []
    for rank, actions in sorted(timeline.lanes.items()):
        rows = _rows(actions, timeline.seconds, kinds)
        room -= len(rows) // 5 * _ROW + 20
        if room < 0:
            break
        stages = sorted({action.stage for action in actions if action.kind in COMPUTE})
        lanes.append(Lane(rank, stages, _base64(rows)))
    return PipelinePart(
        timeline.schedule[:60],
        timeline.step,
        len(timeline.lanes),
        timeline.stages,
        timeline.microbatches,
        float(f"{timeline.seconds:.6g}"),
        caption(timeline),
        lanes,
        transfers=kinds != COMPUTE,
    )


def _rows(actions: Sequence[Action], seconds: float, kinds: str) -> array[int]:
    """Kind, stage, micro-batch, beginning and length of each action within the step."""
    rows = array("H")
    for action in actions:
        begin, end = max(0.0, action.start), min(seconds, action.start + action.seconds)
        if action.kind in kinds and end >= begin:
            start = round(begin / seconds * _FINE)
            rows.extend(
                (ord(action.kind), action.stage, action.microbatch, start, round(end / seconds * _FINE) - start)
            )
    return rows


def _base64(rows: array[int]) -> str:
    if sys.byteorder == "big":
        rows.byteswap()
    return base64.b64encode(rows.tobytes()).decode()


def _letters(actions: Sequence[Action], seconds: float) -> str:
    shares: list[dict[str, float]] = [{} for _ in range(_COLUMNS)]
    width = seconds / _COLUMNS
    for action in actions:
        if action.kind not in COMPUTE:
            continue
        begin, end = action.start, action.start + action.seconds
        for column in range(max(0, int(begin / width)), min(_COLUMNS, int(end / width) + 1)):
            part = min(end, (column + 1) * width) - max(begin, column * width)
            shares[column][action.kind] = shares[column].get(action.kind, 0.0) + part
    return "".join(_letter(share, width) for share in shares)


def _letter(share: Mapping[str, float], width: float) -> str:
    if sum(share.values()) < width / 2:
        return _EMPTY
    return max(share, key=share.__getitem__)
