"""The parts of torchft that are mended, each by itself: no world is needed."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
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
        def _comm_hook(state, _bucket):
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


def test_a_rank_that_does_not_come_to_a_process_group_is_not_waited_for_long(monkeypatch):
    import torch.distributed as dist

    create = hooks._meeting(lambda *arguments: arguments[2:])
    store = dist.HashStore()
    monkeypatch.setattr(hooks, "MEETING", 0.1)
    with pytest.raises(TimeoutError, match="1 of 2 replicas did not come"):
        create(None, store, 0, 2)
    assert create(None, store, 1, 2) == (1, 2)


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
