"""Traces of several ranks become one, and what it says follows from its numbers."""

from __future__ import annotations

import gzip
import json
import math

import pytest

from jupyter_dtrain.core.traces import (
    DamagedTrace,
    GroupOf,
    RankTrace,
    analyse,
    clock_offsets,
    own_times,
)
from jupyter_dtrain.core.traces import merge as merge_with
from jupyter_dtrain.frameworks.torch.trace_events import FACTORS, roles

BASE = 1_790_000_000_000_000_000
"""Where the profilers count from, in nanoseconds."""
BEGAN = BASE + 5_000_000_000


def span(name, begin, length, tid=1, cat="cpu_op", **args):
    """An event, ``begin`` microseconds after the profile began."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 4711,
        "tid": tid,
        "ts": 5_000_000.0 + begin,
        "dur": length,
        "args": args,
    }


def reduce(begin, length, elements=250, name="gloo:all_reduce", **args):
    """A collective of gloo's, on its own thread."""
    args = {"Input Dims": [[elements]], "Input type": ["float"], **args}
    return span(name, begin, length, tid=9, cat="user_annotation", **args)


def recorded(rank, events, *, host="a", steps=2, ahead=0.0, length=1000, groups=()):
    """A rank's trace with steps of ``length`` microseconds; its clock is ``ahead`` microseconds ahead."""
    shift = round(1000 * ahead)
    marks = [BEGAN + shift + 1000 * length * place for place in range(steps + 1)]
    moved = [{**event, "ts": event["ts"] + ahead} if "ts" in event else event for event in events]
    document = {"baseTimeNanoseconds": BASE, "traceEvents": moved}
    return RankTrace(rank, host, marks, "torch", gzip.compress(json.dumps(document).encode()), list(groups))


def merge(traces, facts):
    """One trace, with the roles that PyTorch's events have."""
    return merge_with(traces, facts, {"torch": roles})


def analysed(*traces):
    """What the merged trace says, which is the same once it was a file."""
    return analyse(json.loads(json.dumps(merge(traces, {"step": 7}))))


def test_shares_of_a_rank():
    """2 ms: 400 µs of operators, 600 µs of communication, of which 100 µs are under an operator."""
    found = analysed(
        recorded(
            0,
            [
                span("aten::mm", 100, 300),
                span("aten::add", 1000, 100),
                span("c10d::allreduce_", 300, 50),
                reduce(300, 400),
                reduce(1500, 200),
            ],
        )
    ).ranks[0]

    assert (found.step, found.computing, found.communicating) == (1000, 0.2, 0.3)
    assert found.exposed == pytest.approx(0.25)
    assert found.hidden == pytest.approx(1 / 6)
    assert math.isnan(found.host_wait)


def test_what_lies_outside_the_steps_does_not_count():
    """The trace begins before the first mark, and ends after the last one."""
    found = analysed(recorded(0, [span("aten::mm", -50, 150), span("aten::mm", 1900, 500)])).ranks[0]

    assert found.computing == 0.1


def test_the_stop_of_the_profiler_is_no_time_of_the_loop():
    """It is within the last call of the optimizer; a collective that goes on has its own end."""
    step = span("Optimizer.step#SGD.step", 1900, 900_000, cat="user_annotation")
    found = merge([recorded(0, [step, reduce(1800, 400)])], {"step": 7})["traceEvents"]
    assert {event["name"]: event["dur"] for event in found if event.get("cat") == "user_annotation"} == {
        "Optimizer.step#SGD.step": pytest.approx(100),
        "gloo:all_reduce": 400,
    }


def test_operators_have_the_time_that_is_their_own():
    """What an operator calls is not its own; both ranks count."""
    events = [span("aten::linear", 0, 500), span("aten::addmm", 100, 300), span("aten::mm", 150, 100)]
    found = analysed(recorded(0, events), recorded(1, events))

    rows = {one.name: (one.calls, one.own, one.share) for one in found.operators}
    assert rows == {
        "aten::linear": (2, 400, 0.1),
        "aten::addmm": (2, 400, 0.1),
        "aten::mm": (2, 200, 0.05),
    }
    assert own_times([]) == []


