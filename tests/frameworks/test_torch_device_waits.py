"""A rank that waits for a GPU uses its processor: NCCL's recorder, played here, tells whether it waits for others."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from jupyter_dtrain.frameworks.torch.flight_recorder import is_pending_on_device, recorded_collectives  # noqa: E402
from jupyter_dtrain.frameworks.torch.waits import call_that_waits_for_device  # noqa: E402


def entry(number, state, **more):
    """A collective as torch writes it."""
    return {
        "record_id": number,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1000 + number,
        "input_sizes": [[3]],
        "input_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        **more,
    }


@pytest.fixture
def recorded(monkeypatch):
    """``recorded(*entries)``: NCCL's recorder has these; this torch may be built without one."""
    c10d = sys.modules["torch._C._distributed_c10d"]

    def record(*entries):
        def dump(*, includeCollectives, onlyActive=False):  # noqa: N803 — torch's names
            assert includeCollectives
            chosen = [one for one in entries if not (onlyActive and one["retired"])]
            return json.dumps({"entries": chosen}).encode()

        monkeypatch.setattr(c10d, "_dump_nccl_trace_json", dump, raising=False)

    return record


@pytest.mark.parametrize(
    ("entries", "pending"),
    [
        ([], False),
        ([entry(1, "completed")], False),
        ([entry(1, "completed"), entry(2, "started")], True),
        ([entry(1, "scheduled")], True),
        ([entry(1, "started", time_created_ns=500)], False),
        ([entry(1, "started", profiling_name="gloo:all_reduce")], False),
        ([{"retired": False}], False),
    ],
)
def test_a_gpu_that_has_a_collective_to_do_is_known(recorded, entries, pending):
    """Those of an older group do not count, and neither does what is not as this version of torch has it."""
    recorded(*entries)

    assert is_pending_on_device(600) is pending


def test_the_collectives_of_nccl_are_reported_beside_those_of_gloo(recorded, monkeypatch):
    """Each has a recorder of its own. One that both share would give each collective twice."""
    c10d = torch.distributed.distributed_c10d
    group = object()
    monkeypatch.setitem(c10d._world.pg_names, group, "0")
    monkeypatch.setitem(c10d._world.pg_group_ranks, group, {0: 0, 1: 1})
    recorded(entry(1, "completed"), entry(2, "started"), entry(1, "completed"))

    assert [(one.number, one.call, one.ranks) for one in recorded_collectives(600)] == [
        (1, "all_reduce of float[3]", [0, 1]),
        (2, "all_reduce of float[3]", [0, 1]),
    ]


def innermost(call):
    """The frame in which ``call`` raises."""
    try:
        call()
    except (AssertionError, RuntimeError) as error:
        trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch would wait for its GPU: tests/gpu has that")
def test_a_wait_for_a_gpu_inside_torch_is_called_as_user_code_calls_it():
    """Without CUDA torch raises in the same frames."""
    assert call_that_waits_for_device(innermost(torch.cuda.synchronize), None) == "synchronize"


def test_code_outside_torch_does_not_wait_for_a_gpu():
    assert call_that_waits_for_device(sys._getframe(), None) == ""
