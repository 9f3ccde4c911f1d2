"""Traces of some steps of a training loop: those of all ranks as one, and what it says.

Each rank records a trace in Chrome's JSON format, as profilers write it. :func:`merge` makes one trace of
them, which Perfetto reads: each rank is a process, and the clocks of other hosts are aligned by the collectives that
ranks made together. :func:`analyse` reads the merged trace: where a step's time goes, and which rank comes late.

The framework that has recorded a trace tells the role of each event (:class:`Role`). A collective of one rank is
matched with that of the others by its group, its kind, its key where it has one, and its place in their order. Where no
group is known, all ranks count as one. Members of a collective end it together, whenever they come to it: so the
difference of the ends is that of the clocks.

Plain functions of plain data. Under failure: an event that is not as expected is left out; a trace that cannot be read
raises :class:`DamagedTrace`, which names its rank.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

Span = tuple[float, float]
"""The begin and the end of something, in microseconds of the merged trace."""

MOST_RAW: Final = 512 * 1024 * 1024
"""Bytes of one rank's trace that are unpacked at most."""
_TOGETHER: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no member ends before all have come; the source of a broadcast may."""
_ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_STREAMS: Final = 1 << 30
"""Added to a stream's number, which then is no thread's."""
_LAUNCHES: Final = ("cuda_runtime", "cuda_driver")


class DamagedTrace(ValueError):
    """The trace of a rank cannot be read."""

    def __init__(self, rank: int, words: str) -> None:
        super().__init__(f"The trace of rank {rank} cannot be read: {words}")
        self.rank, self.words = rank, words


class Role(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one event of a trace is, by the framework that has recorded it."""

    computes: bool = False
    """Whether it is an operator at work: not one that waits, or only holds others. Kernels need no role for that."""
    communicates: bool = False
    kind: str = ""
    """The kind of a collective; empty for what is none, such as a send."""
    group: str = ""
    """The group, if it is known."""
    ranks: int = 0
    """Ranks in the group; 0 where that is not known."""
    size: int | None = None
    """Bytes of all parts."""
    bus: float | None = None
    """Bytes that a link carries for it."""
    key: str = ""
    """Tells a collective from others of its group and kind, alike on all ranks; empty: their order alone does."""
    name: str = ""
    """Its name among operators; empty: the event's own."""
    length: float | None = None
    """Microseconds from its begin to its end, where the event ends earlier: other threads carry it on."""


Roles = Callable[[Sequence[dict[str, Any]], "Sequence[GroupOf]", int], "Sequence[Role | None]"]
"""Takes the events of a rank, the groups of its collectives, and the number of ranks; the role of each event.

It may change the events, where the profiler numbers processes and threads otherwise than this module, and may say by
``cat`` what ran on a device: a ``kernel``, ``gpu_memcpy`` or ``gpu_memset`` in the process of its GPU's number.
"""


class GroupOf(msgspec.Struct, frozen=True):
    """The group of one collective, which the trace does not name."""

    name: str
    """The event's name."""
    group: str
    ranks: list[int]


class RankTrace(msgspec.Struct, frozen=True):
    """What one rank has recorded."""

    rank: int
    host: str
    marks: list[int]
    """When each step ended, in ``time.time_ns()``; the first is where the profile begins."""
    framework: str
    """The framework that has recorded it, as its plug-in calls itself."""
    trace: bytes
    """Chrome's JSON, compressed by gzip."""
    groups: list[GroupOf] = []
    """The groups of its collectives, in their order, where the rank knows them."""


class Operator(msgspec.Struct, frozen=True):
    """One operator, over all ranks."""

    name: str
    calls: int
    own: float
    """Microseconds on the host, without the operators that it calls."""
    device: float
    """Microseconds of the kernels that it has launched."""
    share: float
    """Its time (on the device, where the profile has kernels, else its own) in that of all ranks."""


