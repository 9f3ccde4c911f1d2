"""What JAX's profiler writes becomes roles: operators, collectives, and rows of a GPU."""

from __future__ import annotations

import gzip
import json
import math

import pytest

from jupyter_dtrain.core.traces import RankTrace, analyse, merge
from jupyter_dtrain.frameworks.jax.trace_events import roles

BEGAN = 1_790_000_000_000_000_000
MAIN, POOL = 2_385_837_284, 543_507_073
"""Threads, numbered as the profiler does: by hashes."""


def event(name, begin, length, tid=MAIN, pid=701, **args):
    """What the profiler writes of something that has a length."""
    found = {"ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": length, "name": name}
    return {**found, "args": args} if args else found


def operator(name, begin, length, tid=MAIN, run=7, module="jit_step"):
    """What it writes of an operator of XLA's."""
    return event(name, begin, length, tid, hlo_op=name, hlo_module=module, run_id=str(run))


def thread(tid, name, pid=701):
    """What it writes of a thread."""
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def role(found):
    """The role of one event."""
    return roles([found], [], 2)[0]


def analysed(*ranks, length=1000):
    """What the merged trace of one step says; the events of each rank."""
    packed = [
        gzip.compress(json.dumps({"baseTimeNanoseconds": BEGAN, "traceEvents": events}).encode()) for events in ranks
    ]
    marks = [BEGAN, BEGAN + 1000 * length]
    traces = [RankTrace(rank, "a", marks, "jax", data) for rank, data in enumerate(packed)]
    document = merge(traces, {"step": 1}, {"jax": roles})
    return document, analyse(json.loads(json.dumps(document)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("all-reduce.3", "all_reduce"),
        ("all-reduce-start.1", "all_reduce"),
        ("psum.13", "all_reduce"),
        ("psum_invariant.7.clone", "all_reduce"),
        ("pmax", "all_reduce"),
        ("all_gather.7", "all_gather"),
        ("reduce-scatter", "reduce_scatter"),
        ("all-to-all", "all_to_all"),
        ("collective-broadcast.2", "broadcast"),
        ("ppermute.3", ""),
    ],
)
def test_collectives(name, kind):
    """XLA names them, or the function of JAX's that they come from."""
    found = role(operator(name, 0, 10))
    assert (found.communicates, found.computes, found.kind) == (True, False, kind)
    assert (found.size, found.bus, found.ranks) == (None, None, 0)


@pytest.mark.parametrize("name", ["while.9", "conditional", "call.3", "all-reduce-done.1", "copy-done"])
def test_what_holds_operators_or_waits_computes_nothing(name):
    """The operators inside do."""
    assert role(operator(name, 0, 10)) is None


def test_operators_are_named_after_their_function():
    """What has no operator, such as a call of JAX's in Python, has no role."""
    assert role(operator("dot.1", 0, 10)).name == "jit_step: dot.1"
    assert role(event("fusion", 0, 10, hlo_op="fusion")).name == "fusion"
    assert role(event("PjitFunction(step)", 0, 10)) is None
    assert role(event("end: dot.1", 0, 10, _src="thunk_executor.cc")) is None
    assert role(event("nccl", 0, 10)) is None
    assert role({**event("odd", 0, 10), "args": 5}) is None


def test_an_operator_that_other_threads_carry_on():
    """It ends where the thread that tells its end has gone on with the next one."""
    events = [
        operator("dot.1", 100, 50),
        operator("wrapped_tanh", 160, 20),
        event("end: wrapped_tanh", 179, 1),
        event("ThunkExecutor::Execute", 400, 290, POOL),
        operator("all-reduce.3", 410, 200, POOL),
        event("end: all-reduce.3", 609, 1, POOL),
        operator("copy.2", 620, 60, POOL),
        event("end: copy.2", 679, 1, POOL),
        event("end: dot.1", 691, 1, POOL),
    ]
    found = [one and one.length for one in roles(events, [], 2)]
    assert found == [300, None, None, None, None, None, None, None, None]

    late = [operator("dot.1", 100, 50), event("end: dot.1", 400, 1, POOL)]
    assert [one and one.length for one in roles(late, [], 2)] == [300, None]

    said = analysed(events)[1]
    assert said.ranks[0].computing == pytest.approx((300 + 60) / 1000)
    assert said.ranks[0].hidden == 0
    assert {one.name: one.own for one in said.operators} == {
        "jit_step: dot.1": 300,
        "jit_step: wrapped_tanh": 20,
        "jit_step: copy.2": 60,
    }


def test_collectives_are_matched_by_the_run_of_their_function():
    """Rank 1 has begun to record amid the first run, which is therefore not matched; the others are."""
    runs = [
        [operator("all-reduce.3", 100 + 300 * run, 100 - 20 * rank, run=run) for run in range(3)] for rank in (0, 1)
    ]
    said = analysed(runs[0], runs[1][1:])[1]

    assert (said.matched, said.unmatched) == (4, 1)
    assert said.spread == 20
    assert [(one.name, one.ranks, one.calls, one.size) for one in said.collectives] == [("all_reduce", 2, 2, None)]


def test_versions_that_name_no_run():
    """Then the order counts."""
    events = [event("all-reduce.3", begin, 50, hlo_op="all-reduce.3", hlo_module="jit_step") for begin in (100, 300)]
    said = analysed([dict(one) for one in events], [dict(one) for one in events])[1]
    assert (said.matched, said.unmatched) == (4, 0)


def test_rows():
    """Threads get small numbers and plain names."""
    names = [thread(MAIN, "tf_XLAPjRtCpuClient/-355621"), thread(POOL, "tf_XLAEigen/-44"), thread(3, "python")]
    events = [*names, operator("dot.1", 100, 50), operator("dot.2", 100, 50, POOL)]
    document, said = analysed(events, [dict(one) for one in events])
    rows = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name" and e["pid"]}
    assert rows == {0: "steps", 1: "XLAPjRtCpuClient", 2: "XLAEigen", 3: "python"}
    assert not said.on_device


def test_streams_of_a_gpu():
    """Kernels and copies count; a row that sums them up does not, and nothing says for what the GPU has waited."""
    names = [thread(MAIN, "python"), thread(13, "Stream #13(Compute)", 1), thread(14, "Stream #14", 1)]
    events = [
        *names,
        thread(20, "XLA Ops", 1),
        event("loop_fusion", 100, 200, 13, 1, hlo_op="fusion.4", hlo_module="jit_step", correlation_id="5"),
        event("fusion.4", 100, 200, 20, 1, hlo_op="fusion.4", hlo_module="jit_step"),
        event("MemcpyH2D", 300, 100, 14, 1),
        event(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 500, 100, 13, 1, hlo_op="all-reduce-start", hlo_module="jit_step"
        ),
        event("ncclDevKernel_SendRecv", 650, 50, 13, 1),
    ]
    document, said = analysed(events)

    one = said.ranks[0]
    assert said.on_device
    assert (one.computing, one.communicating) == (pytest.approx(0.3), pytest.approx(0.15))
    assert math.isnan(one.host_wait)
    assert math.isnan(one.kernel_wait)
    assert [(row.name, row.own, row.device) for row in said.operators] == [
        ("jit_step: fusion.4", 0, 200),
        ("MemcpyH2D", 0, 100),
    ]
    rows = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert rows == {"steps", "python", "GPU 0, stream 13", "GPU 0, stream 14", "XLA Ops"}