def test_collectives_are_matched_and_the_late_rank_is_found():
    """Rank 1 comes 80 µs late to each; the time counts from there."""
    early = [reduce(100, 180), reduce(1100, 180)]
    late = [reduce(180, 100), reduce(1180, 100)]
    found = analysed(recorded(0, early), recorded(1, late), recorded(2, early))

    assert (found.matched, found.unmatched, found.spread) == (6, 0, 0)
    assert [(one.late, one.last) for one in found.ranks] == [(0, 0), (80, 1), (0, 0)]
    kind = found.collectives[0]
    assert (kind.name, kind.ranks, kind.calls, kind.size, kind.time) == ("all_reduce", 3, 2, 1000, 100)
    assert kind.bandwidth == pytest.approx(1000 / 100e-6 * 2 * 2 / 3)


def test_a_collective_that_one_rank_lacks_is_not_matched():
    """The others are."""
    found = analysed(recorded(0, [reduce(100, 100), reduce(500, 100)]), recorded(1, [reduce(100, 100)]))

    assert (found.matched, found.unmatched) == (2, 1)


def test_groups_keep_collectives_apart():
    """Ranks 0 and 2 reduce in one group and 1 and 3 in another; the flight recorder says which."""
    groups = {rank: [GroupOf("gloo:all_reduce", f"g{rank % 2}", [rank % 2, rank % 2 + 2])] for rank in range(4)}
    traces = [recorded(rank, [reduce(100 + 300 * (rank % 2), 50)], groups=groups[rank]) for rank in range(4)]
    found = analysed(*traces)

    assert (found.matched, found.unmatched, found.spread) == (4, 0, 0)
    assert [(one.ranks, one.calls) for one in found.collectives] == [(2, 2)]


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0), ("barrier", None)],
)
def test_bus_bandwidth(kind, factor):
    """NCCL-tests' factors, for four ranks. An all-gather's size counts all parts."""
    events = [reduce(100, 100, name=f"gloo:{kind}")]
    found = analysed(*(recorded(rank, events) for rank in range(4))).collectives[0]
    size = 4000 if kind == "all_gather" else 1000

    assert (found.name, found.size) == (kind, size)
    assert found.bandwidth == (None if factor is None else pytest.approx(size / 100e-6 * factor))
    assert set(FACTORS) >= {kind} - {"barrier"}


def test_the_clock_of_another_host_is_aligned():
    """Host b is 3 s ahead; a collective that comes amiss does not matter, nor that a broadcast's source ends first."""
    here = [reduce(100, 100), reduce(600, 100), reduce(1100, 100), reduce(1500, 10, name="gloo:broadcast")]
    there = [reduce(150, 50), reduce(650, 50), reduce(1100, 180), reduce(1500, 90, name="gloo:broadcast")]
    traces = [recorded(0, here), recorded(1, there, host="b", ahead=3e6), recorded(2, there, host="b", ahead=3e6)]
    document = merge(traces, {"step": 0})

    assert document["dtrain"]["clock_offsets_us"] == {"0": 0.0, "1": -3e6, "2": -3e6}
    assert document["dtrain"]["marks"]["1"] == document["dtrain"]["marks"]["0"] == [0, 1000, 2000]
    assert analyse(document).spread == 0


def test_clocks_of_one_host_are_left_alone():
    """Whatever ends late there has ended late."""
    traces = [recorded(0, [reduce(100, 100)]), recorded(1, [reduce(100, 400)])]

    assert merge(traces, {})["dtrain"]["clock_offsets_us"] == {"0": 0.0, "1": 0.0}
    assert clock_offsets({}, {}) == {}


