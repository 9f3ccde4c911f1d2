"""The facts that a session knows of its world: the part of :class:`~jupyter_dtrain.session.Session` that only reads.

Under failure: :attr:`SessionFacts.world` raises :class:`~jupyter_dtrain.core.errors.WorldLost` where there is no world
any more; everything else answers from what this process knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyter_dtrain.wire.requests import LOCAL
from jupyter_dtrain.wire.steward_messages import Lent, ReadState

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.core.world import World
    from jupyter_dtrain.wire.requests import WorldRequest

    from .cells import CellRunner
    from .fold import Fold
    from .link import Link


class SessionFacts:
    """The facts of one client's world. :class:`~jupyter_dtrain.session.Session` sets the attributes."""

    request: WorldRequest
    """The request that started the world."""
    _settings: Settings
    _link: Link
    _fold: Fold
    _cells: CellRunner
    _started_here: bool

    @property
    def name(self) -> str:
        """The world's name."""
        return self.request.name

    @property
    def id(self) -> str:
        """The world's id, which no other world has or had."""
        return self.request.id

    @property
    def closed(self) -> bool:
        """Whether this session was stopped, or has lost its world."""
        return self._link.over

    @property
    def loss(self) -> str:
        """Why the world is gone; empty while it is there, and after a stop here."""
        return "" if self._link.closed else self._link.loss

    @property
    def drives(self) -> bool:
        """Whether this session may run cells; otherwise another client drives the world, and this one observes."""
        return self._link.drives

    @property
    def started_here(self) -> bool:
        """Whether this session started the world, rather than attached to it."""
        return self._started_here

    @property
    def ends(self) -> float:
        """When a scheduler takes the nodes away, in seconds since the epoch, else 0. Raises :class:`WorldLost`."""
        return 0.0 if self.request.launcher == LOCAL else self._link.ask(ReadState()).ends

    @property
    def lent(self) -> Lent:
        """The nodes that a scheduler lends to the world; none where nobody has lent any. Raises :class:`WorldLost`."""
        request = self.request
        return Lent() if request.launcher == LOCAL or request.hosts else self._link.ask(ReadState()).lent

    @property
    def world(self) -> World:
        """The world as it is now: its ranks with node, local rank, device, pid and state.

        Raises :class:`WorldLost` when there is none any more.
        """
        world = self._link.world
        busy = self._fold.busy()
        ranks = [
            msgspec.structs.replace(rank, state="running") if rank.state == "idle" and rank.rank in busy else rank
            for rank in world.ranks
        ]
        return msgspec.structs.replace(world, ranks=ranks)

    @property
    def last_run(self) -> Run | None:
        """The run that was submitted last; None before the first.

        Runs in which new ranks are prepared, or join an elastic run (:attr:`.Run.joined`), do not count.
        """
        return self._cells.last

    @property
    def running(self) -> list[Run]:
        """The runs that have not ended, in the order of their submission; those that wait for ranks too."""
        return self._fold.running()

    @property
    def settings(self) -> Settings:
        """The settings that this session was started with."""
        return self._settings

    def __repr__(self) -> str:
        if self.closed:
            return f"<Session of world {self.name!r}: stopped>"
        return f"<Session of world {self.name!r}: {self.world.size} ranks{'' if self.drives else ', observed'}>"
