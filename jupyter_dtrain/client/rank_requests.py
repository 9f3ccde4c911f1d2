"""Questions to ranks and their answers: values to and fro, stacks, surroundings, spools.

A rank's main thread handles values, between cells; its agent handles everything else, also while a cell runs.

Large values go through memory that this process lends, where ranks can reach it. Their agents are asked so before
values are sent; where ranks send values, each decides by itself.

Under failure: every question has a deadline. A rank that dies ends the wait for its answer at once. The memory is given
back when the request ends, however it ends; it ends with this process in any case.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from jupyter_dtrain.core.errors import RanksBusy, RanksDead, Refused, TransferFailed, WorldLost
from jupyter_dtrain.core.events import Event, Finished
from jupyter_dtrain.core.stacks import Stacks, with_native
from jupyter_dtrain.core.stop_button import StopButton
from jupyter_dtrain.core.world import AddressedWorld, count_ranks, format_ranks
from jupyter_dtrain.wire.agent_messages import (
    FetchValues,
    FreeMemory,
    ReachMemory,
    ReadEvents,
    ReadPosition,
    ReadStack,
    ReadSurroundings,
    StoreValues,
    Surroundings,
    ValuesRequest,
)
from jupyter_dtrain.wire.lent_memory import LentMemory
from jupyter_dtrain.wire.messages import AgentRequest
from jupyter_dtrain.wire.questions import (
    OUTSIDE_PATIENCE,
    Answers,
    Futures,
    ask_agents,
    ask_watches,
    await_answers,
    silent,
    take_answers,
)
from jupyter_dtrain.wire.spool import read_file
from jupyter_dtrain.wire.values import Parcel, Pulled, check_variable, needs_memory, pack, pickle_values

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.core.memory import FreedMemory
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
        with StopButton() as stop_button:
            futures = ask(*self._bound())
            await_answers(futures, timeout)
        stop_button.check()
        return take_answers(ranks, futures)

    def pack(self, values: Mapping[str, Any], ranks: list[int]) -> Parcel:
        """Make ``values`` ready for ``ranks``. Raises :class:`TransferFailed` for one that cannot be pickled."""
        pickled = pickle_values(values)
        if not needs_memory(pickled):
            return pack(pickled)
        if self._reach(ranks):
            with contextlib.suppress(OSError):
                return pack(pickled, LentMemory.lend())
        return pack(pickle_values(values, whole=True))

    def _reach(self, ranks: list[int]) -> bool:
        """Whether all ``ranks`` can reach memory of this process now. One that does not answer counts as unable."""
        if (memory := _lend()) is None:
            return False
        try:
            answers = self.ask_agents(ranks, STATE_PATIENCE, ReachMemory(memory.place))
        finally:
            memory.close()
        return all(answer is not None and answer.yes for answer in answers.values())

    def push(self, values: Mapping[str, Any], ranks: list[int]) -> None:
        """As :meth:`.Session.push`."""
        doing = f"push {', '.join(values)}"
        self.check_idle(ranks, doing)
        self._store(dict.fromkeys(ranks, self.pack(values, ranks)), doing)

    def scatter(self, name: str, values: Mapping[int, Any]) -> None:
        """Bind ``name`` on each rank to its own value. ``values``: by rank."""
        doing = f"scatter {name}"
        self.check_idle(values, doing)
        self._store({rank: self.pack({name: value}, [rank]) for rank, value in values.items()}, doing)

    def _store(self, parcels: Mapping[int, Parcel], doing: str) -> None:
        asked = {rank: (StoreValues(one.values, one.place), one.frames) for rank, one in parcels.items()}
        try:
            for _ in self._ask_idle(asked, doing):
                pass
        finally:
            for parcel in parcels.values():
                parcel.close()

    def pull(self, names: list[str], ranks: list[int], *, forget: bool = False) -> dict[str, dict[int, Any]]:
        """As :meth:`.Session.pull_many`. ``forget``: the ranks let go of them."""
        for name in names:
            check_variable(name)
        pulled = Pulled(names)
        memory = {rank: _lend() for rank in ranks}
        asked: dict[int, tuple[FetchValues, list[bytes]]] = {
            rank: (FetchValues(names, forget, None if one is None else one.place), []) for rank, one in memory.items()
        }
        try:
            for rank, answer, frames in self._ask_idle(asked, f"pull {', '.join(names)}"):
                pulled.add(rank, answer, frames, memory[rank])
        finally:
            for one in memory.values():
                if one is not None:
                    one.close()
        return pulled.collect(ranks)

    def free_memory(self, ranks: list[int]) -> dict[int, FreedMemory]:
        """As :meth:`.Session.free`, by rank."""
        asked: dict[int, tuple[FreeMemory, list[bytes]]] = {rank: (FreeMemory(), []) for rank in ranks}
        found = {rank: answer.found for rank, answer, _ in self._ask_idle(asked, "free memory")}
        return {rank: found[rank] for rank in ranks}

    def check_idle(self, ranks: Collection[int], doing: str) -> None:
        """Raise :class:`RanksBusy` while one of ``ranks`` works on a run. ``doing``: what cannot be done then."""
        busy = {rank: run for rank, run in self._busy().items() if rank in ranks}
        if busy:
            raise RanksBusy(f"Cannot {doing}: {still_work(busy)}.")

    def _ask_idle(
        self, requests: Mapping[int, tuple[ValuesRequest[A], list[bytes]]], doing: str
    ) -> Iterator[tuple[int, A, list[Any]]]:
        """The answer of each rank's main thread with its buffers, in the order in which they come.

        ``requests``: by rank, each with its buffers. The list of buffers is emptied before the next answer. Raises
        :class:`TransferFailed`, after the last answer, if a rank has failed.
        """
        self.check_idle(requests, doing)
        world, channel = self._bound()
        deadline = time.monotonic() + self._settings.transfer_timeout
        failed: dict[str, list[int]] = {}
        came: SimpleQueue[int] = SimpleQueue()
        futures: dict[int, Future[tuple[A, list[Any]]]] = {}
        try:
            with StopButton() as stop_button:
                for rank, asked in requests.items():
                    futures[rank] = channel.values(world.ranks[rank].engine, *asked)
                    futures[rank].add_done_callback(lambda _, rank=rank: came.put(rank))  # type: ignore[misc]
            stop_button.check()
            while futures:
                frames: list[Any] = []
                answer = None
                with StopButton() as stop_button:
                    rank = self._next_rank(futures, came, deadline, stop_button)
                    try:
                        answer, frames = self._take_answer(rank, futures.pop(rank))
                    except (RanksDead, Refused, TransferFailed) as error:
                        failed.setdefault(str(error), []).append(rank)
                try:
                    stop_button.check()
                    if answer is not None:
                        yield rank, answer, frames
                finally:
                    # pyzmq lets Python handle signals while it frees a message, where an exception is printed and lost:
                    # zmq/backend/cython/_zmq.py, Frame.__dealloc__.
                    with StopButton() as stop_button:
                        frames.clear()
                stop_button.check()
        finally:
            for future in futures.values():
                future.cancel()
        if failed:
            raise TransferFailed(
                f"Cannot {doing}. "
                + " ".join(
                    f"{count_ranks(bad).capitalize()}: {reason}."
                    for bad, reason in sorted((sorted(bad), reason) for reason, bad in failed.items())
                )
            )

    def _next_rank(
        self, waiting: Mapping[int, object], came: SimpleQueue[int], deadline: float, stop_button: StopButton
    ) -> int:
        """A rank of ``waiting`` that has answered, that is dead, or whose time is over."""
        while True:
            with contextlib.suppress(Empty):
                if (rank := came.get(timeout=0.2)) in waiting:
                    return rank
            stop_button.check()
            for rank in waiting:
                if self._bound()[0].rank(rank).has_ended or time.monotonic() > deadline:
                    return rank

    def _take_answer(self, rank: int, future: Future[tuple[A, list[Any]]]) -> tuple[A, list[Any]]:
        """The answer of ``rank``. Raises :class:`Refused`; where there is none, what has kept the rank from it."""
        if not future.cancel():
            return future.result()
        place = self._bound()[0].rank(rank)
        if place.has_ended:
            raise RanksDead(place.words)
        raise TransferFailed(f"no answer within {self._settings.transfer_timeout:g} s")

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


def _lend() -> LentMemory | None:
    try:
        return LentMemory.lend()
    except OSError:  # none, or no descriptor, is left
        return None


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
