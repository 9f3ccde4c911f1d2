"""``torch.distributed.rpc`` in one rank: set up again and again, freed when a peer does not answer.

This module changes four functions of it when user code imports it:

* ``init_rpc`` meets at the world's store, under a name of its own for each generation, address and set-up, after the
  ranks have waited for each other in Python. The address (``MASTER_PORT`` or ``tcp://``) may be the cell's own: nobody
  has to serve it, and all workers are ranks of this world. Where rpc is already up as the same worker, it does nothing.
* ``remote`` raises an error in a process that has had an agent before: torch keeps one table of RRefs for as long as
  the process lives and closes it with the first agent (``RRefContext`` in torch 2.13). ``rpc_sync`` and ``rpc_async``
  need no table.
* ``shutdown`` waits for the other ranks in Python.
* The wait for other ranks' RRefs, a part of ``shutdown``, becomes interruptible.

A rank whose cell has failed still answers the calls of others. So a rank that waits for an answer waits for a function
that does not return, or in ``shutdown`` for a rank that does not come to it.

Under failure: :meth:`TorchRpc.release` ends the agent of every rank, because nothing else frees a rank that waits for
an answer. When an interrupt or an error ends a set-up or ``shutdown``, the agent of that rank ends, and a key in the
store tells the others. Nothing repairs rpc: the next cell finds none, and says that the user calls ``init_rpc`` again
on all ranks, and that RRefs are gone. A function that runs for another rank cannot be ended; it goes on, and its answer
is dropped.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.frameworks.rendezvous import ARRIVAL_POLL, arrive, arriving_in
from jupyter_dtrain.plugins.framework import Framework, value_of
from jupyter_dtrain.plugins.patches import Patch, meant, raises_on_purpose, require
from jupyter_dtrain.plugins.sources import called_in
from jupyter_dtrain.rank.sockets import connected_to, end_connections, epolls, registered

from .rendezvous import reach
from .waits import OURS, outermost_of

if TYPE_CHECKING:
    from jupyter_dtrain.wire.requests import RankSpec

INIT = "init_rpc"
SCHEME = "dtrain-rpc"
"""The scheme of the ``init_method`` by which torch finds our rendezvous."""
NOT_ALL = "shutdown: not all ranks arrived."
"""The text of a ConnectionAbortedError: torch would log a RuntimeError at length."""
END_PATIENCE = 2.0
"""Seconds in which an agent ends; one that runs a user's function takes as long as that function."""
NO_TABLE = (
    "rpc.remote needs RRefs, and PyTorch keeps them for the first set-up of rpc in a process only. rpc_sync and "
    "rpc_async work; %distributed restart gives fresh ranks, in which RRefs work again."
)
_ENDED = "ended"
"""The key by which a worker says that its agent has ended without the others'."""
AGAIN = (
    "torch's rpc ended with a cell that did not finish: call torch.distributed.rpc.init_rpc(...) again on all ranks. "
    "RRefs are gone, and need %distributed restart to work again."
)
_ALONE = (
    "torch.distributed.rpc is torch's own, so init_rpc() works once, at an address that a rank must serve, and ranks "
    "that wait in rpc are not released"
)
AGENT = Patch(
    "torch.distributed.rpc.api",
    calls=(
        "_is_current_rpc_agent_set()",
        "_get_current_rpc_agent()",
        "_reset_current_rpc_agent()",
        "_all_gather_sequence_id",
        "_all_gather_sequence_id_to_states",
        "AllGatherStates()",
        "_cleanup_python_rpc_handler()",
        "_delete_all_user_and_unforked_owner_rrefs",
        "_destroy_rref_context",
        "_ignore_rref_leak",
        "_finalize_shutdown()",
    ),
    reads=("_C",),
    why="Nothing but the end of its agent frees a rank that waits in rpc, and torch ends agents on all ranks together.",
    lost=_ALONE,
)
RPC = Patch(
    "torch.distributed.rpc",
    replaces=(
        "init_rpc",
        "remote",
        "shutdown",
        "api.remote",
        "api.shutdown",
        "api._finalize_shutdown",
        "api._delete_all_user_and_unforked_owner_rrefs",
        "api._all_gather_sequence_id_to_states.default_factory",
    ),
    reads=("_init_counter",),
    why="torch sets up rpc once in a process, and waits for the other ranks in native code that no interrupt ends.",
    lost=_ALONE,
    upstream="https://github.com/pytorch/pytorch/issues/46491",
)
_WAITING = (f"distributed{os.sep}rpc{os.sep}", f"futures{os.sep}")
"""The parts of torch that wait for an answer."""
_CALLS = {"rpc_async", "remote", "collect_all", "then"}
"""Calls whose unnamed results user code may call ``wait()`` on."""


