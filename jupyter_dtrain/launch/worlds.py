"""The worlds of this user on this machine, and the folders that they live in.

Every world has a run-time folder (0700; connection files, logs) that ends with it, and a spool folder among Jupyter's
data that outlives it for some days.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import psutil
from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir

from jupyter_dtrain.core.errors import BadRequest, NoWorld, WorldLost
from jupyter_dtrain.core.processes import describe_process, own_process, still_runs, this_place
from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.wire.messages import UNNUMBERED
from jupyter_dtrain.wire.steward_messages import InterruptRun, Stop

if TYPE_CHECKING:
    from jupyter_dtrain.wire.channels import StewardChannel

STOP_PATIENCE: Final = 20.0
"""Seconds that a world may take to end."""
INTERRUPT_PATIENCE: Final = 10.0
"""Seconds that a steward may take to answer that it interrupts a cell."""


class Listing(msgspec.Struct, frozen=True):
    """A world as its file describes it, without a request to its steward."""

    name: str
    id: str
    size: int
    cwd: str
    steward: int
    """The steward's process id."""
    created: float
    """When that process was created, in seconds since the epoch: another process may get the same id later."""
    connection_file: str
    protocol: int = UNNUMBERED
    """The protocol that its steward speaks, see :mod:`~jupyter_dtrain.wire.messages`."""
    version: str = ""
    """The version of jupyter-dtrain that started it; empty where it is not known."""
    place: str = ""
    """Where its process ids are valid, see :func:`~jupyter_dtrain.core.processes.this_place`; empty if unknown."""
    folders: list[str] = []
    """The folders that end with the world; the last one has this listing."""
    starting: bool = False
    """Whether the process named is still the client that starts the world, and not yet its steward."""


class RunningWorld(msgspec.Struct, frozen=True):
    """A world of yours that runs on this machine, whichever notebook or program started it."""

    name: str
    ranks: int
    """How many ranks it has."""
    folder: str
    """The folder that its ranks began in."""
    started: float
    """When it was started, in seconds since the epoch."""
    pid: int
    """The id of its main process."""
    version: str
    """The version of jupyter-dtrain that started it; empty where it is not known."""

    def stop(self) -> None:
        """End it and all its processes; returns when nothing of it is left.

        Raises :class:`NoWorld` when it has ended before, and :class:`WorldLost` when it does not end in time.
        """
        stop_world(self.name)

    def interrupt(self, *, force: bool = False) -> None:
        """Interrupt the cell that runs in it, if any; variables stay. Returns at once; the cell ends by the deadline.

        ``force``: ranks that have not ended by the deadline are killed. Raises as :meth:`stop`.
        """
        interrupt_world(self.name, force=force)


def worlds() -> list[RunningWorld]:
    """Your worlds that run on this machine, oldest first; :meth:`.Session.attach` joins one by its name."""
    return [RunningWorld(one.name, one.size, one.cwd, one.created, one.steward, one.version) for one in list_worlds()]


def runtime_folder() -> Path:
    """The folder of all run-time folders."""
    return Path(jupyter_runtime_dir()) / "dtrain"


def spool_folder() -> Path:
    """The folder of all spools."""
    return Path(jupyter_data_dir()) / "dtrain" / "spool"


def list_worlds() -> list[Listing]:
    """The worlds of this user that are alive, oldest first.

    It skips a file that another user has written or that names another user's process: in a folder that several users
    can write, such a file would send this user's requests to its author.
    """
    found = []
    for _, listing in _listings():
        with contextlib.suppress(psutil.Error):
            owner = psutil.Process(listing.steward).uids().real
            if owner == os.getuid() and is_alive(listing) and not listing.starting:
                found.append(listing)
    return sorted(found, key=lambda listing: listing.created)


def dead_worlds() -> list[Listing]:
    """The worlds of this user that were started here, and whose stewards have ended without removing their folders."""
    here = this_place()
    found = []
    for folder, listing in _listings():
        if not here or listing.place != here or listing.folders[-1:] != [str(folder)] or is_alive(listing):
            continue
        with contextlib.suppress(OSError):  # its steward may remove it just now
            if folder.lstat().st_uid == os.getuid():
                found.append(listing)
    return found


