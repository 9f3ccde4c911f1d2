"""A world: its ranks, where they run, and the environment that each of them gets.

Everything here is plain data and pure functions, so that the session, the steward and the rank itself agree
without asking each other.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from .errors import BadRequest
from .events import RankState
from .variables import Variable

Ranks = str | int | Iterable[int] | None
"""A set of ranks in a form that :func:`parse_ranks` accepts."""

MAX_RANKS = 1024
"""The most ranks that one world may have: a larger number is probably a typing error."""

LONGEST_SET = 160
"""Characters of a set of ranks that is shown whole: those of 32 scattered ranks always are."""

_NAMED_SET = 24
"""Characters that are shown of a longer one."""

ONE_BY_ONE: Final = 4
"""The most ranks with another number that :func:`describe_moves` names one by one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}\Z")


class Rank(msgspec.Struct, frozen=True):
    """One process of the MPI world."""

    rank: int
    node: int
    """Index of the host among the world's hosts, in the order of their lowest ranks."""
    host: str
    local_rank: int
    """Index of the rank on its host."""
    device: str
    """``cuda:i``, the GPU that is the rank's by convention (ranks beyond the GPUs share them in turn), or ``cpu``.

    With ``--gpus-per-rank``, those of its own among the host's: ``cuda:2,3``.
    """
    pid: int
    """The id of the rank's process on ``host``."""
    state: RankState = "idle"
    words: str = ""
    """Why the rank is ``dead``, or has ended and is ``unreachable``, in words; else empty."""
    role: str = ""
    """The role of the rank, in its framework's words; empty where all ranks are alike."""
    asked: bool = False
    """Whether a person asked for its end: ``%distributed kill``, the sidebar, or an interrupt with ``--force``."""

    @property
    def has_ended(self) -> bool:
        """Whether it is ``dead``, or ``unreachable``: ended, with its last output on its way from another host."""
        return self.state in ("dead", "unreachable")


class AddressedRank(Rank, frozen=True):
    """A rank as the processes of its world and its clients know it: with the ways to it."""

    engine: str = ""
    """Routing identity of the ipyparallel engine; it changes when a rank is replaced."""
    watch: str = ""
    """Routing identity of the watch of its host."""


class Node(msgspec.Struct, frozen=True):
    """A host of the world with its ranks."""

    index: int
    host: str
    ranks: list[int]


class World(msgspec.Struct, frozen=True):
    """A live set of ranks as seen at one moment."""

    name: str
    id: str
    """Unique over time; ``name`` is unique only among live worlds."""
    ranks: Sequence[Rank]

    @property
    def size(self) -> int:
        """How many ranks the world has, dead ones included: the numbers change by ``resize`` alone."""
        return len(self.ranks)

    @property
    def nodes(self) -> list[Node]:
        """The hosts, each with its ranks."""
        nodes: dict[int, Node] = {}
        for rank in self.ranks:
            nodes.setdefault(rank.node, Node(rank.node, rank.host, [])).ranks.append(rank.rank)
        return [nodes[index] for index in sorted(nodes)]

    @property
    def dead(self) -> list[Rank]:
        """The ranks that have died and were not replaced."""
        return [rank for rank in self.ranks if rank.state == "dead"]


class AddressedWorld(World, frozen=True):
    """A world as its processes and clients know it: with the ways to its ranks."""

    ranks: list[AddressedRank]
    generation: int = 0
    """How often the steward had the ranks make their process groups anew."""

    def rank(self, number: int) -> AddressedRank:
        """The rank with this number; where no rank has it since a resize, a rank that is dead."""
        if number < self.size:
            return self.ranks[number]
        words = f"there is no rank {number} since %distributed resize"
        return AddressedRank(number, 0, "", 0, "cpu", 0, state="dead", words=words)

    def others(self, later: AddressedWorld, ranks: Iterable[int]) -> list[int]:
        """Those of ``ranks`` that another process is in ``later``, or no process."""
        return [rank for rank in ranks if self.rank(rank).engine != later.rank(rank).engine]

    def changed(self, ranks: Iterable[AddressedRank], size: int | None = None) -> AddressedWorld:
        """The world with ``ranks`` in the places of those with their numbers; ``size``: how many ranks it has then."""
        found = {rank.rank: rank for rank in (*self.ranks, *ranks)}
        kept = range(self.size if size is None else size)
        return msgspec.structs.replace(self, ranks=[found[number] for number in kept if number in found])

    def seen(self, running: Collection[int]) -> World:
        """The world for a reader; idle ranks among ``running`` have begun a cell that they have not told about yet."""
        return World(self.name, self.id, [_seen(rank, running) for rank in self.ranks])


