"""A run as the front end draws it: one JSON document, live and in a saved notebook.

:class:`Picture` has the content as plain data; :func:`document` makes a document of bounded size from it. With few
series the document has each of them, thinned. With many it has their mean, lowest and highest value, with each rank's
last values and the ranks farthest from the others. ``labextension/src/runDocument.ts`` reads it, and
``scripts/front_end_types.py`` makes its types from the structs here.
"""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from jupyter_dtrain.core.divergence import Divergence
from jupyter_dtrain.core.events import Outcome, Progress, PromptOpened, Sample
from jupyter_dtrain.core.fold import asked_alike
from jupyter_dtrain.core.metrics import (
    Columns,
    RankSteps,
    Slow,
    Speed,
    StepTime,
    is_loss,
    is_main,
    newest_points,
    newest_value,
    slowest,
    speed,
)
from jupyter_dtrain.core.pipelines import Timeline
from jupyter_dtrain.core.readings import ReadingLine
from jupyter_dtrain.core.steering import RecordedAct
from jupyter_dtrain.core.step_summary import StepSummary

from .prompts import prompt_words
from .rank_summary import standing
from .step_time import StepTimePart
from .step_time import packed as packed_step_time
from .timelines import PipelinePart, packed

VERSION: Final = 1
"""The document's version."""

MIME: Final = "application/vnd.jupyter-dtrain.run+json"

SAVED_BYTES: Final = 190_000
"""The largest size of a document in a saved notebook, as JSON."""

MOST_METRICS: Final = 60
"""Metrics in one document; the others are counted."""

_LONGEST: Final = 1000  # points of one series
_ENOUGH: Final = 100  # points that a line needs before each rank gets its own
_BUCKETS: Final = 300  # points of a mean
_FARTHEST: Final = 3  # ranks whose own lines are drawn beside the mean
_BAD: Final = 40  # points of a metric that are no numbers
_POINT: Final = 10.7  # bytes of a step and a value: two float32 as base64
_TEXT: Final = 200  # characters of words about a rank
_SAID: Final = 8000  # characters, the last ones, of what a debugger has printed; the cell that asks shows all
_WORDS: Final = 8000  # characters of the words about all ranks, but _FEW of each
_FEW: Final = 12
_PARTS: Final = 64  # ranks of a progress bar
_BARS: Final = 8
_ACTS: Final = 20
_MARKS: Final = 40  # of acts
_BRIEF: Final = 4  # cells of a rank that is not odd, where there is no room for more: rank, node, state, step
_ROWS: Final = 0.5  # the share of a document that rows of ranks may take

RankState = Literal[
    "idle",
    "sent",
    "waiting",
    "asking",
    "held",
    "running",
    "stopped",
    "unreachable",
    "ok",
    "error",
    "released",
    "interrupted",
    "dead",
]
"""A rank's state in a run.

``sent``: the rank has not begun the cell. ``waiting``: for other ranks. ``asking``: for a person. ``held``: paused.
``stopped`` and ``unreachable`` are states of its process. ``released``: it failed only because another rank had. The
others at the end are outcomes.
"""


RunOutcome = Literal["running", "ok", "error", "interrupted", "lost"]
"""The outcome of a run as the front end shows it."""

Steps = str | tuple[int, int, int]
"""Steps in base64, or evenly spaced steps as first, distance and count."""


class RankRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One rank; a row leaves out empty cells at its end."""

    rank: int
    node: int
    state: RankState
    step: int | None = None
    memory: int | None = None
    """Bytes."""
    cpu: float | None = None
    """Percent of a processor."""
    gpu: float | None = None
    """Percent."""
    gpu_used: int | None = None
    """Bytes."""
    gpu_total: int | None = None
    """Bytes."""
    pace: float | None = None
    """Seconds per step."""
    host_memory: int | None = None
    """Bytes of memory that its host has."""
    workers: int | None = None
    """Processes that its code has started; null without any."""
    workers_memory: int | None = None
    """Bytes of memory that they hold."""
    slower: float | None = None
    """By which share its steps take longer than the others' median; null unless it is the slow rank."""


class BarPart(msgspec.Struct, frozen=True, array_like=True):
    """How far one rank is in a progress bar."""

    rank: int
    done: float | None
    total: float | None
    rate: float | None
    """Iterations per second."""
    ended: int
    """1 if the loop has ended, else 0."""


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """A progress bar of all ranks."""

    number: int
    name: str
    parts: list[BarPart]


class Line(msgspec.Struct, frozen=True, array_like=True):
    """The points of one rank."""

    rank: int
    steps: Steps
    values: str
    """Little-endian float32 in base64."""