class RankShare(msgspec.Struct, frozen=True):
    """How one rank has spent the profile. Shares are of its whole time."""

    rank: int
    host: str
    step: float
    """Microseconds of a step: the median."""
    computing: float
    """The share in which operators ran, on a device in which kernels ran."""
    communicating: float
    exposed: float
    """The share in which it communicated and did not compute."""
    hidden: float
    """The part of the communication that computation has hidden, from 0 to 1; NaN where there was none."""
    late: float
    """Microseconds after the first rank at which it came to a collective: the mean; NaN where none was matched."""
    last: float
    """The part of the matched collectives to which it came last."""
    host_wait: float = math.nan
    """The share in which the device did nothing as nothing was launched; NaN without a device."""
    kernel_wait: float = math.nan
    """The share in which the device did nothing although its next kernel was launched."""


class CollectiveKind(msgspec.Struct, frozen=True):
    """The collectives of one kind and size of group."""

    name: str
    ranks: int
    """Ranks in each."""
    calls: int
    """How many, over the whole profile."""
    size: int | None
    """Bytes of each on average: of all parts, where each rank gives or gets one. None where the trace does not say."""
    time: float
    """Microseconds of each from the last arrival to the end: the median."""
    bandwidth: float | None
    """Bus bandwidth in bytes a second; None where the size is not known."""


class Analysis(msgspec.Struct, frozen=True):
    """What a merged trace says."""

    steps: int
    ranks: list[RankShare]
    operators: list[Operator]
    """The one that took most time first."""
    collectives: list[CollectiveKind]
    matched: int
    """Collectives of all ranks that have their counterparts."""
    unmatched: int
    spread: float
    """Microseconds between the first and the last end of a matched collective: the median; NaN where none was."""
    on_device: bool

    @property
    def step(self) -> float:
        """Microseconds of a step: the median over ranks."""
        return statistics.median([one.step for one in self.ranks]) if self.ranks else math.nan


class _Collective:
    """One collective of one rank."""

    __slots__ = ("begin", "bus", "end", "group", "key", "kind", "rank", "ranks", "size")

    def __init__(self, rank: int, event: Mapping[str, Any], role: Mapping[str, Any]) -> None:
        self.rank = rank
        self.begin, self.end = _whole(event)
        self.kind = str(role["kind"])
        self.group = str(role.get("group", ""))
        self.key = str(role.get("key", ""))
        self.ranks = int(role.get("ranks", 0))
        self.size: int | None = role.get("size")
        self.bus: float | None = role.get("bus")


