"""TensorFlow's collectives in one rank: strategies at any time, their release, and strategies that go on after it.

TensorFlow wants the first strategy of several processes before anything else ("Collective ops must be configured at
program startup", https://github.com/tensorflow/tensorflow/issues/34568): tensors keep the name of their device, and a
cluster gives devices other names. A notebook has no such startup. So the first use of TensorFlow starts this rank's
server, as ``TF_CONFIG`` then says, and a later strategy finds it. That costs 0.03 s, 40 MB and sleeping threads; no
rank waits for another.

* Each strategy gets group keys of its own. TensorFlow gives all of them the same keys, so an older strategy would meet
  the collectives of a newer one.
* TensorFlow's coordination service is not used. It would hold the first strategy in native code until all ranks have
  one, and end the collectives of ranks whose peer is slow; here the steward knows which ranks live.
* A release aborts the collectives of all ranks. Before the next cell of all ranks the servers start again, counting
  from the same number; strategies, variables, traced functions and iterators keep working.

Under failure: where the server cannot start (a port that is taken), TensorFlow works within the rank, and making a
strategy of several ranks raises an error with the reason. A TensorFlow with different internals stays unchanged.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from jupyter_dtrain.core.frames import frames_of_threads
from jupyter_dtrain.plugins.patches import Patch, meant, require

from .declared import RELEASED
from .servers import guard_server

UNAVAILABLE: Final = 14
"""gRPC's code for an error that may go away."""
ROLES: Final = frozenset({"chief", "worker"})
"""Roles of the tasks that take part in a strategy's collectives."""
ALONE: Final = frozenset({"evaluator"})
"""Roles that a cluster may have beside those."""
PATIENCE: Final = 10.0
"""Seconds in which all ranks must have started again."""
POLL: Final = 0.001
KEYS_OF_STRATEGY: Final = 16
"""Group keys that one strategy may take; it needs one for each set of devices."""
STRATEGIES: Final = 1024
"""The largest number of strategies in one cell."""

_CONTEXT = "tensorflow.python.eager.context"
_STRATEGY = "tensorflow.python.distribute.collective_all_reduce_strategy"
_KEYS = "tensorflow.python.distribute.cross_device_utils"
_COLLECTIVES = "/tensorflow/python/ops/gen_collective_ops.py"
"""Ends the name of the file in which threads of a strategy wait for other ranks."""
_PRIVATE = {
    _CONTEXT: ("Context", "context()"),
    _STRATEGY: (
        "CollectiveAllReduceStrategy._collective_key_base",
        "CollectiveAllReduceExtended._enable_check_health",
        "multi_worker_util.collective_leader(cluster_spec, task_type, task_id)",
        "tensorflow_server_pb2.ServerDef",
        "tfconfig_cluster_resolver.TFConfigClusterResolver",
    ),
    _KEYS: ("CollectiveKeys", "INSTANCE_KEY_START_NUMBER"),
}
"""What this module changes, reads and calls there. ``tensorflow`` has no attribute that leads to them."""
_OF_CONTEXT = (
    "_collective_ops_server_def",
    "_server_def",
    "_initialized",
    "ensure_initialized()",
    "enable_collective_ops(server_def)",
    "configure_collective_ops(collective_leader, scoped_allocator_enabled_ops, use_nccl_communication, device_filters)",
    "abort_collective_ops(code, message)",
    "configure_coordination_service",
)
"""What this module changes, reads and calls of TensorFlow's context."""

COLLECTIVES = Patch(
    "tensorflow",
    replaces=(
        f"{_CONTEXT}.Context.ensure_initialized",
        f"{_CONTEXT}.Context.enable_collective_ops",
        f"{_CONTEXT}.Context.configure_collective_ops",
        f"{_CONTEXT}.Context.configure_coordination_service",
        f"{_STRATEGY}.CollectiveAllReduceStrategy.__init__",
        f"{_STRATEGY}.CollectiveAllReduceExtended._enable_check_health",
    ),
    reads=(
        "_collective_ops_server_def",
        "_server_def",
        "_initialized",
        "_collective_key_base",
        "_collective_keys",
        "_instance_key_table",
        "INSTANCE_KEY_START_NUMBER",
        "abort_collective_ops",
        "collective_leader",
    ),
    why=(
        "TensorFlow takes a strategy of several ranks only before its first operation, gives the collectives of all "
        "strategies the same keys, and lets ranks wait for a failed one for ever."
    ),
    lost="strategies of several ranks are TensorFlow's own, so ranks that wait in one are not released",
)


