"""The protocol of a launcher: the commands that bring a world's processes up in one kind of place.

A launcher starts nothing itself. The steward runs its commands, owns the processes, and ends them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec


class Mpi(msgspec.Struct, frozen=True):
    """An ``mpiexec`` and what it can do."""

    path: str
    version: str
    open_mpi: bool
    modern: bool
    """Open MPI 5 or newer: its ``mpiexec`` is ``prterun``, and ``--with-ft ulfm`` keeps ranks alive when one dies."""


class WatchCommand(NamedTuple):
    """The command that starts the watch of one host, with pipes to its input and from its output."""

    host: str
    """The host's name for people."""
    command: list[str]
    first_line: bytes = b""
    """The watch's program and environment, which the command reads first. A command line may not show them."""


class Launcher(Protocol):
    """The commands for one world."""

    remote: bool
    """Whether its ranks run on hosts that cannot read this machine's files."""
    address: str
    """The address of this machine as the ranks reach it."""

    def controller_command(self, incarnation: int) -> list[str]:
        """Ipyparallel's controller, on this machine."""

    def watches(self) -> list[WatchCommand]:
        """The watch of each host, in the order of their ranks."""

    def ranks_command(self, mpi: Mpi, network: str) -> list[str]:
        """``mpiexec``; ``network``: the subnet that all hosts share with this machine, empty if there is none."""

    def environment(self) -> dict[str, str]:
        """The environment of what this machine runs for the world: ``mpiexec``, and local watches."""

    def start_without(self, host: str) -> str:
        """The line that starts such a world on the other hosts, without its ``--env``; empty if there is none."""

    def explain(self, host: str, code: int, log: str) -> tuple[str, str]:
        """Reason and cure where the watch of ``host`` ended with ``code``; two empty texts if nothing is known."""
