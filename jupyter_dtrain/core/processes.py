"""Processes as others see them: which process an id names, whose a folder is, and whether a process works or rests.

An id alone may belong to another process by now; an id and a time of creation belong to one process only, at one
place: this boot of this machine. A folder that a world has on a host has a label for the same reason: by it the doctor
knows the folder after its world is dead. The watch that makes the folder writes the label, see
:mod:`jupyter_dtrain.watch.own_folders`.

Whether processes work, wait for a processor, or rest tells a slow start or cell from one that hangs.

Under failure: a process that cannot be read is none that runs, and counts as one that rests.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

CLOSE = 2.0
"""Seconds within which two times of creation are the same. They are computed from the machine's start, which Linux
gives in whole seconds, so they waver by one when its clock is set."""
LABEL: Final = ".dtrain-folder"
"""The name of the label in a folder."""
LOOK = 1.0
"""Seconds between two looks."""
LEAST = 0.03
"""Processes that used so many processor seconds since the last look that found work have worked again."""
BUSY = 2.0
"""A machine is busy when more processes than this want each core at the same time."""

_BUSY_WITH = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)


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


def has_not_ended(process: psutil.Process) -> bool:
    """Whether the process runs, and is more than an exit status that waits to be collected."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def still_runs(pid: int, created: float) -> bool:
    """Whether the process that had this id, and was created then, runs on this machine and is no mere exit status."""
    try:
        process = psutil.Process(pid)
        return has_not_ended(process) and abs(process.create_time() - created) < CLOSE
    except (psutil.Error, OverflowError):  # a number that no process has
        return False


def describe_process() -> str:
    """The words by which other clients show this process."""
    notebook = os.environ.get("JPY_SESSION_NAME")
    if notebook:
        return f"the notebook {Path(notebook).name} (pid {os.getpid()})"
    return f"process {os.getpid()}"


def label(folder: Path, world: str) -> str:
    """The text that says whose ``folder`` is: the world, the boot and process ids that count, the folder's own number.

    A copy of the label is none: it lies in a folder with another number. Where this place is not known, the label
    counts nowhere, and the folder stays.
    """
    status = folder.stat()
    return json.dumps({"world": world, "place": this_place(), "folder": [status.st_dev, status.st_ino]})


def labelled_world(folder: int) -> str:
    """The world in the label of the open ``folder``; empty if the label is not of this folder, place and user.

    Raises :class:`OSError`, :class:`ValueError`, :class:`KeyError` and :class:`TypeError` where there is none.
    """
    own = os.fstat(folder)
    with open(os.open(LABEL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)) as file:
        owner, told = os.fstat(file.fileno()).st_uid, json.load(file)
    here = [os.getuid(), os.getuid(), [own.st_dev, own.st_ino], this_place() or None]
    return str(told["world"]) if [own.st_uid, owner, told["folder"], told["place"]] == here else ""


def show_variable(name: str, value: str) -> None:
    """Have other processes read ``value`` for the environment variable ``name`` of this process.

    Linux shows the variables with which a process was started, in the memory where the process has got them. This must
    have been the last of them, and not shorter. Raises :class:`ValueError` where the text cannot be changed.
    """
    data, entry = Path("/proc/self/environ").read_bytes(), f"{name}=".encode()
    at = data.rfind(b"\0" + entry) + 1
    if not at or b"\0" in data[at:].rstrip(b"\0") or len(entry + os.fsencode(value)) >= len(data) - at:
        raise ValueError(f"{name} is not the last variable of this process, or it is too short")
    # proc_pid_stat(5): env_start, the address of the first variable, is the 50th field; the second one ends with ")".
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])
    if not start:
        raise ValueError("Linux does not say where the variables of this process are")
    ctypes.memmove(start + at, (entry + os.fsencode(value)).ljust(len(data) - at, b"\0"), len(data) - at)


class Work:
    """The processor time of some processes and of all their descendants. One thread at a time may use it."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._used: dict[int, float] = {}
        """Processor seconds of each process, when they were last seen to work."""
        self._since: dict[int, float] = {}
        """Processor seconds of each process at the last call of :meth:`step`."""
        self._now: dict[int, float] = {}
        self._looked = self._worked = time.monotonic()

    def step(self) -> None:
        """Note that the processes have made a step: :meth:`spent` counts from now on."""
        self._since = dict(self._now)

    def rest(self) -> float:
        """Seconds since one of the processes last used a processor, waited for one, or waited for a disk."""
        self._look()
        return time.monotonic() - self._worked

    def spent(self) -> float:
        """Processor seconds since the last step, of the process that used most."""
        self._look()
        return max((used - self._since.get(pid, 0.0) for pid, used in self._now.items()), default=0.0)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        self._now, busy = self._measure()
        # One that has ended must not hide what the others use.
        gained = sum(max(0.0, used - self._used.get(pid, 0.0)) for pid, used in self._now.items())
        if busy or gained > LEAST:
            self._worked, self._used = now, self._now

    def _measure(self) -> tuple[dict[int, float], bool]:
        found: dict[int, float] = {}
        busy = False
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(pid)
                for one in (top, *top.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        busy = busy or one.status() in _BUSY_WITH
                        times = one.cpu_times()
                        found[one.pid] = times.user + times.system
        return found, busy


def work_beneath(process: psutil.Process) -> tuple[float, bool]:
    """The processor seconds of all processes that ``process`` and those beneath it have started, ended ones included.

    And whether one of them uses a processor now, waits for one, or waits for a disk.
    """
    seconds, busy = 0.0, False
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        seconds = times.children_user + times.children_system
        for one in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                busy = busy or one.status() in _BUSY_WITH
                times = one.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds, busy


def describe_load() -> str:
    """How busy this machine is, in words; empty where it is not."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"this machine is busy: load {load:.0f} on {cores} cores" if load > BUSY * cores else ""
