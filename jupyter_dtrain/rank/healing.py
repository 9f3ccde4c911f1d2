"""A rank's part when the world is healed or resized: living ranks and new processes form MPI's world again.

The ranks that live agree on who they are (``Shrink``), have ``mpiexec`` start a process for each new rank (``Spawn``;
its slot goes to the watch as in a start), and join with the new ones in one communicator, in which every rank has its
number. All of it happens on a thread of its own, beside an idle main thread. It changes nothing that a cell can
see: only when the steward knows that every rank has come so far does it have them take the new world
(:class:`~jupyter_dtrain.wire.healing_messages.TakeWorld`). So either all ranks have it, or none has. A rank whose cell
goes on meanwhile, because it uses nothing of all ranks, takes the new world at the end of that cell.

Where a resize drops ranks, those above them get other numbers: ``Split`` sorts the members by these. A rank takes its
number together with the world, and has its watch know before anything else: whatever ends it from then on, the watch
reports the end of that number.

Under failure: a rank that dies meanwhile may leave calls of MPI waiting that nothing ends (``Spawn`` in the rank that
asked for it, ``Merge``; Open MPI 5.0.11). Their threads stay; they use no processor. The steward begins again with
another try, from the communicator of the last world that all ranks had, and the new try meets none of this.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyter_dtrain.core.processors import Processors, read_processors
from jupyter_dtrain.core.variables import given
from jupyter_dtrain.core.world import numbers_without, place_environment, placements
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.wire.healing_messages import AbandonWorld, AnyHealingRequest, FormWorld, Heritage, ReadHeritage
from jupyter_dtrain.wire.messages import Done
from jupyter_dtrain.wire.reports import Formed, Renumbered, Report

from .slots import Replacement

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement

    from .plugins import Plugins


THREAD: Final = "dtrain-heal"
"""The name of the threads that form a world. Their communicators are no cell's: no release may revoke one."""

WORLD = Patch(
    "mpi4py.MPI",
    replaces=("COMM_WORLD",),
    why="MPI keeps the world that it began with, also when ranks of it are dead, revoked, or new.",
    lost="after a failure MPI.COMM_WORLD is of no use",
)


class Introduction(NamedTuple):
    """The facts that a rank sends to all others, when the world starts and when it is healed."""

    host: str
    processors: Processors
    frameworks: dict[str, str]
    """By framework, what its plug-in lets the plug-ins of other ranks know."""
    heritage: dict[str, str] = {}  # noqa: RUF012 — never changed
    """The words that each framework of a living rank leaves to new ranks."""
    local_rank: int | None = None
    """The local rank that this rank keeps; None where it takes the one that its number gives it."""


def introduce(plugins: Plugins) -> Introduction:
    """Make the introduction of this rank."""
    return Introduction(socket.gethostname(), read_processors(), plugins.introduce())


def enter(mpi: Any, replacement: Replacement) -> Any:
    """In a new process: the communicator of the whole world. Waits for the living ranks, which have spawned it."""
    members = mpi.Comm.Get_parent().Merge(high=True)
    return _let_in(mpi, members, replacement, [""], []).Split(0, key=replacement.rank)


def _let_in(mpi: Any, members: Any, first: Replacement, command: list[str], hosts: list[str]) -> Any:
    """The communicator of ``members`` and the new processes after ``first``; the lowest member has ``command`` run.

    ``hosts``: as in :class:`.FormWorld`; the lowest member counts, which is never new.

    One after the other, each as a job of its own: ``mpiexec`` ends a whole job that was spawned when one of its
    processes dies, also with ``--with-ft ulfm`` (PRRTE of Open MPI 5.0.11). No communicator on the way is freed: a late
    message of ULFM for one would reach another that has got its number.
    """
    for place in range(first.place + 1, len(first.ranks)):
        program, *arguments = [*command, first._replace(place=place).words]
        where = _on(mpi, hosts[place]) if hosts else mpi.INFO_NULL
        members = members.Spawn(program, args=arguments, maxprocs=1, info=where).Merge(high=False)
    return members


def _on(mpi: Any, host: str) -> Any:
    """The Info by which ``mpiexec`` starts a process on ``host``.

    The slot of a dead rank counts as taken there, so ranks may exceed slots; the folder of this rank may be missing.
    """
    info = mpi.Info.Create()
    for name, value in (("host", host), ("map_by", "slot:OVERSUBSCRIBE"), ("bind_to", "none"), ("wdir", "/")):
        info.Set(name, value)
    return info


def adopt(environment: MutableMapping[str, str], place: Placement) -> None:
    """Set the variables by which libraries know a rank of Open MPI to ``place``: those of a spawned job name another.

    Call it once MPI is initialised.
    """
    for name, value in (
        ("OMPI_COMM_WORLD_RANK", place.rank),
        ("OMPI_COMM_WORLD_SIZE", place.size),
        ("OMPI_COMM_WORLD_LOCAL_RANK", place.local_rank),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", place.local_size),
        ("OMPI_COMM_WORLD_NODE_RANK", place.local_rank),
        ("OMPI_UNIVERSE_SIZE", place.size),
    ):
        if name in environment:
            environment[name] = str(value)


class _Try:
    """One try to form the world."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.given_up = False
        self.living: Any = None
        """The communicator of the ranks that live, while they spawn others."""
        self.world: Any = None
        """The communicator of the whole world, once every rank has it."""
        self.place: Placement | None = None
        """This rank's place in that world."""
        self.introductions: list[Introduction] = []
        """The introductions of all ranks of that world."""


