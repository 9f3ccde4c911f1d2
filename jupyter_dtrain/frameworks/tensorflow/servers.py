"""TensorFlow's servers in the ranks: the port that each rank holds for its own, and those that work for a chief.

TensorFlow's servers listen at all addresses of the host, know no password, and obey every process that reaches them.
Where all ranks are on one host, no other host's packets get as far
(:func:`~jupyter_dtrain.rank.tcp_guard.keep_on_loopback`), and connections from before that guard are ended. Other users
of this host do get there, as with TensorFlow's own launchers.

Under TensorFlow's own launchers a worker or parameter server is a process that starts a ``tf.distribute.Server`` and
then waits in ``server.join()`` forever. Here the server starts as soon as such a rank has imported TensorFlow, in
threads of TensorFlow's own, so the rank can run cells at the same time. A script that starts a server gets that one,
and ``join()`` ends the rank's cell, because elsewhere no code after it would run.

Under failure: TensorFlow replaces a worker that dies; the chief's loop goes on with the others, and this module does
not end it. A chief that makes a strategy while a server is missing would wait in native code, which no interrupt ends.
Here it first waits in Python, for :data:`PATIENCE` seconds, and then names the missing tasks. Another version of
TensorFlow, without the parts that this module patches, stays unchanged. A kernel without packet filters leaves a server
as TensorFlow made it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import sys
import threading
import time
from typing import Any, Final

from jupyter_dtrain.plugins.framework import CellEnds
from jupyter_dtrain.plugins.patches import Patch, meant, raises_on_purpose
from jupyter_dtrain.rank.sockets import listeners
from jupyter_dtrain.rank.tcp_guard import end_others, keep_on_loopback

TF_CONFIG: Final = "TF_CONFIG"
PATIENCE = 60.0
"""Seconds for which a chief waits until all servers listen: the other ranks may be importing TensorFlow."""
NOTIFY_AFTER = 5.0
"""Seconds after which a waiting chief names the missing servers."""
POLL = 0.1
ANSWER = 2.0
"""Seconds in which a host must answer to a connection."""
SERVING: Final = ("worker", "ps")
"""The roles that have a server, where there are parameter servers."""
_LEGACY: Final = (
    "Keras 3 cannot fit, evaluate or predict under ParameterServerStrategy. Use tf_keras, the Keras of TensorFlow 2 "
    "(`pip install tf_keras`, with TF_USE_LEGACY_KERAS=1 set before TensorFlow is imported, for example by "
    "%distributed start --env), or write the loop yourself with ClusterCoordinator."
)


SERVERS = Patch(
    "tensorflow.python.training.server_lib",
    replaces=("Server.__new__", "Server.__init__", "Server.join"),
    calls=("_make_server_def(server_or_cluster_def, job_name, task_index, protocol, config)",),
    why=(
        "This rank's server runs already, so a second one for its task finds its port taken. And after join(), which "
        "never returns, the rank would run no other cell."
    ),
    lost="a script that makes the server of its task makes a second one",
)
CHIEFS = Patch(
    "tensorflow.python.distribute.parameter_server_strategy_v2",
    replaces=("ParameterServerStrategyV2.__init__",),
    why="A chief whose workers have no server yet waits for them in native code, for ever and without a word.",
    lost="a chief waits for missing servers in TensorFlow, where no interrupt ends the wait",
)
TASKS = Patch(
    "tensorflow",
    why="A worker or parameter server that runs cells never comes to a script's line that starts its server.",
    lost="this rank serves no other",
)
SCOPES = Patch(
    "tensorflow.python.distribute.distribute_lib",
    replaces=("_CurrentDistributionContext.__enter__", "_CurrentDistributionContext.__exit__"),
    why=(
        "An interrupt while a strategy's scope is entered or left leaves the thread in that scope, and TensorFlow "
        "rejects every other strategy."
    ),
    lost="an interrupt may leave a thread in a strategy's scope",
)
LOOPS = Patch(
    "tensorflow.python.distribute.coordinator.cluster_coordinator",
    replaces=(
        "ClusterCoordinator.schedule",
        "ClusterCoordinator.join",
        "ClusterCoordinator.fetch",
        "_CoordinatedClosureQueue.mark_finished",
    ),
    calls=("_CoordinatedClosureQueue._raise_if_error()",),
    reads=("_being_scheduled", "_cluster", "_error", "_queue_lock", "closure_queue"),
    why=(
        "All that an interrupted loop has scheduled goes on behind later cells. And a chief whose workers make its "
        "steps looks like one that hangs."
    ),
    lost="steps that an interrupted loop has scheduled go on",
)
FITS = Patch(
    "keras.src.backend.tensorflow.trainer",
    replaces=("TensorFlowTrainer.fit", "TensorFlowTrainer.evaluate", "TensorFlowTrainer.predict"),
    reads=("_is_parameter_server_strategy_v2",),
    why="Keras 3 cannot train with parameter servers, and fails in the middle of a fit() without a way out.",
    lost="Keras 3 fails in the middle of a fit() with parameter servers",
)


_here: set[int] = set()
"""The port of this rank, where all ranks are on this host."""


def hold_port() -> socket.socket:
    """A socket on a free port of all addresses, kept for a server that sets ``SO_REUSEADDR``, as gRPC does."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
    except OSError:
        held.close()
        raise
    return held


