"""Numbers from TensorFlow's tensors, and losses from ``GradientTape.gradient`` without a line of logging code.

The target of a tape's gradient, if it is one number, is the loss. Its series is named after the variable at the call;
its step counts the calls in the cell. Tracing a function calls the tape only once, so there a few operations write
each step's loss into a ring inside TensorFlow, which is read when metrics are flushed. They take some microseconds,
wait for nothing and run no Python.

Four kinds of tapes do not count: those within Keras' own training (its ``fit`` reports its losses itself), those of
replicas other than the first, those of functions that XLA compiles, whose operations could not reach the ring, and
those of a chief's functions, which run on its workers. For the last kind the cell says so, with the line that shows
their losses.

Under failure: the first error is shown once; the user's training goes on.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.plugins.patches import Patch, caller
from jupyter_dtrain.plugins.sources import executing_at

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer

RINGS: Final = 256
"""The largest number of traced functions whose losses are taken; a note reports any more."""
RING: Final = 1 << 14
"""The largest number of steps whose losses wait for a flush; then the oldest are dropped."""
LOSS: Final = "loss"
"""The name of the series for values without a name."""
ELSEWHERE: Final = (
    "Metrics: the losses of a chief's steps are on its workers. Log what you fetch: "
    "jupyter_dtrain.log(loss=coordinator.fetch(value))."
)
KERAS: Final = ("keras", "tf_keras")
_BACKPROP = "tensorflow.python.eager.backprop"
_GENERATED = "__autograph_generated_file"
_LIBRARIES = ("tensorflow", *KERAS)

TAPES = Patch(
    "tensorflow",
    replaces=("GradientTape.gradient",),
    reads=("_replica_id", "get_server_def", "GraphOrParentsInXlaContext"),
    why=(
        "A loop of the user's own tells its losses to nobody. The target of a tape's gradient is the loss; private "
        "parts tell whether this rank's first replica runs the step, outside XLA."
    ),
    lost="losses given to GradientTape.gradient() are not shown",
)


def number(value: Any) -> tuple[Any, Any] | None:
    """The number in a tensor or variable with one element, and the function that reads it; else None.

    Raises :class:`ValueError` for a tensor that is no number: one with several elements, with text, or of a function
    that is being traced.
    """
    tensorflow: Any = sys.modules["tensorflow"]
    if not isinstance(value, (tensorflow.Tensor, tensorflow.Variable)):
        return None
    if not hasattr(value, "numpy"):
        raise ValueError("it is in a function that is being traced, and has no value yet")
    if value.shape.num_elements() != 1:
        raise ValueError(f"it has the shape {tuple(value.shape)}: log one number, such as tf.reduce_mean(...)")
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
        raise ValueError(f"it has the type {value.dtype.name}, which is not a number")
    # A variable may have changed by the time it is read.
    return tensorflow.identity(value), read


def read(tensors: Sequence[Any]) -> list[float]:
    """The numbers of tensors that :func:`number` returned; waits for their devices."""
    return [float(tensor.numpy().item()) for tensor in tensors]


class _Ring:
    """One call in a traced function: its losses, and how many were written. TensorFlow holds both, by name."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self._shared = f"jupyter_dtrain/loss/{number}"
        self._device = ""
        self._seen = 0

    def make(self, tensorflow: Any) -> None:
        """Make both variables, outside the traced function."""
        with tensorflow.init_scope(), tensorflow.device("CPU:0"):
            raw = tensorflow.raw_ops
            handles = self._handles(tensorflow)
            raw.AssignVariableOp(resource=handles[0], value=tensorflow.zeros([RING], tensorflow.float32))
            raw.AssignVariableOp(resource=handles[1], value=tensorflow.zeros([], tensorflow.int64))

    def write(self, tensorflow: Any, value: Any) -> None:
        """Add the operations that write ``value`` to the traced function."""
        with tensorflow.device("CPU:0"):
            raw = tensorflow.raw_ops
            values, count = self._handles(tensorflow)
            number = tensorflow.cast(tensorflow.reshape(tensorflow.stop_gradient(value), []), tensorflow.float32)

            def add() -> Any:
                written = raw.ReadVariableOp(resource=count, dtype=tensorflow.int64)
                scattered = raw.ResourceScatterUpdate(resource=values, indices=written % RING, updates=number)
                with tensorflow.control_dependencies([scattered] if scattered is not None else []):
                    raw.AssignAddVariableOp(resource=count, value=tensorflow.constant(1, tensorflow.int64))
                return tensorflow.constant(0)

            # A saved function may run in a process that has not made them.
            there = raw.VarIsInitializedOp(resource=count)
            tensorflow.cond(there, add, lambda: tensorflow.constant(0))

    def news(self, tensorflow: Any) -> list[float]:
        """The losses written since the last look, without those that were overwritten since."""
        with tensorflow.init_scope(), tensorflow.device("CPU:0"):
            values, count = self._handles(tensorflow)
            written = int(tensorflow.raw_ops.ReadVariableOp(resource=count, dtype=tensorflow.int64))
            fresh = range(max(self._seen, written - RING), written)
            if not fresh:
                return []
            ring = tensorflow.raw_ops.ReadVariableOp(resource=values, dtype=tensorflow.float32).numpy()
        self._seen = written
        return [float(ring[number % RING]) for number in fresh]

    def _handles(self, tensorflow: Any) -> tuple[Any, Any]:
        # By name: a function that captured the variables could not be saved.
        handle = tensorflow.raw_ops.VarHandleOp
        return (
            handle(shape=[RING], dtype=tensorflow.float32, shared_name=f"{self._shared}/values"),
            handle(shape=[], dtype=tensorflow.int64, shared_name=f"{self._shared}/count"),
        )