class BandPart(msgspec.Struct, frozen=True):
    """Statistics over all ranks: columns of little-endian float32 in base64."""

    steps: str
    mean: str
    low: str
    high: str


class LastPart(msgspec.Struct, frozen=True):
    """The newest value of each rank."""

    ranks: list[int]
    values: str
    value: str | UnsetType = UNSET
    """The metric's last value, the mean over the ranks that have come as far as any; older files lack it."""


class BadPoint(msgspec.Struct, frozen=True, array_like=True):
    """A point that is no number."""

    rank: int
    step: int
    kind: str


class MetricPart(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    series: list[Line]
    band: BandPart | UnsetType = UNSET
    """Present if the series were thinned."""
    last: LastPart | UnsetType = UNSET
    """Present if some ranks have no series."""
    bad: list[BadPoint] | UnsetType = UNSET


class PromptPart(msgspec.Struct, frozen=True):
    """What ranks ask a person, all of them the same."""

    ranks: list[int]
    numbers: list[int]
    """The number that the question has on each of them."""
    kind: Literal["input", "password", "debugger"]
    text: str
    place: str
    """The line that asks, on the first of them."""
    said: str = ""
    """What a debugger has printed, on the first of them."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A step that is marked in all charts, and why."""

    step: int
    words: str


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document without its metrics: what changes all the time."""

    version: int
    run: int
    size: int
    outcome: RunOutcome
    elapsed: float
    nodes: list[str]
    ranks: Annotated[list[list[Any]], msgspec.Meta(extra={"rows": RankRow})]
    words: dict[str, str]
    """The end of each rank that was lost or has failed, in words, and the call in which a rank waits for others."""
    bars: list[Bar]
    reach: list[int] = []
    """For each rank how far its events are included, to compare what came on different ways; only in live runs."""
    reading: list[ReadingLine] = []
    """The batch of all ranks, and whether they read the same data."""
    step_time: StepTimePart | UnsetType = UNSET
    """Where the time of its steps goes, and why they are slow; missing while no steps were seen."""
    remark: str = ""
    """More about the end of a run that ended well, such as `rank 1 was replaced`; mostly empty."""
    marks: list[Mark] = []
    prompts: list[PromptPart] = []
    """What ranks ask a person; only in live runs."""
    asked: str = ""
    """Which ranks are at a prompt, and which wait for that, as a sentence; empty where none is."""
    acts: list[RecordedAct] = []
    """The newest acts of persons on its loop, oldest first."""
    paused: int | None = None
    """The step after which all ranks are paused; missing while they are not."""
    thinned: bool = False
    """True if ranks logged faster than the connection can carry; the document then has only extremes."""
    step: int | None = None
    """The step of the rank that is furthest ahead."""
    steps_per_second: float | None = None
    """The mean from its first step on."""
    samples_per_second: float | None = None
    """The mean of all ranks together, in the same time."""


class RunDocument(Status, frozen=True, kw_only=True, omit_defaults=True):
    """A run as the front end draws it."""

    metrics: list[MetricPart]
    left_out: int | UnsetType = UNSET
    """Metrics that are not in the document; missing in old notebooks."""
    pipelines: list[PipelinePart] = []
    seq: int | UnsetType = UNSET
    """The number of the first message that the document does not include."""


@dataclass
class Picture:
    """The known state of a run, by rank."""

    run: int
    size: int
    """Ranks in the world."""
    ranks: Sequence[int]
    """The ranks that run the cell."""
    outcome: Outcome | Literal["running"]
    elapsed: float
    """Seconds."""
    metrics: Mapping[str, Mapping[int, Columns]]
    states: Mapping[int, RankState]
    """A missing rank counts as running while the run goes on, and as dead afterwards."""
    samples: Mapping[int, Sample] = field(default_factory=dict)
    progress: Mapping[int, Sequence[Progress]] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)
    """The end of each rank that was lost or has failed, in words."""
    pace: Mapping[int, StepTime] = field(default_factory=dict)
    """The steps that each rank has made, and their time; like the next three made by :func:`stepped`."""
    steps: Mapping[int, int] = field(default_factory=dict)
    """The newest step."""
    speed: Speed = field(default_factory=Speed)
    slow: Slow | None = None
    """The slow rank, if there is one."""
    left_out: int = 0
    """Number of metrics missing from ``metrics``."""
    thinned: bool = False
    """Whether ranks logged faster than the wire takes: the drawing has the extremes, ``Run.metrics`` all points."""
    remark: str = ""
    """More about the end of a run that ended well; mostly empty."""
    timelines: Sequence[Timeline] = ()
    """A step of each pipeline."""
    reach: Sequence[int] = ()
    """The number of each rank's first event that is not in it, without events that it has no use for."""
    reading: Sequence[ReadingLine] = ()
    """How the ranks read their data, in words."""
    step_time: StepSummary | None = None
    """Where the time of its steps goes."""
    divergence: Divergence | None = None
    """Where the replicas of a checked model have parted."""
    prompts: Mapping[int, PromptOpened] = field(default_factory=dict)
    """What ranks ask a person, for whom they wait."""
    acts: Sequence[RecordedAct] = ()
    """What persons have asked of its loop."""
    paused: int | None = None
    """The step after which all ranks are paused."""
    first_step: int = 0
    """The step from which its ranks count."""

    @property
    def marks(self) -> list[Mark]:
        """The steps that charts mark. A chart's first step is 0, or that from which the run counts; a check's is 1."""
        one = self.divergence
        found = [] if one is None else [Mark(self.first_step + one.step - 1, one.words[:_TEXT])]
        acts = [Mark(act.at, f"{act.words}, by {act.by}"[:_TEXT]) for act in self.acts if act.at is not None]
        return found + acts[-_MARKS:]


def prompt_parts(found: Mapping[int, PromptOpened]) -> list[PromptPart]:
    """What ranks ask, see :func:`.asked_alike`."""
    return [
        PromptPart(
            ranks,
            [found[rank].number for rank in ranks],
            found[ranks[0]].kind,
            found[ranks[0]].text,
            found[ranks[0]].place,
            said if len(said := found[ranks[0]].said) <= _SAID else f"…{said[-_SAID:]}",
        )
        for ranks in asked_alike(found)
    ]


def stepped(ranks: Mapping[int, RankSteps], recent: Mapping[int, StepTime] | None = None) -> dict[str, Any]:
    """The fields of a :class:`Picture` that tell of steps. ``recent``: the newest steps, while the run goes on.

    A rank that has become slow shows in its recent steps. Once a run has ended, all its steps are compared.
    """
    times = {rank: time for rank, steps in ranks.items() if (time := steps.time) is not None}
    newest = {rank: step for rank, steps in ranks.items() if (step := steps.step) is not None}
    slow = slowest(times if recent is None else recent)
    return {"pace": times, "steps": newest, "speed": speed(ranks), "slow": slow}


class Band(NamedTuple):
    """One metric over all ranks: columns of equal length."""

    steps: array[float]
    mean: array[float]
    low: array[float]
    high: array[float]


def in_order(names: Iterable[str]) -> list[str]:
    """The names of metrics: losses first, then other logged values, then learning rates and speeds."""
    return sorted(names, key=lambda name: (not is_main(name), not is_loss(name)))


def status(picture: Picture) -> Status:
    """The document without its metrics: the parts that change all the time."""
    on = {rank: picture.hosts.get(rank, "") for rank in picture.ranks}
    places = {host: place for place, host in enumerate(dict.fromkeys(on.values()))}
    ranks = []
    for rank in picture.ranks:
        sample = picture.samples.get(rank)
        gpu = sample.gpu if sample is not None else None
        whole_row = RankRow(
            rank,
            places[on[rank]],
            picture.states.get(rank, "running" if picture.outcome == "running" else "dead"),
            picture.steps.get(rank),
            None if sample is None else sample.rss,
            None if sample is None else _short(sample.cpu),
            None if gpu is None else _short(gpu.utilisation),
            None if gpu is None else gpu.used,
            None if gpu is None else gpu.total,
            _short(picture.pace[rank].mean) if rank in picture.pace else None,
            None if sample is None or not sample.host else sample.host,
            (sample and sample.workers) or None,
            sample.workers_rss if sample is not None and sample.workers else None,
            _short(picture.slow.more) if picture.slow is not None and picture.slow.rank == rank else None,
        )
        row = list(msgspec.structs.astuple(whole_row))
        while row[-1] is None:
            row.pop()
        ranks.append(row)
    most = max(_FEW, min(_TEXT, _WORDS // max(1, len(picture.words))))
    bars: dict[int, Bar] = {}
    for rank in picture.ranks:
        for bar in picture.progress.get(rank, ()):
            whole = bars.setdefault(bar.bar, Bar(bar.bar, bar.name[:_TEXT], []))
            whole.parts.append(BarPart(rank, _short(bar.done), _short(bar.total), _short(bar.rate), int(bar.ended)))
    return Status(
        version=VERSION,
        run=picture.run,
        size=picture.size,
        outcome=picture.outcome,
        elapsed=math.floor(100 * picture.elapsed + 1e-6) / 100,  # down, as in :func:`.took`: all show the same time
        nodes=list(places),
        ranks=ranks,
        words={str(rank): words[:most] for rank, words in picture.words.items()},
        thinned=picture.thinned,
        reading=list(picture.reading),
        step_time=UNSET if picture.step_time is None else packed_step_time(picture.step_time),
        remark=picture.remark,
        marks=picture.marks,
        prompts=prompt_parts(picture.prompts) if picture.outcome == "running" else [],
        asked=_asked(picture) if picture.outcome == "running" else "",
        acts=[_shortened(act) for act in picture.acts[-_ACTS:]],
        paused=picture.paused if picture.outcome == "running" else None,
        step=max(picture.steps.values(), default=None),
        steps_per_second=picture.speed.steps,
        samples_per_second=picture.speed.samples,
        reach=list(picture.reach) if picture.outcome == "running" else [],
        bars=[_fewer(bars[number]) for number in sorted(bars)][-_BARS:],
    )


def _shortened(act: RecordedAct) -> RecordedAct:
    return msgspec.structs.replace(act, words=act.words[:_TEXT], by=act.by[:_TEXT], said=act.said[:_TEXT])


def _asked(picture: Picture) -> str:
    unfinished = [rank for rank, state in picture.states.items() if state in ("running", "waiting")]
    return prompt_words(picture.prompts, picture.samples, unfinished)


def _fewer(bar: Bar) -> Bar:
    """A bar of many ranks with some of them, which have its ends and about its mean."""
    if len(bar.parts) <= _PARTS:
        return bar
    ordered = sorted(bar.parts, key=lambda part: (part.done or 0.0, part.ended))
    last = len(ordered) - 1
    picked = {round(place * last / (_PARTS - 2)) for place in range(_PARTS - 1)}
    picked.add(min(range(len(ordered)), key=lambda place: (ordered[place].ended, place)))
    return msgspec.structs.replace(bar, parts=[ordered[place] for place in sorted(picked)])


def document(picture: Picture, limit: int = SAVED_BYTES) -> dict[str, Any]:
    """All of ``picture``, thinned until it takes at most ``limit`` bytes as JSON."""
    names = in_order(picture.metrics)
    found = status(picture)
    bare = RunDocument(
        **msgspec.structs.asdict(msgspec.structs.replace(found, ranks=_fitting(found.ranks, picture, limit * _ROWS))),
        pipelines=packed(picture.timelines, limit // 4) if picture.timelines else [],
        metrics=[],
        left_out=picture.left_out + len(names),
    )
    room = limit - len(json.dumps(msgspec.to_builtins(bare))) - 200
    kept = names[: max(1, min(MOST_METRICS, room // 2000))]
    for _ in range(6):
        metrics = _metrics({name: picture.metrics[name] for name in kept}, room)
        whole = msgspec.structs.replace(bare, metrics=metrics, left_out=picture.left_out + len(names) - len(kept))
        content: dict[str, Any] = msgspec.to_builtins(whole)
        if len(json.dumps(content)) <= limit:
            return content
        room = room * 2 // 3
        kept = kept[: max(1, len(kept) * 3 // 4)]
    return msgspec.to_builtins(bare)  # type: ignore[no-any-return]  # a struct becomes a dictionary


def _fitting(rows: list[list[Any]], picture: Picture, room: float) -> list[list[Any]]:
    """Rows of ranks in about ``room`` bytes: where that is not enough for all, only odd ranks have all their cells."""
    if len(json.dumps(rows)) <= room:
        return rows
    odd = set(standing({row[0]: row[2] for row in rows}, picture.hosts, picture.slow).odd)
    return [row if row[0] in odd else row[:_BRIEF] for row in rows]


def band_of(series: Mapping[int, Columns], buckets: int = _BUCKETS) -> Band:
    """The mean, lowest and highest value over all ranks, at every step or in ``buckets`` stretches of many steps."""
    steps = sorted({step for columns in series.values() for step in columns.steps})
    found = Band(array("d"), array("d"), array("d"), array("d"))
    if not steps:
        return found
    if len(steps) <= buckets:
        place = {step: index for index, step in enumerate(steps)}
        where: Sequence[float] = steps
    else:
        width = (steps[-1] - steps[0]) / buckets
        place = {step: min(buckets - 1, int((step - steps[0]) / width)) for step in steps}
        where = [steps[0] + (index + 0.5) * width for index in range(buckets)]
    sums, counts = [0.0] * len(where), [0] * len(where)
    low, high = [math.inf] * len(where), [-math.inf] * len(where)
    for columns in series.values():
        for step, value in zip(columns.steps, columns.values, strict=True):
            if value - value != 0:
                continue
            index = place[step]
            sums[index] += value
            counts[index] += 1
            low[index] = min(low[index], value)
            high[index] = max(high[index], value)
    for index, count in enumerate(counts):
        if count:
            found.steps.append(where[index])
            found.mean.append(sums[index] / count)
            found.low.append(low[index])
            found.high.append(high[index])
    return found


def _metrics(metrics: Mapping[str, Mapping[int, Columns]], room: float) -> list[MetricPart]:
    series = sum(len(ranks) for ranks in metrics.values())
    room -= len(metrics) * 4 * _BUCKETS * _POINT / 2  # for bands
    points = int((room / max(1, series) - 40) / _POINT)
    if points >= _ENOUGH or not any(len(c.values) > points for ranks in metrics.values() for c in ranks.values()):
        return [_each(name, ranks, min(points, _LONGEST)) for name, ranks in metrics.items()]
    each = room / max(1, len(metrics)) + 2 * _BUCKETS * _POINT
    return [_together(name, ranks, each) for name, ranks in metrics.items()]


def _each(name: str, ranks: Mapping[int, Columns], points: int) -> MetricPart:
    """A metric with the points of each rank, and a mean that is not made from thinned points."""
    part = MetricPart(name, [_line(rank, ranks[rank], points) for rank in sorted(ranks)])
    if len(ranks) > 1 and any(len(columns.values) > points for columns in ranks.values()):
        return msgspec.structs.replace(part, band=_packed_band(band_of(ranks, min(_BUCKETS, points))))
    return part


def _together(name: str, ranks: Mapping[int, Columns], room: float) -> MetricPart:
    """A metric as a band over all ranks."""
    newest = newest_points(ranks)
    last, value = {rank: newest[rank][1] for rank in sorted(newest)}, newest_value(newest)
    room -= len(last) * _POINT + 400
    buckets = max(20, min(_BUCKETS, int(room * 0.6 / (2 * _POINT))))
    band = band_of({rank: columns.thinned(4 * buckets) for rank, columns in ranks.items()}, buckets)
    bad = [
        BadPoint(rank, step, _kind(value))
        for rank, columns in sorted(ranks.items())
        for step, value in zip(columns.steps, columns.values, strict=True)
        if value - value != 0
    ]
    points = max(10, min(buckets, int(room * 0.3 / _FARTHEST / _POINT)))
    return MetricPart(
        name,
        [_line(rank, ranks[rank], points) for rank in farthest(last)],
        _packed_band(band),
        LastPart(
            list(last), _floats(array("d", last.values())), UNSET if value is None else _floats(array("d", [value]))
        ),
        bad[:_BAD],
    )


def _packed_band(band: Band) -> BandPart:
    return BandPart(*map(_floats, band))


def farthest(last: Mapping[int, float]) -> list[int]:
    """The ranks whose value is farthest from the median of all; values that are no numbers come first."""
    finite = sorted(value for value in last.values() if value - value == 0)
    middle = finite[len(finite) // 2] if finite else 0.0
    away = {rank: abs(value - middle) if value - value == 0 else math.inf for rank, value in last.items()}
    return sorted(sorted(away, key=lambda rank: -away[rank])[:_FARTHEST])


def _line(rank: int, columns: Columns, points: int) -> Line:
    few = columns.thinned(points)
    return Line(rank, _steps(few.steps), _floats(few.values))


def _steps(steps: array[int]) -> Steps:
    """First, distance and count for even steps, else base64."""
    if (even := even_steps(steps)) is not None:
        return even[0], even[1], len(steps)
    return _floats(steps)


def even_steps(steps: array[int]) -> tuple[int, int] | None:
    """The first of ``steps`` and their distance, if all distances are equal."""
    if not steps:
        return (0, 1)
    stride = steps[1] - steps[0] if len(steps) > 1 else 1
    if stride <= 0 or steps[-1] - steps[0] != stride * (len(steps) - 1):
        return None
    return (steps[0], stride) if steps == array("q", range(steps[0], steps[-1] + 1, stride)) else None


def _floats(column: Sequence[float]) -> str:
    return base64.b64encode(little("f", column)).decode()


def little(kind: Literal["f", "d"], column: Sequence[float]) -> bytes:
    """``column`` as little-endian float32 or float64."""
    import sys

    packed = array(kind, column)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _kind(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _short(value: float | None) -> float | None:
    """The value with six digits; None for NaN and infinities, which JSON lacks."""
    if value is None or value - value != 0:
        return None
    return float(f"{value:.6g}")
