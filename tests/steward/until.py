"""Waiting for what must come, the one waiter of all tests; and looking at what a world consists of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil

from jupyter_dtrain import Session
from jupyter_dtrain.wire.steward_messages import ReadState, WorldState

PATIENCE = 20.0
"""Seconds after which a test gives up on what must come; what it waits for comes much sooner."""


def until(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until ``condition()`` is true and give its value; ``AssertionError`` after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not come true in {patience:g} s"
        time.sleep(0.01)
    return value


def stays(condition: Callable[[], object], seconds: float) -> None:
    """See that ``condition()`` holds for so long: for what must not come. ``AssertionError`` when it no longer does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"it held for less than {seconds:g} s"
        time.sleep(0.01)


def steward_of(session: Session) -> psutil.Process:
    """The steward of the session's world."""
    return psutil.Process(session._link.listing.steward)


def family(session: Session) -> list[psutil.Process]:
    """All processes of the session's world, the steward first."""
    steward = steward_of(session)
    return [steward, *steward.children(recursive=True)]


def child_named(session: Session, part: str) -> psutil.Process:
    """The child of the steward whose command line holds ``part``."""
    for child in steward_of(session).children():
        with contextlib.suppress(psutil.ZombieProcess):
            if any(part in word for word in child.cmdline()):
                return child
    raise LookupError(part)


def watch_of(session: Session, rank: int) -> psutil.Process:
    """The watch of a rank's host: the parent process of its ranks."""
    watch = psutil.Process(session.world.ranks[rank].pid).parent()
    assert watch is not None
    return watch


def runs(process: psutil.Process | int) -> bool:
    """Whether the process is there, and not only waits to be collected by its parent."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    return False


def zombies(session: Session) -> list[psutil.Process]:
    """The processes of the session's world that have ended, and whose parent has not collected them."""
    found = []
    for process in family(session):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that are still there."""
    return [process for process in processes if runs(process)]


def state_of(session: Session) -> WorldState:
    """The state in the steward's answer."""
    return session._link.ask(ReadState())