def read_trace(rank: int, packed: bytes) -> dict[str, Any]:
    """The JSON of one rank's trace. Raises :class:`DamagedTrace`."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        raw = unpacker.decompress(packed, MOST_RAW)
        found: dict[str, Any] = json.loads(raw)
    except (zlib.error, ValueError, RecursionError) as error:
        raise DamagedTrace(rank, f"its trace is damaged ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise DamagedTrace(rank, "its trace is damaged: it has no list of events")
    return found


def merge(traces: Sequence[RankTrace], facts: Mapping[str, Any], roles: Mapping[str, Roles]) -> dict[str, Any]:
    """One trace of all ``traces``, as JSON. ``facts``: what else the file says of itself, under ``dtrain``.

    ``roles``: what tells the roles of the events, by framework; the trace has them under ``dtrain``, too.

    Times count from the first rank's begin. Raises :class:`DamagedTrace` for one that cannot be read.
    """
    zero = min(one.marks[0] for one in traces)
    read = {one.rank: _read_rank(one, zero, roles.get(one.framework), len(traces)) for one in traces}
    hosts = {one.rank: one.host for one in traces}
    offsets = clock_offsets(read, hosts)
    events: list[dict[str, Any]] = []
    marks: dict[str, list[float]] = {}
    first = int(facts.get("step", 0))
    for one in traces:
        rank, offset = one.rank, offsets[one.rank]
        events += _describe_process(rank, one.host, read[rank])
        for event in read[rank]:
            event["pid"] = rank
            if "ts" in event:
                event["ts"] = round(event["ts"] + offset, 3)
            events.append(event)
        ends = [round((mark - zero) / 1000 + offset, 3) for mark in one.marks]
        marks[str(rank)] = ends
        for place, (begin, end) in enumerate(itertools.pairwise(ends)):
            name = f"step {first + place + 1}"
            events.append(
                {"ph": "X", "cat": "step", "name": name, "pid": rank, "tid": 0, "ts": begin, "dur": end - begin}
            )
    own = {
        **facts,
        "began_ns": zero,
        "ranks": [one.rank for one in traces],
        "hosts": {str(rank): host for rank, host in hosts.items()},
        "marks": marks,
        "clock_offsets_us": {str(rank): offset for rank, offset in offsets.items()},
    }
    return {"displayTimeUnit": "ms", "dtrain": own, "traceEvents": events}


def _read_rank(one: RankTrace, zero: int, roles: Roles | None, ranks: int) -> list[dict[str, Any]]:
    """The events of a rank with their roles; their times count from ``zero``, in its own clock."""
    document = read_trace(one.rank, one.trace)
    base = int(document.get("baseTimeNanoseconds") or 0)
    # Whole numbers: a float has not the digits of a time since 1970 in nanoseconds.
    shift = (base - zero) / 1000 if abs(base - zero) < 1 << 50 else float(base // 1000 - zero // 1000)
    kept = [event for event in document["traceEvents"] if _is_kept(event)]
    told = roles(kept, one.groups, ranks) if roles else [None] * len(kept)
    for event, role in zip(kept, told, strict=True):
        if role is not None:
            event["args"] = {**(event.get("args") or {}), "dtrain": msgspec.to_builtins(role)}
    on_device = {(event["pid"], event["tid"]) for event in kept if event.get("cat") in _ON_DEVICE}
    # They get names of ours.
    kept = [event for event in kept if event["ph"] != "M" or (event["pid"], event["tid"]) not in on_device]
    for event in kept:
        if event["ph"] == "M":
            event.pop("ts", None)
        else:
            event["ts"] = float(event["ts"]) + shift
        if (event["pid"], event["tid"]) in on_device:
            event["tid"] += _STREAMS * (1 + event["pid"])
        if isinstance(event.get("id"), int):
            event["id"] += (one.rank + 1) << 40
    # The profiler stops within the last call of step(), which lasts until then: that is no time of the loop.
    last = round((one.marks[-1] - zero) / 1000, 3)
    for event in kept:
        if (
            event.get("cat") == "user_annotation"
            and event.get("dur")
            and event["ts"] < last
            and not _role(event).get("kind")
        ):
            event["dur"] = min(event["dur"], last - event["ts"])
    return kept


def _is_kept(event: Any) -> bool:
    """Whether an event is whole, and of the rank: not of the profiler's own rows, such as "Spans"."""
    if not isinstance(event, dict) or event.get("ph") not in ("X", "i", "s", "t", "f", "C", "M"):
        return False
    if not isinstance(event.get("pid"), int) or not isinstance(event.get("tid"), int):
        return False
    if event["ph"] == "M":
        return event.get("name") == "thread_name"
    timed = [event.get("ts"), *([event.get("dur")] if event["ph"] == "X" else [])]
    return all(isinstance(time, (int, float)) for time in timed)


def _role(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (event.get("args") or {}).get("dtrain")
    return found if isinstance(found, dict) else {}


def _describe_process(rank: int, host: str, events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank} ({host})"}},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "steps"}},
    ]
    streams = {event["tid"] for event in events if event["tid"] >= _STREAMS}
    for tid in sorted(streams):
        device, stream = tid // _STREAMS - 1, tid % _STREAMS
        name = f"GPU {device}, stream {stream}"
        found.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}})
    return found


