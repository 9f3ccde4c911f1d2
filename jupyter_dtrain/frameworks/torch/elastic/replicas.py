"""torchft's Managers in one rank: defaults that make each rank a replica group of its own, and rest between cells.

A plain ``Manager(pg=..., load_state_dict=..., state_dict=..., min_replica_size=1)`` works in a cell: what the cell
leaves out, and no variable of torchft's says, comes from :class:`Replicas`.

**Rest.** A Manager tells the lighthouse ten times a second that it is there, and the others wait for it. Between cells
it rests: its server ends with the cell, and comes back, under the same name, when the next cell begins. So a rank whose
training has ended never keeps the others waiting. Before the first step of a cell its ranks wait for each other for
up to three seconds: the first to begin would train alone otherwise, and may have ended when the others begin.

**A new rank that joins** a cell which goes on has no state yet. It may begin to train only if some other rank trains
and gives it its state: otherwise it would train alone, from the beginning. So its first steps are checked, and
:class:`TrainingOver` ends its cell where there is nothing to join.

Under failure: a Manager that cannot be woken stays at rest, and its next step raises torchft's own error. A cell that
makes a Manager of the same name again shuts the earlier one down first.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyter_dtrain.plugins.framework import NothingToJoin
from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose

from .desk import ask, meet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.wire.requests import Desk

LIGHTHOUSE: Final = "TORCHFT_LIGHTHOUSE"
ANYWHERE: Final = "[::]:"
"""The interface on which a Manager's server listens by itself."""
RECORDER: Final = "Unable to reset NCCL flight recorder"
"""A warning at each change of the replicas, wherever NCCL is not in use."""

MANAGERS = Patch(
    "torchft.manager",
    replaces=("Manager.__init__", "Manager.start_quorum", "ManagerServer"),
    calls=("ManagerServer", "ManagerClient", "MANAGER_ADDR_KEY", "Manager.wait_quorum()", "Manager.shutdown"),
    reads=("_checkpoint_transport", "_client", "_healing", "_manager", "_server", "_store"),
    why="A Manager needs a lighthouse and a store that somebody starts, and the others wait for it between cells, too.",
    lost="a Manager needs all its arguments, and one that is idle keeps the other ranks waiting",
)

_log = logging.getLogger(__name__)


class TrainingOver(NothingToJoin):
    """A new rank has found no training that it could join."""


class _Server(NamedTuple):
    """The server of one Manager."""

    make: partial[Any]
    """Makes the server, also a second time."""
    connect_timeout: Any


class _Known(NamedTuple):
    """One Manager of this rank, with its server."""

    manager: weakref.ref[Any]
    server: _Server


