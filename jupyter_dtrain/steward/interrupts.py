"""Interrupts from a client that does not drive the world: the sidebar, or a command.

The driver folds its runs and shows their progress in the cells. So the steward announces the interrupt, and the driver
acts as if the user had pressed Stop there. Where no driver takes it up within :data:`ACK` seconds (its kernel is gone,
or stopped), and for runs that the driver does not follow, the steward takes the same steps itself, see
:mod:`jupyter_dtrain.core.interruption`. An interrupt ends every run that goes on.

Works on the supervisor's thread. Under failure: as the steps themselves, each of which has a deadline; the steward
works on a rank that none of them ends until the run is over or another one has begun.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from jupyter_dtrain.core.interruption import AGAIN, Acts, Interruption
from jupyter_dtrain.wire.agent_messages import InterruptRank, RankPosition, ReadPosition, Signalled
from jupyter_dtrain.wire.questions import Answers, silent
from jupyter_dtrain.wire.steward_messages import Broadcast, InterruptWanted, OpenRun

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


@dataclass
class _Ending:
    """A run that the steward brings to its end."""

    run: _Run
    interruption: Interruption
    look_at: float
    """When the steward next asks the ranks whether they have ended the run."""


class StewardInterrupts:
    """The interrupts of one world."""

    def __init__(
        self,
        questions: Questions,
        settings: Settings,
        broadcast: Callable[[Broadcast], None],
        acts: Acts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``broadcast`` sends an event to all clients; ``acts`` does what a driver would request."""
        self._questions = questions
        self._settings = settings
        self._broadcast = broadcast
        self._acts = acts
        self._clock = clock
        self._wanted: tuple[float, list[OpenRun], bool] | None = None
        """The driver's deadline for taking it up, the runs, and whether ranks that do not end are killed."""
        self._ending: dict[int, _Ending] = {}
        """The runs that the steward itself brings to their end, by number."""

    def ask(self, runs: list[OpenRun], *, force: bool, by: str, driven: bool) -> None:
        """End the cells of ``runs``. ``by``: the client, in words; ``driven``: whether there is a driver."""
        for run in runs:
            if (ending := self._ending.get(run.run)) is not None:
                ending.interruption.press(self._clock())
                ending.interruption.force |= force
        if not (fresh := [run for run in runs if run.run not in self._ending]):
            return
        if driven:
            until = self._clock() + ACK
            if self._wanted is not None:
                until, _, was = self._wanted
                force |= was
            self._wanted = (until, fresh, force)
            self._broadcast(InterruptWanted(run=max(run.run for run in fresh), force=force, by=by))
        else:
            self._begin(fresh, force=force)

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

    def taken_up(self, runs: list[int] | None) -> None:
        """Note that the driver carries out the interrupt of ``runs``; None: of all. The steward ends the others."""
        if self._wanted is not None:
            _, wanted, force = self._wanted
            self._wanted = None
            self._begin([run for run in wanted if runs is not None and run.run not in runs], force=force)

    def forget(self) -> None:
        """Forget the interrupts: these ranks are gone."""
        self._wanted = None
        self._ending.clear()

    def tick(self, now: float) -> float:
        """Do the due work; returns when more is due."""
        wake = math.inf
        if self._wanted is not None:
            wake, runs, force = self._wanted
            if now >= wake:
                self._wanted = None
                self._begin(runs, force=force)
        for ending in list(self._ending.values()):
            wake = min(wake, ending.interruption.tick(now))
            if now >= ending.look_at:
                ending.look_at = now + LOOK
                run = ending.run
                self._questions.ask(list(run.unfinished), LOOK, partial(self._looked, run), ReadPosition())
            wake = min(wake, ending.look_at)
        return wake

    def _begin(self, runs: list[OpenRun], *, force: bool) -> None:
        now = self._clock()
        for begun in runs:
            run = _Run(begun.run, begun.ranks)

            def note(words: str, number: int = begun.run) -> None:
                _log.info("Run %s: %s", number, words)

            interruption = Interruption(run, self._settings, self._questions, self._acts, note, now)
            interruption.force = force
            self._ending[run.number] = _Ending(run, interruption, now + LOOK)
            _log.info("Run %s is interrupted, and no client does it", run.number)

    def _looked(self, run: _Run, answers: Answers[RankPosition]) -> None:
        for rank, answer in answers.items():
            if answer is not None and not answer.works_on(run.number):
                self._ended(run, rank)

    def _ended(self, run: _Run, rank: int) -> None:
        if rank in run.unfinished:
            run.unfinished.remove(rank)
        if not run.unfinished:
            self._ending.pop(run.number, None)

    def rank_died(self, rank: int) -> None:
        """Note that ``rank`` has died: no run waits for it any longer."""
        for ending in list(self._ending.values()):
            self._ended(ending.run, rank)
