"""Requests of clients to a world's steward, its answers, and its broadcasts to all of them.

:mod:`.messages` says how these travel and which of them may never change.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from jupyter_dtrain.core.events import Event, Outcome, RankState
from jupyter_dtrain.core.stacks import Stack
from jupyter_dtrain.core.start_failures import StartFailure
from jupyter_dtrain.core.world import AddressedRank, AddressedWorld, Client

from .agent_messages import RankPosition, VariablesRead
from .healing_messages import Heal, ReadHeal
from .messages import PROTOCOL, UNNUMBERED, Done, StewardRequest
from .prompt_messages import AnswerPrompts
from .requests import WorldRequest
from .steering_messages import ReadSteer, Steer, WithdrawSteer

ASKED_FOR: Final = "a client asked for it"
"""Why a world has ended that a client stopped."""

Phase = Literal["starting", "running", "failed", "ending"]
"""``starting`` → ``running`` → ``ending``, or ``starting`` → ``failed`` → ``ending``; a restart goes back to
``starting``."""


_NOTEBOOK: Final = re.compile(r"the notebook (.+) \(pid \d+\)", re.DOTALL)


# The three requests that never change: list, interrupt and stop a world whatever protocol it speaks.


class DriverStatus(msgspec.Struct, frozen=True):
    """The driver, as far as every protocol knows it."""

    words: str = ""
    pid: int = 0
    kernel: str = ""
    auto: bool = False


def name_of(client: str) -> str:
    """The words of a client without its process: ``digits.ipynb``."""
    found = _NOTEBOOK.fullmatch(client)
    return found[1] if found else client


def explain_read_only(world: str, client: str) -> str:
    """Why one cannot act on ``world`` here, and what to do. ``client``: the words of its driver; empty without one."""
    told = f"World {world!r} is controlled by {name_of(client)}" if client else f"No notebook controls {world!r} yet"
    return f"{told}; here it is read-only. %distributed attach {world} --control takes control."


class WorldStatus(msgspec.Struct, frozen=True):
    """How a world is, as far as every protocol knows it: a part of :class:`WorldState`."""

    phase: str = ""
    reason: str = ""
    lease_left: float = 0.0
    driver: DriverStatus | None = None
    driven: bool = False
    protocol: int = UNNUMBERED


class ReadStatus(StewardRequest[WorldStatus], frozen=True, tag="state"):
    """Ask how the world is, whatever protocol it speaks. On the wire it is :class:`ReadState`."""


class InterruptBegun(msgspec.Struct, frozen=True):
    """An interrupt is on its way."""

    run: int | None = None
    """The newest run that it ends, or that has ended last; None where none was run."""


class InterruptRun(StewardRequest[InterruptBegun], frozen=True, tag="interrupt"):
    """End the cells that run."""

    by: str
    """The client, in words."""
    ranks: list[int] | None = None
    """These alone; None stands for all ranks."""
    force: bool = False
    """Kill the ranks that do not end."""


class Followed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run that a client has followed to its end, so its end needs no notice any more."""

    run: int
    interrupted: bool = False
    ranks: dict[str, Outcome] = {}
    """The outcomes of the ranks that have said theirs, by rank."""
    why: str = ""
    """Who or what has interrupted it, in words, where that was the client itself."""


class Stop(StewardRequest[Done], frozen=True, tag="stop"):
    """End the world; the answer comes at once."""

    followed: list[Followed] = msgspec.field(default_factory=list)


# Requests of clients that speak the same protocol.


class OpenRun(msgspec.Struct, frozen=True):
    """A run that goes on: some rank has begun it and has not ended it."""

    run: int
    ranks: list[int]
    """All ranks that run it."""
    working: list[int]
    """Those that have begun it and have not ended it."""


class WorldNews(msgspec.Struct, frozen=True):
    """The news that broadcasts have carried so far, for a client that may have missed some."""

    incarnation: int
    restarted_by: Restarter | None
    """The client that asked for the newest restart; None before the first."""
    generation: int
    dead: dict[int, str]
    """By rank, how each dead rank ended, in words."""
    stopped: list[int]
    """The ranks that are stopped (SIGSTOP)."""
    notices: list[str]
    runs: list[OpenRun]
    """The runs that go on, oldest first."""
    size: int = 0
    """How many ranks the world has."""
    changing: str = ""
    """A heal or resize that goes on, in words: no cell may begin."""
    replaced: list[AddressedRank] = []
    """The ranks that a heal has put in the place of dead ones, has added or has renumbered, as they are now."""
    last: dict[int, list[Event]] = {}
    """By rank, the last events of dead ranks, written by their watches; only those that the client does not know."""


