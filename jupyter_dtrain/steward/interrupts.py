"""Interrupts from a client that does not drive the world: the sidebar, or a command.

The driver folds the run and shows its progress in the cell. So the steward announces the interrupt, and the driver
acts as if the user had pressed Stop there. Where no driver takes it up within :data:`ACK` seconds (its kernel is gone,
or stopped), the steward takes the same steps itself, see :mod:`jupyter_dtrain.core.interruption`.

Works on the supervisor's thread. Under failure: as the steps themselves, each of which has a deadline; the steward
works on a rank that none of them ends until the run is over or another one has begun.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jupyter_dtrain.core.interruption import AGAIN, Acts, Interruption
from jupyter_dtrain.wire.agent_messages import InterruptRank, RankPosition, ReadPosition, Signalled
from jupyter_dtrain.wire.questions import Answers, silent
from jupyter_dtrain.wire.steward_messages import Broadcast, InterruptWanted

if TYPE_CHECKING:
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.wire.questions import Questions

ACK = 1.0
LOOK = 0.25
"""Seconds between two looks whether ranks have ended the run."""

_log = logging.getLogger(__name__)


class _Run:
    """The part of a run that its interruption needs."""

    def __init__(self, number: int, ranks: list[int]) -> None:
        self.number = number
        self.unfinished = list(ranks)


class Interrupts:
    """The interrupts of one world."""

    def __init__(
        self,
        questions: Questions,
        settings: Settings,
        tell: Callable[[Broadcast], None],
        acts: Acts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``tell`` broadcasts to clients; ``acts`` does what a driver would request."""
        self._questions = questions
        self._settings = settings
        self._tell = tell
        self._acts = acts
        self._clock = clock
        self._wanted: tuple[float, _Run, bool] | None = None
        """The driver's deadline for taking it up, the run, and whether ranks that do not end are killed."""
        self._run: _Run | None = None
        self._ending: Interruption | None = None
        self._look_at = math.inf

    def ask(self, run: int, ranks: list[int], *, force: bool, by: str, driven: bool) -> None:
        """End the cell of ``run`` on its ``ranks``. ``by``: the client; ``driven``: whether there is a driver."""
        if self._ending is not None and self._run is not None and self._run.number == run:
            self._ending.press(self._clock())
            self._ending.force |= force
        elif driven:
            self._wanted = (self._clock() + ACK, _Run(run, ranks), force)
            self._tell(InterruptWanted(run=run, force=force, by=by))
        else:
            self._begin(_Run(run, ranks), force=force)

    def ask_some(self, run: int, ranks: list[int]) -> None:
        """Interrupt the cell on ``ranks`` alone; a release frees the ranks that wait for them, as after a failure."""
        tries = int(self._settings.interrupt_timeout / AGAIN)

        def send(left: int, wanted: list[int]) -> None:
            def said(answers: Answers[Signalled]) -> None:
                # A rank that ran nothing has answered; one that did not answer may be in native code.
                if unheard := silent(answers):
                    send(left - 1, unheard)

            if left > 0:
                self._questions.ask(wanted, AGAIN, said, InterruptRank(run))

        send(tries, ranks)

    def taken_up(self) -> None:
        """Note that the driver carries out the interrupt."""
        self._wanted = None

    def forget(self) -> None:
        """Forget the interrupt: these ranks are gone."""
        self._wanted = self._run = self._ending = None
        self._look_at = math.inf

    def tick(self, now: float) -> float:
        """Do the due work; returns when more is due."""
        if self._wanted is not None:
            until, run, force = self._wanted
            if now < until:
                return until
            self._wanted = None
            self._begin(run, force=force)
        if self._ending is None or self._run is None:
            return math.inf
        wake = self._ending.tick(now)
        if now >= self._look_at:
            self._look_at = now + LOOK
            self._questions.ask(list(self._run.unfinished), LOOK, self._looked, ReadPosition())
        return min(wake, self._look_at)

    def _begin(self, run: _Run, *, force: bool) -> None:
        now = self._clock()
        self._run, self._look_at = run, now + LOOK

        def note(words: str) -> None:
            _log.info("Run %s: %s", run.number, words)

        self._ending = Interruption(run, self._settings, self._questions, self._acts, note, now)
        self._ending.force = force
        _log.info("Run %s is interrupted, and no driver does it", run.number)

    def _looked(self, answers: Answers[RankPosition]) -> None:
        run = self._run
        if run is None:
            return
        for rank, answer in answers.items():
            over = answer is not None and not answer.works_on(run.number)
            if over and rank in run.unfinished:
                run.unfinished.remove(rank)
        if not run.unfinished:
            self.forget()

    def rank_died(self, rank: int) -> None:
        """The rank has nothing left to end."""
        if self._run is not None and rank in self._run.unfinished:
            self._run.unfinished.remove(rank)
            if not self._run.unfinished:
                self.forget()
