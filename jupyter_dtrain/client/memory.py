"""The memory of a session's ranks: how much there is, which names hold it, its course over a cell, and letting go.

Under failure: a rank that does not answer in time is named, and the others are shown. Nothing is let go of while one of
the ranks works on a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.errors import BadRequest, RanksDead, TransferFailed
from jupyter_dtrain.core.memory import FreedMemory, RankMemory
from jupyter_dtrain.core.memory_record import RecordedMemory
from jupyter_dtrain.core.world import Ranks, World, count_ranks, parse_ranks
from jupyter_dtrain.view.memory import freed_words, memory_tables
from jupyter_dtrain.view.memory_record import record_bundle
from jupyter_dtrain.wire.agent_messages import ReadMemory, ReadMemoryRecord

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run

    from .link import Link
    from .rank_requests import RankRequests

MARGIN: Final = 1.0
"""Seconds between the time for looking and the end of the wait for an answer."""


class MemoryReport:
    """The memory of ranks, with the names that hold it. Shows itself as two tables."""

    def __init__(self, world: World, found: Mapping[int, RankMemory | None], most: int) -> None:
        self._world = world
        self._most = most
        self.ranks: dict[int, RankMemory | None] = dict(found)
        """The memory of each rank; None for a rank that has not answered."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return memory_tables(self._world, self.ranks, self._most)

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]


class MemoryRecord:
    """The memory of ranks over one cell. Shows itself as sentences, tables and, in a notebook, a picture."""

    def __init__(
        self, world: World, run: int, found: Mapping[int, RecordedMemory | None], last: Mapping[int, int]
    ) -> None:
        """``last``: what was known of the memory of ranks by other ways, last."""
        self._world = world
        self._last = dict(last)
        self.run = run
        """The number of the run."""
        self.ranks: dict[int, RecordedMemory | None] = dict(found)
        """The record of each rank; None for a rank that has none of this run, or has not answered."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return record_bundle(self._world, self.run, self.ranks, self._last)

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]


class Freed:
    """How much each rank has given back. Shows itself in words."""

    def __init__(self, found: Mapping[int, FreedMemory]) -> None:
        self.ranks: dict[int, FreedMemory] = dict(found)
        """By rank."""

    def __repr__(self) -> str:
        return freed_words(self.ranks)


class SessionMemory:
    """The way of one session to the memory of its ranks. Thread-safe; it has no state of its own."""

    def __init__(
        self, link: Link, requests: RankRequests, world: Callable[[], World], last_run: Callable[[], Run | None]
    ) -> None:
        """``world``: the world as it is now; ``last_run``: the newest run."""
        self._link = link
        self._requests = requests
        self._world = world
        self._last_run = last_run

    def read(self, ranks: Ranks, most: int, timeout: float) -> MemoryReport:
        """As :meth:`.Session.memory`."""
        if most < 1:
            raise BadRequest(f"most is {most}: at least 1 piece of memory can be named.")
        self._link.check()
        world = self._world()
        question = ReadMemory(most, max(0.1, timeout - MARGIN))
        answers = self._requests.ask_agents(parse_ranks(ranks, world.size), timeout, question)
        found = {rank: None if answer is None else answer.found for rank, answer in answers.items()}
        return MemoryReport(world, found, most)

    def record(self, ranks: Ranks, run: int | None, timeout: float) -> MemoryRecord:
        """As :meth:`.Session.memory_record`."""
        self._link.check()
        world = self._world()
        chosen = parse_ranks(ranks, world.size)
        answers = self._requests.ask_agents(chosen, timeout, ReadMemoryRecord())
        found = {rank: None if answer is None else answer.found for rank, answer in answers.items()}
        kept = [one.run for one in found.values() if one is not None]
        wanted = run if run is not None else max(kept, default=None)
        if wanted is None or wanted not in kept:
            who = count_ranks(chosen)
            if not any(answers.values()):
                if all(world.ranks[rank].has_ended for rank in chosen):
                    raise RanksDead(f"There is no record: {who} {'is' if len(chosen) == 1 else 'are'} dead.")
                raise TransferFailed(f"There is no record: no answer from {who} within {timeout:g} s.")
            if wanted is None:
                words = f"No cell has recorded its memory on {who}: %%distributed --record-memory records a cell's."
                raise BadRequest(words)
            newest = f"ranks keep the record of one run, here {max(kept)}" if kept else "no cell was recorded here"
            raise BadRequest(f"Run {run} has no record of its memory on {who}: {newest}.")
        last = self._last_run()
        samples = last.samples if last is not None and last.number == wanted else {}
        known = {rank: sample.rss for rank, sample in samples.items()}
        of_run = {rank: one if one is not None and one.run == wanted else None for rank, one in found.items()}
        return MemoryRecord(world, wanted, of_run, known)

    def free(self, ranks: Ranks) -> Freed:
        """As :meth:`.Session.free`."""
        return Freed(self._requests.free_memory(self._link.choose_living(ranks)))
