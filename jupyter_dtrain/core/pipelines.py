"""Steps of pipelines, as their ranks report them: the times of each stage's actions, and its idle time.

Pure data. A rank reports one step about once a second, as a :class:`~jupyter_dtrain.core.events.PipelineStep`;
:class:`Pipelines` puts together those of all ranks of a pipeline, whose newest common step is a :class:`Timeline`.
Times of ranks are compared by their hosts' clocks: exact on one machine, on several as good as these clocks agree.

Under failure: when a rank did not report a step, the step before it shows instead.
"""

from __future__ import annotations

import math
import statistics
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from .events import PipelineStep

COMPUTE: Final = "FBIWG"
"""Kinds of action in which a stage computes: forward (with the loss), whole backward, gradient of the input, gradient
of the weights, and reducing or scaling the gradients at the end."""
TRANSFER: Final = "SR"
"""Kinds of action in which a stage sends to another stage, or waits for one."""

MOST_PIPELINES: Final = 8
"""The most pipelines that a run can show."""
_STEPS: Final = 8  # newest steps of a rank, kept until the others have reported theirs, and for the usual bubble
_ROW: Final = struct.Struct("<cHHff")
_LENGTH: Final = {"F": 1, "I": 1, "W": 1, "B": 2}


class Action(NamedTuple):
    """One action of a stage with one micro-batch."""

    kind: str
    """A letter of :data:`COMPUTE` or :data:`TRANSFER`."""
    stage: int
    microbatch: int
    start: float
    """Seconds since the beginning of the step."""
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """One step of a pipeline on all its ranks."""

    schedule: str
    """The name of the schedule, such as ``1F1B``."""
    step: int
    """The number of the step in this pipeline and run, from 0."""
    stages: int
    microbatches: int
    seconds: float
    """From the beginning of the first computation to the end of the last one, over all ranks."""
    bubble: float
    """The share of this time, 0 to 1, in which ranks computed nothing, on average over the ranks."""
    usual: float
    """The median of this share over the newest steps that are known, at most eight: one step may have been delayed."""
    theory: float | None
    """The same share for the schedule's order of actions if forward, gradient of the input and gradient of the weights
    took equally long on every stage, and sending no time. None: the order is not known."""
    on_host: bool
    """Whether the times are those at which the host launched another device's computations."""
    lanes: Mapping[int, Sequence[Action]]
    """The actions of each rank, by its number in the world; times count from the beginning of the first computation."""
    left_out: int = 0
    """How many actions the reports left out."""


def pack(actions: Iterable[Action]) -> bytes:
    """Encode ``actions`` for an event; stages and micro-batches go up to 65,535."""
    return b"".join(_ROW.pack(kind.encode(), *rest) for kind, *rest in actions)


def unpack(data: bytes) -> list[Action]:
    """Decode the actions in an event. Raises :class:`struct.error` for other data."""
    return [Action(kind.decode(), *rest) for kind, *rest in _ROW.iter_unpack(data)]


def ideal_bubble(order: Mapping[int, Sequence[tuple[str, int, int]]]) -> float | None:
    """The share of time, 0 to 1, in which ranks are idle if they do their actions in ``order``, as early as they can.

    ``order``: by rank, kind, stage and micro-batch of each computation. Forward and both halves of a backward take one
    unit of time each, a whole backward two, sending none. For GPipe and 1F1B of p stages and m micro-batches it is
    (p - 1) / (m + p - 1). None if there are no actions, or an action waits for one that never comes.
    """
    stages = 1 + max((stage for actions in order.values() for _, stage, _ in actions), default=-1)
    ended: dict[tuple[str, int, int], int] = {}
    clocks = dict.fromkeys(order, 0)
    places = dict.fromkeys(order, 0)
    waiting = [rank for rank, actions in order.items() if actions]
    while waiting:
        moved = False
        for rank in waiting:
            actions = order[rank]
            while places[rank] < len(actions):
                kind, stage, microbatch = actions[places[rank]]
                ready = _ready(kind, stage, microbatch, stages, ended)
                if ready is None:
                    break
                clocks[rank] = max(clocks[rank], ready) + _LENGTH[kind]
                ended[kind if kind in "FW" else "B", stage, microbatch] = clocks[rank]
                places[rank] += 1
                moved = True
        if not moved:
            return None
        waiting = [rank for rank in waiting if places[rank] < len(order[rank])]
    whole = len(order) * max(clocks.values(), default=0)
    busy = sum(_LENGTH[kind] for actions in order.values() for kind, _, _ in actions)
    return 1 - busy / whole if whole else None


