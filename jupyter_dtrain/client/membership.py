"""A client's time in a world: how it joins, goes through restarts, and leaves or ends the world.

Under failure: every wait has a deadline. A world that does not come up is ended; what failed is in the error. The
steward says why, see :mod:`jupyter_dtrain.steward.progress`; the error differs for a steward that has ended, one that
never answers, and one that is slow. After a restart that failed there is no world to go back to, so the session has
lost it. A world that speaks another protocol raises :class:`~jupyter_dtrain.core.errors.OtherVersion` before it gets
anything that it could misunderstand.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from jupyter_dtrain.core.errors import (
    BadRequest,
    DtrainError,
    NoWorld,
    Refused,
    StartFailed,
    WorldLost,
    package_gone,
)
from jupyter_dtrain.core.processes import Work
from jupyter_dtrain.core.start_failures import AGAIN, MEND, StartFailure, relevant
from jupyter_dtrain.core.world import count_ranks, quantity
from jupyter_dtrain.launch import starting, worlds
from jupyter_dtrain.wire.messages import check_protocol
from jupyter_dtrain.wire.steward_messages import ReadRequest, ReadState, ReadStatus, Restart, WorldState

if TYPE_CHECKING:
    from jupyter_dtrain.wire.channels import StewardChannel
    from jupyter_dtrain.wire.requests import WorldRequest

    from .link import Link
    from .notices import Notices
    from .run_scheduler import RunScheduler

POLL = 0.03
"""Seconds between two looks at a world that comes up."""
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


class _Startup:
    """One world's way from its steward's start, or from a restart, until all its ranks are ready."""

    def __init__(
        self,
        link: Link,
        request: WorldRequest,
        progress: Callable[[str], None],
    ) -> None:
        """``progress`` is called with a line of text whenever there is news."""
        self._listing = link.listing
        self._link = link
        self._request = request
        self._progress = progress
        self._began = time.monotonic()
        self._log: BinaryIO | None = None
        with contextlib.suppress(OSError):
            # Open from the start on: a steward that is killed takes its folder along.
            self._log = open(Path(request.folder) / "logs" / "steward.log", "rb")  # noqa: SIM115 — closed in wait()

    def wait(self, incarnation: int) -> WorldState:
        """The state of the world that runs. Raises :class:`StartFailed` with the reason when it does not."""
        try:
            return self._wait(incarnation)
        finally:
            if self._log is not None:
                self._log.close()

    def _wait(self, incarnation: int) -> WorldState:
        name, said = self._listing.name, ("", "")
        # At once: the main process may need seconds on a busy machine before it can tell how far its ranks are.
        self._progress(f"Starting world {name!r}")
        while True:
            state = self._ask_state()
            if state.phase in ("failed", "ending") or state.incarnation != incarnation:
                failed = state.failure or StartFailure(state.reason, "")
                raise StartFailed(f"World {name!r} did not start. {failed.reason}", failed.fix, failed.log)
            if state.phase == "running":
                return state
            if (state.progress, state.busy) != said:
                said = state.progress, state.busy
                words = "; ".join(word for word in said if word)
                self._progress(f"Starting world {name!r}: {words}, {self._seconds:.1f} s")
            time.sleep(POLL)

    def tell_end(self, size: int) -> None:
        """Report that the world is up and its ranks answer."""
        ranks = quantity(size, "rank")
        self._progress(f"World {self._listing.name!r} is up: {ranks} in {self._seconds:.1f} s")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _ask_state(self) -> WorldState:
        """The state of a world that starts; its steward may need a moment before it answers at all."""
        name, settings = self._listing.name, self._request.settings
        steward: Work | None = None
        while True:
            try:
                return self._link.ask(ReadState(), timeout=1.0)
            except WorldLost:
                if not worlds.is_alive(self._listing):
                    log = self._steward_said(patience=1.0)
                    mend = len(log.splitlines()) > 1  # the last line is its guard's, which names the signal
                    words = f"The main process of world {name!r} ended."
                    raise StartFailed(words, MEND if mend else AGAIN, log) from None
                # It may still answer while it works, or waits for a processor of a busy machine.
                steward = steward or Work([self._listing.steward])
                late = self._seconds > settings.start_timeout and steward.rest() > settings.start_timeout / 2
                if late or self._seconds > settings.longest_step:
                    raise StartFailed(
                        f"The main process of world {name!r} does not answer.",
                        "Start the world again, or give it more time with JUPYTER_DTRAIN_START_TIMEOUT "
                        f"(seconds, now {settings.start_timeout:g}).",
                        self._steward_said(),
                    ) from None

    def _steward_said(self, patience: float = 0.0) -> str:
        """The lines of the steward's log that tell about a failure; they may come within ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while self._log is not None:
            self._log.seek(0)
            text = relevant(self._log.read().decode(errors="replace"))
            if text or time.monotonic() > deadline:
                return text
            time.sleep(POLL)
        return ""


class Membership:
    """One session's time in its world."""

    def __init__(
        self,
        link: Link,
        scheduler: RunScheduler,
        notices: Notices,
        request: WorldRequest,
        left: Callable[[], None],
    ) -> None:
        """``request``: what the world was asked to be. ``left`` is called when the session has let go of the world."""
        self._link = link
        self._scheduler = scheduler
        self._notices = notices
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
        startup = _Startup(self._link, self._request, progress)
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
        deadline = time.monotonic() + self._request.settings.request_timeout
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
        """Ask the world to end, without waiting: for a kernel that is shutting down."""
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
        return worlds.await_end(self._link.listing, 2 * self._request.settings.stop_timeout + 10.0)
