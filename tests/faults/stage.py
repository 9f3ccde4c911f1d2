"""Plays one plan after the other, each in a world that is whole."""

from __future__ import annotations

from typing import NamedTuple

from jupyter_dtrain import DistributedInterrupt
from tests.faults.changes import ChangePlay
from tests.faults.elastic_play import ElasticPlay
from tests.faults.kernel_play import KernelPlay
from tests.faults.plans import CHANGES, ELASTIC, KERNELS, SERVERS, Plan
from tests.faults.play import Play
from tests.faults.servers_play import ServersPlay
from tests.faults.worlds import Worlds


class Played(NamedTuple):
    """A plan, and how it went."""

    plan: Plan
    seconds: float
    """The time from the situation, or from the interrupt, to the end of the cell."""
    outcome: str
    problems: list[str]
    """The differences between the world and the table, in words."""


class Stage(Worlds):
    """Plays plans. A world that a play has broken is replaced before the next play."""

    def play(self, plan: Plan) -> Played:
        """Play it. Mistakes of the world are in :attr:`Played.problems`; a play raises no exception for them."""
        play: Play | ChangePlay
        if plan.situation in CHANGES:
            play = ChangePlay(self, plan)
        else:
            kinds = dict.fromkeys(KERNELS, KernelPlay) | dict.fromkeys(SERVERS, ServersPlay)
            kinds |= dict.fromkeys(ELASTIC, ElasticPlay)
            play = kinds.get(plan.situation, Play)(self, plan)
        try:
            seconds, outcome = play.run()
        except (Exception, DistributedInterrupt) as error:  # noqa: BLE001 — a broken world may raise anything
            play.problems.append(f"{type(error).__name__}: {error}")
            seconds, outcome, play.broken = 0.0, "", True
        if play.broken or play.problems:
            play.problems += self.discard(plan.size, old_mpi=play.old_mpi)
        return Played(plan, seconds, outcome, play.problems)
