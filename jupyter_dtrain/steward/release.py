"""Frees the ranks that wait for one that has failed.

A rank that fails, is interrupted or dies in its cell may leave others in a collective that will never be complete.
After the setting ``release_grace`` the steward asks the agents of all living ranks where they are; if one waits, all
of them release, in the frameworks in which a rank waits and in no other. It asks again until the run is over on every
rank, since a rank that does not wait yet may do so later.

Only the end of the rank ends some waits. The steward reports a wait that its framework cannot end at its first look,
and a wait that outlasts several releases after the last of these.

Works on the supervisor's thread; no client is needed. Under failure: the steward does not wait for a silent rank,
but asks it again. Native code may keep its interpreter lock while it waits, so a second silence counts, once,
as waiting in every framework; a stopped rank will fail when it goes on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future

from jupyter_dtrain.core.stacks import Wait
from jupyter_dtrain.wire.agent_messages import EVERY_FRAMEWORK, RankPosition

LOOK_AGAIN = 0.5
"""Seconds between two looks at ranks that have not ended the run."""
PATIENCE = 0.6
"""Seconds in which ranks report where they are."""
SILENT_TIMES = 2
"""After so many silences in succession a rank counts as waiting."""
OUTLASTS = 4
"""After so many releases in succession a rank that still waits in the same call counts as one that cannot be freed."""
POLL = 0.02

_log = logging.getLogger(__name__)


class _Run:
    """A run that perhaps cannot end by itself."""

    def __init__(self, number: int, look_at: float) -> None:
        self.number = number
        self.look_at = look_at
        self.asked: dict[int, Future[RankPosition]] | None = None
        self.patience_end = 0.0
        self.given_up = False
        self.silences: dict[int, int] = {}
        """How often in succession a rank has not answered."""
        self.tries: dict[tuple[int, Wait], int] = {}
        """How often in succession a rank was found in a call."""
        self.stuck: dict[int, Wait] = {}
        """The ranks that cannot be freed."""


class Release:
    """Looks after the runs in which a rank has failed."""

    def __init__(
        self,
        ask: Callable[[], dict[int, Future[RankPosition]]],
        free: Callable[[int, list[str]], None],
        released: Callable[[int, dict[int, Wait]], None],
        stuck: Callable[[int, dict[int, Wait]], None],
        grace: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ask`` asks all living ranks what they wait in; ``free`` has them leave it, in a run and by framework.

        ``released`` gets the run, and the call in which each rank waited; ``stuck`` gets the same of those that cannot
        be freed, at each look.
        """
        self._ask = ask
        self._free = free
        self._released = released
        self._stuck = stuck
        self._grace = grace
        self._clock = clock
        self._runs: dict[int, _Run] = {}

    def failed(self, run: int) -> None:
        """Note that a rank will not go on with ``run``."""
        self._runs.setdefault(run, _Run(run, self._clock() + self._grace))

    def look_now(self, run: int) -> None:
        """End ``run`` without grace."""
        self._runs.setdefault(run, _Run(run, 0.0)).look_at = 0.0

    def given_up(self, run: int) -> None:
        """Note that ``run`` has ended without the ranks that still work on it; other cells may run beside them now.

        The steward still frees a rank that waits; it leaves alone a silent rank, or one that works on another run.
        """
        if run in self._runs:
            self._runs[run].given_up = True

    def forget(self) -> None:
        """Forget all runs: these ranks are gone."""
        self._runs.clear()

    def tick(self, now: float) -> float:
        """Do the due work; returns when more is due."""
        for run in list(self._runs.values()):
            if now >= run.look_at:
                self._look(run, now)
        return min((run.look_at for run in self._runs.values()), default=math.inf)

    def _look(self, run: _Run, now: float) -> None:
        if run.asked is None:
            run.asked = self._ask()
            run.patience_end = now + PATIENCE
        if now < run.patience_end and not all(future.done() for future in run.asked.values()):
            run.look_at = now + POLL
            return
        asked, run.asked = run.asked, None
        # cancel() is true just for questions without an answer, and gives them up.
        answers = {
            rank: future.result()
            for rank, future in asked.items()
            if not future.cancel() and future.exception() is None
        }
        # Only when every rank has answered: a silent one may still work on the run.
        if answers.keys() == asked.keys() and not any(answer.works_on(run.number) for answer in answers.values()):
            del self._runs[run.number]
            return
        run.look_at = now + LOOK_AGAIN
        waiting = {
            rank: answer.waits
            for rank, answer in answers.items()
            if answer.works_on(run.number) and answer.waits is not None
        }
        run.silences = {rank: run.silences.get(rank, 0) + 1 for rank in asked.keys() - answers.keys()}
        if not run.given_up:
            # `==`, so that a silence counts once. A rank that computes in native code is silent as well, and every
            # release begins a new generation: `>=` would take the others' process groups away again and again.
            silent = [rank for rank, times in run.silences.items() if times == SILENT_TIMES]
            waiting |= dict.fromkeys(silent, Wait(EVERY_FRAMEWORK, "native code"))
        self._report_stuck(run, waiting)
        waiting = {rank: one for rank, one in waiting.items() if one.releasable}
        if waiting:
            _log.info("Run %s: released, as these wait: %s", run.number, waiting)
            self._free(run.number, sorted({one.framework for one in waiting.values()}))
            self._released(run.number, waiting)

    def _report_stuck(self, run: _Run, waiting: dict[int, Wait]) -> None:
        run.tries = {(rank, one): run.tries.get((rank, one), 0) + 1 for rank, one in waiting.items()}
        stuck = {rank: one for rank, one in waiting.items() if not one.releasable or run.tries[rank, one] > OUTLASTS}
        if stuck != run.stuck:
            _log.warning("Run %s: these cannot be released: %s", run.number, stuck)
            run.stuck = stuck
        if stuck:
            # Again and again: a client may have joined meanwhile.
            self._stuck(run.number, stuck)
