"""The parts of torchft that are mended, each by itself: no world is needed."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest

from jupyter_dtrain.frameworks.torch import waits
from jupyter_dtrain.frameworks.torch.elastic import checkpoints, hooks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def mended():
    """torchft's communication hook as 0.2.0 has it, mended: it asserts that the collective has a result."""

    class DistributedDataParallel:
        @staticmethod
        def _comm_hook(state, bucket):  # noqa: ARG004 — torchft's signature
            assert state.result is not None
            return state.result

    hooks.hook_ddp(SimpleNamespace(DistributedDataParallel=DistributedDataParallel))
    yield DistributedDataParallel._comm_hook
    waits.carrying_on.clear()


def manager(*, result=None, error=None):
    return SimpleNamespace(result=result, errored=lambda: error)


def test_the_gradients_go_on_where_the_manager_knows_of_the_failure(mended):
    import torch

    assert torch.futures
    bucket = SimpleNamespace(buffer=lambda: 7)
    assert mended(manager(result="whole"), bucket) == "whole"
    assert mended(manager(error=RuntimeError("a rank died")), bucket).wait() == 7
    with pytest.raises(AssertionError):
        mended(manager(), bucket)


def test_a_fault_of_ours_leaves_the_error_of_the_library(mended):
    """The Manager of another version cannot say whether it knows of the failure."""
    with pytest.raises(AssertionError):
        mended(SimpleNamespace(result=None), None)


def test_a_rank_that_does_not_come_to_a_process_group_is_not_waited_for_long(monkeypatch):
    import torch.distributed as dist

    create = hooks.GROUPS.guard(hooks.create, lambda *arguments: arguments[2:])
    store = dist.HashStore()
    monkeypatch.setattr(hooks, "MEETING", 0.1)
    with pytest.raises(TimeoutError, match="1 of 2 replicas did not come"):
        create(None, store, 0, 2)
    assert create(None, store, 1, 2) == (1, 2)


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft has no wheel for this machine")
def test_a_rank_that_drops_a_step_ends_the_wait_of_the_others():
    """Without it, rank 1 waits in the collective, so it does not ask for the next step, for which rank 0 waits."""
    import torch
    import torch.distributed as dist
    from torchft import ProcessGroupGloo

    class Manager:
        def __init__(self, group):
            self._pg, self.errors = group, []

        def report_error(self, e):
            self.errors.append(e)

    hooks.hook_manager(SimpleNamespace(Manager=Manager))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = [ProcessGroupGloo(timeout=timedelta(seconds=20)) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(
            threads.map(lambda rank: groups[rank].configure(f"127.0.0.1:{store.port}/1", str(rank), rank, 2), range(2))
        )
        began = time.monotonic()
        others = groups[1].allreduce([torch.ones(1)], dist.AllreduceOptions())
        waits_for_rank_0 = threads.submit(others.wait)
        dropped = Manager(groups[0])
        dropped.report_error(RuntimeError("a rank died"))
        with pytest.raises(RuntimeError):
            waits_for_rank_0.result(20)
        assert time.monotonic() - began < 15  # its own timeout would end it after 20
    assert len(dropped.errors) == 1
    groups[1].abort(errored=False)


def test_a_rank_in_the_communication_hook_waits_for_nobody(mended):
    """Autograd calls it on a thread of its own on a GPU; the main thread is in backward() then."""
    import torch

    def frames():
        seen = []
        x = torch.ones(1, requires_grad=True)
        x.register_hook(lambda _: seen.append(waits.call_that_waits(sys._getframe(1), None, on_device=False)))
        x.sum().backward()
        return seen

    assert frames() == ["backward"]
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        @property
        def result(self):
            inside.set()
            leave.wait(20)
            return 1

    thread = threading.Thread(target=mended, args=(Slow(), None))
    thread.start()
    inside.wait(20)
    try:
        assert frames() == [""]
    finally:
        leave.set()
        thread.join()


def test_a_state_is_read_only_from_a_process_of_this_user(monkeypatch):
    def serve():
        with server.accept()[0] as accepted:
            accepted.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = threading.Thread(target=serve)
        taken.start()
        with socket.create_connection(server.getsockname()) as connection:
            checkpoints.check_own(connection, "here")
            monkeypatch.setattr(checkpoints, "is_own", lambda _: False)
            monkeypatch.setattr(checkpoints, "ACCEPTING", 0.05)
            with pytest.raises(PermissionError, match="here is not served by a process of this user"):
                checkpoints.check_own(connection, "here")
        taken.join()
