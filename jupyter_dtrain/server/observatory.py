"""Observes all worlds of this user while a page looks, with one :class:`~.monitor.Monitor` for each.

Under failure: the observatory logs a failed monitor and starts it again. Without a page it does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.wire.steward_messages import Stop

from .messages import WorldsMessage
from .monitor import Monitor
from .pages import Pages
from .steward import Silent

if TYPE_CHECKING:
    from logging import Logger

    from .messages import World
    from .pages import Page

LOOK: Final = 1.0
"""Seconds between two looks for new and ended worlds."""
WAY: Final = 3.0
"""Seconds that the steward of a failed start may take to end."""
MOST_FAILURES: Final = 10
"""The worlds that did not start that are kept in the list."""
LINGER: Final = 10.0
"""Seconds for which the observation goes on after the last page has left: it may only be reloading."""


class Observatory:
    """The observatory of one server. All methods are for its event loop."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._monitors: dict[str, Monitor] = {}
        self._failures: dict[str, World] = {}
        """The worlds that a page has started in vain, until a person dismisses them."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop_task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self.pages = Pages()

    # The pages that look.

    def enter(self, page: Page) -> None:
        """Send ``page`` the present state, and all changes from now on."""
        self.pages.connected.add(page)
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._observe())
        page.send(self._worlds_message())
        page.send(self.pages.attention_message())

    def look_closely(self, page: Page, ids: set[str]) -> None:
        """Send ``page`` the ranks and the run of these worlds; each new world begins with its whole state."""
        fresh = ids - page.watching
        page.watching = ids
        for key in fresh:
            if (monitor := self._monitors.get(key)) is not None:
                for message in monitor.introduction():
                    page.send(message)
                monitor.wake()

    # The list of worlds.

    async def find(self, key: str) -> Monitor | None:
        """The monitor of a world, even if no page looks."""
        if key not in self._monitors:
            await self.look()
        return self._monitors.get(key)

    async def listing(self) -> list[World]:
        """The worlds, as all pages see them."""
        await self.look()
        await asyncio.gather(*(monitor.refresh() for monitor in self._monitors.values()))
        return self._worlds_message().worlds

    async def look(self) -> None:
        """Find the worlds that exist now."""
        # One look at a time: an older list does not know the newest world, which would count as ended.
        async with self._looking:
            found = {listing.id: listing for listing in await asyncio.to_thread(worlds.list_worlds)}
            for key, listing in found.items():
                if key not in self._monitors:
                    self._monitors[key] = Monitor(listing, self.pages)
                    self.pages.worlds_changed.set()
            for key in self._monitors.keys() - found.keys():
                await self._bury(key)

    async def _bury(self, key: str) -> None:
        """Find out why the world ended, report what the person must know, and forget the world."""
        monitor = self._monitors[key]
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        await monitor.hear_out()
        if monitor.report_end():
            self._failures[key] = monitor.summary
            while len(self._failures) > MOST_FAILURES:
                self._failures.pop(next(iter(self._failures)))
        self._forget(key)

    def forget_failure(self, key: str) -> bool:
        """A person has read why the world did not start; whether nothing but its place in the list was left of it."""
        if (monitor := self._monitors.get(key)) is not None:
            monitor.expect(expected=False)
        self.pages.attention.settle(key, ["start"])
        if self._failures.pop(key, None) is None:
            return False
        self.pages.worlds_changed.set()
        return True

    async def make_way(self, name: str) -> None:
        """End what is left of a start of this name that has failed, so that the name is free to try again."""
        for key, world in list(self._failures.items()):
            if world.name == name:
                self.forget_failure(key)
        for key, monitor in list(self._monitors.items()):
            if monitor.listing.name == name and monitor.failed:
                self.forget_failure(key)
                with contextlib.suppress(Silent, Refused):
                    await monitor.steward().ask(Stop())
                    await asyncio.to_thread(worlds.await_end, monitor.listing, WAY)

    def _forget(self, key: str) -> None:
        self._monitors.pop(key).close()
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()
        self.pages.worlds_changed.set()

    # The loop.

    async def _observe(self) -> None:
        seen = time.monotonic()
        while self.pages.connected or time.monotonic() < seen + LINGER:
            if self.pages.connected:
                seen = time.monotonic()
            try:
                await self.look()
                for key, monitor in self._monitors.items():
                    if key not in self._tasks or self._tasks[key].done():
                        self._tasks[key] = asyncio.create_task(monitor.observe())
            except Exception:  # noqa: BLE001 — the next look may do better
                self._log.exception("jupyter_dtrain: worlds cannot be listed")
            changed = self.pages.worlds_changed
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), LOOK)
            if changed.is_set():
                changed.clear()
                self.pages.send_to_all(self._worlds_message())
        for key in list(self._monitors):
            self._forget(key)

    def _worlds_message(self) -> WorldsMessage:
        return WorldsMessage(
            worlds=[*self._failures.values(), *(monitor.summary for monitor in self._monitors.values())]
        )
