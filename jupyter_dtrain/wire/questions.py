"""Questions to ranks that hold up no thread: the thread that asked gets the answers once they are there.

Where a rank's agent does not say where the rank is, its watch is asked, which looks from outside.

Under failure: each question has a deadline; the answer of a rank that has not answered by then, refuses, or is dead is
None.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.stacks import Stack, Stacks

from .agent_messages import InspectRank, InterruptRank, ReadStack, Signalled
from .messages import AgentRequest

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import AddressedWorld

    from .channels import RanksChannel

OUTSIDE_PATIENCE = 5.0
"""Seconds that a watch may take to look at its rank."""

ASK_AGAIN = 1.0
"""Seconds after which a question whose answer takes long (:class:`.SampleRank`) is repeated."""

A = TypeVar("A", bound=msgspec.Struct)

Answers = dict[int, A | None]
"""The answer of each rank; None for one that did not answer."""

Futures = dict[int, Future[A]]


def ask_agents(world: AddressedWorld, channel: RanksChannel, ranks: list[int], question: AgentRequest[A]) -> Futures[A]:
    """Send ``question`` to the agents of the living ``ranks``; each rank's future gets the answer."""
    return {rank: channel.ask(world.ranks[rank].engine, question) for rank in _living(world, ranks)}


def ask_watches(world: AddressedWorld, channel: RanksChannel, ranks: list[int]) -> Futures[Stack]:
    """Ask the watches for the stacks of the living ``ranks``; each rank's future gets the answer."""
    return {rank: channel.ask(world.ranks[rank].watch, InspectRank(rank)) for rank in _living(world, ranks)}


def silent(answers: Answers[A]) -> list[int]:
    """The ranks that have not answered."""
    return [rank for rank, answer in answers.items() if answer is None]


def await_answers(futures: Futures[A], timeout: float) -> None:
    """Wait until all answers have come, for at most ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    for future in futures.values():
        with contextlib.suppress(FutureTimeout, Refused):
            future.result(max(0.0, deadline - time.monotonic()))


def take_answers(ranks: list[int], futures: Futures[A]) -> Answers[A]:
    """The answers that have come so far, None for the others; those questions are cancelled."""
    answers: Answers[A] = dict.fromkeys(ranks)
    for rank, future in futures.items():
        if not future.cancel() and future.exception() is None:
            answers[rank] = future.result()
    return answers


class Questions:
    """The questions of one thread, which calls everything here."""

    def __init__(
        self,
        bound: Callable[[], tuple[AddressedWorld, RanksChannel] | None],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``bound``: the world and the way to its ranks, if there is one; ``wake`` makes the thread call :meth:`tick`.

        ``wake`` is called on any thread.
        """
        self._bound = bound
        self._wake = wake
        self._clock = clock
        self._open: list[tuple[float, list[int], Futures[Any], Callable[[Answers[Any]], None]]] = []
        """The deadline of each question, the ranks, their answers, and what is called with these."""

    def ask(
        self, ranks: list[int], patience: float, then: Callable[[Answers[A]], None], question: AgentRequest[A]
    ) -> None:
        """Ask agents; ``then`` gets what they answered within ``patience`` seconds. Returns at once."""
        if (bound := self._bound()) is None:
            then(dict.fromkeys(ranks))
            return
        self._await(ranks, patience, then, ask_agents(*bound, ranks, question))

    def interrupt(
        self, run: int, ranks: list[int], patience: float, then: Callable[[list[int]], None], *, force: bool = False
    ) -> None:
        """Interrupt the cell of ``run``; ``then`` gets the ranks whose cells have taken it. Returns at once.

        ``force``: by an exception that ``except KeyboardInterrupt`` does not catch.
        """

        def said(answers: Answers[Signalled]) -> None:
            then([rank for rank, answer in answers.items() if answer is not None and answer.sent])

        self.ask(ranks, patience, said, InterruptRank(run, force))

    def stacks(self, ranks: list[int], patience: float, then: Callable[[Stacks], None]) -> None:
        """Ask where ``ranks`` are; ``patience`` seconds later, the watches of silent ones. Returns at once."""

        def said(answers: Answers[Stack]) -> None:
            bound = self._bound()
            looks = {} if bound is None else ask_watches(*bound, silent(answers))
            if not looks:
                then(answers)
                return
            self._await(list(looks), OUTSIDE_PATIENCE, lambda found: then(answers | found), looks)

        self.ask(ranks, patience, said, ReadStack())

    def greet(self, rank: int, patience: float, then: Callable[[], None]) -> None:
        """Greet the main thread of ``rank``; ``then`` is called if it answers within ``patience`` seconds."""
        if (bound := self._bound()) is None:
            return
        world, channel = bound
        greetings = {one: channel.greet(world.ranks[one].engine) for one in _living(world, [rank])}
        self._await([rank], patience, lambda answers: None if answers[rank] is None else then(), greetings)

    def dead(self, ranks: list[int]) -> list[int]:
        """Those of ``ranks`` that have ended; none where there is no world."""
        bound = self._bound()
        return [] if bound is None else [rank for rank in ranks if bound[0].rank(rank).has_ended]

    def _await(
        self, ranks: list[int], patience: float, then: Callable[[Answers[A]], None], futures: Futures[A]
    ) -> None:
        self._open.append((self._clock() + patience, ranks, futures, then))
        for future in futures.values():
            future.add_done_callback(lambda _: self._wake())

    def tick(self, now: float) -> tuple[float, list[Callable[[], None]]]:
        """When the next deadline passes, and the calls that are due: their answers are there or will not come."""
        due: list[Callable[[], None]] = []
        for question in list(self._open):
            deadline, ranks, futures, then = question
            if now >= deadline or all(future.done() for future in futures.values()):
                self._open.remove(question)
                answers = take_answers(ranks, futures)
                due.append(lambda then=then, answers=answers: then(answers))  # type: ignore[misc]
        return min((deadline for deadline, *_ in self._open), default=math.inf), due


def _living(world: AddressedWorld, ranks: list[int]) -> list[int]:
    return [rank for rank in ranks if not world.rank(rank).has_ended]