def clock_offsets(events: Mapping[int, Iterable[Mapping[str, Any]]], hosts: Mapping[int, str]) -> dict[int, float]:
    """The microseconds to add to each rank's times, so that matched collectives end together.

    Ranks of one host have one clock, and get one correction: the median over all that they have matched with a host
    whose clock is known, the lowest rank's first. A host that shares no collective with any other keeps its own clock.
    """
    offsets = dict.fromkeys(events, 0.0)
    together = [found for found in match(events).values() if found[0].kind in _TOGETHER and len(found) > 1]
    left = {hosts.get(rank, "") for rank in events}
    known = {hosts.get(min(events), "")} if events else set()
    while left := left - known:
        gaps: dict[str, list[float]] = defaultdict(list)
        for found in together:
            ends = [one.end + offsets[one.rank] for one in found if hosts.get(one.rank, "") in known]
            if ends:
                for one in found:
                    if (host := hosts.get(one.rank, "")) in left:
                        gaps[host].append(statistics.median(ends) - one.end)
        if not gaps:
            break
        host = max(gaps, key=lambda name: (len(gaps[name]), name))
        offset = round(statistics.median(gaps[host]), 3)
        offsets.update({rank: offset for rank in events if hosts.get(rank, "") == host})
        known.add(host)
    return offsets


def match(events: Mapping[int, Iterable[Mapping[str, Any]]]) -> dict[Any, list[_Collective]]:
    """The collectives of the ranks, those that belong together in one list. ``events``: by rank."""
    found: dict[Any, list[_Collective]] = defaultdict(list)
    for rank, of_rank in events.items():
        counts: dict[Any, int] = defaultdict(int)
        for one in sorted(_collectives(rank, of_rank), key=lambda one: one.begin):
            key = (one.group, one.kind, one.key)
            found[key, counts[key]].append(one)
            counts[key] += 1
    return found


def _collectives(rank: int, events: Iterable[Mapping[str, Any]]) -> list[_Collective]:
    return [_Collective(rank, event, role) for event in events if "dur" in event and (role := _role(event)).get("kind")]


def analyse(document: Mapping[str, Any]) -> Analysis:
    """What a trace that :func:`merge` has made says."""
    own = document["dtrain"]
    windows = {int(rank): (marks[0], marks[-1]) for rank, marks in own["marks"].items()}
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in windows}
    for event in document["traceEvents"]:
        if event["ph"] == "X" and "dur" in event and event.get("cat") != "step" and event["pid"] in events:
            events[event["pid"]].append(event)
    matches = match(events)
    whole = [found for found in matches.values() if len(found) == _expected(found, len(events))]
    late, last = _lateness(whole)
    on_device = any(event.get("cat") in _ON_DEVICE for found in events.values() for event in found)
    ranks = [
        _share(rank, str(own["hosts"].get(str(rank), "")), found, own["marks"][str(rank)], late, last)
        for rank, found in events.items()
    ]
    total = sum(end - begin for begin, end in windows.values())
    counted = sum(map(len, matches.values()))
    matched = sum(map(len, whole))
    together = [found for found in whole if found[0].kind in _TOGETHER]
    spreads = [max(one.end for one in found) - min(one.end for one in found) for found in together]
    return Analysis(
        steps=max((len(marks) - 1 for marks in own["marks"].values()), default=0),
        ranks=ranks,
        operators=_operators(events, total, on_device=on_device),
        collectives=_kinds(whole),
        matched=matched,
        unmatched=counted - matched,
        spread=statistics.median(spreads) if spreads else math.nan,
        on_device=on_device,
    )


def _expected(found: Sequence[_Collective], ranks: int) -> int:
    """The ranks that a collective should have: those of its group, if they were profiled."""
    size = max(one.ranks for one in found)
    return min(size or ranks, ranks)