def _listings() -> Iterator[tuple[Path, Listing]]:
    """The listings of worlds that this user's processes have written, by their folders."""
    for file in runtime_folder().glob("*/world.json"):
        with contextlib.suppress(OSError, *UNREADABLE):
            if file.lstat().st_uid == os.getuid():
                yield file.parent, msgspec.json.decode(file.read_bytes(), type=readable(Listing))


def write_listing(folder: str | Path, listing: Listing) -> None:
    """Write the file of a world in its run-time ``folder``, at once or not at all; readers never see a part of it.

    Raises :class:`OSError` where that fails.
    """
    file = Path(folder) / "world.json"
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(msgspec.json.encode(listing))
    new.replace(file)


def take_listing(folder: str | Path) -> bool:
    """Enter this process, the steward, into the listing of a world that starts.

    Returns False where the client that starts the world has died.

    Raises :class:`OSError` where there is no listing any more, or where it cannot be written.
    """
    listing = msgspec.json.decode((Path(folder) / "world.json").read_bytes(), type=readable(Listing))
    if not is_alive(listing):
        return False
    pid, created = own_process()
    write_listing(folder, msgspec.structs.replace(listing, steward=pid, created=created, starting=False))
    return True


def relist(folder: str, size: int) -> None:
    """Write the number of ranks, ``size``, into the listing of a world in its run-time ``folder``."""
    with contextlib.suppress(OSError, *UNREADABLE):
        listing = msgspec.json.decode((Path(folder) / "world.json").read_bytes(), type=readable(Listing))
        write_listing(folder, msgspec.structs.replace(listing, size=size))


def is_alive(listing: Listing) -> bool:
    """Whether the world's steward still runs; before it is there, the client that starts the world."""
    return still_runs(listing.steward, listing.created)


def find_world(name: str | None) -> Listing:
    """The world ``name``, or the only one. Raises :class:`NoWorld`, and :class:`BadRequest` where there are several."""
    found = list_worlds()
    if name is None and len(found) > 1:
        raise BadRequest(f"Several worlds are running: name one of {', '.join(listing.name for listing in found)}.")
    chosen = next((listing for listing in found if name in (None, listing.name)), None)
    if chosen is None and name is None:
        raise NoWorld("No world of yours is running on this machine: start one with %distributed start.")
    if chosen is None:
        raise NoWorld(f"No world of yours is named {name!r}: %distributed worlds shows them.")
    return chosen


def open_channel(listing: Listing, patience: float) -> StewardChannel:
    """A channel to a world's steward, which may take ``patience`` seconds for an answer."""
    from jupyter_dtrain.wire.channels import StewardChannel

    return StewardChannel(listing.connection_file, patience, lambda: is_alive(listing))


def stop_world(name: str) -> None:
    """End the world ``name``, whichever client started it; returns when its steward has ended.

    Raises :class:`NoWorld` when there is none, and :class:`WorldLost` when it still runs after :data:`STOP_PATIENCE`
    seconds.
    """
    listing = find_world(name)
    try:
        with contextlib.closing(open_channel(listing, STOP_PATIENCE)) as channel:
            channel.ask(Stop())
    except (WorldLost, OSError):
        # A world may end by itself meanwhile, as one does whose client is killed while it starts.
        if is_alive(listing):
            raise
    if not await_end(listing, STOP_PATIENCE):
        raise WorldLost(f"World {name!r} did not stop: its main process (pid {listing.steward}) is still running.")


def interrupt_world(name: str, *, force: bool = False) -> int | None:
    """Interrupt the cell that runs in the world ``name``, whichever client began it; returns the number of its run.

    ``force``: kill the ranks that do not end. Returns as soon as the steward has taken it; None where nothing has run.
    Raises :class:`NoWorld` when there is none, and :class:`WorldLost` when its steward does not answer.
    """
    channel = open_channel(find_world(name), INTERRUPT_PATIENCE)
    try:
        return channel.ask(InterruptRun(describe_process(), force=force)).run
    finally:
        channel.close()


def await_end(listing: Listing, patience: float) -> bool:
    """Whether the world's steward has ended, waiting at most ``patience`` seconds for it."""
    deadline = time.monotonic() + patience
    while is_alive(listing):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
