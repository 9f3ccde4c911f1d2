"""The worlds in which plays take place: kept from one play to the next, replaced when one has broken them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_dtrain import NoWorld, Session, Settings
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.launch.mpi import find_mpiexec
from tests.faults import cells
from tests.hosts.launching import options_on
from tests.hosts.network import Network
from tests.processes import loose_segments, wait_for_segments, wait_until_gone
from tests.steward.until import until

HANG = 3.0
"""Seconds after which the worlds here report that no rank moves."""
LONGEST = 60.0
"""Seconds after which a cell that prepares ranks hangs."""
SETTINGS = Settings(hang_notice=HANG)
QUICK = Settings(hang_notice=HANG, interrupt_raise=2.0, interrupt_timeout=3.5)
"""The same steps, sooner."""
OLD_MPI = """#!/bin/sh
[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.6" && exit
exec {mpiexec} "$@"
"""
"""A launcher that knows no ``--with-ft``: its MPI has no ULFM."""


def new_mark() -> str:
    """A name that no other world has."""
    return f"play-{secrets.token_hex(8)}"


class World:
    """A world, the session that drives it, and how to see that nothing of it is left."""

    def __init__(self, size: int, settings: Settings, mark: str, **options: Any) -> None:
        self.mark = mark
        """Its name, and the value of ``DTRAIN_TEST_MARK`` in all of its processes."""
        self.shared = loose_segments()
        with environment(DTRAIN_TEST_MARK=self.mark):
            self.session = Session.start(size, name=self.mark, settings=settings, **options)
        self.session.run(cells.PREPARE, view=None, timeout=LONGEST)

    def restart(self) -> None:
        """Fresh ranks."""
        self.session.restart()
        self.session.run(cells.PREPARE, view=None, timeout=LONGEST)

    def end(self) -> list[str]:
        self.session.leave()
        with contextlib.suppress(NoWorld):
            worlds.stop_world(self.mark)
        return left_of(self.mark, self.session.request.passing_folders, self.shared)


class Worlds:
    """Keeps worlds for one play after the other, one for each size and MPI."""

    def __init__(self, folder: Path, settings: Settings = SETTINGS, network: Network | None = None) -> None:
        """``folder``: for files of the plays; ``settings``, ``network``: of the worlds, which by default are here."""
        self.folder = folder
        self.meeting = folder if network is None or network.shared is None else network.shared
        """Where plays and ranks leave each other files."""
        self.settings = settings
        self.network = network
        self.options = options_on(network)
        """The start options by which the worlds are there."""
        self._worlds: dict[tuple[int, bool], World] = {}

    def world(self, size: int, *, old_mpi: bool, mark: str | None = None) -> World:
        """A world with all of its ranks, idle. ``mark``: the name of one that has to be started."""
        key = (size, old_mpi)
        if key not in self._worlds:
            mpiexec = self._mpiexec() if old_mpi else None
            self._worlds[key] = World(size, self.settings, mark or new_mark(), mpiexec=mpiexec, **self.options)
        return self._worlds[key]

    def discard(self, size: int, *, old_mpi: bool) -> list[str]:
        """End the world of that size; the lines that name its leftovers."""
        world = self._worlds.pop((size, old_mpi), None)
        return [] if world is None else world.end()

    def close(self) -> list[str]:
        """End all worlds; what they left behind."""
        return [line for size, old_mpi in list(self._worlds) for line in self.discard(size, old_mpi=old_mpi)]

    def _mpiexec(self) -> str:
        path = self.folder / "mpiexec"
        path.write_text(OLD_MPI.format(mpiexec=find_mpiexec(None)))
        path.chmod(0o755)
        return str(path)


def left_of(mark: str, folders: list[str], shared: set[str]) -> list[str]:
    """The leftovers of a world that has ended: processes, and with them their sockets; folders; shared memory."""
    left = [f"left behind: process {line}" for line in wait_until_gone(mark)]
    with contextlib.suppress(AssertionError):  # the lines below name what is still there
        until(lambda: not any(Path(folder).exists() for folder in folders), 5)
    left += [f"left behind: {folder}" for folder in folders if Path(folder).exists()]
    return left + [f"left behind: /dev/shm/{name}" for name in wait_for_segments(shared)]


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set these variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
