"""What dead worlds have left on this machine: processes and folders, found and removed.

*The next start of this user* calls :func:`remove_leftovers`, for a world whose guard and steward were both killed. It
removes only what provably belonged to such a world:

* A *world* is dead when its listing, a file of this user in a folder of this user's, names this machine's boot and
  process ids as they are counted here, and the steward's id with its time of creation belongs to no process. So a world
  on another host, or in another container, that shares the home is never touched.
* A *process* is the world's when it is this user's, began after the steward, and has the world's id in the environment
  that it was started with. This process and those above it stay.
* A *folder* is the world's when its listing names it, it is this user's, and it is no link.

*The doctor* looks for more, since the listing of a world may lie on another machine: :func:`processes` and
:func:`folders` find it, and :func:`remove` removes it on request.

* A *process* counts if it is this user's and has the id of a dead world in its environment.
* A *folder* counts by its label (:mod:`jupyter_dtrain.core.processes`), never by its name.
* A *world* lives if its id is among those that the caller knows to live, if its steward or guard runs on this machine,
  or if a daemon that started its processes from another machine is still above one of them.

Under failure: what cannot be read counts as none. A start spends a few seconds at most on removal, and what cannot be
removed then stays for the next start; what the doctor cannot remove stays, with the reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psutil

from jupyter_dtrain.core.processes import CLOSE, LABEL, labelled_world

from .worlds import Listing, dead_worlds, list_worlds

MARK: Final = "DTRAIN_WORLD"
"""The variable with the world's id, in the environment of its steward and of all processes that the steward starts."""
PATIENCE: Final = 3.0
"""Seconds that processes may take to be gone once they were killed."""
SETTLE: Final = 0.5
"""Seconds after which a process of a world that has just ended is gone by itself."""
SHOWN: Final = 120
"""Characters of a command line that a finding shows."""
STEWARD: Final = "jupyter_dtrain.steward"
"""A part of the command line of a world's steward, and of the guard that cleans up after one."""
MEMORY: Final = "/dev/shm"  # noqa: S108 — each world makes a private folder in it
DAEMONS: Final = (
    "prted",
    "orted",
    "sshd",
    "sshd-session",
    "slurmstepd",
    "hydra_pmi_proxy",
    "pbs_mom",
    "sge_shepherd",
)
"""Programs through which a steward on another machine holds the ranks of this one. They spare processes, never end
one."""

_log = logging.getLogger(__name__)


class Leftover(msgspec.Struct, frozen=True):
    """A process of a dead world, by its identity."""

    pid: int
    started: float
    """When it was created, in seconds since the epoch."""
    world: str
    command: str = ""


class LeftFolder(msgspec.Struct, frozen=True):
    """A folder of a dead world."""

    path: str
    world: str


class Removal(msgspec.Struct, frozen=True):
    """What became of the leftovers on this machine."""

    ended: list[int] = []
    """The ids of the processes that were ended."""
    left: dict[str, str] = {}
    """Why each other process was not ended, by its id."""
    removed: list[str] = []
    """The paths of the folders that were removed."""
    kept: dict[str, str] = {}
    """Why each other folder was kept, by its path."""


class Marked(NamedTuple):
    """A process of a world."""

    process: psutil.Process
    world: str
    command: str


def remove_dead() -> None:
    """Remove what dead worlds of this user have left on this machine."""
    for listing in dead_worlds():
        try:
            if _may_live(listing):
                continue
            left = _end_processes(listing)
            if left:
                _log.warning("Processes of the world %s cannot be ended: %s", listing.id, left)
                continue
            # The listing's own folder comes last: without it nothing shows what is left.
            for folder in listing.folders:
                if _is_own(Path(folder)):
                    shutil.rmtree(folder, ignore_errors=True)
        except (OSError, psutil.Error) as error:
            _log.warning("The remains of world %s cannot be removed: %s", listing.id, error)


def _may_live(listing: Listing) -> bool:
    """Whether the steward's id names a process of the world after all: its time of creation moves with the clock."""
    try:
        process = psutil.Process(listing.steward)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == listing.id)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _end_processes(listing: Listing) -> list[int]:
    """Kill the processes of a dead world. Returns the ids of those that are still there after :data:`PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while left := _processes_of(listing):
        if time.monotonic() > deadline:
            break
        end_processes(left, 0.2)
    return [process.pid for process in left]


def _processes_of(listing: Listing) -> list[psutil.Process]:
    found = []
    for one in marked_processes():
        with contextlib.suppress(psutil.Error):
            if one.world == listing.id and one.process.create_time() >= listing.created - CLOSE:
                found.append(one.process)
    return found


def marked_processes() -> list[Marked]:
    """The processes of this user that belong to any world.

    This process and those above it are none of them: a notebook may have been started from a rank.
    """
    spared = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.pid not in spared
                and process.uids().real == os.getuid()
                and process.status() != psutil.STATUS_ZOMBIE
                and (world := process.environ().get(MARK))
            ):
                found.append(Marked(process, world, " ".join(process.cmdline())))
    return found


def end_processes(processes: Sequence[psutil.Process], patience: float) -> list[psutil.Process]:
    """Kill ``processes``. Returns those that are still there after ``patience`` seconds."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()  # it looks at the time of creation first: no other process with this id is killed
    left: list[psutil.Process] = psutil.wait_procs(processes, timeout=patience)[1]
    return left


