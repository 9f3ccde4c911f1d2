"""The steward's acts on ranks in the middle of a run, for itself and for clients: release, interrupt, kill, ask, steer.

The supervisor's thread does all of it. Requests come on any thread and are posted there, so no client waits for a
rank; the events of the ranks say what becomes of them.

Under failure: every question to ranks has a deadline; see :mod:`.release`, :mod:`.interrupts` and
:class:`RelayedQuestions`.
"""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.wire.agent_messages import RankPosition, ReadPosition, ReadVariables, ReleaseRank, SendSignal
from jupyter_dtrain.wire.messages import Done
from jupyter_dtrain.wire.prompt_messages import AnswerPrompt, AnswerPrompts
from jupyter_dtrain.wire.questions import Answers, Questions, ask_agents, silent
from jupyter_dtrain.wire.steward_messages import (
    Broadcast,
    FetchAnswers,
    InterruptBegun,
    InterruptRun,
    KillRanks,
    OpenRun,
    Relayed,
    RelayQuestion,
    ReleaseRun,
    TakeUpInterrupt,
    Ticket,
)

from .healing import Healing, HealOwner
from .interrupts import StewardInterrupts
from .release import Release
from .steering import Steering

if TYPE_CHECKING:
    from jupyter_dtrain.core.stacks import Wait
    from jupyter_dtrain.core.world import AddressedWorld
    from jupyter_dtrain.wire.channels import RanksChannel
    from jupyter_dtrain.wire.requests import WorldRequest

PATIENCE = 1.0
"""Seconds for a rank that answers a question which a client had relayed."""
READING = 6.0
"""Seconds for a rank that reads its variables' values."""
ANSWER = 0.5
"""Seconds for a rank to take the answer to its prompt, before it gets it again."""
TRIES = 10
"""How often a rank gets such an answer."""
KEPT = 30.0
"""Seconds for which an answer is kept that nobody has fetched."""

_log = logging.getLogger(__name__)

Bound = Callable[[], "tuple[AddressedWorld, RanksChannel] | None"]


class RankControl:
    """Releases, interrupts and kills ranks of one world."""

    def __init__(
        self,
        request: WorldRequest,
        runs: Callable[[], list[OpenRun]],
        bound: Bound,
        post: Callable[[Callable[[], None]], None],
        broadcast: Callable[[Broadcast], None],
        released: Callable[[int, dict[int, Wait]], None],
        stuck: Callable[[int, dict[int, Wait]], None],
        driven: Callable[[], bool],
        check_driver: Callable[[str], None],
        owner: HealOwner,
        happened: Callable[[int, str], None],
    ) -> None:
        """``runs``: those that an interrupt ends, from any thread. ``bound``: the world that runs and the way to it.

        ``post`` has the supervisor's thread do something; ``broadcast`` sends an event to all clients; ``released``
        gets the run, and the call in which each rank waited, ``stuck`` the same of ranks that cannot be released;
        ``driven``: whether a driver is there; ``check_driver`` raises :class:`Refused` for the id of any other client;
        ``owner``: what a heal needs; ``happened`` keeps a sentence with a run.
        """
        self._happened = happened
        self._runs = runs
        self._bound = bound
        self._post = post
        self._driven = driven
        self._check_driver = check_driver
        self._questions = Questions(bound, lambda: post(lambda: None))
        self._release = Release(self._ask_positions, self._free, released, stuck, request.settings.release_grace)
        self._interrupts = StewardInterrupts(self._questions, request.settings, broadcast, self)
        self._relayed = RelayedQuestions(self._questions, post)
        self.healing = Healing(request, owner, self._questions, bound, post, broadcast)
        self._steering = Steering(self._questions, runs, post, check_driver)
        self.answers: dict[type[msgspec.Struct], Callable[[Any], msgspec.Struct]] = {
            ReleaseRun: self._release_asked,
            KillRanks: self._kill_asked,
            InterruptRun: self._interrupt_asked,
            TakeUpInterrupt: self._taken_up,
            RelayQuestion: self._relayed.put,
            FetchAnswers: self._relayed.fetch,
            AnswerPrompts: self._prompts_answered,
            **self.healing.answers,
            **self._steering.answers,
        }
        """The function that answers each request of a client, by the type of the request. Any thread may call it."""

    # Requests of clients.

    def _release_asked(self, request: ReleaseRun) -> Done:
        self._post(lambda: self.release(request.run))
        return Done()

    def _kill_asked(self, request: KillRanks) -> Done:
        self._post(lambda: self.kill(request.ranks, request.reason))
        return Done()

    def _interrupt_asked(self, request: InterruptRun) -> InterruptBegun:
        runs = self._runs()
        ranks, force, by = request.ranks, request.force, request.by
        for run in runs:
            if ranks is None or set(ranks) & set(run.ranks):
                self._happened(run.run, f"Interrupted by {by}.")
        if ranks is not None:
            runs = [run for run in runs if set(ranks) & set(run.ranks)]
            for run in runs:
                # A rank that has no part in the run would take it back, as one that is yet to begin it.
                own = [rank for rank in ranks if rank in run.ranks]
                self._post(lambda run=run, own=own: self._interrupt_some(run.run, own))  # type: ignore[misc]
        elif runs:
            self._post(lambda: self._interrupts.ask(runs, force=force, by=by, driven=self._driven()))
        return InterruptBegun(max((run.run for run in runs), default=None))

    def _taken_up(self, request: TakeUpInterrupt) -> Done:
        self._post(lambda: self._interrupts.taken_up(request.runs))
        return Done()

    def _prompts_answered(self, request: AnswerPrompts) -> Done:
        self._check_driver(request.client)
        for number in set(request.prompts.values()):
            ranks = [rank for rank, one in request.prompts.items() if one == number]
            answer = AnswerPrompt(request.run, number, request.text, request.by)
            self._post(lambda ranks=ranks, answer=answer: self._answer(answer, ranks, TRIES))  # type: ignore[misc]
        return Done()

    # The supervisor's thread.

    def failed(self, run: int, *, at_once: bool = False) -> None:
        """Note that a rank will not go on with ``run``: the ranks that wait for it are released, after some grace."""
        if at_once:
            self._release.look_now(run)
        else:
            self._release.failed(run)

    def given_up(self, run: int) -> None:
        """Note that ``run`` has ended without the ranks that still work on it."""
        self._release.given_up(run)
        self._steering.given_up(run)

    def rank_died(self, rank: int, run: int | None) -> None:
        """Note that ``rank`` has died while it worked on ``run``; None: on no run that is known."""
        self._interrupts.rank_died(rank)
        self.healing.rank_died(rank)
        self._steering.rank_died(rank)
        if run is not None:
            self._release.failed(run)

    def forget(self) -> None:
        """Forget all that concerns the present ranks: they are gone."""
        self._release.forget()
        self._interrupts.forget()
        self.healing.forget()
        self._steering.forget()

    def tick(self, now: float) -> float:
        """Do what is due; return when more is due, in ``time.monotonic()`` seconds."""
        wake, due = self._questions.tick(now)
        for task in due:
            try:
                task()
            except Exception:  # noqa: BLE001 — an answer of a rank that cannot be used must not end the one thread
                _log.exception("An answer could not be used")
        steered = self._steering.tick(now)
        return min(wake, self._release.tick(now), self._interrupts.tick(now), self.healing.tick(now), steered)

    def release(self, run: int) -> None:
        """Free the ranks that wait for others in ``run``, without grace."""
        self._release.look_now(run)

    def kill(self, ranks: list[int], reason: str) -> None:
        """Kill the processes of ``ranks``."""
        if (bound := self._bound()) is None:
            return
        world, channel = bound
        for rank in world.ranks:
            if rank.rank in ranks and rank.state != "dead":
                channel.ask(rank.watch, SendSignal(rank.rank, int(signal.SIGKILL), reason, rank.pid))

    def _ask_positions(self) -> dict[int, Future[RankPosition]]:
        if (bound := self._bound()) is None:
            return {}
        return ask_agents(*bound, list(range(bound[0].size)), ReadPosition(waits=True))

    def _free(self, run: int, frameworks: list[str]) -> None:
        if (bound := self._bound()) is not None:
            world = bound[0]
            ask_agents(*bound, list(range(world.size)), ReleaseRank(run, frameworks, world.generation))

    def _answer(self, answer: AnswerPrompt, ranks: list[int], tries: int) -> None:
        def said(answers: Answers[Done]) -> None:
            # A rank that had it before takes it again, and does nothing.
            if unheard := silent(answers):
                self._answer(answer, unheard, tries - 1)

        if tries > 0:
            self._questions.ask(ranks, ANSWER, said, answer)

    def _interrupt_some(self, run: int, ranks: list[int]) -> None:
        self._interrupts.ask_some(run, ranks)
        self._release.failed(run)


