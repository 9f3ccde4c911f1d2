"""Process groups of torch in one rank: set up again and again, freed when a peer is gone, made again afterwards.

When user code imports ``torch.distributed``, this module replaces ``init_process_group``, the rendezvous behind
``env://`` and ``tcp://``, and the function that makes each group:

* The store is the steward's, with a prefix for each generation and set-up, so a second set-up on the same port never
  meets the first one's keys (in torch 2.13 ``destroy`` + ``init`` on one port hangs once a DDP existed:
  https://github.com/pytorch/pytorch/issues/74666). The same holds for a ``tcp://`` address of this host.
* Ranks wait for each other in Python, so an interrupt or a release ends a set-up that some rank never joins. A failed
  set-up asks for a new generation, because it leaves torch's group counters different across ranks.
* A second ``init_process_group()`` in a live group does no harm; after a change of the world it joins the new group.
* Without a backend, the rank takes the one that fits: nccl (and gloo for CPU tensors) where every local rank has a
  GPU, else gloo. A backend that cannot work here fails at once, see :mod:`.backends`.
* When a cell sends ranks to an address of its own (``MASTER_PORT``, ``tcp://``), they meet at the world's store
  instead, or at that address within reach of an interrupt, see :mod:`.rendezvous`.

A group that a program destroys lives on until :meth:`TorchGroups.let_go`.

Under failure: :meth:`TorchGroups.release` makes every collective of this rank raise. In the next generation
:meth:`TorchGroups.recover` makes the default group again, as it was, and gives it to the DDP modules that used it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.frameworks.rendezvous import ARRIVAL_POLL, arrive
from jupyter_dtrain.plugins.framework import user_names
from jupyter_dtrain.plugins.patches import Patch, meant, raises_on_purpose, require
from jupyter_dtrain.rank.sockets import connected_to, end_connections, epolls, registered

from .backends import Backends
from .flight_recorder import is_pending
from .meshes import NO_GROUP, SHARDED, Holders, instances, settle
from .rendezvous import Address, Meeting, meet, meeting_at, reach

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement

PLAIN = ("timeout", "pg_options", "device_id")
"""Arguments of a set-up that can be given a second time."""
DEFAULT_TIMEOUT = timedelta(minutes=30)
"""torch's own default for groups on CPUs."""
WORKER = "pt_gloo_runloop"
"""The name of the threads that do the collectives of a gloo group."""
SWITCHES = 4
"""So many switch intervals show whether a thread waits for the interpreter lock."""
RECOVER_PATIENCE = 10.0
"""Seconds that ranks wait for each other before they make their group again."""

GROUPS = Patch(
    "torch.distributed.distributed_c10d",
    replaces=(
        "init_process_group",
        "_new_process_group_helper",
        "torch.distributed.rendezvous._rendezvous_handlers",
    ),
    calls=("_world", "_new_process_group_helper"),
    reads=("_rendezvous_handlers", "_update_process_group", "group_count"),
    why="A process sets up its group once: a second set-up raises or hangs, and nothing ends the wait for a rank that "
    "has died.",
    lost="a process group is torch's own, so init_process_group() works once, and ranks that wait in a collective are "
    "not released when another one fails",
    upstream="https://github.com/pytorch/pytorch/issues/55967",
)
_HELPER = ("parameters", "expect_sparse_gradient", "param_to_name_mapping", "static_graph")

MODULES = Patch(
    "torch.nn.parallel.distributed",
    calls=(
        "DistributedDataParallel._build_params_for_reducer()",
        "DistributedDataParallel._build_debug_param_to_name_mapping(parameters)",
        f"DistributedDataParallel._ddp_init_helper({', '.join(_HELPER)})",
        "dist._register_comm_hook",
    ),
    reads=("_comm_hooks", "_set_static_graph"),
    why="A new rank's DDP module sorts its gradients into other buckets than one that has trained.",
    lost="a cell ends where a rank was replaced while a DDP module lived",
)