def _lateness(whole: Sequence[Sequence[_Collective]]) -> tuple[dict[int, float], dict[int, float]]:
    """By rank, how late it comes to a collective on average, and how often as the last."""
    waits: dict[int, list[float]] = defaultdict(list)
    lasts: dict[int, int] = defaultdict(int)
    for found in whole:
        if len(found) > 1:
            first = min(one.begin for one in found)
            for one in found:
                waits[one.rank].append(one.begin - first)
            lasts[max(found, key=lambda one: one.begin).rank] += 1
    late = {rank: statistics.fmean(gaps) for rank, gaps in waits.items()}
    return late, {rank: lasts[rank] / len(gaps) for rank, gaps in waits.items()}


def _share(
    rank: int,
    host: str,
    events: Sequence[Mapping[str, Any]],
    marks: Sequence[float],
    late: Mapping[int, float],
    last: Mapping[int, float],
) -> RankShare:
    window = (marks[0], marks[-1])
    length = max(window[1] - window[0], 1e-9)
    kernels = [event for event in events if event.get("cat") in _ON_DEVICE]
    communicating = _clip((_whole(event) for event in events if _is_communication(event)), window)
    working = kernels or [event for event in events if _computes(event)]
    computing = _clip((_whole(event) for event in working if not _is_communication(event)), window)
    spent = _length(communicating)
    exposed = spent - _overlap(communicating, computing)
    host_wait = kernel_wait = math.nan
    # Without them nobody knows for what the device has waited.
    if kernels and any(event.get("cat") in _LAUNCHES for event in events):
        host_wait, kernel_wait = (one / length for one in _idle(events, kernels, window))
    return RankShare(
        rank=rank,
        host=host,
        step=statistics.median([end - begin for begin, end in itertools.pairwise(marks)] or [math.nan]),
        computing=_length(computing) / length,
        communicating=spent / length,
        exposed=exposed / length,
        hidden=1 - exposed / spent if spent else math.nan,
        late=late.get(rank, math.nan),
        last=last.get(rank, math.nan),
        host_wait=host_wait,
        kernel_wait=kernel_wait,
    )


def _is_communication(event: Mapping[str, Any]) -> bool:
    return bool(_role(event).get("communicates"))


def _computes(event: Mapping[str, Any]) -> bool:
    return bool(_role(event).get("computes"))


def _is_operator(event: Mapping[str, Any]) -> bool:
    """Whether it is an operator on the host, also one that only begins or holds others."""
    return event.get("cat") == "cpu_op" or (_computes(event) and event.get("cat") not in _ON_DEVICE)


def _name(event: Mapping[str, Any]) -> str:
    """The name of an operator."""
    return str(_role(event).get("name") or event["name"])


def _idle(
    events: Iterable[Mapping[str, Any]], kernels: Iterable[Mapping[str, Any]], window: Span
) -> tuple[float, float]:
    """The microseconds in which the device did nothing: before the next kernel was launched, and after it was.

    The first is the host's (Holistic Trace Analysis calls it host wait), the second the device's.
    """
    launched: dict[Any, float] = {}
    for event in events:
        if event.get("cat") in _LAUNCHES and (number := (event.get("args") or {}).get("correlation")) is not None:
            launched[number] = float(event["ts"])
    host = device = 0.0
    idle_since = window[0]
    for event in sorted(kernels, key=lambda event: float(event["ts"])):
        begin, end = _span(event)
        begin = min(begin, window[1])
        if begin > idle_since:
            launch = launched.get((event.get("args") or {}).get("correlation"), begin)
            waited = min(max(launch, idle_since), begin) - idle_since
            host += waited
            device += begin - idle_since - waited
        idle_since = max(idle_since, end)
        if idle_since >= window[1]:
            return host, device
    return host + window[1] - idle_since, device


