"""Requests of clients to the steward, and its answers.

Requests come on the control thread, which answers at once: it reads a snapshot, or posts to the supervisor's thread.

Under failure: a request that cannot be read, or that fails, is answered with its error; see
:mod:`~jupyter_dtrain.wire.messages`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jupyter_dtrain.core.errors import Refused, package_gone
from jupyter_dtrain.wire.messages import PROTOCOL, Done, from_content, refused, replied
from jupyter_dtrain.wire.steward_messages import (
    ASKED_FOR,
    Advance,
    Advanced,
    AnyStewardRequest,
    Driven,
    DriverChanged,
    Join,
    Joined,
    Leave,
    ReadRequest,
    ReadState,
    Renew,
    Requested,
    Restart,
    RestartBegun,
    Restarter,
    Stop,
    Stored,
    StoreRuns,
    WorldState,
)

if TYPE_CHECKING:
    from jupyter_dtrain.wire.requests import WorldRequest
    from jupyter_dtrain.wire.steward_messages import Broadcast

    from .keeper import Keeper
    from .lease import Lease
    from .open_runs import OpenRuns
    from .state import State

RECENT = 1.0
"""How many seconds old the list of runs may be that a client gets with each cell and renewal."""

Answers = dict[type[msgspec.Struct], Callable[[Any], msgspec.Struct]]
"""The function that answers each request, by the type of the request."""

_log = logging.getLogger(__name__)


class StewardOwner(Protocol):
    """The owner of the world's processes, as requests need it; see :class:`.Supervisor`. No method waits."""

    def broadcast_soon(self, event: Broadcast) -> None:
        """Broadcast ``event``."""

    def give_up(self, run: int) -> None:
        """Count ``run`` as ended, without the ranks that still work on it."""

    def restart(self, client: str, by: str) -> None:
        """Begin to replace all ranks."""

    def end(self, reason: str) -> None:
        """Begin to end the world for ``reason``."""


class Requests:
    """Answers the clients of one world. Any thread may call."""

    def __init__(
        self,
        request: WorldRequest,
        state: State,
        lease: Lease,
        keeper: Keeper,
        runs: OpenRuns,
        owner: StewardOwner,
        actions: Answers,
    ) -> None:
        """``runs``: those that go on; ``actions``: what answers the requests that act on ranks."""
        self._request = request
        self._state = state
        self._lease = lease
        self._keeper = keeper
        self._runs = runs
        self._owner = owner
        self._answers: Answers = {
            ReadState: self._read_state,
            ReadRequest: lambda _: Requested(self._state.request),
            Join: self._join,
            Renew: self._renew,
            Leave: self._leave,
            Advance: self._advance,
            Restart: self._restart,
            StoreRuns: self._store_runs,
            Stop: self._stop,
            **actions,
        }

    def answer(self, content: dict[str, Any]) -> dict[str, Any]:
        """Carry out the request in ``content``; return the content of the reply. Never waits for the world."""
        try:
            request: AnyStewardRequest = from_content(content, AnyStewardRequest)
        except Refused as error:
            return refused(error)
        return replied(lambda: self._answers[type(request)](request))

    def _read_state(self, _request: ReadState) -> WorldState:
        return self._state.snapshot(self._runs.look(self._state.dead))

    def _join(self, join: Join) -> Joined:
        if join.protocol != PROTOCOL:
            raise Refused(
                f"Another version of jupyter-dtrain started world {self._request.name!r}, which speaks protocol "
                f"{PROTOCOL}, and this client {join.protocol}. %distributed stop {self._request.name} ends the world."
            )
        if self._lease.join(join.client, take_over=join.take_over):
            self._keeper.driven(join.client)
            self._owner.broadcast_soon(DriverChanged(driver=join.client))
        driver = self._lease.driver
        assert driver is not None
        return Joined(driver, self._state.generation)

    def _renew(self, renew: Renew) -> Driven:
        self._keeper.followed(renew.followed)
        self._runs.followed(renew.followed)
        if self._lease.renew(renew.client, auto=renew.auto):
            self._state.number_run(renew.last_run)
        return Driven(self._lease.driver, self._state.news(self._runs.look(self._state.dead, RECENT), renew.dead))

    def _leave(self, leave: Leave) -> Done:
        self._lease.leave(leave.client)
        return Done()

    def _advance(self, advance: Advance) -> Advanced:
        self._owner.give_up(advance.run)
        return Advanced(self._state.advance(advance.run))

    def _restart(self, restart: Restart) -> RestartBegun:
        if gone := package_gone():
            raise Refused(gone)
        incarnation = self._state.begin_restart(Restarter(restart.client, restart.by))
        self._owner.restart(restart.client, restart.by)
        return RestartBegun(incarnation)

    def _store_runs(self, store: StoreRuns) -> Stored:
        self._keeper.followed(store.followed)
        self._runs.followed(store.followed)
        ticket = store.ticket or self._keeper.store_soon()
        return Stored(ticket, self._keeper.stored(ticket))

    def _stop(self, stop: Stop) -> Done:
        self._keeper.followed(stop.followed)
        self._owner.end(ASKED_FOR)
        return Done()
