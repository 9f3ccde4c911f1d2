"""Questions to ranks and their answers: values to and fro, stacks, surroundings, spools.

A rank's main thread handles values, between cells; its agent handles everything else, also while a cell runs.

Under failure: every question has a deadline. A rank that dies ends the wait for its answer at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from jupyter_dtrain.core.errors import RanksBusy, RanksDead, Refused, TransferFailed, WorldLost
from jupyter_dtrain.core.events import Event, Finished
from jupyter_dtrain.core.stacks import Stacks, with_native
from jupyter_dtrain.core.stop_button import StopButton
from jupyter_dtrain.core.world import AddressedWorld, count_ranks, format_ranks
from jupyter_dtrain.wire.agent_messages import (
    FetchValues,
    ReadEvents,
    ReadPosition,
    ReadStack,
    ReadSurroundings,
    StoreValues,
    Surroundings,
    ValuesRequest,
)
from jupyter_dtrain.wire.messages import AgentRequest, read_answer
from jupyter_dtrain.wire.questions import (
    OUTSIDE_PATIENCE,
    Answers,
    Futures,
    ask_agents,
    ask_watches,
    silent,
    take_answers,
)
from jupyter_dtrain.wire.spool import read_file
from jupyter_dtrain.wire.values import check_variable, collect_pulled, digests, pickle_values

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.wire.channels import RanksChannel

A = TypeVar("A", bound=msgspec.Struct)

STATE_PATIENCE = 1.0
"""Seconds that ranks may take to say whether they work; one that says nothing counts as working."""


class RankRequests:
    """The questions of one session to its ranks. Thread-safe."""

    def __init__(
        self,
        bound: Callable[[], tuple[AddressedWorld, RanksChannel]],
        busy: Callable[[], Mapping[int, int]],
        settings: Settings,
    ) -> None:
        """``bound``: the world and the way to it as they are now; raises when they are gone. ``busy``: rank → run."""
        self._bound = bound
        self._busy = busy
        self._settings = settings

    def ask_agents(self, ranks: list[int], timeout: float, question: AgentRequest[A]) -> Answers[A]:
        """The agents' answers within ``timeout`` seconds; None for a rank that does not answer, or is dead."""
        return self._gather(ranks, timeout, lambda world, channel: ask_agents(world, channel, ranks, question))

    def stacks(self, ranks: list[int], timeout: float, *, native: bool) -> Stacks:
        """As :meth:`.Session.stacks`."""
        answers = self.ask_agents(ranks, timeout, ReadStack())
        looked = ranks if native else silent(answers)
        found = self._gather(looked, OUTSIDE_PATIENCE, lambda world, channel: ask_watches(world, channel, looked))
        return with_native(answers, found)

    def surroundings(self, ranks: list[int], timeout: float) -> dict[int, Surroundings | None]:
        """As :meth:`.Session.surroundings`."""
        answers = self.ask_agents(ranks, timeout, ReadSurroundings())
        return {rank: None if answer is None else answer.found for rank, answer in answers.items()}

    def may_go_on(self, run: Run) -> bool:
        """Whether a rank works on ``run``, as far as ranks answer within a second; one that does not may."""
        answers = self.ask_agents(run.ranks, STATE_PATIENCE, ReadPosition())
        world = self._bound()[0]
        living = {rank: answer for rank, answer in answers.items() if not world.rank(rank).has_ended}
        return any(one is None or one.works_on(run.number) for one in living.values())

    def _gather(
        self, ranks: list[int], timeout: float, ask: Callable[[AddressedWorld, RanksChannel], Futures[A]]
    ) -> Answers[A]:
        deadline = time.monotonic() + timeout
        with StopButton() as stop_button:
            futures = ask(*self._bound())
            for future in futures.values():
                with contextlib.suppress(FutureTimeout, Refused):
                    future.result(max(0.0, deadline - time.monotonic()))
        stop_button.check()
        return take_answers(ranks, futures)

    def push(self, values: Mapping[str, Any], ranks: list[int]) -> None:
        """As :meth:`.Session.push`."""
        pickled = pickle_values(values)
        request = StoreValues(list(pickled), digests(pickled.values()))
        buffers = list(pickled.values())
        self._ask_idle(dict.fromkeys(ranks, (request, buffers)), doing=f"push {', '.join(values)}")

    def scatter(self, name: str, values: Mapping[int, Any]) -> None:
        """Bind ``name`` on each rank to its own value. ``values``: by rank."""
        requests = {}
        for rank, value in values.items():
            pickled = pickle_values({name: value})
            requests[rank] = StoreValues(list(pickled), digests(pickled.values())), list(pickled.values())
        self._ask_idle(requests, doing=f"scatter {name}")

    def pull(self, names: list[str], ranks: list[int], *, forget: bool = False) -> dict[str, dict[int, Any]]:
        """As :meth:`.Session.pull_many`. ``forget``: the ranks let go of them."""
        for name in names:
            check_variable(name)
        request = FetchValues(names, forget)
        found = self._ask_idle({rank: (request, []) for rank in ranks}, doing=f"pull {', '.join(names)}")
        try:
            answers = {rank: answer for rank, (answer, _) in found.items()}
            return collect_pulled(names, answers, {rank: pickles for rank, (_, pickles) in found.items()})
        finally:
            # pyzmq lets Python handle signals while it frees a message, where an exception is printed and lost:
            # zmq/backend/cython/_zmq.py, Frame.__dealloc__.
            with StopButton() as stop_button:
                found.clear()
            stop_button.check()

    def _ask_idle(
        self, requests: Mapping[int, tuple[ValuesRequest[A], list[bytes]]], *, doing: str
    ) -> dict[int, tuple[A, list[Any]]]:
        """The answer of each rank's main thread, and its buffers. Raises :class:`TransferFailed` if one fails.

        ``requests``: by rank, each with its buffers.
        """
        busy = {rank: run for rank, run in self._busy().items() if rank in requests}
        if busy:
            raise RanksBusy(f"Cannot {doing}: {still_work(busy)}.")
        world, channel = self._bound()
        deadline = time.monotonic() + self._settings.transfer_timeout
        answers: dict[int, tuple[A, list[Any]]] = {}
        failed: dict[str, list[int]] = {}
        with StopButton() as stop_button:
            futures = {rank: channel.values(world.ranks[rank].engine, *asked) for rank, asked in requests.items()}
            for rank, future in futures.items():
                try:
                    reply = self._await_reply(rank, future, deadline, stop_button)
                    answers[rank] = read_answer(reply["content"], requests[rank][0]), reply["buffers"]
                except (RanksDead, Refused, TransferFailed) as error:
                    failed.setdefault(str(error), []).append(rank)
        stop_button.check()
        if failed:
            raise TransferFailed(
                f"Cannot {doing}. "
                + " ".join(f"{count_ranks(bad).capitalize()}: {reason}." for reason, bad in failed.items())
            )
        return answers

    def _await_reply(self, rank: int, future: Any, deadline: float, stop_button: StopButton) -> dict[str, Any]:
        """The reply of the main thread of ``rank``, unless the rank dies or the deadline passes first."""
        while not future.done():
            stop_button.check()
            place = self._bound()[0].rank(rank)
            if place.has_ended:
                raise RanksDead(place.words)
            if time.monotonic() > deadline:
                raise TransferFailed(f"no answer within {self._settings.transfer_timeout:g} s")
            future.wait(0.2)
        reply: dict[str, Any] = future.result()
        return reply

    def read_events(self, run: Run, rank: int) -> Iterator[Event]:
        """All events of ``rank`` in ``run``: from its file where that is at hand, else from its agent.

        Raises :class:`WorldLost` when the rest is with a rank that does not answer.
        """
        path = run.logs.get(rank)
        from_seq = 0
        if path is not None and Path(path).exists():
            last = None
            for last in read_file(path):
                yield last
            if last is None or isinstance(last.body, Finished) or rank in run.unfinished or rank in run.lost:
                return
            # The disk was full: the rest is in the rank's memory, as long as that keeps it.
            from_seq = last.seq + 1
        world, channel = self._bound()
        if rank >= world.size:
            raise WorldLost(f"The log of rank {rank} cannot be read: the world has {world.size} ranks now.")
        while True:
            future = channel.ask(world.ranks[rank].engine, ReadEvents(run.number, from_seq))
            try:
                batch = future.result(self._settings.request_timeout).batch
            except FutureTimeout:
                raise WorldLost(f"The log of rank {rank} cannot be read: the rank does not answer.") from None
            if batch is None:
                return
            yield from batch.events
            from_seq = batch.last + 1


def check_free(ranks: list[int], left: Mapping[int, int]) -> None:
    """Raise :class:`RanksBusy` when one of ``ranks`` is in ``left``: ranks that an interrupted run has left behind."""
    busy = {rank: run for rank, run in left.items() if rank in ranks}
    if busy:
        raise RanksBusy(
            f"{still_work(busy).capitalize()}, which was interrupted: wait, or kill "
            f"{'it' if len(busy) == 1 else 'them'} with %distributed kill {format_ranks(busy)}."
        )


def still_work(busy: Mapping[int, int]) -> str:
    """``busy``: rank → run, as words."""
    return f"{count_ranks(sorted(busy))} {'is' if len(busy) == 1 else 'are'} still working on run {min(busy.values())}"
