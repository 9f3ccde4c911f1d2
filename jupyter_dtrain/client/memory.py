"""The memory of a session's ranks: how much there is, which names hold it, and letting go of what nobody needs.

Under failure: a rank that does not answer in time is named, and the others are shown. Nothing is let go of while one of
the ranks works on a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.memory import FreedMemory, RankMemory
from jupyter_dtrain.core.world import Ranks, World, parse_ranks
from jupyter_dtrain.view.memory import freed_words, memory_tables
from jupyter_dtrain.wire.agent_messages import ReadMemory

if TYPE_CHECKING:
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


class Freed:
    """How much each rank has given back. Shows itself in words."""

    def __init__(self, found: Mapping[int, FreedMemory]) -> None:
        self.ranks: dict[int, FreedMemory] = dict(found)
        """By rank."""

    def __repr__(self) -> str:
        return freed_words(self.ranks)


class SessionMemory:
    """The way of one session to the memory of its ranks. Thread-safe; it has no state of its own."""

    def __init__(self, link: Link, requests: RankRequests, world: Callable[[], World]) -> None:
        """``world``: the world as it is now."""
        self._link = link
        self._requests = requests
        self._world = world

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

    def free(self, ranks: Ranks) -> Freed:
        """As :meth:`.Session.free`."""
        return Freed(self._requests.free_memory(self._link.choose_living(ranks)))
