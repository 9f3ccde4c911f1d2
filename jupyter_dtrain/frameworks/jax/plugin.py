"""JAX in one rank: its processes (:mod:`.groups`), waits for them (:mod:`.waits`), and its numbers.

Outside a world none of this is active: the same cell meets plain JAX. JAX has no call that reveals losses;
``jupyter_dtrain.log`` takes its arrays as they are, in a loop and in ``jax.debug.callback``.

Under failure: another version of JAX, without the parts that this module patches, stays unchanged.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package, imported
from jupyter_dtrain.core.gpus import count_gpus
from jupyter_dtrain.core.memory import DeviceMemory
from jupyter_dtrain.core.variables import Variable, given
from jupyter_dtrain.plugins.framework import Doing, Framework, user_names
from jupyter_dtrain.plugins.patches import Patch

from . import contents
from .groups import PROCESSES, JaxGroups
from .profiler import PROFILER, JaxRecording, hook_profilers
from .rendezvous import meeting_in
from .waits import PATIENCE_FAILED, call_that_waits, has_backend, part_at, part_of, settle

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.plugins.framework import Look, Part, Read, Recording
    from jupyter_dtrain.wire.requests import RankSpec

TESTED = "0.10 and 0.12"
"""The versions that the tests have run with."""


NO_MEMORY = "RESOURCE_EXHAUSTED"
"""XLA's word for too little memory."""