def _operators(events: Mapping[int, Sequence[Mapping[str, Any]]], total: float, *, on_device: bool) -> list[Operator]:
    """The operators of all ranks; ``total``: microseconds of all ranks together."""
    calls: dict[str, int] = defaultdict(int)
    own: dict[str, float] = defaultdict(float)
    device: dict[str, float] = defaultdict(float)
    for found in events.values():
        computing = [event for event in found if not _is_communication(event)]
        for event, time in _host_times(computing):
            calls[_name(event)] += 1
            own[_name(event)] += time
        numbers = ((event, (event.get("args") or {}).get("External id")) for event in computing)
        launches = {number: _name(event) for event, number in numbers if number and event.get("cat") == "cpu_op"}
        for event in computing:
            if event.get("cat") in _ON_DEVICE:
                name = launches.get((event.get("args") or {}).get("External id")) or _name(event)
                device[name] += float(event["dur"])
                calls[name] += name not in own
    names = {*own, *device}
    ranked = [
        Operator(
            name,
            calls[name],
            own[name],
            device[name],
            (device if on_device else own)[name] / total if total > 0 else 0.0,
        )
        for name in names
    ]
    return sorted(ranked, key=lambda one: (-one.share, -one.own, one.name))


def _host_times(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], float]]:
    """The operators of one rank on the host, each with the microseconds that are its own."""
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "user_annotation" or _is_operator(event):
            threads[event["tid"]].append(event)
    for thread in threads.values():
        for event, time in own_times(thread):
            if _is_operator(event):
                yield event, time + _whole(event)[1] - _span(event)[1]


def own_times(events: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Each event of one thread, with its microseconds without those of the events inside it."""
    ordered = sorted(events, key=lambda event: (float(event["ts"]), -float(event["dur"])))
    left = [float(event["dur"]) for event in ordered]
    stack: list[int] = []
    for place, event in enumerate(ordered):
        begin, end = _span(event)
        while stack and _span(ordered[stack[-1]])[1] <= begin:
            stack.pop()
        if stack:
            left[stack[-1]] -= max(0.0, min(end, _span(ordered[stack[-1]])[1]) - begin)
        stack.append(place)
    return [(event, max(0.0, time)) for event, time in zip(ordered, left, strict=True)]


def _kinds(whole: Sequence[Sequence[_Collective]]) -> list[CollectiveKind]:
    by_kind: dict[tuple[str, int], list[Sequence[_Collective]]] = defaultdict(list)
    for found in whole:
        by_kind[found[0].kind, max([len(found), *(one.ranks for one in found)])].append(found)
    kinds = []
    for (name, ranks), several in by_kind.items():
        # The rank that comes last waits for nobody.
        times = [min(one.end - one.begin for one in found) for found in several]
        sizes = [found[0].size for found in several]
        known = [size for size in sizes if size is not None]
        size = round(statistics.fmean(known)) if len(known) == len(sizes) else None
        buses = [found[0].bus for found in several]
        rates = [bus / time * 1e6 for bus, time in zip(buses, times, strict=True) if bus is not None and time > 0]
        bandwidth = statistics.median(rates) if rates else None
        kinds.append(CollectiveKind(name, ranks, len(several), size, statistics.median(times), bandwidth))
    return sorted(kinds, key=lambda one: -one.calls * one.time)


def _span(event: Mapping[str, Any]) -> Span:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def _whole(event: Mapping[str, Any]) -> Span:
    """The span of what began with the event, also where other threads have carried it on."""
    begin, end = _span(event)
    return begin, max(end, begin + float(_role(event).get("length") or 0.0))


def _clip(spans: Iterable[Span], window: Span) -> list[Span]:
    """The union of ``spans`` within ``window``, in order."""
    found: list[Span] = []
    for begin, end in sorted((max(begin, window[0]), min(end, window[1])) for begin, end in spans):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> float:
    """How long two unions overlap."""
    total, place = 0.0, 0
    for begin, end in some:
        while place < len(others) and others[place][1] <= begin:
            place += 1
        at = place
        while at < len(others) and others[at][0] < end:
            total += min(end, others[at][1]) - max(begin, others[at][0])
            at += 1
    return total