def test_a_host_without_a_common_collective_keeps_its_clock():
    """It is in the trace all the same."""
    traces = [recorded(0, [reduce(100, 100)]), recorded(1, [], host="b", ahead=500)]

    assert merge(traces, {})["dtrain"]["clock_offsets_us"] == {"0": 0.0, "1": 0.0}


def gpu(name, begin, length, number, stream=7, cat="kernel", **args):
    """What a GPU does, and the call on the host that has launched it."""
    return {**span(name, begin, length, tid=stream, cat=cat, correlation=number, **args), "pid": 0}


def launch(begin, number):
    """That call."""
    return span("cudaLaunchKernel", begin, 5, cat="cuda_runtime", correlation=number)


def test_a_device_has_kernels_and_two_kinds_of_idle_time():
    """1 ms: kernels at 200-400 and 700-900, launched at 150 and 450; NCCL's at 800-1000."""
    nccl = {"Collective name": "allreduce", "In msg nelems": 500, "dtype": "Float", "Group size": 1}
    found = analysed(
        recorded(
            0,
            [
                span("aten::mm", 140, 20, **{"External id": 5}),
                launch(150, 1),
                gpu("gemm", 200, 200, 1, **{"External id": 5}),
                launch(450, 2),
                gpu("gemm", 700, 200, 2, **{"External id": 5}),
                launch(780, 3),
                gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 800, 200, 3, stream=20, **nccl),
            ],
            steps=1,
        )
    )

    one = found.ranks[0]
    assert found.on_device
    assert (one.computing, one.communicating, one.exposed) == (0.4, 0.2, 0.1)
    assert one.hidden == 0.5
    # 0-200: until 150 nothing was launched. 400-700: until 450.
    assert (one.host_wait, one.kernel_wait) == (pytest.approx(0.2), pytest.approx(0.3))
    assert [(row.name, row.device, row.share) for row in found.operators] == [("aten::mm", 400, 0.4)]
    assert [(row.name, row.size) for row in found.collectives] == [("all_reduce", 2000)]


def test_the_merged_trace_has_one_process_for_each_rank():
    """Devices become rows of the rank; the profiler's own rows are left out, and arrows do not cross ranks."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 4711, "tid": 0, "ts": 1.0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 4711, "tid": 1, "ts": 1.0, "args": {"name": "main"}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 1.0, "dur": 1},
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": 4711, "tid": 1, "ts": 5_000_001.0, "id": 3},
        span("aten::mm", 0, 10),
        gpu("gemm", 0, 10, 1),
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 5_000_001.0, "id": 4},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 1.0, "args": {"name": "stream 7"}},
        {"ph": "X", "name": "without a time", "pid": 1, "tid": 1},
    ]
    document = merge([recorded(0, events), recorded(3, events)], {"step": 7, "run": 2})
    found = document["traceEvents"]

    assert {event["pid"] for event in found} == {0, 3}
    names = [
        event["args"]["name"] for event in found if event["ph"] == "M" and event["pid"] == 3 and "name" in event["args"]
    ]
    assert names == ["rank 3 (a)", "steps", "GPU 0, stream 7", "main"]
    assert len({event["id"] for event in found if "id" in event}) == 4
    rows = {event["name"]: event["tid"] for event in found if event["pid"] == 3 and event["ph"] in "Xf"}
    assert rows["gemm"] == rows["ac2g"] != rows["aten::mm"]
    assert "without a time" not in rows
    steps = [event["name"] for event in found if event.get("cat") == "step" and event["pid"] == 0]
    assert steps == ["step 8", "step 9"]
    assert document["dtrain"]["run"] == 2


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(b'{"traceEvents": [1, 2'), gzip.compress(b"[1]")])
def test_a_damaged_trace_names_its_rank(data):
    """Also one that was cut off."""
    with pytest.raises(DamagedTrace, match="rank 2") as caught:
        merge([RankTrace(2, "a", [BEGAN, BEGAN + 1], "torch", data)], {})
    assert caught.value.rank == 2