def keep_here(port: int) -> None:
    """Note that all ranks are on this host, so that the server at ``port`` is for them alone."""
    _here.add(port)


def guard_server() -> None:
    """Guard this rank's TensorFlow server, which may just have begun to listen."""
    for port in _here:
        keep_on_loopback(listeners(port))
        end_others(port)


class TensorFlowServers:
    """The server of one rank, and how the chief reaches the others' servers."""

    def __init__(self, config: str, addresses: list[str]) -> None:
        """``config``: this rank's ``TF_CONFIG`` as we have made it; ``addresses``: of all ranks, by rank."""
        self.config = config
        self._addresses = addresses
        self._made: dict[bytes, Any] = {}
        """Servers of this process, by definition. We keep them: collecting a server would stop it."""
        self.steps = 0
        """Number of a chief's steps that its workers have made."""

    def install(self, shield: contextlib.AbstractContextManager[Any]) -> None:
        """Hook the imports of TensorFlow and Keras. ``shield`` delays interrupts."""
        SERVERS.when_imported(self._hook_servers)
        CHIEFS.when_imported(
            lambda module: CHIEFS.replace(module.ParameterServerStrategyV2, "__init__", self._init_strategy)
        )
        TASKS.when_imported(self._serve)
        SCOPES.when_imported(functools.partial(_hook_scope, shield))
        LOOPS.when_imported(self._hook_coordinator)
        FITS.when_imported(_hook_keras)

    @property
    def running(self) -> bool:
        """Whether this rank has a server."""
        return bool(self._made)

    def _serve(self, tensorflow: Any) -> None:
        """Start this rank's server, if its role calls for one and the user has no other plans."""
        if os.environ.get(TF_CONFIG) != self.config:
            return
        config = json.loads(self.config)
        cluster, task = config["cluster"], config["task"]
        if "ps" not in cluster or task["type"] not in SERVING:
            return
        try:
            tensorflow.distribute.Server(
                tensorflow.train.ClusterSpec(cluster),
                job_name=task["type"],
                task_index=task["index"],
                protocol="grpc",
                config=_enough_threads(tensorflow, len(cluster["worker"])),
            )
        except Exception as error:  # noqa: BLE001 — it must not break the import; a chief will report the missing server
            _notify(f"TensorFlow's server of this rank could not start: {error}")

    def _hook_servers(self, module: Any) -> None:
        kind, define = module.Server, module._make_server_def  # noqa: SLF001 — TensorFlow has no public way
        made = self._made

        def known_as(
            server_or_cluster_def: Any,
            job_name: Any = None,
            task_index: Any = None,
            protocol: Any = None,
            config: Any = None,  # noqa: ARG001 — TensorFlow's signature
            start: bool = True,  # noqa: ARG001, FBT001, FBT002
        ) -> bytes:
            found = define(server_or_cluster_def, job_name, task_index, protocol, None)
            found.ClearField("default_session_config")
            return bytes(found.SerializeToString(deterministic=True))

        def new(cls: Any, *_args: Any, **_kwargs: Any) -> Any:
            return object.__new__(cls)

        def __new__(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 — its name is seen in tracebacks
            server = None
            if cls is kind:
                with contextlib.suppress(TypeError, ValueError):  # the user's arguments are wrong: __init__ says so
                    server = made.get(known_as(*args, **kwargs))
            return original(cls) if server is None else server

        def __init__(original: Any, server: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if any(server is one for one in made.values()):
                return
            original(server, *args, **kwargs)
            guard_server()
            if type(server) is kind and not _is_local(server.server_def):
                made[known_as(*args, **kwargs)] = server

        # Python's own __new__ refuses the arguments of an __init__ once a class has a __new__.
        SERVERS.replace(kind, "__new__", __new__, original=new)
        SERVERS.replace(kind, "__init__", __init__)
        SERVERS.replace(kind, "join", _end_cell)

    def _init_strategy(self, original: Any, strategy: Any, cluster_resolver: Any, *args: Any, **kwargs: Any) -> None:
        self.check_chief(cluster_resolver)
        self.await_servers(cluster_resolver)
        original(strategy, cluster_resolver, *args, **kwargs)
        guard_server()

    def _hook_coordinator(self, module: Any) -> None:
        """End everything that an interrupted loop has scheduled: it would go on behind later cells."""
        kind, queue = module.ClusterCoordinator, module._CoordinatedClosureQueue  # noqa: SLF001 — as above

        def mark_finished(original: Any, queue: Any) -> None:
            self.steps += 1
            original(queue)

        for name in ("schedule", "join", "fetch"):
            LOOPS.replace(kind, name, _let_go_when_interrupted)
        LOOPS.replace(queue, "mark_finished", mark_finished)

    def check_chief(self, resolver: Any) -> None:
        """Raise :class:`RuntimeError` where a worker or parameter server would act as chief."""
        role, index = getattr(resolver, "task_type", None), getattr(resolver, "task_id", None)
        if role in SERVING:
            raise meant(
                RuntimeError(
                    f"Only the chief makes a ParameterServerStrategy; this rank is {role} {index}, which works for "
                    f"it. Write it under `if resolver.task_type == 'chief':`, or run the cell with -r 0."
                )
            )

    @raises_on_purpose
    def await_servers(self, resolver: Any) -> None:
        """Wait until all workers and parameter servers listen. Raises :class:`RuntimeError` that names missing ones."""
        cluster = resolver.cluster_spec().as_dict()
        wanted = {address: f"{role} {index}" for role in SERVING for index, address in _tasks(cluster.get(role, []))}
        begun, notified = time.monotonic(), False
        while wanted := {address: task for address, task in wanted.items() if not _listens(address)}:
            waited = time.monotonic() - begun
            missing = ", ".join(self._named(address, task) for address, task in wanted.items())
            if waited > PATIENCE:
                raise meant(
                    RuntimeError(
                        f"No TensorFlow server listens for {missing}. The server starts when that rank imports "
                        "TensorFlow: run `import tensorflow` in a cell on all ranks. If the rank has died, "
                        "%distributed restart replaces it."
                    )
                )
            if waited > NOTIFY_AFTER and not notified:
                notified = True
                _notify(f"Waiting for {missing}: its server starts when that rank imports TensorFlow.")
            time.sleep(POLL)

    def _named(self, address: str, task: str) -> str:
        return f"rank {self._addresses.index(address)} ({task})" if address in self._addresses else f"{task} {address}"


def _hook_scope(shield: contextlib.AbstractContextManager[Any], module: Any) -> None:
    """Make entering or leaving a strategy's scope atomic for interrupts.

    ``schedule`` enters one each time. An interrupt in between would leave the thread in that strategy's scope forever,
    and TensorFlow would reject every other one ("Mixing different tf.distribute.Strategy objects").
    """
    kind = module._CurrentDistributionContext  # noqa: SLF001 — TensorFlow has no public way
    enter, leave = kind.__enter__, kind.__exit__

    # Plain functions: within the guard an interrupt may come in after the scope was entered, or before it is left.
    def __enter__(self: Any) -> Any:  # noqa: N807 — its name is seen in tracebacks
        entered = False
        try:
            with shield:
                strategy = enter(self)
                entered = True
        except BaseException:
            if entered:  # the delayed interrupt
                with shield:
                    leave(self, None, None, None)
            raise
        return strategy

    def __exit__(self: Any, *raised: object) -> None:  # noqa: N807
        with shield:
            leave(self, *raised)

    SCOPES.put(kind, "__enter__", __enter__)
    SCOPES.put(kind, "__exit__", __exit__)


def _end_cell(_original: Any, _server: Any) -> None:
    """End the rank's cell: the server goes on beside the cells. On another thread it returns at once."""
    if threading.current_thread() is not threading.main_thread():
        return
    _notify("server.join() ends this cell; TensorFlow's server of this rank keeps running beside the cells.")
    raise CellEnds("server.join()")


class _LoopInterrupted(InterruptedError):
    """What a coordinator's queue has as its error while it lets go of an interrupted loop's work."""


def _let_go_when_interrupted(original: Any, coordinator: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        _let_go(coordinator)
        return original(coordinator, *args, **kwargs)
    except Exception:
        raise
    except BaseException:  # KeyboardInterrupt, or the exception that ends a cell which catches that
        coordinator.strategy.extended._being_scheduled = False  # noqa: SLF001 — as schedule() leaves it
        _let_go(coordinator, _LoopInterrupted("the loop was interrupted"))
        raise


def _let_go(coordinator: Any, error: _LoopInterrupted | None = None) -> None:
    """As after a failed step: running work is cancelled, waiting work dropped, and the loop may begin again.

    It waits for the running work, and a second interrupt may break into that: so whatever is called next on the
    coordinator lets go of the rest first.
    """
    with contextlib.suppress(Exception):
        queue = coordinator._cluster.closure_queue  # noqa: SLF001
        with queue._queue_lock:  # noqa: SLF001
            queue._error = queue._error or error  # noqa: SLF001
            if error is not None or isinstance(queue._error, _LoopInterrupted):  # noqa: SLF001
                queue._raise_if_error()  # noqa: SLF001


def _hook_keras(module: Any) -> None:
    """Explain at once what Keras 3 cannot do: it would fail in the middle of a fit, without a way out."""
    for name in ("fit", "evaluate", "predict"):
        FITS.replace(module.TensorFlowTrainer, name, _refuse_parameter_servers)


def _refuse_parameter_servers(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = getattr(trainer, "distribute_strategy", None)
    if getattr(strategy, "_is_parameter_server_strategy_v2", False):
        raise meant(RuntimeError(_LEGACY))
    return original(trainer, *args, **kwargs)


def _tasks(addresses: Any) -> list[tuple[int, str]]:
    """Index and address of each task: a cluster has them as a list, or by index."""
    return list(addresses.items() if isinstance(addresses, dict) else enumerate(addresses))


def _is_local(definition: Any) -> bool:
    """Whether ``create_local_server`` made the server, whose ports are its own."""
    return any(address.endswith(":0") for job in definition.cluster.job for address in job.tasks.values())


def _enough_threads(tensorflow: Any, workers: int) -> Any:
    """Server options with a thread for each other task: on few cores TensorFlow takes too few and may block."""
    config = tensorflow.compat.v1.ConfigProto()
    if (os.cpu_count() or 1) < workers + 1:
        config.inter_op_parallelism_threads = workers + 1
    return config


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWER):
            return True
    except (OSError, ValueError):
        return False


def _notify(words: str) -> None:
    sys.stderr.write(f"[jupyter-dtrain] {words}\n")
