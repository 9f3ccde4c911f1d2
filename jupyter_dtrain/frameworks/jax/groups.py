"""JAX's processes in one rank: set up again and again, freed when a peer is gone, made again afterwards.

This module changes ``jax.distributed.initialize()`` when user code imports JAX:

* Without arguments it means the ranks of the world. They meet in Python, so an interrupt or a release ends a set-up
  that some rank never joins, at a coordinator outside the ranks, see :mod:`.coordinator`. A cell that names
  ``MASTER_PORT``, or JAX's own detection of MPI, means the same. Any other address is the user's, and JAX does there
  what it does elsewhere: the coordinator runs in rank 0, and all processes end when one dies.
* A second call in a live world does nothing; after a change of the world it leaves the old one and joins the new.
* A call after JAX has computed raises no error: backends start again, and arrays move to them by way of the host, see
  :mod:`.arrays`.
* JAX's collectives through MPI raise an error: they would end the process.
* SIGTERM still ends a rank; JAX would take it as notice of a preemption.

Under failure: :meth:`JaxGroups.release` makes every collective of this rank raise. In the next generation
:meth:`JaxGroups.recover` sets JAX up again, with the arrays in the user's variables.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.plugins.framework import user_names
from jupyter_dtrain.plugins.patches import Patch, meant, raises_on_purpose
from jupyter_dtrain.rank.sockets import end_connections, epolls, registered

from .coordinator import LONG
from .rendezvous import meet, stay_away

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.wire.requests import Desk

    from .arrays import Carried

TIMEOUT = 1800.0
"""Seconds that ranks wait for each other in a set-up, where the cell gives no limit."""
RECOVER_PATIENCE = 5.0
"""Seconds that ranks wait for each other before they set JAX up again by themselves."""
CALL = "initialize"
_OWN = ("coordinator_address", "num_processes", "process_id")
"""Arguments by which a cell defines the processes."""
_WHO = (*_OWN, "cluster_detection_method")
_GIVEN = {*_WHO, "initialization_timeout", "local_device_ids", "heartbeat_timeout_seconds"}
"""Arguments that this module reads or gives."""

PROCESSES = Patch(
    "jax._src.distributed",
    replaces=("initialize", "_jax.get_distributed_runtime_service", "_jax.make_gloo_tcp_collectives"),
    calls=(
        "initialize(coordinator_address, num_processes, process_id)",
        "global_state.client",
        "global_state.num_processes",
        "global_state.preemption_sync_manager",
        "global_state.process_id",
        "global_state.service",
        "xla_bridge",
    ),
    reads=("backends_are_initialized",),  # its module is being imported then
    why=(
        "JAX sets its processes up once, before any computation. Ranks wait in native code for one that does not come, "
        "and all end when one dies."
    ),
    lost="jax.distributed is JAX's own, so initialize() works once, and ranks that wait are not released",
)


class _Elsewhere:
    """A stand-in, in rank 0, for the coordinator, which runs in a process of its own."""

    def shutdown(self) -> None:
        """Do nothing: the coordinator ends when the ranks meet again."""


class JaxGroups:
    """The processes of JAX as this rank sees them. Its methods are for the main thread, except :meth:`release`."""

    def __init__(self, place: Placement, generation: int, desk: Desk | None) -> None:
        """``desk``: where ranks meet; None where there is none, so that JAX stays as it is."""
        self._place = place
        self._generation = generation
        self._desk = desk
        self._attempts = 0
        self._elsewhere = ""
        """Address of a coordinator that rank 0 must not start itself."""
        self._joined: int | None = None
        """The generation in which JAX was set up."""
        self._whole: dict[str, Any] | None = None
        """Further arguments of the set-up, if it included all ranks of the world."""
        self._half_made = False
        self._released = False
        self._loops: set[int] = set()
        """The epoll instances that gloo has opened in this process."""
        self._distributed: Any = None
        self._signature = inspect.Signature()
        """The signature of JAX's own ``initialize()``."""
        self._ending = threading.Lock()
        self._ended: list[Any] = []
        """The newest parts of JAX that were shut down; kept, so that no other has their identity."""

    @property
    def unusable(self) -> bool:
        """Whether a set-up failed, or the processes were released, in the last cell."""
        return self._half_made or self._released

    @property
    def is_up(self) -> bool:
        """Whether JAX knows other processes than this. Any thread may ask."""
        state = getattr(self._distributed, "global_state", None)
        return state is not None and state.client is not None and state.num_processes > 1

    def hook(self, module: Any) -> None:
        """Patch ``jax._src.distributed``, just imported: other modules copy these functions from it."""
        if self._desk is None:
            return
        self._signature = inspect.signature(module.initialize)
        if lacking := sorted(_GIVEN - self._signature.parameters.keys()):
            raise TypeError(f"initialize() takes no {', '.join(lacking)}")
        self._distributed = module
        # JAX itself looks its coordinator up there.
        native = module._jax  # noqa: SLF001 — no public module has the functions
        PROCESSES.replace(native, "get_distributed_runtime_service", self._service)
        PROCESSES.replace(native, "make_gloo_tcp_collectives", self._listen)
        PROCESSES.replace(module, "initialize", self._initialize)

    def begin_cell(self, generation: int) -> None:
        """Start a cell: every rank counts the set-ups of a new generation from 0."""
        if generation != self._generation:
            self._generation = generation
            self._attempts = 0
        self._half_made = self._released = False

    # Setting up.

    def _initialize(self, original: Any, *args: Any, **kwargs: Any) -> None:
        given = self._signature.bind(*args, **kwargs).arguments
        self._refuse_mpi()
        if self._distributed.global_state.client is not None and self._joined in (None, self._generation):
            return
        timeout, whole = given.get("initialization_timeout", TIMEOUT), self._means_world(given)
        carried = self._leave()
        self._half_made = True
        if whole:
            others = {name: value for name, value in given.items() if name not in _WHO}
            self._attempts += 1
            self._join(original, self._named(f"setup-{self._attempts}"), others, timeout)
        else:
            self._whole, self._elsewhere = None, ""
            original(*args, **kwargs)
        self._half_made = False
        self._joined = self._generation
        _keep_sigterm()
        for note in carried.arrive():
            print(f"[jupyter-dtrain] {note}", file=sys.stderr)  # noqa: T201 — the cell's output

    def _means_world(self, given: dict[str, Any]) -> bool:
        """Whether the processes of a set-up are the ranks of the world."""
        named = {name: given[name] for name in _OWN if given.get(name) is not None}
        named.setdefault("coordinator_address", os.environ.get("JAX_COORDINATOR_ADDRESS"))
        world = {
            "coordinator_address": (None, f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"),
            "num_processes": (self._place.size,),
            "process_id": (self._place.rank,),
        }
        detected = given.get("cluster_detection_method") in (None, "ompi", "mpi4py")
        return detected and all(value in world[name] for name, value in named.items())

    def _join(self, original: Callable[..., None], name: str, others: dict[str, Any], timeout: float) -> None:
        """Set JAX up with all ranks of the world, at the meeting ``name``."""
        assert self._desk is not None
        place = self._place
        address = meet(CALL, self._desk, name, place.rank, place.size, timeout, lambda: self._released)
        self._elsewhere = address
        self._whole = others
        options = {"local_device_ids": None, "heartbeat_timeout_seconds": LONG, **others}
        options["cluster_detection_method"] = "deactivate"
        original(address, place.size, place.rank, **options)

    def _named(self, meeting: str) -> str:
        return f"generation-{self._generation}/{meeting}"

    @raises_on_purpose
    def _leave(self) -> Carried:
        """End JAX in this process; return its arrays, which need a new backend.

        What it raises is the user's: JAX's own set-up would not get further with a JAX that has ended in part.
        """
        from .arrays import Carried  # it imports JAX

        distributed = self._distributed
        jax: Any = sys.modules["jax"]
        if distributed.global_state.client is None and not distributed.xla_bridge.backends_are_initialized():
            return Carried()
        carried = Carried()
        if distributed.xla_bridge.backends_are_initialized():
            carried.pack(user_names())
        # Each part leaves JAX' state before it ends: an end that raises must not leave a JAX that counts as set up.
        state = distributed.global_state
        manager, state.preemption_sync_manager = state.preemption_sync_manager, None
        client, state.client = state.client, None
        service, state.service = state.service, None
        for one in (manager, client, service):
            if one is not None:
                self._shut_down(one)
        state.num_processes, state.process_id = 1, 0
        self._joined = None
        self._loops.clear()
        jax.clear_caches()
        # It waits for what a backend has yet to print, and raises what has failed there.
        with contextlib.suppress(Exception):
            from jax.extend.backend import clear_backends

            clear_backends()
        return carried

    def _service(self, original: Any, address: str, *args: Any, **kwargs: Any) -> Any:
        if self._elsewhere and address.rsplit(":", 1)[-1] == self._elsewhere.rsplit(":", 1)[-1]:
            return _Elsewhere()
        return original(address, *args, **kwargs)

    def _listen(
        self, original: Any, distributed_client: Any, hostname: str | None = None, interface: str | None = None
    ) -> Any:
        """Record which epoll instance gloo opens, and have it listen on the interface that torch's gloo uses.

        By default JAX's gloo listens where the name of its host leads. On Debian and Ubuntu that is 127.0.1.1, which no
        other host reaches.
        """
        if hostname is None and interface is None:
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0] or None
        before = epolls()
        self._loops &= before
        try:
            return original(distributed_client, hostname, interface)
        finally:
            self._loops |= epolls() - before

    @staticmethod
    def _refuse_mpi() -> None:
        chosen = getattr(sys.modules["jax"].config, "jax_cpu_collectives_implementation", None)
        if chosen == "mpi":
            words = (
                "JAX's collectives through MPI (JAX_CPU_COLLECTIVES_IMPLEMENTATION=mpi) would end the process: they "
                "load MPItrampoline, which finds no MPI here, and would initialise MPI a second time in this rank. "
                'Leave the setting out, or call jax.config.update("jax_cpu_collectives_implementation", "gloo").'
            )
            raise meant(ValueError(words))

    # Releasing and recovering.

    def release(self) -> None:
        """Make every present and later wait for other ranks raise. Call it on the control thread."""
        self._released = True
        client = getattr(getattr(self._distributed, "global_state", None), "client", None)
        end_connections(registered(self._loops & epolls()))
        if client is not None and self._whole is not None:
            # This ends waits for a word of another rank at the coordinator. At a coordinator of the cell's own it
            # would wait for all ranks.
            self._shut_down(client)

    def _shut_down(self, part: Any) -> None:
        """Shut ``part`` of JAX down, once: a release and the next cell's recovery may both come to it.

        A client that two threads shut down at the same time ends the process (jaxlib 0.10: "already disconnected").
        """
        with self._ending:
            if any(part is one for one in self._ended):
                return
            self._ended = [*self._ended[-4:], part]
            # It raises where the other ranks, or the coordinator, have gone first.
            with contextlib.suppress(Exception):
                part.shutdown()

    def recover(self) -> list[str]:
        """Set JAX up again as it was, in a new generation and with all ranks; return notes on what the user must do."""
        if self._distributed is None or self._desk is None or self._joined == self._generation:
            return []
        name = self._named("recover")
        whole = self._whole if self.is_up else None
        if whole is None:
            with contextlib.suppress(OSError):
                stay_away(self._desk, name, self._place.rank, self._place.size)
        if not self.is_up:
            return []
        carried = self._leave()
        if whole is None:
            return [
                *carried.lost(),
                "JAX is no longer set up: call jax.distributed.initialize() again on all ranks.",
            ]
        try:
            self._join(inspect.unwrap(self._distributed.initialize), name, whole, RECOVER_PATIENCE)
            sys.modules["jax"].devices()  # on all ranks: each needs the others' devices for it
        except Exception as error:  # noqa: BLE001 — other frameworks still need their recovery
            return [
                *carried.lost(),
                f"JAX is no longer set up ({error}): call jax.distributed.initialize() again on all ranks.",
            ]
        self._joined = self._generation
        _keep_sigterm()
        try:
            notes = self._refill(carried)
        except Exception as error:  # noqa: BLE001 — the arrays that are left still have to arrive
            notes = [f"Lost JAX arrays could not be restored from other ranks ({error})."]
        except BaseException:
            carried.arrive()  # the next recovery does not have them any more
            raise
        return [*notes, *carried.arrive()]

    def _refill(self, carried: Carried) -> list[str]:
        from .replicas import refill  # it imports numpy

        client = self._distributed.global_state.client
        return refill(carried, client, self._named("refill"), self._place.rank, self._place.size, RECOVER_PATIENCE)


def _keep_sigterm() -> None:
    """Take SIGTERM back from JAX, which uses it as notice of a preemption: here it ends a rank."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
