"""A call of MPI that waits for all ranks is made once, wherever an interrupt comes."""

from __future__ import annotations

import threading

import pytest

from jupyter_dtrain.frameworks.mpi.rounds import Pending


@pytest.mark.parametrize("started", [False, True], ids=["before its thread", "after its thread"])
def test_an_interrupt_as_the_thread_begins_loses_no_call_and_makes_none_twice(monkeypatch, started):
    """A rank that made it twice would take part in two rounds at once, and no round would end."""
    calls = []
    go = threading.Event()

    def call():
        calls.append(1)
        assert go.wait(10)
        return "made"

    pending = Pending(call)
    start = threading.Thread.start

    def interrupted(thread):
        if started:
            start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pending.wait()
    go.set()

    assert pending.wait() == "made"
    assert pending.wait() == "made"
    assert calls == [1]