class Collectives:
    """TensorFlow's collectives in one rank."""

    def __init__(self) -> None:
        self.problem = ""
        """Why strategies of several ranks do not work here; empty where they do."""
        self.strategies: weakref.WeakSet[Any] = weakref.WeakSet()
        """The living strategies of several ranks."""
        self.released = False
        """Whether collectives were aborted and :meth:`recover` has not run yet."""
        self._context: Any = None
        self._lock = threading.RLock()
        self._serving: Any = None
        """The definition that this rank's server was started with; None without a server."""
        self._run = 0
        self._installed = False
        self._made = 0
        """Number of strategies made in this cell."""
        self._counted = 0
        """Number of collectives begun before this cell."""
        self._begin_anew: Callable[[Any], None] = lambda _: None
        self._before_use: Callable[[Any], None] = lambda _: None

    def before_use(self, call: Callable[[Any], None]) -> None:
        """Give TensorFlow's context to ``call`` before the first operation; its exception becomes :attr:`problem`."""
        self._before_use = call

    # ---- import ---------------------------------------------------------------------------------------------------

    def hook(self, _: ModuleType) -> None:
        """Patch TensorFlow, which is imported but not used yet."""
        try:
            for module, names in _PRIVATE.items():
                require(sys.modules[module], *names)
            context = sys.modules[_CONTEXT].context()
            require(context, *_OF_CONTEXT)
        except Exception as error:
            self.problem = f"this version of TensorFlow lacks parts that they need ({error})"
            raise
        self._context = context
        self._begin_anew = context.enable_collective_ops
        COLLECTIVES.replace(sys.modules[_STRATEGY].CollectiveAllReduceStrategy, "__init__", self._init_strategy)
        if not context._initialized:  # noqa: SLF001 — checked above, like everything private here
            COLLECTIVES.replace(context, "ensure_initialized", self._begin_use)

    def _begin_use(self, original: Any) -> None:
        with self._lock:
            self._start(self._context, None)
        original()

    def _start(self, context: Any, resolver: Any) -> None:
        """Become the task that ``resolver`` (by default ``TF_CONFIG``) gives this rank, before the first operation."""
        # Only once: from now on each operation calls TensorFlow's own method again.
        first = vars(context).pop("ensure_initialized", None) is not None
        if not first or context._initialized:  # noqa: SLF001
            return
        try:
            self._before_use(context)
        except Exception as error:  # noqa: BLE001 — whatever a driver raises, TensorFlow stays usable
            self.problem = f"devices: {error}"
        if context._server_def or context._collective_ops_server_def:  # noqa: SLF001
            return
        try:
            definition = self._definition(context, resolver)
        except Exception as error:  # noqa: BLE001 — an unreadable TF_CONFIG: the strategy reports it
            self.problem = f"TF_CONFIG: {error}"
            return
        if definition is None:
            return
        context._collective_ops_server_def = definition  # noqa: SLF001
        try:
            type(context).ensure_initialized(context)
        except Exception as error:  # noqa: BLE001 — whatever hinders a server, TensorFlow itself works
            self.problem = f"its server did not start: {error}"
            context._collective_ops_server_def = None  # noqa: SLF001
            return
        guard_server()
        self._serving = definition
        COLLECTIVES.replace(context, "enable_collective_ops", self._enable)
        COLLECTIVES.replace(context, "configure_collective_ops", _configure)
        COLLECTIVES.replace(context, "configure_coordination_service", lambda _original, *_args, **_kwargs: None)
        # The check would fail collectives whose peer does not answer for 10 s: the steward knows which ranks live.
        COLLECTIVES.put(sys.modules[_STRATEGY].CollectiveAllReduceExtended, "_enable_check_health", value=False)

    def _definition(self, context: Any, resolver: Any) -> Any:
        """The definition of this task's server; None where the task does not share collectives with others."""
        if resolver is None:
            if not os.environ.get("TF_CONFIG"):
                return None
            resolver = sys.modules[_STRATEGY].tfconfig_cluster_resolver.TFConfigClusterResolver()
        spec, kind, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
        jobs = set(spec.jobs)
        if kind not in ROLES or not jobs <= ROLES | ALONE or sum(map(spec.num_tasks, jobs & ROLES)) < 2:  # noqa: PLR2004
            return None
        module: Any = sys.modules[_STRATEGY]
        # The strategy will ask for the same options; it may configure them again then.
        context.configure_collective_ops(
            collective_leader=module.multi_worker_util.collective_leader(spec, kind, index),
            scoped_allocator_enabled_ops=("CollectiveReduce",),
            device_filters=(f"/job:{kind}/task:{index}",),
        )
        return module.tensorflow_server_pb2.ServerDef(
            cluster=spec.as_cluster_def(),
            default_session_config=context.config,
            job_name=kind,
            task_index=index,
            protocol=resolver.rpc_layer or "grpc",
        )

    # ---- strategies -----------------------------------------------------------------------------------------------

    def _init_strategy(
        self, original: Any, strategy: Any, cluster_resolver: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        with self._lock:
            self._start(self._context, cluster_resolver)
        if self._serving is not None:
            number = self._run * STRATEGIES + self._made
            self._made += 1
            strategy._collective_key_base = number % (1 << 26) * KEYS_OF_STRATEGY  # noqa: SLF001
        try:
            original(strategy, cluster_resolver, *args, **kwargs)
        except RuntimeError as error:
            if "at program startup" not in str(error):
                raise
            raise RuntimeError(self._too_late()) from error
        if self._serving is not None:
            self.strategies.add(strategy)

    def _enable(self, _original: Any, server_def: Any) -> None:
        """Keep the running server, which already serves every strategy of this cluster."""
        if not _same_task(server_def, self._serving):
            raise meant(RuntimeError(self._too_late()))
        self._context._collective_ops_server_def = server_def  # noqa: SLF001

    def _too_late(self) -> str:
        fix = "run `%distributed restart`, then make this strategy before any other use of TensorFlow"
        if self._serving is not None:
            return f"TensorFlow in this rank serves another cluster and cannot change: {fix}."
        why = self.problem or "TF_CONFIG named no other rank when TensorFlow was first used"
        return f"TensorFlow in this rank works without other ranks and cannot change: {fix}. The reason: {why}."

    # ---- release --------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether this rank's server runs."""
        return self._serving is not None

    def task(self) -> tuple[str, int, int] | None:
        """The rank's task in the server's cluster: role, number, and how many tasks there are."""
        serving = self._serving
        if serving is None:
            return None
        return serving.job_name, serving.task_index, sum(len(job.tasks) for job in serving.cluster.job)

    def begin_cell(self, run: int) -> None:
        """Count strategies from 0 in every cell, so that ranks which ran different cells count alike again."""
        self._is_installed()
        self._run, self._made = run, 0
        self._counted = self._count()

    def has_begun(self) -> bool:
        """Whether this rank has begun collectives in the current or last cell."""
        return self._count() != self._counted

    def release(self) -> None:
        """End all collectives of this rank, now and until :meth:`recover`. Call it on the control thread."""
        if self._serving is None:
            return
        self.released = True
        self._context.abort_collective_ops(UNAVAILABLE, RELEASED)

    def recover(self) -> None:
        """Start the servers again, with all ranks, and count the strategies' collectives alike.

        Raises :class:`TimeoutError` when a rank does not come.
        """
        exists = self._is_installed()
        if self._serving is not None:
            # A server that is replaced under a collective crashes. An interrupt leaves one in a thread of a strategy.
            if not self.released:
                self.release()
            _wait_for_threads()
        if exists:
            # A collective that ends on one rank may just have been asked for by another. Ranks that have not imported
            # TensorFlow come too: they cannot know which ranks have.
            meet()
        if self._serving is not None:
            with _without_warning():
                self._begin_anew(self._serving)
            guard_server()
            first = sys.modules[_KEYS].INSTANCE_KEY_START_NUMBER
            for keys in self._all_keys():
                for table in keys._instance_key_table.values():  # noqa: SLF001
                    table.update(dict.fromkeys(table, first))
            self.released = False
            self._counted = self._count()
        if exists:
            # Without this meeting a rank could reach another one's old server.
            meet()

    def _is_installed(self) -> bool:
        """Whether TensorFlow is installed, or was: all ranks must say the same, also one that has called os.chroot."""
        with contextlib.suppress(Exception):
            self._installed = self._installed or importlib.util.find_spec("tensorflow") is not None
        return self._installed

    def _count(self) -> int:
        """Count the collectives that the strategies have begun."""
        return sum(
            number
            for keys in self._all_keys()
            for table in list(keys._instance_key_table.values())  # noqa: SLF001
            for number in list(table.values())
        )

    def _all_keys(self) -> list[Any]:
        found = [getattr(strategy.extended, "_collective_keys", None) for strategy in list(self.strategies)]
        return [keys for keys in found if hasattr(keys, "_instance_key_table")]


def _configure(original: Any, *args: Any, **kwargs: Any) -> None:
    try:
        original(*args, **kwargs)
    except ValueError as error:
        # The configuration is ours; TensorFlow would only report that its context is in use.
        raise RuntimeError("Collective ops must be configured at program startup") from error


def _wait_for_threads() -> None:
    """Wait until no thread is in a collective of its own; their release ends those. Raises :class:`TimeoutError`."""
    deadline = time.monotonic() + PATIENCE
    while any(frame.f_code.co_filename.endswith(_COLLECTIVES) for frame in frames_of_threads().values()):
        if time.monotonic() > deadline:
            raise TimeoutError(
                "A thread does not leave TensorFlow's collectives: %distributed restart starts fresh ranks."
            )
        time.sleep(POLL)


def meet() -> None:
    """Wait for all ranks through MPI, which every rank has. Raises :class:`TimeoutError` after PATIENCE."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or mpi.COMM_WORLD.size < 2:  # noqa: PLR2004
        return
    try:
        request = mpi.COMM_WORLD.Ibarrier()
        deadline = time.monotonic() + PATIENCE
        while not request.Test():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "Not all ranks came to restart TensorFlow's collectives: %distributed restart starts fresh ranks."
                )
            time.sleep(POLL)
    except mpi.Exception:
        # MPI cannot use this world any more: without ULFM, after a rank died.
        logging.getLogger(__name__).exception("The ranks could not wait for each other")


def _same_task(one: Any, other: Any) -> bool:
    parts = [(part.cluster, part.job_name, part.task_index) for part in (one, other)]
    return bool(parts[0] == parts[1])


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Silence TensorFlow's warning about tensors made earlier, which keep their devices here."""
    logger = logging.getLogger("absl")

    def keep(record: logging.LogRecord) -> bool:
        return "Enabling collective ops after" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