ABORTS = Patch(
    "torch.distributed.distributed_c10d",
    calls=("_world",),
    reads=("_get_backend", "_group_start", "_group_end"),
    why="NCCL's groups may wait for each other where they are aborted one by one.",
    lost="ranks that wait in a collective of NCCL are not released when another one fails",
    upstream="https://github.com/pytorch/pytorch/issues/137014",
)


class _SetUp(NamedTuple):
    """The arguments with which the default group was made."""

    backend: str | None
    init_method: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    whole: bool
    """Whether the group spans all ranks of the world, in their order, as far as the arguments show."""

    @classmethod
    def of(
        cls, backend: str | None, init_method: str | None, args: tuple[Any, ...], kwargs: dict[str, Any], at: Placement
    ) -> _SetUp:
        """The set-up with these arguments, by the rank that is ``at`` this place."""
        own = {"rank": (-1, at.rank), "world_size": (-1, at.size)}
        whole = not args and all(kwargs.get(name, -1) in plain for name, plain in own.items())
        return cls(backend, init_method, args, kwargs, whole)

    def at(self, place: Placement) -> dict[str, Any]:
        """The named arguments for the rank at ``place``: a resize changes how many ranks there are."""
        numbers = {"rank": place.rank, "world_size": place.size}
        return {name: numbers.get(name, value) for name, value in self.kwargs.items()}

    @property
    def again(self) -> str:
        """A key that is equal on ranks that can make their group again together; empty where that is unknown."""
        by_address = (self.init_method or "env://").startswith(("env://", "tcp://")) and "?" not in (
            self.init_method or ""
        )
        if not by_address or not self.whole or set(self.kwargs) - {*PLAIN, "rank", "world_size"}:
            return ""
        return f"{self.backend} {self.kwargs.get('timeout')}"


class _Kept(NamedTuple):
    """A process group that lives on until nothing of its collectives is left."""

    group: Any
    generation: int
    made_at: int
    """When the group was made, in ``time.time_ns()``."""
    loops: frozenset[int]
    """The epoll instances of the group."""
    connections: dict[int, int]
    """The descriptors that were registered there at first, each with its inode."""
    threads: frozenset[int]
    """The system's numbers of the threads that began with it; its workers are among them."""

    def open(self) -> set[int]:
        """Return the still open :attr:`connections`. This needs no file: a rank may have called ``os.chroot``."""
        return {fd for fd, inode in self.connections.items() if _inode(fd) == inode}


