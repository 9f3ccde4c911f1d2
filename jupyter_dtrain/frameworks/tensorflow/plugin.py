"""TensorFlow in one rank: strategies of several ranks (:mod:`.collectives`), and the device that it may use.

``MultiWorkerMirroredStrategy`` spans the world by ``TF_CONFIG``, which :mod:`.cluster` writes. Outside a world none of
this is active: in processes with a ``TF_CONFIG`` of their own, the same cell meets plain TensorFlow.
"""

from __future__ import annotations

import math
import os
import re
import sys
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.contents import PartSummary
from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package, imported
from jupyter_dtrain.core.memory import HOST, DeviceMemory
from jupyter_dtrain.core.variables import Variable
from jupyter_dtrain.plugins.framework import Doing, Framework, Holds, Part, TensorMemory
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank.contents import ArrayPart, asarray
from jupyter_dtrain.wire.messages import Watching

from .collectives import COLLECTIVES, Collectives
from .declared import RELEASED
from .keras_fit import FITS, KerasTrainer
from .metrics import TAPES, TensorFlowMetrics, number
from .waits import call_that_waits, part_of

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.plugins.framework import Look, Read
    from jupyter_dtrain.rank.metrics import MetricBuffer
    from jupyter_dtrain.wire.requests import RankSpec

TESTED = "2.21"
"""The version that the tests run with."""

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_HARMLESS = r"failed call to cuInit|Unable to register cu|Aborting \w+ with CANCELLED|" + RELEASED
"""Parts of error lines that report no error: no GPU; a library loaded twice; the effect of a release on every rank."""
_LOGGING = {"tensorflow", "jaxlib"}
"""Modules whose native code logs in that way."""
_LOG = re.compile(
    rf"[IW]\d{{4}} [\d:.]+ +\d+ \S+\.(?:cc|h):\d+\]|E\d{{4}} [\d:.]+ +\d+ \S+:\d+\] .*({_HARMLESS})"
    rf"|[\d-]+ [\d:.]+: (?:[IW] (?:tensorflow|external|xla)/|E \S+:\d+\] .*({_HARMLESS}))"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: "
    # Later lines of longer messages.
    r"|The error could be from a previous operation\. Restart your program|\t \[\[\{\{node "
    r"|Additional GRPC error information from remote target|:UNKNOWN:Error received from peer"
)
"""Matches the beginning of TensorFlow's native log lines, in the forms before and after logging is set up."""
_WITH_OPTIONS = re.compile(r"SessionOptions: |goo\.gle/debugstr")
"""Parts of log lines that a protocol buffer follows: a server writes so when a parameter server's chief connects."""
_OPTION = re.compile(r"\s*(?:\w+: .*|\w+ \{|\}|)\s*")
"""A line of such a buffer; an empty one ends it."""

DEVICES = Patch(
    "tensorflow.python.eager.context",
    reads=("_context", "_initialized", "_num_gpus"),
    why="TensorFlow's public functions for its devices and their memory start TensorFlow where no cell has used it.",
    lost="%distributed info and the memory in use do not show TensorFlow's devices",
)


