"""The protocol of a launcher: the commands that bring a world's processes up in one kind of place.

A launcher starts nothing itself. The steward runs its commands, owns the processes, and ends them. Clients know a
launcher by its declaration: its start options, and where they put the ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from jupyter_dtrain.wire.requests import WorldOptions, WorldRequest

from .mpi import MpiProgram


class WatchCommand(NamedTuple):
    """The command that starts the watch of one host, with pipes to its input and from its output."""

    host: str
    """The host's name for people."""
    command: list[str]
    first_line: bytes = b""
    """The watch's program and environment, which the command reads first. A command line may not show them."""


class NodesLook(NamedTuple):
    """The nodes of a world, as their scheduler shows them."""

    ends: float = 0.0
    """The time at which the scheduler takes them away, in seconds since the epoch; 0 if that is not known."""
    over: str = ""
    """The reason for which the world has lost them: a sentence without its full stop; empty while it has them."""
    job: str = ""
    """The number of the job that holds them; empty where it is not known."""
    hosts: tuple[str, ...] = ()
    """The names by which they are reached, in the order of their ranks; empty where they are not known."""


class Allocation(Protocol):
    """The nodes that a scheduler lends to a world. One thread at a time calls it."""

    def get(self, say: Callable[[str], None], stopped: threading.Event) -> None:
        """Return when the world has its nodes, or when ``stopped`` is set: a queue may take hours.

        ``say`` shows how far that is. Raises :class:`~jupyter_dtrain.core.errors.StartFailed` with the reason.
        """

    def examine(self, stopped: threading.Event) -> None:
        """Look at the nodes that :meth:`get` has got, for some seconds at most, before ranks start there.

        Return at once when ``stopped`` is set. Raises :class:`~jupyter_dtrain.core.errors.StartFailed` where no world
        can start on them; nodes that were taken away meanwhile do not answer, and then that is the reason.
        """

    def look(self, *, ending: bool = False) -> NodesLook:
        """The state of the nodes. ``ending``: something on them has ended; wait some seconds for the reason."""

    def give_back(self) -> None:
        """Give the nodes back, or the place in the queue. Takes some seconds at most and does not raise."""

    def remains(self) -> list[list[str]]:
        """The commands that give them back where the steward was killed."""


class Launcher(Protocol):
    """Gives the commands that bring up the processes of one world."""

    @property
    def allocation(self) -> Allocation | None:
        """The world's nodes, if it must ask a scheduler for them first; nothing below is known before it has them."""

    remote: bool
    """Whether its ranks run on hosts that cannot read this machine's files."""
    address: str
    """The address of this machine as the ranks reach it."""
    scratch: str
    """The world's folder, on each host of its ranks, for what ends with it."""
    slots: dict[str, int]
    """The most ranks of each host, in order; empty where all ranks are on this machine, which takes any number."""

    def controller_command(self, incarnation: int) -> list[str]:
        """The command of ipyparallel's controller, which runs on this machine."""

    def watches(self) -> list[WatchCommand]:
        """The command for the watch of each host, in the order of their ranks."""

    def ranks_command(self, mpi: MpiProgram, network: str) -> list[str]:
        """The command of ``mpiexec``. ``network``: the subnet that all hosts share with this machine; empty if none."""

    def slot_command(self) -> list[str]:
        """The command of the process that ``mpiexec`` starts for each rank, on every host of the world.

        One more argument says which dead rank a new one replaces (:mod:`jupyter_dtrain.rank.slot_holder`).
        """

    def resize(self, request: WorldRequest) -> None:
        """Use this ``request`` of the same world, with another number of ranks, for all later commands."""

    def environment(self) -> dict[str, str]:
        """The environment of what this machine runs for the world: ``mpiexec``, and local watches."""

    def start_without(self, host: str) -> str:
        """The line that starts such a world on the other hosts, without its ``--env``; empty if there is none."""

    def explain(self, host: str, code: int, log: str) -> tuple[str, str]:
        """Reason and fix where the watch of ``host`` ended with ``code``; two empty texts if nothing is known."""


class WorldPlan(NamedTuple):
    """Where the ranks of a world run, as far as that is known before it starts."""

    size: int
    """The number of ranks."""
    hosts: dict[str, int]
    """The ranks of each host, in order; empty where all are on this machine."""
    address: str
    """The address of this machine at which ranks reach it; empty where only the examination finds it."""
    slots: dict[str, int] = {}  # noqa: RUF012 — never changed
    """The most ranks of each host, in order, where a resize may add ranks; empty: as many as ``hosts`` has."""
    threads: int = 0
    """The processors that a scheduler gives each rank; 0: it gives no number."""


class Capacity(NamedTuple):
    """The size of the place, for the dialog; zeros where it is not known before the world starts."""

    cores: int = 0
    gpus: int = 0
    default_ranks: int = 0
    """The number of ranks by default; zero where the options decide."""


class LauncherDeclaration(msgspec.Struct, frozen=True):
    """A launcher as clients know it. The entry point group :data:`jupyter_dtrain.launch.GROUP` offers others."""

    name: str
    title: str
    """The place, as the dialog calls it."""
    place: Callable[[int | None, Any], WorldPlan]
    """Puts ranks in their places, and checks the options together: takes the number of ranks, None for the default, and
    the ``options``. It asks no host of the ranks. Raises :class:`~jupyter_dtrain.core.errors.BadRequest` and
    :class:`~jupyter_dtrain.core.errors.StartFailed`."""
    make: Callable[[WorldRequest], Launcher]
    share_gpus: Callable[[WorldOptions, Any], tuple[WorldOptions, Any]] | None = None
    """Divides GPUs, where ``gpus_per_rank`` is given: takes the options of the world and its own, and returns both with
    the number of ranks that follows, where the person left it open. It asks no host of the ranks, and raises
    :class:`~jupyter_dtrain.core.errors.BadRequest` where it knows that they do not suffice."""
    capacity: Callable[[], Capacity] = Capacity
    """May take a second."""
    options: type[msgspec.Struct] | None = None
    """Its own start options: a Struct whose fields all have defaults and carry descriptions."""
    chosen_by: tuple[str, ...] = ()
    """Those of its options that choose it, as a person need not name a launcher."""
    examination: Callable[[Any, WorldPlan], WorldPlan] | None = None
    """Looks at the hosts before a start, for some seconds at most: takes the ``options`` and the plan of :attr:`place`,
    and returns the plan, with the address that it found. It raises
    :class:`~jupyter_dtrain.core.errors.StartFailed` where no world can start."""