class Replicas:
    """The Managers of this rank. Call its methods on the main thread."""

    def __init__(self, place: Placement, desk: Desk | None, own: str) -> None:
        """``desk``: where the lighthouse is asked for; ``own``: the address by which other ranks reach this one."""
        self._place = place
        self._desk = desk
        self._own = own
        self._known: dict[str, _Known] = {}
        """The Managers, by the names of their replica groups at the lighthouse without torchft's own addition."""
        self._made: _Server | None = None
        """The last server that was made."""
        self._server: Any = None
        self._resting: set[str] = set()
        self._has_directions = False
        self._others: tuple[int, list[int]] | None = None
        """The cell's run and its ranks, until its first step begins; None where this rank waits for nobody."""
        self._seeking = False
        """Whether this rank is new, and has yet to get the others' state in the cell that runs."""
        self._checked = False
        """Whether the new rank's last step has found the others."""

    @property
    def names(self) -> list[str]:
        """Return the names of the living Managers."""
        return sorted(name for name, known in self._known.items() if known.manager() is not None)

    def hook(self, module: Any) -> None:
        """Patch ``torchft.manager``, which user code has just imported."""
        kind: Any = module.Manager
        self._module = module
        self._signature = inspect.signature(kind.__init__)
        self._server, self._client = module.ManagerServer, module.ManagerClient
        MANAGERS.put(module, "ManagerServer", MANAGERS.guard(self._make_server, self._server))
        MANAGERS.replace(kind, "__init__", self._init)
        MANAGERS.replace(kind, "start_quorum", self._start_quorum)
        logging.getLogger(module.__name__).addFilter(_short)

    # Making.

    def _init(self, original: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
        given = self._signature.bind_partial(manager, *args, **kwargs).arguments
        kwargs |= self._defaults({name: value for name, value in given.items() if value is not None})
        name = str(kwargs.get("replica_id", given.get("replica_id")))
        self._shut_down(name)
        self._made = None
        original(manager, *args, **kwargs)
        if self._made is not None:
            self._known[name] = _Known(weakref.ref(manager), self._made)

    def _defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a Manager that the cell leaves out."""
        found: dict[str, Any] = {}
        if "rank" not in given and "world_size" not in given:
            found |= {"rank": 0, "world_size": 1}
        if not given.get("replica_id"):
            # torchft reads the number at its end.
            found["replica_id"] = f"rank{self._place.rank}"
        if "hostname" not in given:
            found["hostname"] = self._own
        wants_lighthouse = "lighthouse_addr" not in given and LIGHTHOUSE not in os.environ
        wants_store = "store_addr" not in given and "store_port" not in given and "rank" in found
        if self._desk is not None and (wants_lighthouse or wants_store):
            directions = ask(self._desk, self._place.rank)
            self._has_directions = True
            if wants_lighthouse:
                found["lighthouse_addr"] = directions.lighthouse
            if wants_store:
                found |= {"store_addr": self._desk.host, "store_port": directions.store}
        return found

    def _make_server(
        self,
        original: Any,
        replica_id: Any,
        lighthouse_addr: Any,
        hostname: Any,
        bind: str,
        store_addr: Any,
        world_size: Any,
        heartbeat_interval: Any,
        connect_timeout: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Make a Manager's server in the place of torchft's own class: it listens on this rank's address alone."""
        if bind.startswith(ANYWHERE) and self._is_local:
            bind = f"{self._own}:{bind.removeprefix(ANYWHERE)}"
        given = (
            replica_id,
            lighthouse_addr,
            hostname,
            bind,
            store_addr,
            world_size,
            heartbeat_interval,
            connect_timeout,
        )
        self._made = _Server(partial(self._server, *given, *args, **kwargs), connect_timeout)
        return original(*given, *args, **kwargs)

    @property
    def _is_local(self) -> bool:
        return self._own.startswith("127.")

    # Resting.

    def begin_cell(self, run: int, ranks: Sequence[int]) -> None:
        """Begin the cell of ``run``, which ``ranks`` run: start the servers of all Managers again."""
        self._seeking = self._checked = False
        self._others = (run, list(ranks)) if len(ranks) > 1 else None
        for name in sorted(self._resting):
            self._resting.discard(name)
            if (manager := self._find(name)) is not None:
                try:
                    self._wake(manager, self._known[name].server)
                except Exception:  # noqa: BLE001 — the cell may be about something else
                    _log.exception("The Manager of %s cannot be woken", name)

    def end_cell(self) -> None:
        """End a cell: shut the Managers' servers down, so that the lighthouse no longer waits for this rank."""
        for name in self.names:
            manager = self._find(name)
            server = getattr(manager, "_manager", None)
            if server is not None and name not in self._resting:
                self._resting.add(name)
                server.shutdown()

    def _wake(self, manager: Any, known: _Server) -> None:
        server = manager._manager = known.make()  # noqa: SLF001 — torchft cannot begin it again
        manager._store.set(self._module.MANAGER_ADDR_KEY, server.address())  # noqa: SLF001
        manager._client = self._client(server.address(), connect_timeout=known.connect_timeout)  # noqa: SLF001

    def _find(self, name: str) -> Any:
        known = self._known.get(name)
        return None if known is None else known.manager()

    def _shut_down(self, name: str) -> None:
        """Shut down the Manager ``name`` and let go of its port."""
        manager = self._find(name)
        self._known.pop(name, None)
        self._resting.discard(name)
        if manager is None:
            return
        # To wait for its threads would take up to half a second.
        threading.Thread(target=_end, args=(manager,), name="dtrain-torchft", daemon=True).start()

    # Joining.

    def seek(self) -> None:
        """Note that the cell is that of a new rank, which joins the others' training."""
        self._seeking = True

    def _start_quorum(self, original: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
        if self._checked and manager.errored() is None:
            self._seeking = False
        self._meet()
        original(manager, *args, **kwargs)
        if self._seeking:
            self._join(manager)

    def _meet(self) -> None:
        others, self._others = self._others, None
        # A rank that asks the server for nothing else must not be the reason why it starts.
        if others is not None and self._desk is not None and self._has_directions:
            meet(self._desk, self._place.rank, *others)

    @raises_on_purpose
    def _join(self, manager: Any) -> None:
        manager.wait_quorum()
        self._check(manager)

    def _check(self, manager: Any) -> None:
        if not manager._healing and manager.num_participants() < 2:  # noqa: PLR2004, SLF001 — alone; torchft tells no other way
            raise TrainingOver(
                f"The other ranks had ended their training before rank {self._place.rank} could join it, so this rank "
                f"has none of their state. %distributed broadcast NAMES copies it."
            )
        self._checked = True


def _end(manager: Any) -> None:
    try:
        manager.shutdown(wait=True)
        server = getattr(getattr(manager, "_checkpoint_transport", None), "_server", None)
        if server is not None:
            server.server_close()
    except Exception:  # noqa: BLE001 — the new one counts
        _log.exception("A Manager could not be shut down")


def _short(record: logging.LogRecord) -> bool:
    """Leave out a warning that says nothing here, and the tracebacks of what torchft has dealt with."""
    record.exc_info = None
    return RECORDER not in record.getMessage()
