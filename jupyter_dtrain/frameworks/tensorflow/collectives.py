"""TensorFlow's collectives in one rank: strategies at any time, their release, and strategies that go on after it.

TensorFlow wants its first strategy of several processes before anything else ("Collective ops must be configured at
program startup"), since tensors keep the name of their device, and that is another in a cluster. A notebook is no
program: so the first use of TensorFlow starts the server of this rank, by what ``TF_CONFIG`` says then, and a
strategy that is made later finds it. That costs 0.03 s, 40 MB and threads that sleep; nobody waits for other ranks.

* Strategies get group keys of their own. TensorFlow gives the same to all of them, so that an older one meets the
  collectives of a newer one.
* TensorFlow's coordination service is left out. It would hold the first strategy in native code until all ranks have
  one, and end the collectives of ranks whose peer is slow; here the steward knows who lives.
* A release aborts the collectives of all ranks. Before the next cell of all ranks the servers begin anew and count from
  the same number; strategies, variables, traced functions and iterators are what they were.

Under failure: where the server cannot be started (a port that is taken), TensorFlow works within the rank, and a
strategy of several ranks is refused with the reason. A TensorFlow that is different inside is left as it is.
"""

from __future__ import annotations

import contextlib
import functools
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

from .ports import guard_server

WORDS: Final = "another rank has failed or was interrupted"
"""What TensorFlow says in the errors of ranks that are released."""
UNAVAILABLE: Final = 14
"""gRPC's code for what may go on later."""
ROLES: Final = frozenset({"chief", "worker"})
"""Of the tasks that take part in the collectives of a strategy."""
ALONE: Final = frozenset({"evaluator"})
"""Those that may be in a cluster beside them."""
PATIENCE: Final = 10.0
"""Seconds in which all ranks must have begun anew."""
POLL: Final = 0.001
KEYS_OF_STRATEGY: Final = 16
"""Group keys that one strategy may take; it needs one for each set of devices."""
STRATEGIES: Final = 1024
"""Strategies of one cell."""

_CONTEXT = "tensorflow.python.eager.context"
_STRATEGY = "tensorflow.python.distribute.collective_all_reduce_strategy"
_KEYS = "tensorflow.python.distribute.cross_device_utils"
_PRIVATE = {
    _CONTEXT: ("Context", "context"),
    _STRATEGY: ("CollectiveAllReduceStrategy", "CollectiveAllReduceExtended", "multi_worker_util"),
    _KEYS: ("CollectiveKeys", "INSTANCE_KEY_START_NUMBER"),
}
"""By module, what is taken hold of."""