class TorchRpc(Framework):
    """torch's rpc in one rank. Its methods are for the main thread, except :meth:`waits` and :meth:`release`."""

    name = "rpc"

    def prepare(self, spec: RankSpec) -> None:
        """Wait for ``torch.distributed.rpc`` to be imported."""
        self._generation = self._agent_generation = spec.generation
        self._address = spec.address
        self._counts: Counter[str] = Counter()
        """Set-ups of this generation, by their address and number of workers."""
        self._set_up = ""
        """The name of the last set-up; all its workers have the same."""
        self._store: Any = None
        """The world's store, with the keys of the last set-up."""
        self._worker: tuple[str, int | None] | None = None
        """The name, and the number of workers, of the last set-up."""
        self._meeting = (0, 0)
        """This rank's number and the number of ranks in a set-up."""
        self._table_closed = False
        """Whether an agent of this process has ended, and torch's table of RRefs with it."""
        self._before: set[int] | None = None
        """During a set-up: the epoll instances that existed before it."""
        self._lock = threading.Lock()
        self._ending: tuple[Any, threading.Thread] | None = None
        """The agent that is ending, and the thread that ends it."""
        self._waits_for_none = False
        """Whether the end of rpc skips the wait for RRefs, because some rank has no table for them."""
        self._unfinished = False
        """Whether, in this cell, a set-up or a ``shutdown`` did not finish."""
        self._ended = False
        """Whether rpc has ended with a cell that did not finish, and neither a set-up nor a note has followed."""
        self._arriving = self._leaving = self._released = False
        self._api: Any = None
        """torch's module, once it is patched."""
        self._found_api: Any = None
        """torch's module, once it is found and before it is patched."""
        AGENT.when_imported(self._found)
        RPC.when_imported(self._hook)

    def before_cell(self, generation: int) -> None:
        """Set-ups of a new generation are counted from 0 on every rank. What is left of an rpc that ended goes."""
        if generation != self._generation:
            self._generation = generation
            self._counts.clear()
        self._unfinished = self._released = False
        self._ended = self._ended or self._ended_elsewhere()
        if self._ended:
            self._clear()

    def needs_regroup(self) -> bool:
        """Whether, in the last cell, a set-up or its end failed on this rank, or its agent was ended."""
        return self._unfinished or self._released

    def waits(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> str:
        """The function of rpc, or the method of a future or RRef, that the main thread is in."""
        torch = sys.modules.get("torch")
        if "torch.distributed.rpc" not in sys.modules or torch is None:
            return ""
        if arriving := arriving_in(frame):
            return arriving if arriving == INIT else ""
        if not idle:
            return ""
        root = f"{Path(str(torch.__file__)).parent}{os.sep}"
        users = _outside_ours(frame)
        if word := _called_without_torch(users, call if users is frame else called_in(users)):
            return word
        waiting = tuple(root + part for part in _WAITING)
        inner: FrameType | None = frame
        while inner is not None and not inner.f_code.co_filename.startswith(waiting):
            if not inner.f_code.co_filename.startswith((root, *OURS)):
                return ""
            inner = inner.f_back
        return outermost_of(frame, root)

    def release(self) -> None:
        """End the agent of this rank, so that every wait for it raises. Call it on the control thread."""
        self._released = True
        api = self._api
        if api is not None and api._is_current_rpc_agent_set():  # noqa: SLF001 — torch has no public way
            self._ended = True
            with contextlib.suppress(RuntimeError):  # the main thread has just ended it
                self._end(api)
        if self._arriving:
            return  # its poll sees the release
        if self._leaving or self._before is not None:
            # The main thread may wait for the store, or in a group that torch makes for rpc alone.
            end_connections(connected_to(self._address[1]))
            if self._before is not None:
                end_connections(registered(epolls() - self._before))

    def recover(self) -> list[str]:
        """Say that rpc has to be set up again; nothing repairs it."""
        ended, self._ended = self._ended, False
        return [AGAIN] if ended else []

    # Setting up.

    def _found(self, api: Any) -> None:
        """Keep torch's module, which has what is needed. A torch without rpc has none, and its own error says so."""
        self._found_api = api

    def _hook(self, module: Any) -> None:
        api: Any = self._found_api
        dist: Any = sys.modules["torch.distributed"]
        if api is None:
            return
        require(module, "_init_counter", "backend_registry.construct_rpc_backend_options(backend)")
        self._api = api
        dist.register_rendezvous_handler(SCHEME, self._rendezvous(dist))
        RPC.replace(module, "init_rpc", self._init)
        RPC.put(module, "shutdown", RPC.replace(api, "shutdown", self._shutdown))
        RPC.put(module, "remote", RPC.replace(api, "remote", self._remote))
        RPC.replace(api, "_finalize_shutdown", self._finish)
        RPC.replace(api, "_delete_all_user_and_unforked_owner_rrefs", self._in_python)
        states = api._all_gather_sequence_id_to_states  # noqa: SLF001 — torch has no public way
        RPC.put(states, "default_factory", RPC.guard(self._state, api.AllGatherStates))

    def _init(
        self,
        original: Any,
        name: Any,
        backend: Any = None,
        rank: int = -1,
        world_size: int | None = None,
        rpc_backend_options: Any = None,
    ) -> Any:
        api = self._api
        module: Any = sys.modules["torch.distributed.rpc"]
        worker = name, world_size
        if api._is_current_rpc_agent_set():  # noqa: SLF001
            if not self._ended and self._agent_generation == self._generation:
                if worker == self._worker:
                    return None
                raise meant(
                    RuntimeError(
                        f"RPC is already up, with this rank as {api.get_worker_info().name!r}. Call "
                        f"torch.distributed.rpc.shutdown() on all ranks before you set it up again."
                    )
                )
            self._clear()
        options = _options(module, backend, rpc_backend_options) if world_size else rpc_backend_options
        self._meeting = rank, world_size or 0
        self._set_up = self._name(options, world_size)
        # Equal on all ranks, even where an earlier set-up or end failed on some of them.
        module._init_counter = 0  # noqa: SLF001
        api._all_gather_sequence_id.clear()  # noqa: SLF001
        api._all_gather_sequence_id_to_states.clear()  # noqa: SLF001
        self._unfinished, self._before, self._store = True, epolls(), None
        try:
            with warnings.catch_warnings(), _meeting_here(options, bool(world_size)):
                # The warning is about torch's own call.
                warnings.filterwarnings("ignore", "You are using a Backend")
                result = original(name, backend, rank, world_size, options)
        except BaseException:
            self._clear()
            self._end_for_all()
            raise
        finally:
            self._before = None
        self._unfinished = self._ended = False
        self._worker, self._agent_generation = worker, self._generation
        return result

    def _rendezvous(self, dist: Any) -> Callable[..., Iterator[Any]]:
        def meet(url: str, timeout: timedelta = timedelta(minutes=30), **kwargs: Any) -> Iterator[Any]:  # noqa: ARG001
            rank, size = self._meeting
            self._arriving = True
            try:
                client = reach(INIT, dist, self._address, timeout, lambda: self._released)
                store = self._store = dist.PrefixStore(self._set_up, client)
                store.set(f"closed/{rank}", str(int(self._table_closed)))
                arrive(INIT, store, rank, range(size), timeout, lambda: self._released)
            finally:
                self._arriving = False
            self._waits_for_none = any(int(store.get(f"closed/{other}")) for other in range(size))
            yield store, rank, size

        return meet

    def _name(self, options: Any, size: int | None) -> str:
        """A name of this set-up that all its workers find, and that no other set-up has."""
        where = str(getattr(options, "init_method", ""))
        if where.startswith("env:"):
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        place = f"{where}/{size}"
        self._counts[place] += 1
        return f"generation-{self._generation}/rpc/{place}/{self._counts[place]}"

    # Ending.

    def _end_for_all(self) -> None:
        """Tell the other workers, whose agents may live on, that this set-up is over; a release tells them itself."""
        self._ended = True
        if not self._released and self._store is not None:
            with contextlib.suppress(RuntimeError):  # without the store, no rank is told
                self._store.set(_ENDED, "1")

    def _ended_elsewhere(self) -> bool:
        """Whether another worker of an earlier generation's set-up has ended its own agent alone."""
        if self._store is not None and self._agent_generation != self._generation:
            with contextlib.suppress(RuntimeError):
                return bool(self._store.check([_ENDED]))
        return False

    def _state(self, original: Any) -> Any:
        """A state by which torch waits for other ranks: here in Python, and until a release."""

        class Signal(threading.Event):
            def wait(signal, timeout: float | None = None) -> bool:  # noqa: N805 — ``self`` is the framework's
                deadline = None if timeout is None else time.monotonic() + timeout
                while not signal.is_set() and (deadline is None or time.monotonic() < deadline):
                    if self._released:
                        raise meant(ConnectionAbortedError(NOT_ALL))
                    time.sleep(ARRIVAL_POLL)
                return signal.is_set()

        states = original()
        states.proceed_signal = Signal()
        return states

    @raises_on_purpose
    def _in_python(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the wait for ranks that hold RRefs (native code, up to 100 s) in a thread, so that it can be interrupted.

        Where a rank has had an agent before, no RRef can be confirmed any more, and all ranks skip the wait.
        """
        if self._waits_for_none:
            return None
        ended: Future[Any] = Future()

        def run() -> None:
            try:
                ended.set_result(original(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 — raised again by the waiting thread
                ended.set_exception(error)

        threading.Thread(target=run, name="dtrain-rpc", daemon=True).start()
        while not ended.done():
            if self._released:
                raise meant(ConnectionAbortedError(NOT_ALL))
            time.sleep(ARRIVAL_POLL / 4)
        return ended.result()

    def _remote(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._table_closed:
            raise meant(RuntimeError(NO_TABLE))
        return original(*args, **kwargs)

    def _shutdown(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._api._is_current_rpc_agent_set():  # noqa: SLF001
            return original(*args, **kwargs)  # it says how to set rpc up
        self._leaving = True
        try:
            return original(*args, **kwargs)
        except BaseException:
            self._unfinished = True
            self._end_for_all()
            raise
        finally:
            self._leaving = False

    @raises_on_purpose
    def _finish(self, _original: Any) -> None:
        """End the agent in the place of torch's own function; the errors are torch's."""
        self._finalize(self._api)

    def _end(self, api: Any) -> threading.Thread:
        """End the agent, in a thread that waits for its running functions. Only once: two at a time would crash."""
        agent = api._get_current_rpc_agent()  # noqa: SLF001
        with self._lock:
            if self._ending is None or self._ending[0] is not agent:
                thread = threading.Thread(target=agent.shutdown, name="dtrain-rpc", daemon=True)
                self._ending = agent, thread
                thread.start()
            return self._ending[1]

    def _finalize(self, api: Any, *, alone: bool = False) -> None:
        """End rpc locally like torch, except that a release ends the wait for functions that still run here.

        ``alone``: whatever the other ranks do; the wait ends soon in any case.
        """
        self._table_closed = True
        try:
            api._destroy_rref_context(api._ignore_rref_leak)  # noqa: SLF001
        finally:
            ending, patience = self._end(api), time.monotonic() + END_PATIENCE
            try:
                while ending.is_alive() and not ((alone or self._released) and time.monotonic() > patience):
                    ending.join(ARRIVAL_POLL)
            finally:
                api._cleanup_python_rpc_handler()  # noqa: SLF001
                api._reset_current_rpc_agent()  # noqa: SLF001
                self._ending = None

    def _clear(self) -> None:
        """End rpc in this rank, whatever the others do."""
        api = self._api
        if api is None or not api._is_current_rpc_agent_set():  # noqa: SLF001
            return
        with contextlib.suppress(RuntimeError):
            self._finalize(api, alone=True)


def _options(module: Any, backend: Any, given: Any) -> Any:
    """Return the options of a set-up, or torch's own defaults."""
    if given is not None:
        return given
    return module.backend_registry.construct_rpc_backend_options(backend or module.BackendType.TENSORPIPE)


@contextlib.contextmanager
def _meeting_here(options: Any, static: bool) -> Iterator[None]:  # noqa: FBT001
    """Make torch meet through us; a group without a size, which ranks may join later, meets as a process group does."""
    given = getattr(options, "init_method", "")
    if not static or not given.startswith(("env://", "tcp://")):
        yield
        return
    options.init_method = f"{SCHEME}://"
    try:
        yield
    finally:
        options.init_method = given


def _outside_ours(frame: FrameType) -> FrameType:
    """The code that called us, where one of our functions stands between it and torch's native code."""
    while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _called_without_torch(frame: FrameType, call: ast.Call | None) -> str:
    """Native code that user code called directly: ``future.wait()``, ``rref.to_here()``, ``backward`` of autograd."""
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    name, torch = call.func.attr, sys.modules["torch"]
    owner = value_of(frame, call.func.value)
    match name:
        case "to_here":
            return name
        case "backward":
            is_module = isinstance(owner, ModuleType) and owner.__name__ == "torch.distributed.autograd"
            return name if is_module else ""
        case "wait" if isinstance(owner, torch._C.Future):  # noqa: SLF001 — the base of torch.futures.Future
            return name
        case "wait" if owner is None and isinstance(call.func.value, ast.Call):
            made = call.func.value.func
            made_by = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
            return name if made_by in _CALLS else ""
    return ""