def _seen(rank: AddressedRank, running: Collection[int]) -> Rank:
    fields = {name: getattr(rank, name) for name in Rank.__struct_fields__}
    if rank.state == "idle" and rank.rank in running:
        fields["state"] = "running"
    return Rank(**fields)


class Client(msgspec.Struct, frozen=True):
    """One client of a world, as others know it."""

    id: str
    pid: int
    created: float
    """When the client's process was created, in seconds since the epoch."""
    words: str
    """The client in words, such as ``the notebook a.ipynb``."""
    kernel: str = ""
    """The id of the Jupyter kernel that it is; empty for any other process."""
    auto: bool = False
    """Whether the client sends plain cells to the ranks too."""


def size_at(ranks: Iterable[int], size: int) -> int:
    """How many ranks a world had, at least, in a run on ``ranks``: it has ``size`` of them before or after a resize."""
    return max(size, *(rank + 1 for rank in ranks), 0)


def check_name(name: str) -> str:
    """Return ``name`` if it can name a world.

    Raises :class:`BadRequest` for anything but 1 to 40 letters, digits, ``_``, ``-`` and ``.`` that begin with a
    letter or digit: the name becomes part of a folder's name.
    """
    if not _NAME.match(name):
        raise BadRequest(
            f"{name!r} cannot name a world: use 1 to 40 letters, digits, '_', '-' or '.', "
            f"beginning with a letter or digit.",
            option="name",
        )
    return name


def parse_ranks(ranks: Ranks, size: int) -> list[int]:
    """The ranks that ``ranks`` means in a world of ``size``, ascending, each once.

    ``None`` and ``"all"`` mean every rank; text is a list of numbers and ranges such as ``0``, ``0,2``, ``1-3`` or
    ``0,4-7``, where a number below zero counts from the end (``-1`` is the last rank). Brackets around it mean nothing.

    Raises :class:`BadRequest` for an empty set, for text of another shape and for ranks that are not in the world.
    """
    if ranks is None:
        return list(range(size))
    if isinstance(ranks, str):
        wanted = _parse_text(ranks, size)
    elif isinstance(ranks, int):
        wanted = [ranks]
    elif isinstance(ranks, Iterable):
        wanted = list(ranks)
    else:
        wanted = [ranks]
    if not wanted:
        raise BadRequest("No rank was named. Use for example 0, 0,2, 1-3, -1 or all.")
    chosen = set()
    for rank in wanted:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise BadRequest(f"{rank!r} is not a rank. Ranks are the numbers 0 to {size - 1}.")
        if not -size <= rank < size:
            has = f"ranks 0 to {size - 1}" if size > 1 else "rank 0 only"
            raise BadRequest(f"There is no rank {rank}: this world has {has}.")
        chosen.add(rank % size)
    return sorted(chosen)


def _parse_text(text: str, size: int) -> list[int]:
    if bracketed := re.fullmatch(r"\s*\[(.*)\]\s*", text):
        text = bracketed[1]
    if text.strip().lower() == "all":
        return list(range(size))
    wanted: list[int] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            continue
        if re.fullmatch(r"-?\d+", part):
            wanted.append(int(part))
        elif match := re.fullmatch(r"(\d+)\s*-\s*(\d+)", part):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise BadRequest(f"The range {part!r} is empty: write {last}-{first}.")
            if last >= size:
                raise BadRequest(f"There is no rank {last}: this world has ranks 0 to {size - 1}.")
            wanted.extend(range(first, last + 1))
        else:
            raise BadRequest(f"{part!r} names no rank. Use for example 0, 0,2, 1-3, -1 or all.")
    return wanted


