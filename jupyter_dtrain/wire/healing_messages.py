"""The messages by which a world is healed: between clients and the steward, and between the steward and ranks.

:mod:`.messages` says how these travel. They are requests like those of :mod:`.steward_messages` and
:mod:`.agent_messages`, which list them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from jupyter_dtrain.core.world import AddressedRank

from .messages import AgentRequest, Done, StewardRequest

# From a client to the steward.


class HealBegun(msgspec.Struct, frozen=True):
    """The steward replaces the dead ranks."""

    number: int
    """The number of the heal, which counts the heals of the world."""


class Heal(StewardRequest[HealBegun], frozen=True, tag="heal"):
    """Replace the dead ranks. The steward refuses with the reason where it cannot."""

    by: str
    """The asking client, in words."""
    size: int | None = None
    """How many ranks the world has then: the highest ones end, or new ones come. None: as many as now."""
    drop: list[int] = msgspec.field(default_factory=list)
    """Instead of ``size``: these ranks leave the world, and the others are numbered anew, in their order."""
    beside: list[int] = msgspec.field(default_factory=list)
    """The runs that may go on meanwhile, in a heal: they use nothing of all ranks."""


class HealState(msgspec.Struct, frozen=True):
    """How a heal stands."""

    phase: Literal["going on", "done", "failed"]
    words: str
    """How far the heal is, or why it has failed."""
    ranks: list[AddressedRank] = []
    """The new ranks, once the heal is done."""
    size: int = 0
    """How many ranks the world has, once the heal is done."""
    generation: int = 0
    """The generation of the world, once the heal is done."""
    notes: list[str] = []
    """Sentences about what the heal cannot rebuild."""
    moved: list[AddressedRank] = []
    """The living ranks that got another number, under that number, once the heal is done."""


class ReadHeal(StewardRequest[HealState], frozen=True, tag="heal-state"):
    """Ask how the heal ``number`` stands. The steward refuses for any but the newest."""

    number: int


# From the steward to the agent of a rank.


class Heritage(msgspec.Struct, frozen=True):
    """The answer of a rank before a heal."""

    run: int | None
    """The run that the rank works on; None where it is idle."""
    notes: list[str]
    """Sentences of the rank's frameworks about what a heal cannot rebuild."""
    obstacles: list[str] = []
    """Clauses of the rank's frameworks that say why no heal can work; empty where one can."""
    spread: list[str] = []
    """Clauses of the rank's frameworks that say why the world cannot lose living ranks."""


class ReadHeritage(AgentRequest[Heritage], frozen=True, tag="heritage"):
    """Ask whether the rank is idle, and what of its state a heal cannot rebuild."""


class FormWorld(AgentRequest[Done], frozen=True, tag="form-world"):
    """Form MPI's world anew, with new processes for ``ranks``. A :class:`~.reports.Formed` report has the result."""

    number: int
    """The number of the try; no two tries of a world have the same."""
    size: int
    """How many ranks the world has then."""
    ranks: list[int]
    """The numbers that the new ranks have then."""
    generation: int
    """The generation of the world, once the ranks are replaced."""
    command: list[str]
    """With one more argument it starts the process that hands a slot to the watch."""
    hosts: list[str] = msgspec.field(default_factory=list)
    """The host of each of ``ranks``, by the name that ``mpiexec`` knows; empty where all are on one machine."""
    leaving: list[int] = msgspec.field(default_factory=list)
    """The ranks that are no part of that world; :mod:`jupyter_dtrain.core.world` has the numbers of the others."""
    keeps_local_rank: bool = False
    """Whether living ranks keep their local ranks, which name their GPUs."""


class TakeWorld(AgentRequest[Done], frozen=True, tag="take-world"):
    """All ranks have formed the world: take it for ``MPI.COMM_WORLD``."""

    number: int


class AbandonWorld(AgentRequest[Done], frozen=True, tag="abandon-world"):
    """Forget the world that is being formed: a rank has died, or does not come."""


AnyHealingRequest = ReadHeritage | FormWorld | TakeWorld | AbandonWorld
