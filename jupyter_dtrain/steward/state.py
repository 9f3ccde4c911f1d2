"""The steward's knowledge of its world, which every thread may read at any time.

The supervisor's thread changes it; the control thread, which answers clients, reads :meth:`State.snapshot` and begins a
restart. Thread-safe; nothing here waits or fails.

Ranks may get other numbers in a resize. A rank takes its number as it takes the new world, and has its watch know
first. The steward follows when all ranks have been asked to take that world. So for some milliseconds a report may bear
a number that the steward does not use yet, or no longer uses: the process says which rank is meant (see
:func:`number_of`). Processes of two hosts may share an id, so their watches tell them apart.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.processes import describe_load
from jupyter_dtrain.core.world import AddressedRank, AddressedWorld, moves, renamed
from jupyter_dtrain.launch import local
from jupyter_dtrain.wire.steward_messages import Lent, OpenRun, Phase, Restarter, WorldNews, WorldState

from .progress import StartProgress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from jupyter_dtrain.core.events import Event
    from jupyter_dtrain.core.start_failures import StartFailure
    from jupyter_dtrain.wire.reports import Died, Fell, Paused, Reached, Ready
    from jupyter_dtrain.wire.requests import WorldRequest

    from .lease import Lease


class State:
    """The state of one world."""

    def __init__(self, request: WorldRequest, lease: Lease) -> None:
        self._request = request
        self._lease = lease
        self._lock = threading.Lock()
        self._ranks: dict[int, AddressedRank] = {}
        self._last: dict[int, list[Event]] = {}
        """The last events of dead ranks."""
        self._generation = 0
        self._advanced: set[int] = set()
        """Runs after which a new generation has begun."""
        self._last_run = 0
        self._notices: list[str] = []
        self._launch_notices: list[str] = []
        """The notices that concern this set of ranks only: a restart removes them."""
        self.phase: Phase = "starting"
        self.deadline = 0.0
        """When the patience of ``failed`` is over, or that of a start that gave up and awaits its ranks' last words."""
        self.progress = StartProgress(request.size, request.settings)
        """How far the ranks of the newest start have come."""
        self.incarnation = 0
        """How often the world was restarted."""
        self._restarted_by: Restarter | None = None
        self.reason = ""
        """Why the world failed or ended."""
        self.failure: StartFailure | None = None
        """Why the newest start has failed."""
        self.healable = True
        """Whether ``mpiexec`` is there."""
        self.has_ulfm = False
        """Whether MPI can go on without dead ranks."""
        self.changing = ""
        """A heal or resize that goes on, in words."""
        self._replaced: set[int] = set()
        """The ranks that a heal has put in the place of dead ones, or has added, or has given another number."""
        self.ends = 0.0
        """When a scheduler takes the world's nodes away, in seconds since the epoch; 0 where none is known to."""
        self.lent = Lent()
        self.mpi = ""
        """The version of MPI; empty until it is known."""

    # Facts.

    @property
    def request(self) -> WorldRequest:
        """The request that started the world, with the number of ranks that it has now."""
        with self._lock:
            return self._request

    @property
    def ranks(self) -> list[AddressedRank]:
        """The ranks that have become ready, dead ones included."""
        with self._lock:
            return self._sorted()

    @property
    def generation(self) -> int:
        """Counts how often the ranks' process groups had to be made anew."""
        with self._lock:
            return self._generation

    @property
    def world(self) -> AddressedWorld:
        """The world as clients see it."""
        with self._lock:
            return self._world()

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have become ready."""
        with self._lock:
            return len(self._ranks) == self._request.size

    def _sorted(self) -> list[AddressedRank]:
        return [self._ranks[rank] for rank in sorted(self._ranks)]

    def _world(self) -> AddressedWorld:
        return AddressedWorld(self._request.name, self._request.id, self._sorted(), self._generation)

    @property
    def dead(self) -> list[int]:
        """The ranks that have ended."""
        return [rank.rank for rank in self.ranks if rank.state == "dead"]

    def news(self, runs: list[OpenRun], known: Collection[int] = ()) -> WorldNews:
        """The news that broadcasts have carried so far, and the ``runs`` that go on. ``known``: dead ranks."""
        with self._lock:
            ranks = self._sorted()
            return WorldNews(
                self.incarnation,
                self._restarted_by,
                self._generation,
                {rank.rank: rank.words for rank in ranks if rank.state == "dead"},
                [rank.rank for rank in ranks if rank.state == "stopped"],
                [*self._notices, *self._launch_notices],
                runs,
                self._request.size,
                self.changing,
                [rank for rank in ranks if rank.rank in self._replaced],
                {rank: events for rank, events in self._last.items() if rank not in known},
            )

    def snapshot(self, runs: list[OpenRun]) -> WorldState:
        """The whole state, for a client; ``runs`` are the runs that go on."""
        request = self._request
        with self._lock:
            return WorldState(
                phase=self.phase,
                incarnation=self.incarnation,
                reason=self.reason,
                size=request.size,
                world=self._world(),
                healable=self.healable,
                client_file=local.client_file(request),
                spool=request.spool,
                last_run=self._last_run,
                lease_left=self._lease.left,
                hang_notice=request.settings.hang_notice,
                driver=self._lease.driver,
                driven=self._lease.is_driven,
                mpi=self.mpi,
                notices=[*self._notices, *self._launch_notices],
                progress=self.progress.words if self.phase == "starting" else "",
                busy=describe_load() if self.phase == "starting" else "",
                runs=runs,
                failure=self.failure,
                ends=self.ends,
                lent=self.lent,
            )

    # Changes.

    def begin_restart(self, by: Restarter) -> int:
        """Begin a restart; return the number of the new set of ranks. Raises :class:`Refused` unless the world runs."""
        with self._lock:
            if self.phase != "running":
                raise Refused(f"The world is {self.phase}.")
            # The next snapshot shows it, before the supervisor's thread has begun.
            self.progress = StartProgress(self._request.size, self._request.settings)
            self.phase = "starting"
            self.failure = None
            self.incarnation += 1
            self._restarted_by = by
            return self.incarnation

    def enter(self, phase: Phase, reason: str = "") -> bool:
        """Change the phase; False where the world ends already."""
        with self._lock:
            if self.phase == "ending":
                return False
            self.phase, self.reason = phase, reason
            return True

    def add_rank(self, rank: AddressedRank) -> None:
        """Add a rank that has become ready."""
        with self._lock:
            self._ranks[rank.rank] = rank

    def change_rank(self, number: int, **changes: Any) -> bool:
        """Change a living rank; False where there is none of that number."""
        with self._lock:
            rank = self._ranks.get(number)
            if rank is None or rank.state == "dead":
                return False
            self._ranks[number] = msgspec.structs.replace(rank, **changes)
            return True

    def mark_dead(self, number: int, words: str, events: list[Event], *, asked: bool = False) -> bool:
        """Note how a rank ended, and its last ``events``; False where it is dead already, or there is none."""
        if not self.change_rank(number, state="dead", words=words, asked=asked):
            return False
        with self._lock:
            self._last[number] = events
        return True

    def replace(
        self, ranks: list[AddressedRank], size: int, numbers: Mapping[int, int], local_ranks: Mapping[int, int]
    ) -> int:
        """``ranks`` are new, and the world has ``size`` of them; the generation of what runs from now on.

        ``numbers`` and ``local_ranks`` of those that stay: see :func:`renumber`.
        """
        with self._lock:
            self._ranks = renumber(self._ranks.values(), numbers, local_ranks)
            self._last = {numbers[rank]: events for rank, events in self._last.items() if rank in numbers}
            self._replaced = {numbers[rank] for rank in self._replaced if rank in numbers} | {*moves(numbers).values()}
            for rank in ranks:
                self._ranks[rank.rank] = rank
                self._last.pop(rank.rank, None)
                self._replaced.add(rank.rank)
            self._request = self._request.resized(size)
            # Cells and news of before are of an earlier one.
            self._generation += 1
            return self._generation

    def forget_ranks(self) -> None:
        """Remove all ranks: their processes are gone."""
        with self._lock:
            self._ranks, self._last, self._replaced = {}, {}, set()

    def next_generation(self) -> int:
        """Begin a new generation of process groups, and return its number."""
        with self._lock:
            self._generation += 1
            return self._generation

    def advance(self, run: int) -> int:
        """The generation that follows ``run``. Every client that has followed the run asks; the first one begins it."""
        with self._lock:
            if run not in self._advanced:
                self._advanced.add(run)
                self._generation += 1
            return self._generation

    def number_run(self, number: int) -> None:
        """Note that the driver, or an earlier world of this name, has given ``number`` to a run."""
        with self._lock:
            self._last_run = max(self._last_run, number)

    def add_notice(self, words: str, *, launch: bool) -> None:
        """Keep ``words`` for the user, who must read them; ``launch``: only until the next restart."""
        with self._lock:
            (self._launch_notices if launch else self._notices).append(words)

    def forget_launch_notices(self) -> None:
        """Remove the notices that concerned the launch before."""
        with self._lock:
            self._launch_notices.clear()


def rank_of(ready: Ready, gpus: int, roles: Sequence[str], each: int = 0) -> AddressedRank:
    """The rank that is ready, on a host with so many ``gpus``. ``roles``: by rank; empty where all are alike.

    ``each``: how many GPUs each rank has of its own; 0 where it sees those of all ranks.
    """
    own = range(ready.local_rank * each, (ready.local_rank + 1) * each) or (ready.local_rank % max(gpus, 1),)
    return AddressedRank(
        ready.rank,
        ready.node,
        ready.host,
        ready.local_rank,
        f"cuda:{','.join(map(str, own))}" if gpus else "cpu",
        ready.pid,
        engine=ready.engine,
        role=roles[ready.rank] if roles else "",
        watch=ready.watch,
    )


class Process(NamedTuple):
    """A process of a rank, or of one that is to be."""

    watch: str
    """The routing identity of the watch that has forked it."""
    pid: int


def process_of(one: AddressedRank | Reached | Died | Fell | Paused) -> Process:
    """The process that ``one``, a report or a rank, is about."""
    return Process(one.watch, one.pid)


def number_of(ranks: Iterable[AddressedRank], report: Died | Fell | Paused) -> int | None:
    """The number under which the steward knows the process that reports; None where it is no rank.

    A report without a process id is about whatever process has the number.
    """
    known, process = list(ranks), process_of(report)
    if any(one.rank == report.rank and (not report.pid or process_of(one) == process) for one in known):
        return report.rank
    return next((one.rank for one in known if process_of(one) == process and not one.has_ended), None)


def renumber(
    ranks: Iterable[AddressedRank], numbers: Mapping[int, int], local_ranks: Mapping[int, int]
) -> dict[int, AddressedRank]:
    """Those of ``ranks`` that stay, by their later ``numbers``; their processes and devices stay.

    ``local_ranks``: by the number until now; a rank without one keeps its own.
    """
    return {
        numbers[rank.rank]: msgspec.structs.replace(
            rank,
            rank=numbers[rank.rank],
            local_rank=local_ranks.get(rank.rank, rank.local_rank),
            words=renamed(rank.words, rank.rank, numbers[rank.rank]),
        )
        for rank in ranks
        if rank.rank in numbers
    }