class RankHealing:
    """Forms the world anew from this rank's side. The control thread calls it."""

    def __init__(
        self,
        mpi: Any,
        world: Any,
        own: Introduction,
        place: Placement,
        plugins: Plugins,
        report: Callable[[Report], None],
    ) -> None:
        """``world``: the communicator that all ranks had first; ``own``: this rank's introduction of then."""
        self._mpi = mpi
        self._base = world
        """The communicator of the last world that all ranks had. Its living members are all living ranks, always."""
        self._own = own
        self._place = place
        self._plugins = plugins
        self._report = report
        self._try: _Try | None = None
        self._agreeing = threading.Lock()
        """Held while the living ranks agree on who they are: a try that was given up may still do so."""
        self._taking = threading.Lock()
        self._late: list[_Try] = []
        """The worlds that this rank takes when its cell has ended, oldest first."""
        self.renumbered: Callable[[int], None] = lambda _number: None
        """It is called with this rank's new number, before anything else that a cell can see changes."""
        self.heritage: dict[int, dict[str, str]] = {}
        """In a new process: what each living rank's frameworks have left to it."""

    def answer(self, request: AnyHealingRequest, running: int | None) -> Heritage | Done:
        """Answer the steward. ``running``: the run that the rank works on."""
        match request:
            case ReadHeritage():
                plugins = self._plugins
                return Heritage(running, plugins.cannot_heal(), plugins.forbids_heal(), plugins.forbids_fewer())
            case FormWorld():
                self._try = _Try(request.number)
                threading.Thread(target=self._form, args=(request, self._try), name=THREAD, daemon=True).start()
            case AbandonWorld():
                self._abandon()
            case _:
                self._take(request.number, busy=running is not None)
        return Done()

    def _form(self, order: FormWorld, mine: _Try) -> None:
        words, local_rank = "", self._place.local_rank
        try:
            mine.world, local_rank = self._meet(order, mine)
        except Exception as error:  # noqa: BLE001 — the steward gets it
            words = f"{type(error).__name__}: {error}"
        if not mine.given_up:
            with contextlib.suppress(OSError):
                self._report(Formed(self._place.rank, order.number, words, local_rank))

    def _meet(self, order: FormWorld, mine: _Try) -> tuple[Any, int]:
        """The communicator of the whole world, and this rank's local rank there."""
        # Two tries at once would meet in each other's collectives. These two end, whatever dies meanwhile.
        with self._agreeing:
            living = self._base.Shrink()
            if living.size + len(order.ranks) != order.size:
                raise RuntimeError("another rank has died")
            # A rank that still makes a communicator crashes when another revokes that: nobody may until all have it.
            living.Agree(1)
        mine.living = living
        if mine.given_up:
            raise RuntimeError("the try is over")
        first = Replacement(tuple(order.ranks), -1, order.generation)
        members = _let_in(self._mpi, living, first, order.command, order.hosts)
        mine.living = None
        world = members.Split(0, key=numbers_without(order.leaving, self._place.size)[self._place.rank])
        local_rank = self._place.local_rank if order.keeps_local_rank else None
        mine.introductions = world.allgather(
            self._own._replace(heritage=self._plugins.bequeath(), local_rank=local_rank)
        )
        mine.place = place = place_of(mine.introductions, world.rank)
        # No rank goes on before all have it: one that still makes a communicator crashes when another revokes that.
        world.Barrier()
        return world, place.local_rank

    def _abandon(self) -> None:
        mine, self._try = self._try, None
        if mine is None:
            return
        mine.given_up = True
        # It frees all ranks but the one that has asked mpiexec; revoking what Merge waits in frees none.
        if mine.living is not None:
            with contextlib.suppress(self._mpi.Exception):
                mine.living.Revoke()

    def _take(self, number: int, *, busy: bool) -> None:
        mine, self._try = self._try, None
        if mine is None or mine.number != number or mine.world is None:
            return
        self._base = mine.world
        with self._taking:
            self._late.append(mine)
        if not busy:
            self.catch_up()

    def catch_up(self) -> None:
        """Take the worlds that were formed while a cell ran. Call it while no cell runs."""
        with self._taking:
            late, self._late = self._late, []
            for mine in late:
                self._enter(mine)

    def _enter(self, mine: _Try) -> None:
        if mine.place is None:
            return
        if mine.place.rank != self._place.rank:
            with contextlib.suppress(OSError):
                self._report(Renumbered(mine.place.rank))
            self.renumbered(mine.place.rank)
        if mine.place != self._place:
            self._place.become(mine.place)
            given.put(place_environment(mine.place))
            adopt(os.environ, mine.place)
        WORLD.put(self._mpi, "COMM_WORLD", mine.world)
        self._plugins.meet([one.frameworks for one in mine.introductions])
        self._plugins.rejoin()


def place_of(introductions: list[Introduction], rank: int) -> Placement:
    """The place of ``rank``, from the introductions of all ranks."""
    return placements([one.host for one in introductions], [one.local_rank for one in introductions])[rank]


def heritage_of(introductions: list[Introduction], replaced: tuple[int, ...]) -> dict[int, dict[str, str]]:
    """The words that each living rank's frameworks leave to new ranks, by rank."""
    return {rank: one.heritage for rank, one in enumerate(introductions) if rank not in replaced}