class Collectives:
    """Of one rank."""

    def __init__(self) -> None:
        self.problem = ""
        """Why strategies of several ranks do not work here, in words; empty where they do."""
        self.strategies: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those of several ranks that live."""
        self.released = False
        """Whether collectives were aborted and :meth:`recover` has not been there yet."""
        self._context: Any = None
        self._lock = threading.RLock()
        self._serving: Any = None
        """What the server of this rank was started with; None where there is none."""
        self._run = 0
        self._made = 0
        """Strategies that were made in this cell."""
        self._counted = 0
        """The collectives that were begun before this cell."""
        self._begin_anew: Callable[[Any], None] = lambda _: None
        self._before_use: Callable[[Any], None] = lambda _: None

    def before_use(self, call: Callable[[Any], None]) -> None:
        """``call`` is given TensorFlow's context before the first operation; what it raises is :attr:`problem`."""
        self._before_use = call

    # ---- at the import --------------------------------------------------------------------------------------------

    def hook(self, _: ModuleType) -> None:
        """TensorFlow was imported, and has not been used yet."""
        for module, names in _PRIVATE.items():
            if not all(hasattr(sys.modules.get(module), name) for name in names):
                self.problem = f"this TensorFlow has not what is known of {module}"
                return
        context = sys.modules[_CONTEXT].context()
        private = ("_collective_ops_server_def", "_collective_leader", "_server_def", "_initialized")
        methods = ("ensure_initialized", "enable_collective_ops", "configure_collective_ops", "abort_collective_ops")
        if not all(hasattr(context, name) for name in (*private, *methods, "configure_coordination_service")):
            self.problem = "this TensorFlow's context is not the one that is known"
            return
        self._context = context
        self._begin_anew = context.enable_collective_ops
        if not context._initialized:  # noqa: SLF001 — looked for above, as all that is private here
            context.ensure_initialized = self._at_first_use(context, context.ensure_initialized)
        strategy = sys.modules[_STRATEGY].CollectiveAllReduceStrategy
        strategy.__init__ = self._strategy_init(strategy.__init__)

    def _at_first_use(self, context: Any, original: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(original)
        def ensure_initialized() -> None:
            with self._lock:
                self._start(context, None)
            original()

        return ensure_initialized

    def _start(self, context: Any, resolver: Any) -> None:
        """Before the first operation: be the task that ``resolver`` (by default ``TF_CONFIG``) says this rank is."""
        # Once: what TensorFlow calls for each operation is its own method again.
        first = vars(context).pop("ensure_initialized", None) is not None
        if not first or context._initialized:  # noqa: SLF001
            return
        try:
            self._before_use(context)
        except Exception as error:  # noqa: BLE001 — whatever a driver says; TensorFlow is used all the same
            self.problem = f"devices: {error}"
        if context._server_def or context._collective_ops_server_def:  # noqa: SLF001
            return
        try:
            definition = self._definition(context, resolver)
        except Exception as error:  # noqa: BLE001 — a TF_CONFIG that says nothing: its strategy will tell
            self.problem = f"TF_CONFIG: {error}"
            return
        if definition is None:
            return
        context._collective_ops_server_def = definition  # noqa: SLF001
        try:
            type(context).ensure_initialized(context)
        except Exception as error:  # noqa: BLE001 — whatever hinders a server; TensorFlow itself works
            self.problem = f"its server did not start: {error}"
            context._collective_ops_server_def = None  # noqa: SLF001
            return
        guard_server()
        self._serving = definition
        context.enable_collective_ops = self._enable(context)
        context.configure_collective_ops = self._configure(context.configure_collective_ops)
        context.configure_coordination_service = lambda *_args, **_kwargs: None
        # Would fail collectives of ranks whose peer does not answer for 10 s: the steward knows who lives.
        sys.modules[_STRATEGY].CollectiveAllReduceExtended._enable_check_health = False  # noqa: SLF001

    def _definition(self, context: Any, resolver: Any) -> Any:
        """What the server of this task is started with; None where it is not one of several that have collectives."""
        if resolver is None:
            if not os.environ.get("TF_CONFIG"):
                return None
            resolver = sys.modules[_STRATEGY].tfconfig_cluster_resolver.TFConfigClusterResolver()
        spec, kind, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
        jobs = set(spec.jobs)
        if kind not in ROLES or not jobs <= ROLES | ALONE or sum(map(spec.num_tasks, jobs & ROLES)) < 2:  # noqa: PLR2004
            return None
        module: Any = sys.modules[_STRATEGY]
        # As the strategy will ask for, which may configure them again then.
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

    def _strategy_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(strategy: Any, cluster_resolver: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807 — its name is seen in tracebacks
            context = self._context
            with self._lock:
                self._start(context, cluster_resolver)
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

        return __init__

    def _enable(self, context: Any) -> Callable[[Any], None]:
        def enable_collective_ops(definition: Any) -> None:
            """The server that runs already serves every strategy of this cluster."""
            if not _same_task(definition, self._serving):
                raise RuntimeError(self._too_late())
            context._collective_ops_server_def = definition  # noqa: SLF001

        return enable_collective_ops

    def _configure(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def configure_collective_ops(*args: Any, **kwargs: Any) -> None:
            try:
                original(*args, **kwargs)
            except ValueError as error:
                # What was configured, we have: TensorFlow would find a context in use.
                raise RuntimeError("Collective ops must be configured at program startup") from error

        return configure_collective_ops

    def _too_late(self) -> str:
        cure = "`%distributed restart`, and make this strategy before anything else is done with TensorFlow"
        if self._serving is not None:
            return f"TensorFlow serves another cluster in this rank, and cannot change: {cure}."
        why = self.problem or "TF_CONFIG named no other rank when it was first used"
        return f"TensorFlow works without other ranks here, and cannot change: {cure}. It began so because {why}."

    # ---- release --------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the server of this rank runs."""
        return self._serving is not None

    def task(self) -> tuple[str, int, int] | None:
        """What this rank is in the cluster that its server runs for: role, number, how many tasks there are."""
        serving = self._serving
        if serving is None:
            return None
        return serving.job_name, serving.task_index, sum(len(job.tasks) for job in serving.cluster.job)

    def begin_cell(self, run: int) -> None:
        """Strategies are counted from 0 in every cell: ranks that have run different ones count alike from here."""
        self._run, self._made = run, 0
        self._counted = self._count()

    def has_begun(self) -> bool:
        """Whether this rank has begun collectives in the cell that runs, or ran last."""
        return self._count() != self._counted

    def release(self) -> None:
        """End all collectives of this rank, now and until :meth:`recover`. The control thread."""
        if self._serving is None:
            return
        self.released = True
        self._context.abort_collective_ops(UNAVAILABLE, WORDS)

    def recover(self) -> None:
        """With all ranks: the servers begin anew, and the strategies' collectives are counted alike.

        Raises :class:`TimeoutError` when a rank does not come.
        """
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
        if importlib.util.find_spec("tensorflow") is not None:
            # A rank that went on at once would meet another's server of before. Those that have not imported
            # TensorFlow come, too: they cannot know who has.
            meet()

    def _count(self) -> int:
        """How many collectives the strategies have begun."""
        return sum(
            number
            for keys in self._all_keys()
            for table in list(keys._instance_key_table.values())  # noqa: SLF001
            for number in list(table.values())
        )

    def _all_keys(self) -> list[Any]:
        found = [getattr(strategy.extended, "_collective_keys", None) for strategy in list(self.strategies)]
        return [keys for keys in found if hasattr(keys, "_instance_key_table")]


def meet() -> None:
    """Wait until all ranks are here, by MPI, which every rank has. Raises :class:`TimeoutError` after PATIENCE."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or mpi.COMM_WORLD.size < 2:  # noqa: PLR2004
        return
    try:
        request = mpi.COMM_WORLD.Ibarrier()
        deadline = time.monotonic() + PATIENCE
        while not request.Test():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "Not all ranks came to begin TensorFlow's collectives anew: %distributed restart makes new ranks."
                )
            time.sleep(POLL)
    except mpi.Exception:
        # A world that MPI cannot use any more: without ULFM, after a rank died.
        logging.getLogger(__name__).exception("The ranks could not meet")


def _same_task(one: Any, other: Any) -> bool:
    parts = [(part.cluster, part.job_name, part.task_index) for part in (one, other)]
    return bool(parts[0] == parts[1])


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """TensorFlow warns of tensors that were made before, which live on the same devices here."""
    logger = logging.getLogger("absl")

    def keep(record: logging.LogRecord) -> bool:
        return "Enabling collective ops after" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
