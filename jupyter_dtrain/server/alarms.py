"""The events of one world that a person must know, as items of attention, which end when they are settled.

No item comes from what a person asked for: a kill, an interrupt, a restart or a stop, from whichever client. Nothing
here waits or fails.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.causes import distinct, is_echo, told_briefly
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.view.labels import ending, took
from jupyter_dtrain.wire.steward_messages import ASKED_FOR

from .attention import LONG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyter_dtrain.core.events import Error
    from jupyter_dtrain.core.start_failures import StartFailure
    from jupyter_dtrain.core.world import Rank
    from jupyter_dtrain.launch.worlds import Listing

    from .attention import Attention, Kind, Level, RunFinding
    from .follower import FollowedRun

OF_RANKS: Final = ("dead", "hung", "slow", "asks")
"""The kinds of items that are over when the ranks are."""
OF_RUNS: Final = ("hung", "nan", "apart", "slow", "failed", "asks")
"""The kinds of items that are settled when a person runs the cell again: that person has seen them."""


class Alarms:
    """Reports the events of one world to the list of things that need attention, and settles them."""

    def __init__(self, listing: Listing, attention: Attention) -> None:
        self._listing = listing
        self._attention = attention
        self._dead = False
        """Whether ranks were dead at the last look."""

    def ranks_are(self, ranks: Sequence[Rank]) -> None:
        """Report those of ``ranks`` that are dead, each once; or that dead ranks were replaced."""
        dead = [rank for rank in ranks if rank.state == "dead"]
        for rank in dead:
            if not rank.asked:
                words = rank.words[:1].upper() + rank.words[1:]
                self._report("dead", "error", words, ranks=[rank.rank], mark=str(rank.pid))
        if self._dead and not dead:
            self._settle("dead")
        self._dead = bool(dead)

    def ranks_ended(self) -> None:
        """Settle the items about ranks: the world was restarted, or has ended."""
        self._settle(*OF_RANKS)

    def restarted(self) -> None:
        """Settle all items about ranks and runs: a person has restarted the world."""
        self._settle(*OF_RANKS, *OF_RUNS)

    def start_failed(self, failure: StartFailure, incarnation: int) -> None:
        """Report that a start which a page has asked for has failed."""
        words = f"World {self._listing.name!r} did not start. {failure.reason}"
        self._report("start", "error", words, detail=failure.fix, mark=str(incarnation))

    def world_ended(self, words: str) -> None:
        """Report that the world has ended for the reason ``words``, unless a person asked for that."""
        if words == ASKED_FOR:
            self._settle(*OF_RUNS)
        else:
            self._report("ended", "warning", f"World {self._listing.name!r} has ended: {words}", mark="world")

    def run_began(self, run: FollowedRun) -> None:
        """Settle the items of earlier runs of the same cell: a person who runs it again has seen them."""
        if run.cell_id:
            self._settle(*OF_RUNS, cell=run.cell_id, before=run.number)

    def run_showed(self, run: FollowedRun, found: RunFinding) -> None:
        """Report what a look at ``run`` has found; a finding that was reported before counts once."""
        more = {"ranks": found.ranks, "mark": found.mark, "detail": found.detail}
        self._report(found.kind, found.level, found.words, run=run, **more)

    def run_hangs(self, run: FollowedRun, words: str) -> None:
        """Report that no rank of ``run`` moves, as ``words`` say; empty words settle that, as one moves again."""
        self._settle("hung", run=run.number)
        if not words:
            return
        head, _, rest = words.partition("\n")
        mark = str(time.time())
        self._report("hung", "warning", f"Run {run.number} looks hung. {head}", run=run, detail=rest, mark=mark)

    def run_asks(self, run: FollowedRun, words: str) -> None:
        """Report that ranks of ``run`` ask a person, as ``words`` say; empty words settle that."""
        self._settle("asks", run=run.number)
        if words:
            told = f"Run {run.number}: {words[:1].lower()}{words[1:].removesuffix('.')}"
            self._report("asks", "info", told, run=run, mark=str(time.time()))

    def ranks_failed(self, run: FollowedRun) -> None:
        """Report the ranks of ``run`` that have failed while others go on, each once."""
        for error, ranks in _causes(run):
            has = "has" if len(ranks) == 1 else "have"
            words = f"Run {run.number}: {count_ranks(ranks)} {has} failed: {told_briefly(error)}"
            detail = "The cell goes on on the other ranks."
            self._report("failed", "error", words, run=run, ranks=ranks, detail=detail, mark=f"{ranks}")

    def run_ended(self, run: FollowedRun) -> None:
        """Settle what was reported while ``run`` went on, and report a long run that failed."""
        self._settle("hung", "failed", "asks", run=run.number)
        if run.run_state.elapsed < LONG or not run.alarming:
            return
        words = f"Run {run.number}: {ending(run.fold.outcome, [])} after {took(run.run_state.elapsed)}"
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
    every = distinct(run.fold.errors, run.fold.pids)
    return [one for one in every if not is_echo(one[0])] or every
