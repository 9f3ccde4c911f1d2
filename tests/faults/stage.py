"""Plays one plan after the other, each in a world that is whole."""

from __future__ import annotations

import traceback
from typing import Final, NamedTuple

from jupyter_dtrain import DistributedError, DistributedInterrupt
from tests.faults.changes import ChangePlay
from tests.faults.elastic_play import ElasticPlay
from tests.faults.kernel_play import KernelPlay
from tests.faults.plans import CHANGES, ELASTIC, KERNELS, PROFILES, PROMPTS, SERVERS, STEERED, Plan
from tests.faults.play import Play
from tests.faults.profile_play import ProfilePlay
from tests.faults.prompt_play import PromptPlay
from tests.faults.servers_play import ServersPlay
from tests.faults.steering_play import PausedKernelPlay, SteeredChangePlay, SteeringPlay
from tests.faults.worlds import Worlds

LAST_WORDS: Final = 4000
"""Characters of each rank's output that a problem has: with the stacks of ranks that crashed."""


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
        if plan.situation == "steer-healed":
            play = SteeredChangePlay(self, plan)
        elif plan.situation in CHANGES:
            play = ChangePlay(self, plan)
        elif plan.situation in PROFILES:
            play = ProfilePlay(self, plan)
        else:
            kinds = dict.fromkeys(KERNELS, KernelPlay) | dict.fromkeys(SERVERS, ServersPlay)
            kinds |= dict.fromkeys(ELASTIC, ElasticPlay) | dict.fromkeys(PROMPTS, PromptPlay)
            kinds |= dict.fromkeys(STEERED, SteeringPlay) | {"paused-kernel-killed": PausedKernelPlay}
            play = kinds.get(plan.situation, Play)(self, plan)
        try:
            seconds, outcome = play.run()
        except (Exception, DistributedInterrupt) as error:  # noqa: BLE001 — a broken world may raise anything
            play.problems.append(describe(error))
            seconds, outcome, play.broken = 0.0, "", True
        if play.broken or play.problems:
            play.problems += self.discard(plan.size, old_mpi=play.old_mpi)
        return Played(plan, seconds, outcome, play.problems)


def describe(error: BaseException) -> str:
    """Say in a line which error a play met unexpectedly; then where, and the last output of each rank of its cell."""
    words = [f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"]
    words += ["".join(traceback.format_exception(error))]
    if isinstance(error, DistributedError | DistributedInterrupt):
        words += [f"Rank {rank}:\n{error.run.text(rank)[-LAST_WORDS:]}" for rank in error.run.ranks]
    return "\n".join(words)