class TensorFlowMetrics:
    """Records the losses of gradient tapes in one rank."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics
        self._rings: list[_Ring] = []
        self._made = 0
        self._tensorflow: Any = None
        self._on = False
        metrics.before_flush(self._collect)

    def begin(self, *, on: bool) -> None:
        """Start a cell; ``on``: whether the cell shows its losses."""
        self._on = False
        self._news()
        self._on = on
        if self._rings:
            self._keep_looking()

    def end(self) -> None:
        """End the cell."""
        self._collect()
        self._on = False

    def hook(self, tensorflow: ModuleType) -> None:
        """Patch TensorFlow, which was just imported."""
        self._tensorflow = tensorflow
        TAPES.replace(tensorflow.GradientTape, "gradient", self._gradient)

    def _gradient(self, original: Any, tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            self._hear(target, caller())
        except Exception as error:  # noqa: BLE001 — each run says what it does not show
            self._metrics.complain(f"Metrics: a loss could not be read: {type(error).__name__}: {error}", kind="tape")
        return original(tape, target, *args, **kwargs)

    def _hear(self, target: Any, frame: FrameType | None) -> None:
        tensorflow = self._tensorflow
        if not isinstance(target, tensorflow.Tensor) or not target.dtype.is_floating:
            return
        if target.shape.num_elements() != 1 or _in_keras(frame):
            return
        if frame is not None and frame.f_globals.get("__name__") == _BACKPROP:
            return  # a jacobian's
        if hasattr(target, "numpy"):
            if self._on:
                self._metrics.add(_name(frame) or LOSS, tensorflow.stop_gradient(target), read=read)
        elif _runs_elsewhere():
            if self._on:
                self._metrics.complain(ELSEWHERE)
        elif not _in_xla(tensorflow) and _is_first_replica(tensorflow):
            if self._made == RINGS:
                words = f"Metrics: only {RINGS} traced functions can show losses: %distributed restart makes room"
                self._metrics.complain(words, kind="rings")
                return
            ring = _Ring(_name(frame) or LOSS, self._made)
            self._made += 1
            ring.make(tensorflow)
            ring.write(tensorflow, target)
            self._rings.append(ring)
            self._keep_looking()

    def _collect(self) -> None:
        now = self._metrics.now()
        for name, value in self._news():
            self._metrics.add(name, value, at=now)
        if self._rings:
            self._keep_looking()

    def _keep_looking(self) -> None:
        """Look at the rings regularly: TensorFlow does not call us when a traced function has written to one."""
        if self._on:
            self._metrics.expect(1)

    def _news(self) -> list[tuple[str, float]]:
        news: list[tuple[str, float]] = []
        for ring in list(self._rings):
            try:
                news += [(ring.name, value) for value in ring.news(self._tensorflow)]
            except Exception as error:  # noqa: BLE001 — TensorFlow was reset, or cannot execute eagerly any more
                self._rings.remove(ring)
                self._metrics.complain(f"Metrics: the losses of {ring.name} cannot be read: {error}", kind="tape")
        return news if self._on else []


def _runs_elsewhere() -> bool:
    """Whether traced functions may run in processes without our variables: a chief's run on its workers."""
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    served = context.get_server_def() if hasattr(context, "get_server_def") else None
    return served is not None and any(job.name == "ps" for job in served.cluster.job)


def _in_keras(frame: FrameType | None) -> bool:
    """Whether Keras is training, so that its callbacks report the losses."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in KERAS:
            return True
        frame = frame.f_back
    return False


def _in_xla(tensorflow: Any) -> bool:
    module: Any = sys.modules.get("tensorflow.python.ops.control_flow_util")
    asks = getattr(module, "GraphOrParentsInXlaContext", None)
    return asks is None or bool(asks(tensorflow.compat.v1.get_default_graph()))


def _is_first_replica(tensorflow: Any) -> bool:
    context = tensorflow.distribute.get_replica_context()
    number = getattr(context, "_replica_id", 0)
    return not isinstance(number, int) or number == 0


def _name(frame: FrameType | None) -> str:
    """The variable given to ``gradient`` as target, where the nearest user code names it; else empty."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    if frame is None:
        return ""
    with contextlib.suppress(Exception):
        node: Any = executing_at(frame).node
        if _GENERATED not in frame.f_code.co_filename:
            return _variable(node.args[0])
        # AutoGraph has rewritten the call: it passes the method, and the arguments as a tuple of loads.
        return _variable(node.args[1].elts[0].args[0])
    return ""


def _variable(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
