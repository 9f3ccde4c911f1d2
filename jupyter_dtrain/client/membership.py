"""A client's time in a world: how it joins, goes through restarts, and leaves or ends the world.

Under failure: every wait has a deadline. A world that does not come up is ended; what failed is in the error. After a
restart that failed there is no world to go back to, so the session has lost it. A world that speaks another protocol
raises :class:`~jupyter_dtrain.core.errors.OtherVersion` before it gets anything that it could misunderstand.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jupyter_dtrain.core.errors import BadRequest, DtrainError, NoWorld, Refused, WorldLost, package_gone
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.launch import starting, worlds
from jupyter_dtrain.wire.messages import check_protocol
from jupyter_dtrain.wire.steward_messages import ReadRequest, ReadState, ReadStatus, Restart

from .startup import Startup

if TYPE_CHECKING:
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.wire.channels import StewardChannel
    from jupyter_dtrain.wire.requests import WorldRequest

    from .link import Link
    from .notices import Notices
    from .run_scheduler import RunScheduler

DEATH_POLL = 0.01
"""Seconds between two looks whether killed ranks are reported dead."""


def ask_request(steward: StewardChannel, listing: worlds.Listing) -> WorldRequest:
    """The request that started the world.

    Raises :class:`~jupyter_dtrain.core.errors.OtherVersion` where it speaks another protocol, and as
    :meth:`.StewardChannel.ask`.
    """
    check_protocol(listing.name, listing.protocol, listing.version)
    # Check the steward's own answer too: the listing may be of another process.
    check_protocol(listing.name, steward.ask(ReadStatus()).protocol, listing.version)
    return steward.ask(ReadRequest()).request


class Membership:
    """One session's time in its world."""

    def __init__(
        self,
        link: Link,
        scheduler: RunScheduler,
        notices: Notices,
        settings: Settings,
        request: WorldRequest,
        left: Callable[[], None],
    ) -> None:
        """``request``: what the world was asked to be. ``left`` is called when the session has let go of the world."""
        self._link = link
        self._scheduler = scheduler
        self._notices = notices
        self._settings = settings
        self._request = request
        self._left = left
        link.rejoin = self._rejoin

    def join(self, *, take_over: bool) -> None:
        """Talk to a world that runs already; drive it where no other client does, or with ``take_over``."""
        state = self._link.ask(ReadState())
        if state.phase != "running":
            raise WorldLost(f"World {self._request.name!r} is {state.phase}: try again in a moment.")
        self._link.connect(state, self._scheduler, greet=False)
        self._link.join(take_over=take_over)

    def await_ranks(self, incarnation: int, progress: Callable[[str], None]) -> None:
        """Wait until this set of the world's ranks answers, then talk to them. Raises :class:`StartFailed`."""
        startup = Startup(self._link, self._request, progress)
        state = startup.wait(incarnation)
        self._link.connect(state, self._scheduler, greet=True)
        startup.tell_end(state.size)

    def restart(self, progress: Callable[[str], None]) -> None:
        """As :meth:`.Session.restart`."""
        self._link.check_drives()
        if gone := package_gone():
            raise BadRequest(f"World {self._request.name!r} cannot be restarted: {gone}")
        # First: the ranks, which are about to end, would report that themselves.
        self._scheduler.world_lost("its world was restarted")
        try:
            incarnation = self._link.ask(Restart(self._link.me.id, self._link.me.words)).incarnation
        except Refused as refused:
            raise BadRequest(f"World {self._request.name!r} cannot be restarted: {refused}") from None
        try:
            self.await_ranks(incarnation, progress)
        except BaseException:
            # Also when it was interrupted: between two sets of ranks there is nothing to go back to.
            self._link.lose("its restart failed", closes=True)
            self.abandon_start()
            raise

    def _rejoin(self, incarnation: int, who: str) -> None:
        """Another client, ``who``, has the world restarted: go on with its fresh ranks."""
        name = self._request.name
        try:
            self.await_ranks(incarnation, lambda _: None)
        except DtrainError as error:
            self._link.lose(f"it was restarted by {who} and did not come up: {error}")
        else:
            self._notices.hear(
                f"World {name!r} was restarted by {who}: it has fresh ranks, and all variables are gone."
            )

    def kill(self, ranks: list[int]) -> None:
        """As :meth:`.Session.kill`, for ranks that live."""
        self._link.kill(ranks, "by %distributed kill")
        deadline = time.monotonic() + self._settings.request_timeout
        while living := [rank.rank for rank in self._link.world.ranks if rank.rank in ranks and not rank.has_ended]:
            if time.monotonic() > deadline:
                raise WorldLost(
                    f"{count_ranks(living).capitalize()} did not die. %distributed restart replaces all ranks."
                )
            time.sleep(DEATH_POLL)

    def abandon_start(self) -> None:
        """End a world that did not come up; nothing of it stays."""
        with contextlib.suppress(Exception):
            self._link.stop(timeout=2.0)
        self._await_steward_end()
        self.close()
        starting.remove_runtime(self._request)

    def stop(self) -> None:
        """As :meth:`.Session.stop`."""
        name = self._request.name
        if self._link.closed:
            raise NoWorld(f"World {name!r} was stopped before.")
        self._scheduler.world_lost("its world was stopped")
        if worlds.is_alive(self._link.listing):
            self._link.stop()
        if not self._await_steward_end():
            pid = self._link.listing.steward
            raise WorldLost(f"World {name!r} did not stop in time: its main process (pid {pid}) is still running.")
        self.close()

    def stop_soon(self) -> None:
        """As :meth:`.Session.stop_soon`."""
        if not self._link.closed:
            self._link.closed = True
            with contextlib.suppress(Exception):
                self._link.stop(self._scheduler.followed(), timeout=1.0)
            self._scheduler.world_lost("its kernel is shutting down")

    def close(self) -> None:
        """Let go of the world, which goes on."""
        self._link.close()
        self._scheduler.close()
        self._left()

    def _await_steward_end(self) -> bool:
        return worlds.await_end(self._link.listing, 2 * self._settings.stop_timeout + 10.0)