class TorchGroups:
    """The process groups of this rank. Call its methods on the main thread; :meth:`release` may run on any thread."""

    def __init__(
        self, place: Placement, generation: int, backend: str, address: tuple[str, int], *, own_gpus: bool = False
    ) -> None:
        """``backend``: the default when the cell names none (``auto``: whatever fits). ``address``: the store's.

        ``own_gpus``: whether the GPUs that this rank sees are its own, and no other rank's.
        """
        self._place = place
        self._generation = generation
        self._address = address
        self.backends = Backends(place, backend, own_gpus=own_gpus)
        self._attempts = 0
        self._meetings: dict[Address, int] = {}
        """How often this rank has gone to each address of the cell's own in this generation."""
        self._port = address[1]
        """The port at which the current set-up meets."""
        self._group_generation: int | None = None
        self._set_up: _SetUp | None = None
        self.made_at = 0
        """When the default group was last made, in ``time.time_ns()``."""
        self._half_made = False
        self._released = False
        self._arriving = False
        self._failed = False
        """Whether the last cell has failed in this rank."""
        self._healed = False
        """Whether ranks were replaced, or their number has changed, since the default group was made."""
        self._loops: set[int] = set()
        """The epoll instances that gloo has opened in this process."""
        self._kept: list[_Kept] = []
        """The groups of gloo that this object keeps alive until :meth:`let_go`."""

    @property
    def unusable(self) -> bool:
        """Whether a set-up failed, the groups were released, or one of them has lost a connection.

        gloo closes the connections of a group in which a collective has exceeded its timeout, or whose peer has gone.
        """
        if self._half_made or self._released:
            return True
        return any(len(one.open()) < len(one.connections) for one in self._kept if _lives(one.group))

    @property
    def on_device(self) -> bool:
        """Whether a GPU may run the collectives of some group, so that Python does not wait for them."""
        torch = sys.modules.get("torch")
        return torch is not None and hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())

    def hook(self, c10d: Any) -> None:
        """Patch ``torch.distributed.distributed_c10d``, which ``torch.distributed`` imports where it has support."""
        rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
        handlers = rendezvous._rendezvous_handlers  # noqa: SLF001 — the public registration refuses a name twice
        schemes = [scheme for scheme in ("env", "tcp") if scheme in handlers]
        ours = {scheme: GROUPS.guard(self._rendezvous, handlers[scheme]) for scheme in schemes}
        GROUPS.replace(c10d, "_new_process_group_helper", self._make)
        original = c10d.init_process_group
        init = GROUPS.replace(c10d, "init_process_group", self._init)
        handlers.update(ours)
        # Some parts of torch already hold it by name: a DeviceMesh sets up the default group where there is none.
        for name, part in list(sys.modules.items()):
            if name.startswith("torch.distributed") and vars(part).get("init_process_group") is original:
                GROUPS.put(part, "init_process_group", init)

    def begin_cell(self, generation: int) -> None:
        """Start a cell: every rank counts the set-ups of a new generation from 0."""
        if generation != self._generation:
            self._generation = generation
            self._attempts = 0
            self._meetings = {}
        elif self._failed:
            try:
                settle()
            except Exception as error:  # noqa: BLE001 — whatever another version of torch has otherwise
                SHARDED.failed("reset_iter_state", error)
        self._failed = False
        self._half_made = self._released = False

    def end_cell(self, *, failed: bool) -> None:
        """Note how a cell has ended."""
        self._failed = failed
        self.let_go()

    # Setting up.

    def _init(
        self, original: Any, backend: str | None = None, init_method: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        dist: Any = sys.modules["torch.distributed"]
        if dist.is_initialized():
            if self._group_generation in (None, self._generation) and _same_backend(dist, backend):
                return None
            if self._group_generation in (None, self._generation):
                raise meant(
                    ValueError(
                        f"The process group is already up with backend {dist.get_backend()!r}. Call "
                        f"torch.distributed.destroy_process_group() before you set it up with {backend!r}."
                    )
                )
            dist.destroy_process_group()
        set_up = _SetUp.of(backend, init_method, args, kwargs, self._place)
        self._loops.clear()
        if backend is None and kwargs.get("device_id") is None:
            backend, _ = self.backends.choose(at_set_up=True)
            self.backends.check(dist, backend, by_option=True, whole=set_up.whole)
        elif backend is not None:
            self.backends.check(dist, backend, by_option=False, whole=set_up.whole)
        # A failed set-up leaves this counter different across ranks; the next set-up would then wait forever.
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001 — torch has no public way
        self._half_made = True
        self.made_at = time.time_ns()
        result = original(backend, init_method, *args, **kwargs)
        self._half_made = False
        self._group_generation, self._set_up = self._generation, set_up
        return result

    def _make(
        self,
        original: Any,
        group_size: Any,
        group_rank: Any,
        global_ranks_in_group: Any,
        backend: Any,
        store: Any,
        group_name: Any,
        backend_options: Any = None,
        timeout: timedelta | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Record the epoll instances that a new group opens, and wait in Python for its ranks before gloo does.

        gloo waits in native code that keeps the interpreter lock, so nothing could end its wait.
        """
        dist: Any = sys.modules["torch.distributed"]
        self.let_go()
        before, running = epolls(), _threads()
        made_at = time.time_ns()
        # The numbers of closed descriptors are given out again: what is no epoll instance now is not gloo's later.
        self._loops &= before
        ranks = global_ranks_in_group or []
        meets = bool(ranks) and dist.get_rank() in ranks and "gloo" in str(backend).lower()
        unfinished = self._half_made
        try:
            if meets:
                self._half_made = True
                arrivals = dist.PrefixStore(f"arrival-{group_name}", store)
                self._arrive("new_group", arrivals, dist.get_rank(), ranks, timeout or DEFAULT_TIMEOUT)
            place = group_size, group_rank, global_ranks_in_group
            result = original(*place, backend, store, group_name, backend_options, timeout, *args, **kwargs)
        finally:
            loops = epolls() - before
            self._loops |= loops
        # Not in the ``finally``: a set-up that raised stays half made, so the next cell makes a new generation.
        self._half_made = unfinished
        group = next(iter(result), None) if isinstance(result, tuple) else None
        if loops and isinstance(group, dist.ProcessGroup):
            begun = frozenset(_threads() - running)
            connections = {fd: inode for fd in registered(loops) if (inode := _inode(fd))}
            self._kept.append(_Kept(group, self._generation, made_at, frozenset(loops), connections, begun))
        return result

    def let_go(self) -> None:
        """Drop the destroyed groups whose workers hold nothing any more; the others get their turn later.

        Whoever waits for a collective goes on a moment before the worker of gloo that did it drops it, for which the
        worker needs the interpreter lock. The end of a group, which joins its workers, does not let go of that lock
        (https://github.com/pytorch/pytorch/issues/56297): a group that a program destroys in that moment would hold its
        rank up for ever.
        """
        ended = [one for one in self._kept if not _lives(one.group)]
        if not ended:
            return
        old = [one for one in ended if one.generation != self._generation]
        for one in old:
            end_connections(registered(one.loops & epolls()))  # or a collective without peers keeps its worker
        ended = [one for one in ended if one in old or not is_pending(one.made_at)]
        idle = _idle(frozenset[int]().union(*(one.threads for one in ended)))
        self._kept = [one for one in self._kept if one not in ended or not one.threads <= idle]

    def _rendezvous(
        self, original: Any, url: str, timeout: timedelta = DEFAULT_TIMEOUT, **kwargs: Any
    ) -> Iterator[tuple[Any, int, int]]:
        """Store, rank and number of ranks, as the first thing of an iterator: torch's own is a generator."""
        dist: Any = sys.modules["torch.distributed"]
        meeting = meeting_at(url)
        self._port = self._address[1]
        if meeting is None or meeting.address.port == self._port:
            if meeting is not None:
                self._store(dist, timeout)  # once it is there, torch does not wait for it
            source = original(url, timeout=timeout, **kwargs)
        elif (meeting.rank, meeting.address.size) == (self._place.rank, self._place.size):
            # All ranks of the world go there: the world's store serves them, on a port that is surely free.
            source = iter([(self._store(dist, timeout), self._place.rank, self._place.size)])
        else:
            return iter([(self._meet_elsewhere(dist, meeting, timeout), meeting.rank, meeting.address.size)])
        store, rank, size = _first(source)
        # Here, where ranks meet, and not in _init: a set-up goes on without that part where it fails.
        self._attempts += 1
        prefixed = dist.PrefixStore(f"generation-{self._generation}/setup-{self._attempts}", store)
        self._arrive("init_process_group", prefixed, rank, range(size), timeout)
        return itertools.chain([(prefixed, rank, size)], source)

    def _store(self, dist: Any, timeout: timedelta) -> Any:
        """A connection to the world's own store."""
        was_arriving, self._arriving = self._arriving, True
        try:
            return reach("init_process_group", dist, self._address, timeout, lambda: self._released)
        finally:
            self._arriving = was_arriving

    def _meet_elsewhere(self, dist: Any, meeting: Meeting, timeout: timedelta) -> Any:
        """The store at an address of the cell's own, which may serve some ranks of the world, or outsiders too."""
        address = meeting.address
        self._meetings[address] = count = self._meetings.get(address, 0) + 1
        prefix = f"generation-{self._generation}/{address}/{count}"
        self._port, self._arriving = address.port, True
        try:
            world = dist.PrefixStore(prefix, self._store(dist, timeout))
            return meet(dist, world, meeting, timeout, lambda: self._released)
        finally:
            self._arriving = False

    def _arrive(self, call: str, store: Any, rank: int, ranks: Collection[int], timeout: timedelta) -> None:
        self._arriving = True
        try:
            arrive(call, store, rank, ranks, timeout, lambda: self._released)
        finally:
            self._arriving = False

    # Releasing.

    def release(self) -> None:
        """Make every present and later wait in a group raise, but for one that gloo loses. Call it on any thread."""
        self._released = True
        self._abort_devices()
        # gloo cannot abort: abort() and shutdown() of its group do nothing, so a rank waits for a peer until the
        # group's timeout (https://github.com/pytorch/pytorch/issues/130345). The end of its connections, one epoll
        # instance a group, does free it.
        # It does not free a rank that begins to send after a connection has ended, but before gloo's own thread has
        # noticed: Pair::write queues the send without an error, and Pair::signalException passes over unbound buffers
        # in that queue (gloo, April 2026). Seen on a busy machine, where a stopped rank goes on.
        for one in list(self._kept):
            if _lives(one.group):
                end_connections(one.open())
        end_connections(registered(self._loops & epolls()))
        if self._half_made and not self._arriving:
            # The main thread may wait for the store, in native code.
            end_connections(connected_to(self._port))

    def _abort_devices(self) -> None:
        """Abort NCCL's groups together: aborted one by one they may wait for each other.

        https://github.com/pytorch/pytorch/issues/119797
        """
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        torch = sys.modules.get("torch")
        if c10d is None or torch is None or not torch.cuda.is_available() or not c10d.is_nccl_available():
            return
        backends = []
        for group in list(c10d._world.pg_map):  # noqa: SLF001 — torch has no public list of groups
            with contextlib.suppress(Exception):
                backend = group._get_backend(torch.device("cuda"))  # noqa: SLF001 — as torch's own abort does
                if isinstance(backend, c10d.ProcessGroupNCCL):
                    backends.append(backend)
        if not backends:
            return
        with contextlib.suppress(Exception):
            backends[0]._group_start()  # noqa: SLF001 — as torch's own abort does
            for backend in backends:
                backend.abort()
            backends[0]._group_end()  # noqa: SLF001

    # Recovering.

    def bequeath(self) -> str:
        """Return how this rank makes the default group, for :meth:`inherit`; empty where that cannot be said."""
        dist = sys.modules.get("torch.distributed")
        if self._set_up is None or dist is None or not dist.is_initialized() or not self._set_up.again:
            return ""
        seconds = getattr(self._set_up.kwargs.get("timeout"), "total_seconds", lambda: None)()
        return json.dumps([self._set_up.backend, self._set_up.init_method, seconds])

    def inherit(self, plan: str) -> None:
        """Take part in the next :meth:`recover` as if this rank had made the group like the others."""
        backend, init_method, seconds = json.loads(plan)
        kwargs: dict[str, Any] = {} if seconds is None else {"timeout": timedelta(seconds=seconds)}
        if (init_method or "").startswith("tcp://"):
            kwargs |= {"rank": self._place.rank, "world_size": self._place.size}
        self._set_up = _SetUp.of(backend, init_method, (), kwargs, self._place)
        self._healed = True

    def rejoin(self) -> None:
        """Note that a new process has taken a dead rank's place, or that the world has another number of ranks."""
        self._healed = True

    def recover(self, bound: frozenset[str] = frozenset()) -> list[str]:
        """Make the default group again, in a new generation and with all ranks; return notes on what the user must do.

        ``bound``: the names that the cell binds anew. Raises :class:`TimeoutError` when a rank does not come, and
        whatever ``init_process_group`` raises.
        """
        dist: Any = sys.modules.get("torch.distributed")
        if dist is None or self._group_generation == self._generation or not hasattr(dist, "TCPStore"):
            return []
        mine = "none"
        if dist.is_initialized() or (self._healed and self._set_up is not None):
            mine = (self._set_up and self._set_up.again) or "unknown"
        holders = None
        if dist.is_initialized() and mine != "unknown":
            gc.collect()  # drops models that are no longer referenced
            holders = Holders(dist, [one.process_group for one in _ddp_modules()], whole=not self._healed)
        plans, held = self._agree(dist, mine, holders.plan if holders else NO_GROUP)
        if mine == "none" and set(plans.values()) == {"none"}:
            return []
        if len(set(plans.values())) > 1 or mine == "unknown":
            if dist.is_initialized():
                dist.destroy_process_group()
            self._group_generation = self._set_up = None
            without = [rank for rank, plan in plans.items() if plan == "none"]
            why = (
                f"{count_ranks(without)} had none"
                if without
                else "ranks made it differently, or in a way that cannot be repeated"
            )
            return [f"torch's process group is gone ({why}): call init_process_group() on all ranks."]
        return self._make_again(dist, bound, holders, held)

    def _agree(self, dist: Any, mine: str, held: str) -> tuple[dict[int, str], list[str]]:
        """Exchange the plans for the new groups; return each rank's for the default group, and those for meshes."""
        client = reach("init_process_group", dist, self._address, timedelta(seconds=RECOVER_PATIENCE), lambda: False)
        store = dist.PrefixStore(f"generation-{self._generation}/recover", client)
        store.set(f"{self._place.rank}", json.dumps([mine, held]))
        others = [rank for rank in range(self._place.size) if rank != self._place.rank]
        missing = others
        deadline = time.monotonic() + RECOVER_PATIENCE
        while missing := [rank for rank in missing if not store.check([f"{rank}"])]:
            # Whatever the others had, this rank has nothing to make again: it waits for nobody.
            if mine == "none":
                return {self._place.rank: "none"}, []
            if time.monotonic() > deadline:
                return {self._place.rank: mine} | dict.fromkeys(missing, "none"), []
            time.sleep(ARRIVAL_POLL / 4)
        found = {self._place.rank: [mine, held]} | {rank: json.loads(store.get(f"{rank}")) for rank in others}
        return {rank: plan for rank, (plan, _) in found.items()}, [found[rank][1] for rank in sorted(found)]

    def _make_again(self, dist: Any, bound: frozenset[str], holders: Holders | None, held: list[str]) -> list[str]:
        assert self._set_up is not None
        old = dist.group.WORLD
        modules = _ddp_modules()
        sharded = instances("torch.distributed.fsdp", "FullyShardedDataParallel")
        backend, init_method, args, *_ = self._set_up
        kwargs = self._set_up.at(self._place)
        # Before the set-up, which takes the old groups off torch's list.
        living = set(dist.distributed_c10d._world.pg_map)  # noqa: SLF001 — torch has no public list of its groups
        dist.init_process_group(backend, init_method, *args, **kwargs)  # it leaves the old group first
        made = holders.revive(held) if holders else {}
        notes = holders.begin_anew() if holders else []
        strangers: list[Any] = []
        orphans: list[Any] = []
        for module in modules:
            if module.process_group is old or module.process_group in made:
                group = made.get(module.process_group, dist.group.WORLD)
                module._update_process_group(group)  # noqa: SLF001 — torch has no public way
                if self._healed:
                    begin_anew(module)
            else:
                (strangers if module.process_group in living else orphans).append(module)
        # A module that the user can no longer name belongs to an earlier program, which has ended.
        if named := sorted(name for name, value in user_names() if any(value is one for one in orphans)):
            notes.append(
                f"{', '.join(named)}: the process group of this DDP was destroyed before the failure. Wrap its module "
                f"in DistributedDataParallel again."
            )
        if strangers:
            names = sorted(name for name, value in user_names() if any(value is one for one in strangers))
            notes.append(
                f"{', '.join(names) or 'a module'}: this DDP has a process group of its own, which is gone. Make that "
                f"group again with new_group(), then `{names[0] if names else 'module'}._update_process_group(group)`."
            )
        groups = [(name, value) for name, value in user_names() if issubclass(type(value), dist.ProcessGroup)]
        if own := sorted(name for name, group in groups if group in living - {old} and name not in bound):
            in_mesh = holders is not None and all(holders.in_mesh(group) for name, group in groups if name in own)
            again = "Take it from its mesh again, with get_group()" if in_mesh else "Make it again with new_group()"
            notes.append(f"{', '.join(own)}: this process group is gone. {again}.")
        if sharded:
            # Interrupted in forward or backward, it has parts of its parameters in the wrong place: no new group helps.
            names = sorted(name for name, value in user_names() if any(value is one for one in sharded))
            notes.append(
                f"{', '.join(names) or 'a module'}: this FullyShardedDataParallel belongs to the old process group and "
                f"cannot go on. Make the model again and wrap it in FullyShardedDataParallel again."
            )
        self._healed = False
        return notes


@raises_on_purpose
def _first(source: Iterator[Any]) -> Any:
    """Return what torch's generator gives first; its exceptions are torch's own."""
    return next(source)


def _ddp_modules() -> list[Any]:
    modules = instances("torch.nn.parallel.distributed", "DistributedDataParallel")
    # An interrupted constructor leaves a half-made module behind, which cannot take a group.
    return [module for module in modules if "reducer" in vars(module)]


def _same_backend(dist: ModuleType, backend: str | None) -> bool:
    return (
        backend is None
        or backend.lower() == dist.get_backend().lower()
        or backend.lower() in dist.get_backend().lower()
    )


def _lives(group: Any) -> bool:
    """Whether a process group was made and not destroyed."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    return group in c10d._world.pg_map  # noqa: SLF001 — torch has no public list of groups


def _inode(fd: int) -> int:
    """Return the inode of an open descriptor; 0 where it is closed."""
    with contextlib.suppress(OSError):
        return os.fstat(fd).st_ino
    return 0


def _threads() -> set[int]:
    """The threads of this process, by the system's numbers; none where ``/proc`` is out of reach."""
    with contextlib.suppress(Exception):
        return {int(entry.name) for entry in os.scandir("/proc/self/task")}
    return set()


def _idle(threads: frozenset[int]) -> set[int]:
    """Return those of ``threads`` that are idle, or are no workers of gloo's.

    A thread that waits for the interpreter lock wakes up at every switch interval; one that has nothing to do, never.
    """
    before = {one: _rests(one) for one in threads}
    time.sleep(SWITCHES * sys.getswitchinterval())
    return {one for one in threads if (rests := _rests(one)) == "" or (rests is not None and rests == before[one])}


def _rests(thread: int) -> str | None:
    """Return how often a worker of gloo's has slept; empty for another thread, None while it is awake or unknown."""
    try:
        lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
        found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if found["Name"] != WORKER:
            return ""
        return found["voluntary_ctxt_switches"] if found["State"].startswith("S") else None
    except FileNotFoundError:
        return "" if _threads() else None  # it has ended
    except Exception:  # noqa: BLE001 — an audit hook of the user's may raise anything
        return None


def begin_anew(module: Any) -> None:
    """Give a DDP module a fresh reducer, in a world with a rank that is new, or with another number of ranks.

    A DDP module sorts its gradients into buckets, first by the order of its parameters, then by the order in which the
    first backward pass meets them. A rank that gets the module by pickle has the first order, and a rank that has
    trained has the second: their all-reduces would add up different gradients. So all ranks go back to the first order.

    Raises :class:`AttributeError` where torch has renamed what this needs, which ends the cell: rather that than
    gradients that do not belong together.
    """
    dist: Any = sys.modules["torch.distributed"]
    require(sys.modules[MODULES.places[0]], *MODULES.calls)  # before anything is taken apart
    parameters, sparse = module._build_params_for_reducer()  # noqa: SLF001 — torch has no public way
    names = module._build_debug_param_to_name_mapping(parameters)  # noqa: SLF001
    del module.reducer  # its hooks on the parameters go with it
    module._ddp_init_helper(parameters, sparse, names, module.static_graph)  # noqa: SLF001
    if module.static_graph:
        module.reducer._set_static_graph()  # noqa: SLF001
        module.logger._set_static_graph()  # noqa: SLF001
    for hook, state in module._comm_hooks:  # noqa: SLF001
        dist._register_comm_hook(module.reducer, state, hook)  # noqa: SLF001
