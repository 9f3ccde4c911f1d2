"""The slots of the MPI world on this host, as ``mpiexec`` hands them to the watch.

A unix socket in the world's 0700 folder takes one connection from each :mod:`.slot_holder`. The connection's end is the
slot's end: ``mpiexec`` has ended its process.

Under failure: :meth:`Slot.read` raises :class:`EOFError` where the slot's process ends before it has sent everything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jupyter_dtrain.core.world import rank_in

from . import slot_holder

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""
_LAUNCHER = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_", "HYDRA_", "HYDI_", "SLURM_", "OPAL_")
"""How the variables begin by which an MPI program finds its place in its world."""


class Replacement(NamedTuple):
    """A new process that takes the place of a dead rank."""

    ranks: tuple[int, ...]
    """All ranks that are replaced in one heal, in the order in which new processes come."""
    place: int
    """The place of this process among them."""
    generation: int
    """The generation of the world once they are replaced."""

    @property
    def rank(self) -> int:
        """The number of the new rank."""
        return self.ranks[self.place]

    @property
    def words(self) -> str:
        """The replacement as an argument of the slot's process."""
        return f"{','.join(map(str, self.ranks))}:{self.place}:{self.generation}"

    @classmethod
    def of(cls, words: str) -> Replacement:
        """The replacement that ``words`` describe."""
        ranks, place, generation = words.split(":")
        return cls(tuple(map(int, ranks.split(","))), int(place), int(generation))


class Slots:
    """The socket on which slots come in."""

    def __init__(self, folder: str) -> None:
        """``folder``: where the socket is. Raises :class:`OSError` where it cannot be made."""
        (Path(folder) / slot_holder.SOCKET).unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # By the open folder: a unix socket's path may have no more than 107 bytes, and the folder's may be longer.
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.socket.bind(f"/proc/self/fd/{here}/{slot_holder.SOCKET}")
        finally:
            os.close(here)
        self.socket.listen(1024)  # all ranks of the host connect in the same moment
        self.socket.setblocking(False)

    def accept(self) -> Iterator[Slot]:
        """Yield a slot for each connection that waits."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self.socket.accept()
                connection.setblocking(False)
                yield Slot(connection)


class Slot:
    """One slot: a connection to the process that ``mpiexec`` started."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.holder: int = _CREDENTIALS.unpack(credentials)[0]
        """The id of the process that holds the slot."""
        self.environment: dict[str, str] = {}
        """The variables of that process, once it has sent them all."""
        self.cpus: set[int] = set()
        """The processors to which ``mpiexec`` has bound that process."""
        self.replacement: Replacement | None = None
        """Which dead rank the process replaces; None in a world's start."""
        self.descriptor: int | None = None
        """The channel that the launcher has opened for that process, as a descriptor of this one."""
        self.output: list[int] = []
        """Output and errors of that process, as descriptors of this one, on a host that is not the steward's."""
        self._received = b""

    def read(self) -> bool:
        """Read what has come; returns whether the slot is complete. Raises :class:`EOFError` when it was given up."""
        with contextlib.suppress(BlockingIOError):
            while not self._complete:
                data, passed, _, _ = socket.recv_fds(self.socket, 1 << 16, 2)
                if not data:
                    raise EOFError
                self._received += data
                # One descriptor is the channel of MPICH's launcher, two are standard output and error; never all three.
                if len(passed) == 1:
                    self.descriptor = passed[0]
                else:
                    self.output += passed
        if self._complete:
            self._unpack()
        return self._complete

    @property
    def _complete(self) -> bool:
        have = len(self._received) - slot_holder.LENGTH
        return have >= 0 and have >= int.from_bytes(self._received[: slot_holder.LENGTH], "big")

    def _unpack(self) -> None:
        for entry in self._received[slot_holder.LENGTH :].split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == slot_holder.CPUS:
                self.cpus = {int(number) for number in value.split(b",")}
            elif name == slot_holder.REPLACES:
                self.replacement = Replacement.of(value.decode())
            else:
                self.environment[os.fsdecode(name)] = os.fsdecode(value)

    @property
    def rank(self) -> int:
        """The rank in the world; -1 where ``mpiexec`` gives no numbers."""
        return rank_in(self.environment) if self.replacement is None else self.replacement.rank

    def take(self) -> None:
        """Take the slot in a rank's process: its variables, its processors, its launcher's descriptor.

        The watch has the user's variables already, so the slot's count where the launcher sets them, or where the watch
        has none of that name.
        """
        for name, value in self.environment.items():
            if name.startswith(_LAUNCHER) or name not in os.environ:
                os.environ[name] = value
        with contextlib.suppress(OSError):  # the processors can have been taken away
            os.sched_setaffinity(0, self.cpus)
        if self.descriptor is not None:
            number = int(self.environment[slot_holder.INHERITED.decode()])
            if number != self.descriptor:
                os.dup2(self.descriptor, number)
            os.set_inheritable(number, True)

    def end(self, *, well: bool) -> None:
        """Report the rank's end: ``well`` ends the slot's process with 0, else it kills itself."""
        with contextlib.suppress(OSError):
            self.socket.send((0 if well else 1).to_bytes(slot_holder.LENGTH, "big"))
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
        while self.output:
            os.close(self.output.pop())
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