class RelayedQuestions:
    """Relays questions of clients that cannot reach the ranks: where ranks are, and what they wait for.

    Any thread puts a question and gets a ticket. The supervisor's thread asks the ranks, and the client that has the
    ticket looks later whether there is an answer. So no request to the steward waits for a rank.

    Under failure: the answer of a rank that is silent for :data:`PATIENCE` seconds is None; for a stack the steward
    first asks the rank's watch. The steward forgets an unfetched answer after :data:`KEPT` seconds.
    """

    def __init__(self, questions: Questions, post: Callable[[Callable[[], None]], None]) -> None:
        """``questions`` belongs to the supervisor's thread; ``post`` runs a function on that thread."""
        self._questions = questions
        self._post = post
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, tuple[float, Relayed | None]] = {}
        """By ticket: its time, and the answers by rank; None while they are pending."""

    def put(self, question: RelayQuestion) -> Ticket:
        """Ask ranks. Any thread may call it."""
        with self._lock:
            ticket, now = next(self._numbers), time.monotonic()
            self._answers = {number: (at, said) for number, (at, said) in self._answers.items() if now - at < KEPT}
            self._answers[ticket] = (now, None)
        self._post(lambda: self._ask(ticket, question.kind, question.ranks))
        return Ticket(ticket)

    def fetch(self, request: FetchAnswers) -> Relayed:
        """The answers for a ticket. Any thread may call it. Raises :class:`Refused` for a forgotten ticket."""
        ticket = request.ticket
        with self._lock:
            if ticket not in self._answers:
                raise Refused("That answer is no longer kept: it was fetched before, or not in time. Ask again.")
            _, said = self._answers[ticket]
            if said is not None:
                del self._answers[ticket]
        return said or Relayed()

    def _ask(self, ticket: int, kind: Literal["state", "stacks", "variables"], ranks: list[int]) -> None:
        def said(answers: Relayed) -> None:
            with self._lock:
                if ticket in self._answers:
                    self._answers[ticket] = (time.monotonic(), answers)

        if kind == "stacks":
            self._questions.stacks(ranks, PATIENCE, lambda found: said(Relayed(stacks=dict(found))))
        elif kind == "variables":
            asked = ReadVariables([], READING - PATIENCE)
            self._questions.ask(ranks, READING, lambda found: said(Relayed(variables=found)), asked)
        else:
            question = ReadPosition(waits=True)
            self._questions.ask(ranks, PATIENCE, lambda found: said(Relayed(positions=found)), question)