def _is_own(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def processes(living: Collection[str]) -> list[Leftover]:
    """The processes of dead worlds that still run after :data:`SETTLE` seconds, in which a world that ends is gone.

    ``living``: the ids of worlds that live, wherever their stewards run.
    """
    found = _described(living)
    if found:
        time.sleep(SETTLE)
        again = _described(living)
        found = [one for one in found if one in again]
    return found


def folders(living: Collection[str]) -> list[LeftFolder]:
    """The folders of dead worlds. ``living`` as for :func:`processes`."""
    return [LeftFolder(path, world) for path, world, _ in _dead_folders(_census(living)[1])]


def remove_leftovers(worlds: Collection[str] = ()) -> Removal:
    """Remove what ``worlds`` that have died left on this machine, processes and folders, each verified.

    ``worlds``: their names; all that have died where none is named. A world that runs is left alone.
    """
    if not worlds:
        remove_dead()  # it knows the folders of this machine's worlds as well
    living = [listing.id for listing in list_worlds()]
    ended, left = end(worlds, living)
    removed, kept = remove_folders(worlds, living)
    return Removal(ended, left, removed, kept)


def end(worlds: Collection[str], living: Collection[str]) -> tuple[list[int], dict[str, str]]:
    """End the processes of dead worlds. Returns the ids of those that have ended, and why the others were left.

    ``living`` as for :func:`processes`.
    """
    marked, alive = _census(living)
    dead = [one.process for one in marked if one.world not in alive and (not worlds or one.world in worlds)]
    left = {process.pid for process in end_processes(dead, PATIENCE)}
    return [one.pid for one in dead if one.pid not in left], {str(pid): "it did not end" for pid in left}


def remove_folders(worlds: Collection[str], living: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Remove the folders of dead worlds without a process here. Returns those removed, and why the others were kept.

    ``living`` as for :func:`processes`.
    """
    removed: list[str] = []
    kept: dict[str, str] = {}
    marked, alive = _census(living)
    for path, world, inside in _dead_folders(alive | {one.world for one in marked}):
        if not worlds or world in worlds:
            try:
                for one in sorted(inside.iterdir(), key=lambda one: one.name == LABEL):  # the label last
                    shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
                Path(path).rmdir()  # it is empty, or this raises
                removed.append(path)
            except OSError as error:
                kept[path] = str(error)
    return removed, kept


def _census(living: Collection[str]) -> tuple[list[Marked], set[str]]:
    """The processes of this user that belong to any world, and the worlds that live."""
    marked = marked_processes()
    alive = set(living)
    for one in marked:
        if one.world not in alive and (STEWARD in one.command or _is_held(one.process)):
            alive.add(one.world)
    return marked, alive


def _described(living: Collection[str]) -> list[Leftover]:
    marked, alive = _census(living)
    return [
        Leftover(process.pid, process.create_time(), world, command[:SHOWN])
        for process, world, command in marked
        if world not in alive
    ]


def _is_held(process: psutil.Process) -> bool:
    """Whether a daemon that another machine started is above the process, or is the process.

    The first process of all adopts orphans, whatever it is called.
    """
    with contextlib.suppress(psutil.Error):  # it has ended meanwhile
        for each in (process, *process.parents()):
            with contextlib.suppress(psutil.Error):
                if each.pid > 1 and each.name() in DAEMONS:
                    return True
    return False


def _dead_folders(alive: Collection[str]) -> Iterator[tuple[str, str, Path]]:
    """The folders that dead worlds have left among temporary files and in memory: path, world, and the way inside.

    The folder is locked, as only its watch locks it, while the loop looks at it. The way inside leads to this one
    folder, whatever its path means later.
    """
    places = [Path(where) for where in sorted({tempfile.gettempdir(), MEMORY})]
    for path in sorted(str(path) for one in places if one.is_dir() for path in one.iterdir()):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                world = labelled_world(handle)
                if world and world not in alive:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield path, world, Path(f"/proc/self/fd/{handle}")
            finally:
                os.close(handle)