class TensorFlow(Framework):
    """The plug-in for TensorFlow in one rank."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._collectives = Collectives()
        self._keras = KerasTrainer()
        self._shows_logs = LOG_LEVEL in os.environ
        self._in_options = False
        """Whether the last line of the log is of a protocol buffer, or announces one."""

    def environment(self) -> dict[str, Variable]:
        """Have TensorFlow take GPU memory as it needs it, because other frameworks and ranks use the same GPUs."""
        return {"TF_FORCE_GPU_ALLOW_GROWTH": Variable("true", "TensorFlow would take all GPU memory at once")}

    def prepare(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Wait for ``tensorflow`` to be imported."""
        if not spec.gpus_per_rank:  # then the rank sees its own, and no others
            self._collectives.before_use(partial(_see_own_gpu, place))
        self._metrics = TensorFlowMetrics(metrics)
        COLLECTIVES.when_imported(self._collectives.hook)
        TAPES.when_imported(self._metrics.hook)
        FITS.when_imported(self._keras.hook)

    def before_cell(self, run: int, watch: Watching) -> None:
        """Start recording losses; every cell counts its strategies from 0."""
        self._metrics.begin(on=watch.metrics)
        self._collectives.begin_cell(run)

    def after_cell(self) -> None:
        """Record the losses that traced functions have written."""
        self._metrics.end()

    def describe(self) -> FrameworkReport:
        """Describe the devices in use, this rank's task in the cluster, and whether collectives work."""
        return facts_of_package("TensorFlow", "tensorflow", TESTED, self._details)

    def in_use(self) -> str:
        """TensorFlow is in use once it is imported."""
        return "TensorFlow" if "tensorflow" in sys.modules else ""

    def number(self, value: Any) -> tuple[Any, Read] | None:
        """Accept a tensor or variable with one element, on any device; flushing the metrics reads it."""
        return None if imported("tensorflow") is None else number(value)

    def parts(self, name: str, value: Any) -> list[Part] | None:
        """Return a tensor or variable as numpy's array; other kinds of tensors have no values in this rank."""
        tensorflow = sys.modules.get("tensorflow")
        if not imported("tensorflow") or tensorflow is None:
            return None
        if not isinstance(value, (tensorflow.Tensor, tensorflow.Variable)) or not hasattr(value, "numpy"):
            return None
        shape, dtype = list(value.shape), value.dtype
        device = value.device.rpartition("device:")[2].lower()
        kind, size = type(value).__name__, math.prod(shape) * dtype.size
        facts = PartSummary(name, "value", kind, shape, dtype.name, device, size=size)
        return [ArrayPart(facts, lambda: asarray(value.numpy()))]

    def holder(self, kind: type) -> Look | None:
        """Look into tensors and variables that have values in this rank."""
        tensorflow: Any = imported("tensorflow")
        known = tensorflow is not None and issubclass(kind, (tensorflow.Tensor, tensorflow.Variable))
        return _look_into if known and hasattr(kind, "numpy") else None

    def devices(self) -> list[DeviceMemory]:
        """Count the memory of the GPU, once it is in use."""
        if self.reserved() is None:
            return []
        found = _context().get_memory_info("GPU:0")
        return [DeviceMemory("gpu:0", int(found["current"]), 0, int(found["peak"]))]

    def reserved(self) -> int | None:
        """The bytes that the GPU's allocator has given out, once the GPU is in use."""
        context: Any = _context()
        if context is None or not context._initialized or not context._num_gpus:  # noqa: SLF001 — public ones start it
            return None
        return int(context.get_memory_info("GPU:0")["current"])

    def is_out_of_memory(self, exception: BaseException) -> bool:
        """Whether TensorFlow lacked memory: it raises the same error on a GPU and on the host."""
        errors: Any = imported("tensorflow.python.framework.errors_impl")
        return errors is not None and isinstance(exception, errors.ResourceExhaustedError)

    def is_log(self, line: str) -> bool:
        """Native messages below the level of an error are logs, unless the user has set ``TF_CPP_MIN_LOG_LEVEL``.

        A cell that sets the variable to 0 shows everything; other values do not count, because JAX sets the variable
        when it is imported. Other libraries write such lines too: they show where no library of ``_LOGGING`` is
        imported.
        """
        if self._shows_logs or sys.modules.keys().isdisjoint(_LOGGING) or os.environ.get(LOG_LEVEL) == "0":
            return False
        if _LOG.match(line) is not None:
            self._in_options = _WITH_OPTIONS.search(line) is not None
            return True
        if not self._in_options or _OPTION.fullmatch(line) is None:
            self._in_options = False
            return False
        self._in_options = not line.isspace()
        return True

    def needs_regroup(self) -> bool:
        """Whether a release has aborted the collectives."""
        return self._collectives.released

    def is_apart(self) -> bool:
        """Whether a failed cell had collectives: the ranks' counts of them may differ."""
        return self._collectives.has_begun()

    def waits(self, frame: FrameType, *, idle: bool) -> str:
        """Name the call in which the rank waits: a traced function, an operation, or the making of a strategy."""
        return call_that_waits(frame) if idle and self._collectives.ready else ""

    def part_of(self, code: CodeType) -> Doing | None:
        """Traced functions, with the collectives in them; datasets, and saved models."""
        return part_of(code)

    def release(self) -> None:
        """Abort the collectives of this rank."""
        self._collectives.release()

    def forbids_heal(self) -> str:
        """Forbid new ranks while this rank's server runs: the processes of a cluster know each other by address."""
        if self._collectives.task() is None:
            return ""
        return "TensorFlow's servers know each other by address, and a new process has another one"

    def recover(self) -> list[str]:
        """Start the collectives anew; strategies and the objects made with them stay usable."""
        self._collectives.recover()
        return []

    def _details(self, tensorflow: ModuleType) -> dict[str, str]:
        context = _context()
        used = getattr(context, "_initialized", False)
        devices = ", ".join(device.name.partition("device:")[2] for device in _devices(tensorflow)) if used else ""
        found = {"devices": devices or "none yet: TensorFlow has not been used", "collectives": self._state()}
        return found | ({"Keras 3": self._keras.state} if self._keras.state else {})

    def _state(self) -> str:
        task = self._collectives.task()
        if task is not None:
            strategies = len(self._collectives.strategies)
            role, number, size = task
            return f"task {role} {number} of {size}; {strategies} strategies of several ranks in use"
        problem = self._collectives.problem
        return f"none: {problem}" if problem else "none: TF_CONFIG names no other rank, or TensorFlow has not been used"


def _look_into(value: Any, _still: bool, /) -> Holds:  # noqa: FBT001 — as the contract has it
    shape, dtype = tuple(value.shape), value.dtype
    device = value.device.rpartition("device:")[2].lower()
    size = math.prod(shape) * dtype.size
    device = HOST if device.startswith("cpu") else device
    return Holds(TensorMemory(("tensorflow", id(value)), size, type(value).__name__, shape, dtype.name, device))


def _see_own_gpu(place: Placement, context: Any) -> None:
    """Give this rank one GPU of the host, unless the user has chosen GPUs before TensorFlow's first use.

    The only rank of a host keeps all of them, for ``MirroredStrategy``.
    """
    gpus = context.list_physical_devices("GPU")
    if len(gpus) > 1 and place.local_size > 1 and set(gpus) <= set(context.get_visible_devices("GPU")):
        context.set_visible_devices([gpus[place.local_rank % len(gpus)]], "GPU")


def _context() -> Any:
    module: Any = imported("tensorflow.python.eager.context")
    return getattr(module, "_context", None)


def _devices(tensorflow: Any) -> list[Any]:
    return list(tensorflow.config.list_logical_devices())
