"""How the scheduler's thread reaches the ranks and the steward, and what it knows of the world.

The :class:`~.run_scheduler.RunScheduler` alone writes here; its runs read. Nothing here waits, except for the steward's
acts, which take a second at most. Where there is no world, a question gets no answer and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from jupyter_dtrain.core.interruption import Acts
from jupyter_dtrain.wire.agent_messages import EventsRead, ReadEvents
from jupyter_dtrain.wire.questions import Questions

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.core.world import AddressedWorld
    from jupyter_dtrain.wire.channels import RanksChannel


class StewardActs(Acts, Protocol):
    """What only the steward can do for runs, asked through the session's link, which knows the scheduler.

    Acts raise as a link's requests do; the scheduler goes on without.
    """

    def advance(self, run: int) -> int:
        """The generation of what is sent after ``run``, whose process groups are broken. Raises as ``release``."""

    def renew_soon(self) -> None:
        """Ask at once what this client may have missed."""

    @property
    def controls(self) -> bool:
        """Whether this client may run cells."""


class WorldConnection:
    """The world of one session, as the thread that schedules its runs sees it."""

    def __init__(self, settings: Settings, steward: StewardActs, post: Callable[[Callable[[], None]], None]) -> None:
        """``post`` gives a task to the scheduler's thread, from any thread."""
        self.settings = settings
        self.steward = steward
        self.post = post
        self.questions = Questions(self.bound, lambda: post(lambda: None))
        self.world: AddressedWorld | None = None
        self.channel: RanksChannel | None = None
        self.spool = ""
        """The folder of the ranks' spools."""
        self.generation = 0
        """The generation of the cells that are sent from now on."""

    def bound(self) -> tuple[AddressedWorld, RanksChannel] | None:
        """The world and the way to its ranks, where there is one."""
        return None if self.channel is None or self.world is None else (self.world, self.channel)

    def read_events(self, rank: int, run: int, from_seq: int) -> Future[EventsRead] | None:
        """Ask ``rank`` for the events of ``run`` from a number on; None where there is no world."""
        if (bound := self.bound()) is None:
            return None
        world, channel = bound
        return channel.ask(world.rank(rank).engine, ReadEvents(run, from_seq))
