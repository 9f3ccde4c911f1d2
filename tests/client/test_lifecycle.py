"""The end of a notebook's kernel, and the worlds that it has started."""

from __future__ import annotations

import ipykernel.kernelbase  # noqa: F401 — a kernel has it
import pytest

from jupyter_dtrain.client.lifecycle import OpenSessions
from jupyter_dtrain.core.stop_button import shutdown
from jupyter_dtrain.plugins import patches


class Kernel:
    """As much of ipykernel's as shutting down needs."""

    def __init__(self):
        self.ended = []

    def do_shutdown(self, restart):
        self.ended.append(restart)
        return {"restart": restart}


class Session:
    """One that drives a world, which it has started."""

    closed, started_here, controls, loss, name = False, True, True, "", "a"

    def __init__(self, stop_soon):
        self._stop_soon = stop_soon


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("works", [True, False])
def test_a_kernel_ends_whatever_becomes_of_its_worlds(monkeypatch, restart, works):
    """Its worlds end with it, but not where it restarts."""
    for name in ("asked", "comes_by_request"):
        monkeypatch.setattr(shutdown, name, getattr(shutdown, name))
    faults = []
    stopped = []

    def stop_soon():
        stopped.append(True)
        if not works:
            raise OSError("no way to the steward")

    sessions, kernel = OpenSessions(), Kernel()
    sessions._sessions.append(Session(stop_soon))
    sessions._wrap_shutdown(kernel)
    monkeypatch.setattr(patches, "_reported", set())
    patches.report_to(faults.append)
    try:
        answer = kernel.do_shutdown(restart=restart)
    finally:
        patches.report_to(None)

    assert (answer, kernel.ended, stopped) == ({"restart": restart}, [restart], [True] * (not restart))
    assert len(faults) == (not works and not restart)