MEMORY = (
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
"""The variables by which JAX learns how much of a GPU's memory to take."""

GPUS = Patch(
    "jax._src.xla_bridge",
    calls=("CUDA_VISIBLE_DEVICES.value", "config.update"),
    why="Every rank takes three quarters of the memory of each GPU of its host.",
    lost="each rank takes all GPUs of its host",
)
BACKENDS = Patch(
    "jax._src.xla_bridge",
    calls=("_backends",),
    why="JAX's public functions for its devices make a backend, for which the ranks wait for each other.",
    lost="%distributed info and memory do not show JAX's devices",
)


class Jax(Framework):
    """The plug-in for JAX in one rank."""

    name = "jax"
    server = "jupyter_dtrain.frameworks.jax.coordinator" if importlib.util.find_spec("jax") is not None else None

    def prepare(self, place: Placement, spec: RankSpec) -> None:
        """Wait for ``jax`` to be imported."""
        self._groups = JaxGroups(place, spec.generation, spec.desk_of(self.name))
        self._place, self._temporary = place, f"dtrain-{spec.world_id}-arrays-"
        PROCESSES.when_imported(self._groups.hook)
        PROFILER.when_imported(hook_profilers)
        if not spec.gpus_per_rank:  # then the rank sees its own, and no others
            GPUS.when_imported(partial(_see_own_gpu, place))

    def parts(self, name: str, value: Any) -> list[Part] | None:
        """Return the parts of an array, or of a tree of arrays that Python's own containers do not make up."""
        return None if not imported("jax") else contents.parts(name, value)

    def holder(self, kind: type) -> Look | None:
        """Look into arrays."""
        return contents.holder(kind)

    def devices(self) -> list[DeviceMemory]:
        """Count the memory of this rank's GPUs, as XLA's allocator does."""
        return _memory_of_devices()

    def before_cell(self, generation: int) -> None:
        """Count the set-ups of a new generation from 0, on every rank."""
        self._groups.begin_cell(generation)

    def after_cell(self, *, failed: bool) -> None:
        """Wait until the cell's computations have ended and their logged values have arrived.

        A failed cell's computations may have no counterpart on other ranks: a release ends them after a while.
        """
        jax: Any = imported("jax")
        if jax is None:
            return
        patience = PATIENCE_FAILED if failed else math.inf
        if self._groups.is_up and not settle(lambda: self._groups.unusable, patience):
            self._groups.release()
        if not self._groups.unusable:
            jax.effects_barrier()

    def recording(self) -> Recording | None:
        """Return JAX's profiler, once there is a backend: the profiler would make one, and wait for other ranks."""
        return JaxRecording() if imported("jax") is not None and has_backend() else None

    def describe(self) -> FrameworkReport:
        """Describe JAX's backends and processes, once they exist."""
        return facts_of_package("JAX", "jax", TESTED, _details)

    def is_log(self, line: str) -> bool:
        """Whether ``line`` is the one that gloo prints when ranks have connected."""
        return line.startswith("[Gloo] Rank ")

    def in_use(self) -> str:
        """JAX is in use once it is imported."""
        return "JAX" if "jax" in sys.modules else ""

    def on_host(self, value: Any) -> Any:
        """Turn an array that is wholly on this rank into numpy's. Raises :class:`ValueError` for any other array."""
        jax: Any = sys.modules.get("jax")
        if jax is None:
            return value
        return _moved(jax, value)

    def save_values(self, values: Mapping[str, Any], size: int) -> tuple[list[str], dict[str, Any]]:
        """Save arrays that are spread over ranks, and trees with one."""
        if imported("jax") is None or not self._groups.is_up:
            return [], {}
        from . import snapshots  # it imports numpy

        return snapshots.save_values(values, size, f"{self._temporary}{self._place.rank}-")

    def misfit(self, values: Mapping[str, Any], folder: Path) -> str:
        """Name the leaves of the saved trees that do not fit the variables."""
        from . import snapshots

        return snapshots.misfit(values, folder)

    def load_values(self, values: Mapping[str, Any], namespace: MutableMapping[str, Any], folder: Path) -> None:
        """Load saved arrays and trees into the variables of this rank."""
        from . import snapshots

        snapshots.load_values(values, namespace, folder)

    def number(self, value: Any) -> tuple[Any, Read] | None:
        """Accept an array with one element, on any device; flushing the metrics reads it."""
        jax: Any = sys.modules.get("jax")
        if jax is None or not isinstance(value, jax.Array):
            return None
        if isinstance(value, jax.core.Tracer):
            words = "a value inside jax.jit is no number yet: log it from jax.debug.callback"
            raise ValueError(words)  # noqa: TRY004 — the caller shows it to the user
        if value.size != 1:
            raise ValueError(f"an array of shape {value.shape} is not one number")
        return value, _read

    def is_out_of_memory(self, exception: BaseException) -> bool:
        """Whether XLA lacked memory, by the error's text: XLA raises one class for all its errors, on GPU and host."""
        return type(exception).__name__ in {"JaxRuntimeError", "XlaRuntimeError"} and NO_MEMORY in str(exception)

    def needs_regroup(self) -> bool:
        """Whether, in the last cell, a set-up failed on this rank or it was released."""
        return self._groups.unusable

    def waits(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> str:
        """Name the call in which the rank waits: a jitted function, the read of an array, or a set-up of JAX."""
        if found := meeting_in(frame):
            return found
        looks = frame.f_code is settle.__code__  # it polls, so it uses some processor time
        return call_that_waits(frame, call) if (idle or looks) and self._groups.is_up else ""

    def part_of(self, code: CodeType) -> Doing | None:
        """Jitted functions, waits for what they compute, and what ranks do together."""
        return part_of(code)

    def part_at(self, frame: FrameType, call: ast.Call | None) -> Doing | None:
        """Jitted functions, which have no frames of their own, and values that JAX computes."""
        return part_at(frame, call)

    def release(self) -> None:
        """Close gloo's connections, and end the waits at the coordinator."""
        self._groups.release()

    def cannot_heal(self) -> str:
        """Say why no new rank can join: a new process has no part in the other ranks' set-up of JAX."""
        if not self._groups.is_up:
            return ""
        return "JAX's set-up does not reach a new process: call jax.distributed.initialize() again on all ranks"

    def forbids_fewer(self) -> str:
        """Forbid fewer ranks while an array is sharded over them: it would lose the shards of those that end."""
        jax: Any = sys.modules.get("jax")
        if jax is None or not self._groups.is_up:
            return ""
        names = [
            name
            for name, value in user_names()
            if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated)
        ]
        return f"each rank holds only a part of {', '.join(names)}" if names else ""

    def recover(self) -> list[str]:
        """Set up JAX's processes as before, and keep the arrays in the user's variables."""
        return self._groups.recover()


def _see_own_gpu(place: Placement, bridge: Any) -> None:
    """Give this rank one GPU of the host, unless the cell chooses GPUs after it has imported JAX.

    The only rank of a host keeps all of them. JAX takes three quarters of a GPU's memory at its first use. Ranks that
    share a GPU divide that.
    """
    config = bridge.config
    if bridge.CUDA_VISIBLE_DEVICES.value != "all":
        return
    gpus = count_gpus()
    if gpus > 1 and place.local_size > 1:
        config.update("jax_cuda_visible_devices", str(place.local_rank % gpus))
    given.offer(memory_variables(place, gpus), Jax.name)


def memory_variables(place: Placement, gpus: int) -> dict[str, Variable]:
    """The share of its GPU's memory that JAX takes in the rank at ``place``, on a host with so many ``gpus``.

    Empty where the rank has a GPU of its own, or none, and where the user has said what JAX is to take.
    """
    sharing = -(-place.local_size // gpus) if gpus else 1
    if sharing == 1 or any(name in os.environ for name in MEMORY):
        return {}
    share = Variable(f"{0.75 / sharing:.3f}", f"JAX would take 0.75 of a GPU that {sharing} ranks share")
    return {MEMORY[0]: share}


def _read(values: Sequence[Any]) -> list[float]:
    return [float(value.reshape(())) for value in values]


def _moved(jax: Any, value: Any) -> Any:
    if type(value) is dict:  # JAX would sort its keys, and ranks should see one order
        return {key: _moved(jax, item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_moved(jax, item) for item in value)
    if isinstance(value, jax.Array):
        return _on_host(jax, value)
    if jax.tree_util.all_leaves([value]):
        return value
    return jax.tree.map(lambda one: _moved(jax, one), value, is_leaf=lambda one: one is not value)


def _on_host(jax: Any, leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        raise ValueError("the array is spread over ranks, so no rank has all of it")
    return jax.device_get(leaf)


def _memory_of_devices() -> list[DeviceMemory]:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    found = []
    for client in list(getattr(bridge, "_backends", {}).values()):
        for device in client.local_devices() if client.platform != "cpu" else ():
            stats = device.memory_stats() or {}
            used, pool = stats.get("bytes_in_use", 0), stats.get("pool_bytes", 0)
            found.append(DeviceMemory(str(device), used, pool, stats.get("peak_bytes_in_use", 0)))
    return found


def _details(_: ModuleType) -> dict[str, str]:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    distributed: Any = sys.modules.get("jax._src.distributed")
    found = {"processes": "1: jax.distributed.initialize() joins the other ranks"}
    state = getattr(distributed, "global_state", None)
    if state is not None and state.client is not None:
        found = {"processes": f"{state.num_processes}; this one is {state.process_id}"}
    backends = getattr(bridge, "_backends", {})
    names = [f"{name} ({client.local_device_count()} of {client.device_count()})" for name, client in backends.items()]
    return found | {"devices of this rank": ", ".join(names) or "none yet: the first computation finds them"}
