"""The events of one world that a person must know, as items of attention, which end when they are settled.

No item comes from what a person asked for: a kill, an interrupt, a restart or a stop, from whichever client. Nothing
here waits or fails.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.causes import distinct, is_echo, told_briefly
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.view.labels import took
from jupyter_dtrain.wire.steward_messages import ASKED_FOR

from .attention import LONG

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Error
    from jupyter_dtrain.core.start_failures import StartFailure
    from jupyter_dtrain.core.world import Rank
    from jupyter_dtrain.launch.worlds import Listing

    from .attention import Attention, Kind, Level, RunFinding
    from .follower import FollowedRun

OF_RANKS: Final = ("dead", "hung", "slow", "memory")
"""The kinds of items that are over when the ranks are."""
OF_RUNS: Final = ("hung", "nan", "apart", "slow", "memory", "failed")
"""Those that a person has seen who runs the cell again."""


class Alarms:
    """Those of one world."""

    def __init__(self, listing: Listing, attention: Attention) -> None:
        self._listing = listing
        self._attention = attention
        self._dead = False
        """Whether ranks were dead at the last look."""

    def ranks_are(self, ranks: list[Rank]) -> None:
        """Report those of ``ranks`` that are dead, each once; or that dead ranks were replaced."""
        dead = [rank for rank in ranks if rank.state == "dead"]
        for rank in dead:
            self._rank_died(rank)
        if self._dead and not dead:
            self._settle("dead")
        self._dead = bool(dead)

    def _rank_died(self, rank: Rank) -> None:
        if not rank.asked:
            words = rank.words[:1].upper() + rank.words[1:]
            self._report("dead", "error", words, ranks=[rank.rank], mark=str(rank.pid))

    def ranks_ended(self) -> None:
        """The world was restarted, or has ended."""
        self._settle(*OF_RANKS)

    def restarted(self) -> None:
        """A person has restarted the world: nobody acts on what its runs have shown any more."""
        self._settle(*OF_RANKS, *OF_RUNS)

    def start_failed(self, failure: StartFailure, incarnation: int) -> None:
        """A start that a page has asked for has failed."""
        words = f"World {self._listing.name!r} did not start. {failure.reason}"
        self._report("start", "error", words, detail=failure.cure, mark=str(incarnation))

    def world_ended(self, words: str) -> None:
        """The world has ended for the reason ``words``."""
        if words == ASKED_FOR:
            self._settle(*OF_RUNS)
        else:
            self._report("ended", "warning", f"World {self._listing.name!r} has ended: {words}", mark="world")

    def run_began(self, run: FollowedRun) -> None:
        """``run`` has begun: a person who runs a cell again has seen what was wrong with it before."""
        if run.cell_id:
            self._settle(*OF_RUNS, cell=run.cell_id, before=run.number)

    def run_showed(self, run: FollowedRun, found: RunFinding) -> None:
        """A look at ``run`` has found something, perhaps once more."""
        self._report(found.kind, found.level, found.words, run=run, ranks=found.ranks, mark=found.mark)

    def run_hangs(self, run: FollowedRun, words: str) -> None:
        """No rank of ``run`` moves, as ``words`` say; without words, one moves again."""
        self._settle("hung", run=run.number)
        if not words:
            return
        head, _, rest = words.partition("\n")
        mark = str(time.time())
        self._report("hung", "warning", f"Run {run.number} looks hung. {head}", run=run, detail=rest, mark=mark)

    def ranks_failed(self, run: FollowedRun) -> None:
        """Report the ranks of ``run`` that have failed while others go on, each once."""
        for error, ranks in _causes(run):
            has = "has" if len(ranks) == 1 else "have"
            words = f"Run {run.number}: {count_ranks(ranks)} {has} failed: {told_briefly(error)}"
            detail = "The cell goes on on the other ranks."
            self._report("failed", "error", words, run=run, ranks=ranks, detail=detail, mark=f"{ranks}")

    def run_ended(self, run: FollowedRun) -> None:
        """``run`` has ended."""
        self._settle("hung", "failed", run=run.number)
        if run.elapsed < LONG or not run.alarming:
            return
        words = f"Run {run.number}: {run.outcome} after {took(run.elapsed)}"
        detail = "\n".join(f"{error.ename}: {error.evalue}" for error, _ in _causes(run))
        self._report("failed", "error", words, run=run, detail=detail)

    def _report(self, kind: Kind, level: Level, words: str, *, run: FollowedRun | None = None, **more: Any) -> None:
        if run is not None:
            more |= {"run": run.number, "cell": run.cell_id}
        self._attention.add(kind, level, (self._listing.id, self._listing.name), words, **more)

    def _settle(self, *kinds: Kind, **more: Any) -> None:
        self._attention.settle(self._listing.id, kinds, **more)


def _causes(run: FollowedRun) -> list[tuple[Error, list[int]]]:
    """The distinct errors of ``run``; without the ranks that failed because others had, if there are others."""
    every = distinct(run.errors, run.fold.pids)
    return [one for one in every if not is_echo(one[0])] or every
