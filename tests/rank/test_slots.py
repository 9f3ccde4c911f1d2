"""Slots go from the process that mpiexec starts to the watch, and end with the rank."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from jupyter_dtrain.rank import slot_holder
from jupyter_dtrain.rank.slots import Slots

PATIENCE = 20.0


@pytest.fixture
def slots(tmp_path):
    """The watch's socket, in a folder with a path that is too long for a unix socket."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    slots = Slots(str(folder))
    yield folder, slots
    slots.socket.close()


def hold(folder, env=None, **options):
    """A real slot holder, started as mpiexec starts it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", slot_holder.__file__, str(folder)], env=dict(os.environ) | (env or {}), **options
    )


def come(slots):
    """The next slot, complete."""
    assert select.select([slots.socket], [], [], PATIENCE)[0]
    (slot,) = slots.accept()
    while not slot.read():
        assert select.select([slot.socket], [], [], PATIENCE)[0]
    return slot


def test_a_slot_brings_its_variables_and_processors(slots):
    """Whatever bytes they hold, and more than a socket takes at once."""
    folder, slots = slots
    cpu = min(os.sched_getaffinity(0))
    variables = {"PMIX_RANK": "3", "LONG": "x" * 100_000, "LINES": "a\nb=c", "BYTES": "\udcff"}
    holder = hold(folder, variables, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    slot = come(slots)

    assert {name: slot.environment[name] for name in variables} == variables
    assert slot.cpus == {cpu}
    slot.end(well=True)
    assert holder.wait(PATIENCE) == 0


@pytest.mark.parametrize("way", ["the rank ended badly", "the watch is gone"])
def test_a_slot_without_its_rank_is_killed(slots, way):
    """By SIGKILL: MPI's survivors wait without end for a process that exits with a code."""
    folder, slots = slots
    holder = hold(folder)
    slot = come(slots)
    if way == "the watch is gone":
        slot.close()
    else:
        slot.end(well=False)

    assert holder.wait(PATIENCE) == -signal.SIGKILL


def test_the_end_of_a_slot_is_seen(slots):
    """Before it has said all, and afterwards."""
    folder, slots = slots
    half = socket.socket(socket.AF_UNIX)
    here = os.open(folder, os.O_RDONLY)
    half.connect(f"/proc/self/fd/{here}/{slot_holder.SOCKET}")
    os.close(here)
    half.send((1000).to_bytes(slot_holder.LENGTH, "big") + b"A=1")
    (slot,) = slots.accept()
    assert not slot.read()
    half.close()
    with pytest.raises(EOFError):
        slot.read()
    slot.close()
    holder = hold(folder)
    slot = come(slots)
    holder.kill()

    assert select.select([slot.socket], [], [], PATIENCE)[0]
    assert slot.socket.recv(1) == b""
    slot.close()
    holder.wait()


def test_a_holder_waits_for_a_watch_that_comes_later(tmp_path):
    """Both start at the same time, and the watch imports more."""
    holder = hold(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        holder.wait(0.3)
    slots = Slots(str(tmp_path))
    come(slots).end(well=True)

    assert holder.wait(PATIENCE) == 0
    slots.socket.close()


def test_the_channel_of_the_launcher_comes_along(slots):
    """MPICH's ranks speak with their launcher through such a descriptor."""
    folder, slots = slots
    ours, theirs = socket.socketpair()
    with ours, theirs:
        holder = hold(folder, {"PMI_FD": str(theirs.fileno())}, pass_fds=[theirs.fileno()])
        slot = come(slots)
        assert slot.descriptor is not None
        os.write(slot.descriptor, b"here")

        assert ours.recv(10) == b"here"
        slot.end(well=True)
        assert holder.wait(PATIENCE) == 0