class Restarter(msgspec.Struct, frozen=True):
    """A client that has had the world restarted."""

    client: str
    """Its id."""
    words: str


class Lent(msgspec.Struct, frozen=True):
    """The nodes that a scheduler lends to a world."""

    job: str = ""
    """The number of their job; empty where it is not known."""
    hosts: list[str] = []
    """The names by which they are reached, in the order of their ranks; empty where no scheduler has chosen them."""


class WorldState(msgspec.Struct, frozen=True):
    """All that the steward knows of its world."""

    phase: Phase
    incarnation: int
    """Counts the restarts of the world."""
    reason: str
    """Why it failed or ended; empty while it runs."""
    size: int
    world: AddressedWorld
    """The ranks that are ready, or have been."""
    healable: bool
    """Whether ``mpiexec`` is there."""
    client_file: str
    """ipyparallel's connection file for clients."""
    spool: str
    """Folder of the ranks' events."""
    last_run: int
    lease_left: float
    """Seconds."""
    hang_notice: float
    """Seconds after which a run that does not move looks hung."""
    driver: Client | None
    driven: bool
    """Whether the driver is there."""
    mpi: str
    """The version of MPI; empty until it is known."""
    notices: list[str]
    """Texts that the user must read."""
    protocol: int = PROTOCOL
    progress: str = ""
    """How far a start has come, in words."""
    busy: str = ""
    """In words, where a start is slow because its machine is busy."""
    runs: list[OpenRun] = []
    """The runs that go on, oldest first."""
    failure: StartFailure | None = None
    """Why the newest start has failed; None if it has not, or where the steward is too old to tell."""
    ends: float = 0.0
    """When a scheduler takes the world's nodes away, in seconds since the epoch; 0 where none is known to."""
    lent: Lent = Lent()


class ReadState(StewardRequest[WorldState], frozen=True, tag="state"):
    """Ask how the world is."""


class Requested(msgspec.Struct, frozen=True):
    """The request that the world was started with."""

    request: WorldRequest
    protocol: int = PROTOCOL


class ReadRequest(StewardRequest[Requested], frozen=True, tag="request"):
    """Ask what the world was asked to be."""


class Driven(msgspec.Struct, frozen=True):
    """The client that drives the world; None before the first has joined."""

    driver: Client | None
    news: WorldNews | None = None
    """None where the steward is too old to tell."""


class Joined(msgspec.Struct, frozen=True):
    """The client follows the world now."""

    driver: Client
    """The client that drives it, which may be another one."""
    generation: int
    protocol: int = PROTOCOL


class Join(StewardRequest[Joined], frozen=True, tag="join"):
    """Follow the world, and drive it where no other client does."""

    client: Client
    take_over: bool = False
    """Drive it although another client does."""
    protocol: int = UNNUMBERED
    """The client's; the steward refuses any but its own."""


class Renew(StewardRequest[Driven], frozen=True, tag="renew"):
    """The client is there; the driver's word renews the lease."""

    client: str
    """Its id."""
    auto: bool
    """Whether it sends plain cells to the ranks too."""
    last_run: int
    """The highest number that it has given to a run."""
    followed: list[Followed] = msgspec.field(default_factory=list)
    dead: list[int] = msgspec.field(default_factory=list)
    """The dead ranks that it knows of."""


class Leave(StewardRequest[Done], frozen=True, tag="leave"):
    """The client lets go of the world; its lease runs on."""

    client: str


class Advanced(msgspec.Struct, frozen=True):
    """The generation that the next run belongs to."""

    generation: int


class Advance(StewardRequest[Advanced], frozen=True, tag="advance"):
    """The client has followed ``run`` to an end after which process groups must be made anew."""

    run: int


class RestartBegun(msgspec.Struct, frozen=True):
    """The world is restarting."""

    incarnation: int
    """The number of the new set of ranks."""


class Restart(StewardRequest[RestartBegun], frozen=True, tag="restart"):
    """End all ranks and start fresh ones. The steward refuses unless the world runs."""

    client: str
    """The asking client's id."""
    by: str
    """The asking client, in words."""


class ReleaseRun(StewardRequest[Done], frozen=True, tag="release"):
    """Free the ranks that wait for others in ``run``, without grace."""

    run: int


class KillRanks(StewardRequest[Done], frozen=True, tag="kill"):
    """Kill the processes of ``ranks``."""

    ranks: list[int]
    reason: str


class TakeUpInterrupt(StewardRequest[Done], frozen=True, tag="interrupting"):
    """The driver carries out the interrupt that :class:`InterruptWanted` announced."""

    runs: list[int] | None = None
    """The runs that it follows; the steward interrupts the others. None stands for all runs."""