def _ready(
    kind: str, stage: int, microbatch: int, stages: int, ended: Mapping[tuple[str, int, int], int]
) -> int | None:
    """When all inputs of an action are there; None while an action that makes one of them has no end yet."""
    if kind == "F":
        return ended.get(("F", stage - 1, microbatch)) if stage else 0
    own = ended.get(("B" if kind == "W" else "F", stage, microbatch))
    if kind == "W" or stage == stages - 1 or own is None:
        return own
    later = ended.get(("B", stage + 1, microbatch))
    return None if later is None else max(own, later)


class Pipelines:
    """The pipelines of a run, each with the newest steps of its ranks. The size limit of events bounds its memory."""

    def __init__(self) -> None:
        # The newest steps, with the rank's number in the world, by pipeline and by rank of the pipeline.
        self._told: dict[tuple[int, tuple[int, ...]], dict[int, dict[int, tuple[int, PipelineStep]]]] = {}
        self.version = 0
        """How many reports were taken; it changes when there is something new to draw."""
        self._found: tuple[int, list[Timeline]] = (0, [])
        # The bubble of each step that all ranks have reported, as far as it is known; NaN where none computed.
        self._bubbles: dict[tuple[int, tuple[int, ...]], dict[int, float]] = {}

    def __bool__(self) -> bool:
        return any(len(told) == len(ranks) for (_, ranks), told in self._told.items())

    @property
    def microbatches(self) -> int:
        """The micro-batches of a step of the newest pipeline; 0 without one."""
        told = next(reversed(self._told.values()), {})
        return max((one.microbatches for steps in told.values() for _, one in steps.values()), default=0)

    def take(self, rank: int, told: PipelineStep) -> bool:
        """Take a rank's report of a step; returns whether it is kept."""
        key = (told.number, tuple(told.ranks))
        if key not in self._told and len(self._told) >= MOST_PIPELINES:
            return False
        steps = self._told.setdefault(key, {}).setdefault(told.place, {})
        steps[told.step] = (rank, told)
        for old in sorted(steps)[:-_STEPS]:
            del steps[old]
        self.version += 1
        return True

    def timelines(self) -> list[Timeline]:
        """The newest step of each pipeline that all its ranks have reported, in the order in which pipelines began."""
        version = self.version
        if self._found[0] != version:
            self._found = (version, list(self._newest()))
        return self._found[1]

    def _newest(self) -> Iterator[Timeline]:
        for key, told in sorted(self._told.items()):
            if len(told) < len(key[1]):
                continue
            common = sorted(set.intersection(*(set(steps) for steps in told.values())))
            if not common:
                continue
            timeline = _together([told[place][common[-1]] for place in sorted(told)])
            known, newest = self._bubbles.get(key, {}), math.nan if timeline is None else timeline.bubble
            for step in common[:-1]:
                if step not in known:
                    earlier = _together([told[place][step] for place in sorted(told)])
                    known[step] = math.nan if earlier is None else earlier.bubble
            self._bubbles[key] = {**{step: known[step] for step in common[:-1]}, common[-1]: newest}
            if timeline is not None:
                bubbles = [one for one in self._bubbles[key].values() if not math.isnan(one)]
                yield replace(timeline, usual=statistics.median(bubbles))


def _together(parts: Sequence[tuple[int, PipelineStep]]) -> Timeline | None:
    lanes = {rank: [(part.began + action.start, action) for action in unpack(part.actions)] for rank, part in parts}
    computed = [(at, action) for lane in lanes.values() for at, action in lane if action.kind in COMPUTE]
    begin = min((at for at, _ in computed), default=0.0)
    seconds = max((at + action.seconds for at, action in computed), default=0.0) - begin
    if seconds <= 0:
        return None
    busy = sum(action.seconds for _, action in computed)
    first = parts[0][1]
    bubble = max(0.0, 1 - busy / (len(parts) * seconds))
    return Timeline(
        schedule=first.schedule,
        step=first.step,
        stages=first.stages,
        microbatches=first.microbatches,
        seconds=seconds,
        bubble=bubble,
        usual=bubble,
        theory=next((part.theory for _, part in parts if part.theory is not None), None),
        on_host=any(part.on_host for _, part in parts),
        lanes={rank: [action._replace(start=at - begin) for at, action in lane] for rank, lane in lanes.items()},
        left_out=sum(part.left_out for _, part in parts),
    )
