"""Questions to ranks that nobody waits for: what they have answered comes back to the thread that asked.

Where a rank's agent does not say where the rank is, its watch is asked, which sees it from outside.

Under failure: each question has a deadline; a rank that has not answered by then, or is dead, has answered None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.stacks import Answers, Stacks, stacks_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.core.world import World

    from .channels import RanksChannel

OUTSIDE_PATIENCE = 5.0
"""Seconds that a watch may take to look at its rank."""

Futures = Mapping[int, "Future[dict[str, Any]]"]


def ask_agents(world: World, channel: RanksChannel, ranks: list[int], **question: Any) -> Futures:
    """Ask those of ``ranks`` that live."""
    return {rank: channel.ask(world.ranks[rank].engine, **question) for rank in _living(world, ranks)}


def ask_watches(world: World, channel: RanksChannel, ranks: list[int]) -> Futures:
    """Ask where those of ``ranks`` are that live, as it is seen from outside."""
    return {rank: channel.ask_watch(world.ranks[rank].engine, op="stacks") for rank in _living(world, ranks)}


def silent(answers: Answers) -> list[int]:
    """The ranks that have not answered."""
    return [rank for rank, answer in answers.items() if answer is None]


def take_answers(ranks: list[int], futures: Futures) -> Answers:
    """What has been answered so far; nobody waits for the rest any more."""
    answers: Answers = dict.fromkeys(ranks)
    for rank, future in futures.items():
        if not future.cancel():
            answers[rank] = future.result()
    return answers


class Questions:
    """The questions of one thread, which calls everything here."""

    def __init__(
        self,
        bound: Callable[[], tuple[World, RanksChannel] | None],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``bound``: the world and the way to its ranks, if there is one; ``wake`` makes the thread call :meth:`tick`.

        ``wake`` is called on any thread.
        """
        self._bound = bound
        self._wake = wake
        self._clock = clock
        self._open: list[tuple[float, list[int], Futures, Callable[[Answers], None]]] = []
        """Until when, who was asked, and what becomes of the answers."""

    def ask(self, ranks: list[int], patience: float, then: Callable[[Answers], None], **question: Any) -> None:
        """Ask agents; ``then`` gets what they answered within ``patience`` seconds. Returns at once."""
        if (bound := self._bound()) is None:
            then(dict.fromkeys(ranks))
            return
        self._await(ranks, patience, then, ask_agents(*bound, ranks, **question))

    def stacks(self, ranks: list[int], patience: float, then: Callable[[Stacks], None]) -> None:
        """Ask where ``ranks`` are; who says nothing within ``patience`` seconds is looked at. Returns at once."""

        def said(answers: Answers) -> None:
            bound = self._bound()
            looks = {} if bound is None else ask_watches(*bound, silent(answers))
            if not looks:
                then(stacks_of(answers))
                return
            self._await(list(looks), OUTSIDE_PATIENCE, lambda found: then(stacks_of(answers | found)), looks)

        self.ask(ranks, patience, said, op="stacks")

    def _await(self, ranks: list[int], patience: float, then: Callable[[Answers], None], futures: Futures) -> None:
        self._open.append((self._clock() + patience, ranks, futures, then))
        for future in futures.values():
            future.add_done_callback(lambda _: self._wake())

    def tick(self, now: float) -> tuple[float, list[Callable[[], None]]]:
        """When the next patience is over; and what is to be called, as it was answered or will not be."""
        due: list[Callable[[], None]] = []
        for question in list(self._open):
            deadline, ranks, futures, then = question
            if now >= deadline or all(future.done() for future in futures.values()):
                self._open.remove(question)
                answers = take_answers(ranks, futures)
                due.append(lambda then=then, answers=answers: then(answers))  # type: ignore[misc]
        return min((deadline for deadline, *_ in self._open), default=math.inf), due


def _living(world: World, ranks: list[int]) -> list[int]:
    return [rank for rank in ranks if world.ranks[rank].state != "dead"]
