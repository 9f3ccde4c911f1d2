"""Clients of a world, and the processes that they are.

An id alone may belong to another process by now; an id and a time of creation belong to one process only.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import psutil

CLOSE = 2.0
"""Seconds within which two times of creation are the same. They are computed from the machine's start, which Linux
gives in whole seconds, so they waver by one when its clock is set."""


class Client(msgspec.Struct, frozen=True):
    """One client of a world, as others know it."""

    id: str
    pid: int
    created: float
    """When the client's process was created, in seconds since the epoch."""
    words: str
    """The client in words, such as ``the notebook a.ipynb``."""
    kernel: str = ""
    """The id of the Jupyter kernel that it is; empty for any other process."""
    auto: bool = False
    """Whether the client sends plain cells to the ranks too."""


def this_place() -> str:
    """Where a process id names the same process: this boot of this machine, and this namespace of process ids.

    Empty if that is not known.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def own_process() -> tuple[int, float]:
    """The id of this process and when it was created, in seconds since the epoch."""
    return os.getpid(), psutil.Process().create_time()


def still_runs(pid: int, created: float) -> bool:
    """Whether the process that had this id, and was created then, runs on this machine and is no mere exit status."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE) and abs(process.create_time() - created) < CLOSE
    except (psutil.Error, OverflowError):  # a number that no process has
        return False


def describe_process() -> str:
    """The words by which other clients show this process."""
    notebook = os.environ.get("JPY_SESSION_NAME")
    if notebook:
        return f"the notebook {Path(notebook).name} (pid {os.getpid()})"
    return f"process {os.getpid()}"