def format_ranks(ranks: Iterable[int]) -> str:
    """``ranks`` in the shortest form that :func:`parse_ranks` reads: ``0-3,5``."""
    ordered = sorted(set(ranks))
    spans: list[list[int]] = []
    for rank in ordered:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def quantity(number: int, noun: str) -> str:
    """A number of things as words: ``1 rank``, ``4 ranks``, ``1,024 ranks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share, 0 to 1, as words: ``33 %``; empty for NaN, where there is none."""
    return "" if math.isnan(share) else f"{100 * share:.0f} %"


def count_ranks(ranks: Sequence[int]) -> str:
    """``ranks`` as words at the beginning of a sentence: ``rank 2`` or ``ranks 0-1,3``.

    Ranks that are scattered over a large world are counted, and the first ones named: ``512 ranks (0,2,4,…)``.
    """
    whole = format_ranks(ranks)
    if len(whole) > LONGEST_SET:
        return f"{len(ranks)} ranks ({first_ranks(whole)})"
    return f"rank{'s' if len(ranks) > 1 else ''} {whole}"


def first_ranks(whole: str) -> str:
    """The beginning of a long set of ranks, for people: ``0,2,4,…``. Not for sets that a program reads."""
    return whole[: whole.rindex(",", 0, _NAMED_SET)] + ",…"


# The numbers of ranks when some of them leave the world: those that stay are numbered anew, in their order.


def numbers_without(leaving: Collection[int], size: int) -> dict[int, int]:
    """The later number of each rank that stays, by its number now, where ``leaving`` leave a world of ``size``."""
    staying = [rank for rank in range(size) if rank not in leaving]
    return {rank: number for number, rank in enumerate(staying)}


def moves(numbers: Mapping[int, int]) -> dict[int, int]:
    """The entries of ``numbers`` in which a rank gets another number."""
    return {rank: number for rank, number in numbers.items() if rank != number}


def describe_moves(moved: Mapping[int, int]) -> str:
    """The moves as a clause: ``rank 2 is rank 1 now, rank 3 is rank 2``; empty where there are none."""
    if len(moved) <= ONE_BY_ONE:
        said = [f"rank {rank} is rank {number}" for rank, number in sorted(moved.items())]
    else:
        # Ranks that follow one another, and move equally far.
        runs = [
            [rank for _, (rank, _) in group]
            for _, group in itertools.groupby(
                enumerate(sorted(moved.items())), lambda one: (one[1][0] - one[0], one[1][1] - one[0])
            )
        ]
        said = [
            f"ranks {run[0]}-{run[-1]} are ranks {moved[run[0]]}-{moved[run[-1]]}"
            if len(run) > 1
            else f"rank {run[0]} is rank {moved[run[0]]}"
            for run in runs
        ]
    return ", ".join([f"{said[0]} now", *said[1:]]) if said else ""


def renamed(words: str, rank: int, number: int) -> str:
    """``words`` that begin with ``rank``, such as those on its end, for the same rank under its later ``number``."""
    beginning = f"rank {rank} "
    return f"rank {number} {words.removeprefix(beginning)}" if words.startswith(beginning) else words


class Placement(msgspec.Struct):
    """Where one rank sits in its world. All counts are in ranks, but for ``nodes``.

    All rooms of a rank hold the same one, which only :meth:`become` changes, while the rank is idle.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int

    def become(self, other: Placement) -> None:
        """Take all values of ``other``: the world has another number of ranks now."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))


def placements(hosts: Sequence[str], kept: Sequence[int | None] = ()) -> list[Placement]:
    """The place of every rank, from the name of its host (index: rank).

    Nodes are numbered by their lowest ranks, and the ranks of a node in ascending order, as torchrun does. ``kept``:
    the local ranks that some ranks keep, by rank; the others get those that are free.
    """
    order = list(dict.fromkeys(hosts))
    wanted = [*kept, *[None] * (len(hosts) - len(kept))]
    taken = set(zip(hosts, wanted, strict=True))

    def free_on(host: str) -> Iterator[int]:
        return (local for local in itertools.count() if (host, local) not in taken)

    free = {host: free_on(host) for host in order}
    places = []
    for rank, (host, own) in enumerate(zip(hosts, wanted, strict=True)):
        local = next(free[host]) if own is None else own
        places.append(Placement(rank, len(hosts), local, hosts.count(host), order.index(host), len(order)))
    return places