class Ticket(msgspec.Struct, frozen=True):
    """The number under which answers will be found."""

    ticket: int


class RelayQuestion(StewardRequest[Ticket], frozen=True, tag="ask"):
    """Ask ``ranks`` something for a client that cannot reach them."""

    kind: Literal["state", "stacks", "variables"]
    ranks: list[int]


class Relayed(msgspec.Struct, frozen=True):
    """The answers behind a ticket."""

    positions: dict[int, RankPosition | None] | None = None
    """By rank, None for one that did not answer, where ``state`` was the question; None as a whole until then."""
    stacks: dict[int, Stack | None] | None = None
    """The same where ``stacks`` was the question."""
    variables: dict[int, VariablesRead | None] | None = None
    """The same where ``variables`` was the question."""


class FetchAnswers(StewardRequest[Relayed], frozen=True, tag="fetch"):
    """Ask for the answers behind ``ticket``. The steward refuses a ticket that it has forgotten."""

    ticket: int


class Stored(msgspec.Struct, frozen=True):
    """How far the runs are stored."""

    ticket: int
    done: bool
    """Whether the store has all that the ranks had said when the ticket was given."""


class StoreRuns(StewardRequest[Stored], frozen=True, tag="store"):
    """Have all runs stored up to now, rather than within a second; or ask whether that is done."""

    ticket: int = 0
    """That of an earlier answer, to ask; 0 to have them stored."""
    followed: list[Followed] = msgspec.field(default_factory=list)


AnyStewardRequest = (
    ReadState
    | ReadRequest
    | Join
    | Renew
    | Leave
    | Advance
    | Restart
    | Stop
    | StoreRuns
    | ReleaseRun
    | KillRanks
    | InterruptRun
    | TakeUpInterrupt
    | RelayQuestion
    | FetchAnswers
    | AnswerPrompts
    | Steer
    | ReadSteer
    | WithdrawSteer
    | Heal
    | ReadHeal
)
"""Every request that a steward answers. :class:`ReadStatus` reaches it as :class:`ReadState`."""


# Broadcasts.


class Broadcast(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Something that happened to the world."""

    incarnation: int = 0
    """The set of ranks that it happened to; the steward fills it in."""


class Noticed(Broadcast, frozen=True, tag="notice"):
    """The user must read ``words``."""

    words: str


class DriverChanged(Broadcast, frozen=True, tag="driver"):
    """Another client drives the world."""

    driver: Client


class RankDied(Broadcast, frozen=True, tag="died"):
    """A rank has ended."""

    rank: int
    words: str
    run: int | None
    """The run that it was working on."""
    events: list[Event]
    """The last events of that run, written by the watch."""
    generation: int


class RanksReplaced(Broadcast, frozen=True, tag="replaced"):
    """A heal has put new processes in the place of dead ranks, or has given the world another number of ranks."""

    ranks: list[AddressedRank]
    """The new ones, and those that have another number now."""
    size: int
    """How many ranks the world has now."""
    generation: int


class RankPaused(Broadcast, frozen=True, tag="paused"):
    """A rank was stopped (SIGSTOP), or goes on; or it has ended, and its last output is on its way (unreachable)."""

    rank: int
    state: RankState
    words: str = ""
    """How it ended; only where it has."""


class RanksReleased(Broadcast, frozen=True, tag="released"):
    """Ranks that waited for others were freed."""

    run: int
    waiting: dict[int, str]
    """The call in which each of them waited, by rank."""
    generation: int


class RanksStuck(Broadcast, frozen=True, tag="stuck"):
    """Ranks wait for others and cannot be freed."""

    run: int
    waiting: dict[int, str]
    """The call in which each of them waits, by rank."""


class WorldRestarting(Broadcast, frozen=True, tag="restarting"):
    """A client has the world restarted."""

    client: str
    """That client's id."""
    by: str
    """That client, in words."""


class InterruptWanted(Broadcast, frozen=True, tag="interrupt"):
    """A client wants to end the running cells: the driver does this, or the steward after a second."""

    run: int
    """The newest of them."""
    force: bool
    by: str


class WorldEnded(Broadcast, frozen=True, tag="ended"):
    """The world ends; ``words`` say why."""

    words: str


AnyBroadcast = (
    Noticed
    | DriverChanged
    | RankDied
    | RanksReplaced
    | RankPaused
    | RanksReleased
    | RanksStuck
    | WorldRestarting
    | InterruptWanted
    | WorldEnded
)
"""Everything that a steward broadcasts."""
