"""All worlds of this user, observed while anybody looks: one :class:`~.observer.Monitor` for each.

Under failure: an observer that fails is logged and begun again; nobody looks, nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, Protocol

from jupyter_dtrain.launch import worlds

from .attention import Attention
from .messages import AttentionMessage, WorldsMessage
from .monitor import Monitor

if TYPE_CHECKING:
    from logging import Logger

    from .messages import Message, NewsMessage, World

LOOK: Final = 1.0
"""Seconds between two looks which worlds there are."""
LINGER: Final = 10.0
"""Seconds for which worlds are observed after the last one has stopped looking: pages are reloaded."""


class Looker(Protocol):
    """Somebody who looks."""

    watching: set[str]
    """Ids of the worlds that are looked at closely."""

    def tell(self, message: Message | NewsMessage) -> None:
        """Take a message; never waits."""


class Observatory:
    """Of one server. All methods are for its event loop."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._observers: dict[str, Monitor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lookers: set[Looker] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.attention = Attention(self._tell_attention)

    # Those who look.

    def enter(self, looker: Looker) -> None:
        """``looker`` is told of everything from now on, beginning with how it is."""
        self._lookers.add(looker)
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._observe())
        looker.tell(self._worlds_message())
        looker.tell(self._attention_message())

    def leave(self, looker: Looker) -> None:
        """``looker`` is told nothing more."""
        self._lookers.discard(looker)

    def look_closely(self, looker: Looker, ids: set[str]) -> None:
        """``looker`` wants the ranks and the run of these worlds; of those that are new to it all that is known."""
        fresh = ids - looker.watching
        looker.watching = ids
        for key in fresh:
            if (observer := self._observers.get(key)) is not None:
                for message in observer.introduction():
                    looker.tell(message)
                observer.wake()

    def is_watched(self, key: str) -> bool:
        """Whether anybody looks closely at this world."""
        return any(key in looker.watching for looker in self._lookers)

    # What observers say.

    def tell(self, message: Message | NewsMessage, key: str) -> None:
        """A message about one world, for who looks closely."""
        for looker in self._lookers:
            if key in looker.watching:
                looker.tell(message)

    def changed(self) -> None:
        """Something of what everybody is told of has changed."""
        self._changed.set()

    # Which worlds there are.

    async def find(self, key: str) -> Monitor | None:
        """The observer of a world; also where nobody looks."""
        if key not in self._observers:
            await self.look()
        return self._observers.get(key)

    async def listing(self) -> list[World]:
        """The worlds, as everybody is told of them."""
        await self.look()
        await asyncio.gather(*(observer.refresh() for observer in self._observers.values()))
        return self._worlds_message().worlds

    async def look(self) -> None:
        """Find the worlds that are there now."""
        found = {listing.id: listing for listing in await asyncio.to_thread(worlds.list_worlds)}
        for key, listing in found.items():
            if key not in self._observers:
                self._observers[key] = Monitor(listing, self)
                self._changed.set()
        for key in self._observers.keys() - found.keys():
            self._observers[key].tell_end()
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._observers.pop(key).close()
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()
        self._changed.set()

    # The loop.

    async def _observe(self) -> None:
        seen = time.monotonic()
        while self._lookers or time.monotonic() < seen + LINGER:
            if self._lookers:
                seen = time.monotonic()
            try:
                await self.look()
                for key, observer in self._observers.items():
                    if key not in self._tasks or self._tasks[key].done():
                        self._tasks[key] = asyncio.create_task(observer.observe())
            except Exception:  # noqa: BLE001 — the next look may do better
                self._log.exception("jupyter_dtrain: worlds cannot be listed")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK)
            if self._changed.is_set():
                self._changed.clear()
                self._tell_all(self._worlds_message())
        for key in list(self._observers):
            self._forget(key)

    def _tell_all(self, message: Message) -> None:
        for looker in self._lookers:
            looker.tell(message)

    def _worlds_message(self) -> WorldsMessage:
        return WorldsMessage(worlds=[observer.summary for observer in self._observers.values()])

    def _attention_message(self) -> AttentionMessage:
        return AttentionMessage(items=self.attention.items)

    def _tell_attention(self) -> None:
        self._tell_all(self._attention_message())