_MPI_PLACES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""The variables in which each kind of ``mpiexec`` gives a process its rank and the number of ranks."""
PLACES = (("RANK", "WORLD_SIZE"), *_MPI_PLACES, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
"""The same for every launcher, torchrun's first. Slurm's second variable is there only under srun.

An exported script needs the ranks of its host as well, and stands alone: ``jobs/script_preamble.py`` reads them there.
"""


def rank_in(environment: Mapping[str, str]) -> int:
    """The rank of a process that ``mpiexec`` started with these variables; -1 if it sets none that is known."""
    try:
        return int(next((environment[name] for name, _ in _MPI_PLACES if name in environment), -1))
    except ValueError:
        return -1


def place_environment(place: Placement) -> dict[str, Variable]:
    """The variables of :func:`rank_environment` that depend on the place of the rank alone."""
    return {
        "RANK": Variable(str(place.rank), "the rank's number in the world"),
        "WORLD_SIZE": Variable(str(place.size), "number of ranks in the world"),
        "LOCAL_RANK": Variable(str(place.local_rank), "the rank's number on its host, which chooses its GPU"),
        "LOCAL_WORLD_SIZE": Variable(str(place.local_size), "number of ranks on this host"),
        "GROUP_RANK": Variable(str(place.node), "the host's number, under torchrun's name"),
        "NODE_RANK": Variable(str(place.node), "the host's number, under the name that scripts read"),
        "GROUP_WORLD_SIZE": Variable(str(place.nodes), "number of hosts of the world"),
        "ROLE_RANK": Variable(str(place.rank), "equals RANK: there is only one torchrun role"),
        "ROLE_WORLD_SIZE": Variable(str(place.size), "equals WORLD_SIZE: there is only one torchrun role"),
    }


def rank_environment(place: Placement, *, master_addr: str, master_port: int, run_id: str) -> dict[str, Variable]:
    """The variables that a rank gets before any user code: those that torchrun sets, with its meanings.

    Each framework's plug-in adds its own, such as the settings of its watchdogs, which torchrun sets as well.

    Source: ``_start_workers`` in torchrun's ``local_elastic_agent.py``, version 2.13.
    ``NODE_RANK`` is not torchrun's, but scripts read it; ``TORCHELASTIC_USE_AGENT_STORE`` is true because the store
    at ``MASTER_ADDR:MASTER_PORT`` is the steward's, as it is the agent's under torchrun.
    """
    return {
        **place_environment(place),
        "ROLE_NAME": Variable("default", "the only torchrun role"),
        "MASTER_ADDR": Variable(master_addr, "where ranks find each other: the world's own store"),
        "MASTER_PORT": Variable(str(master_port), "where ranks find each other: the world's own store"),
        "TORCHELASTIC_RUN_ID": Variable(run_id, "torchrun's name for a run: here the world's id"),
        "TORCHELASTIC_RESTART_COUNT": Variable("0", "torchrun's restarts: none here"),
        "TORCHELASTIC_MAX_RESTARTS": Variable("0", "torchrun's restarts: none here"),
        "TORCHELASTIC_USE_AGENT_STORE": Variable("True", "no rank has to serve the store at MASTER_PORT"),
    }


def _can_be_bytes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def check_environment(env: Mapping[str, str]) -> None:
    """Raise :class:`BadRequest` unless every entry can be an environment variable. No message has a value."""
    for key, value in env.items():
        if not key or "=" in key or "\0" in key:
            raise BadRequest(f"{key!r} cannot name an environment variable.", option="env")
        if "\0" in value:
            raise BadRequest(f"The variable {key!r} cannot have a value with a NUL character.", option="env")
        if not (_can_be_bytes(key) and _can_be_bytes(value)):
            raise BadRequest(
                f"The variable {key!r} has a character that is not Unicode text (a lone surrogate).", option="env"
            )


def time_left(ends: float) -> str:
    """The time until ``ends`` (seconds since the epoch) in words; empty where that is 0, for no end."""
    if not ends:
        return ""
    days, minutes = divmod(max(0, int((ends - time.time()) / 60)), 1440)
    hours, minutes = divmod(minutes, 60)
    if days:
        return f"{days} d {hours} h left"
    if hours:
        return f"{hours} h {minutes} min left"
    return f"{minutes} min left" if minutes else "less than a minute left"
