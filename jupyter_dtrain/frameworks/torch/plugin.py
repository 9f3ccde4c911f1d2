"""PyTorch in one rank: process groups in :mod:`.groups`, losses in :mod:`.metrics`, pipelines in :mod:`.pipelines`.

Outside a world none of this is active: under torchrun the same cell meets plain torch.
"""

from __future__ import annotations

import ast
import sys
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package
from jupyter_dtrain.core.stacks import Collective
from jupyter_dtrain.core.variables import Variable, values_of
from jupyter_dtrain.core.world import rank_environment
from jupyter_dtrain.frameworks.rendezvous import arriving_in
from jupyter_dtrain.plugins.framework import Doing, Framework
from jupyter_dtrain.plugins.libraries import add_library
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.wire.messages import Watching

from . import contents, held, ring, settings, snapshots, step_parts
from .backends import BACKENDS, built_in, count_gpus
from .builds import BUILDS, hook_builds
from .dataloader_workers import LOADERS, drop_workers, hook_loaders, note_stop
from .declared import TorchOptions
from .flight_recorder import RECORDED, is_pending_on_device, is_unfinished, recorded_collectives
from .groups import GROUPS, TorchGroups
from .metrics import TorchMetrics
from .pipelines import TorchPipelines
from .profiler import LOG, PROFILER, TorchRecording, hook_profilers
from .replicas import hook_wrappers
from .spawn import SPAWN, hook_spawn
from .step_hook import STEPS, StepHook
from .values import number, on_host, read, spread_names
from .waits import call_that_waits, call_that_waits_for_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jupyter_dtrain.core.memory import DeviceMemory
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.plugins.framework import HeldState, Look, Part, Read, Recording, Settable
    from jupyter_dtrain.rank.metrics import MetricBuffer
    from jupyter_dtrain.wire.requests import RankSpec


TESTED = "2.8 and 2.15"
"""The versions that the tests have run with."""


NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of messages of errors that have no class of their own."""

FILES = Patch(
    "torch",
    why="A torch that runs from its sources lies outside the folders of installed packages.",
    lost="tracebacks show frames of torch as if they were yours",
)


class Torch(Framework):
    """The plug-in for PyTorch in one rank."""

    name = "torch"
    rendezvous = "jupyter_dtrain.frameworks.torch.store"
    services = ("/torch/_inductor/compile_worker/",)

    def environment(self) -> dict[str, Variable]:
        """Add to torchrun's variables: NCCL's watchdog must not kill a rank that a release can free.

        The watchdog ends the process when a collective times out, both by default
        (``TORCH_NCCL_ASYNC_ERROR_HANDLING`` 3, by PyTorch's documentation) and under torchrun (1). PyTorch's own abort
        needs 0. The flight recorder records the collectives that each rank has begun; it is off unless it has a size.
        """
        return {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": Variable("0", "NCCL must not end a rank that a release can free"),
            "TORCH_FR_BUFFER_SIZE": Variable(RECORDED, "the flight recorder shows which collective a rank is in"),
        }

    def prepare(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Wait for ``torch`` and ``torch.distributed`` to be imported."""
        self._metrics = TorchMetrics(metrics)
        self._metrics.install()
        self._steps = StepHook()
        self._pipelines = TorchPipelines(self._metrics, metrics)
        self._pipelines.install()
        backend = spec.options_of(self.name, TorchOptions).torch_backend
        own_gpus = spec.gpus_per_rank > 0
        self._groups = TorchGroups(place, spec.generation, backend, spec.address, own_gpus=own_gpus)
        variables = rank_environment(place, master_addr=spec.master_addr, master_port=spec.master_port, run_id="")
        variables |= self.environment()
        FILES.when_imported(_is_library)
        STEPS.when_imported(self._steps.install)
        GROUPS.when_imported(self._groups.hook)
        SPAWN.when_imported(partial(hook_spawn, values_of(variables)))
        hook_wrappers()
        BUILDS.when_imported(hook_builds)
        PROFILER.when_imported(hook_profilers)
        LOADERS.when_imported(partial(hook_loaders, metrics.shield))

    def before_cell(self, generation: int, watch: Watching) -> None:
        """Start recording losses; every rank counts the set-ups of a new generation from 0."""
        self._metrics.begin(watch)
        self._pipelines.begin(on=watch.metrics)
        self._groups.begin_cell(generation)

    def after_cell(self, *, failed: bool) -> None:
        """Record the losses that wait for their optimizer step, and report the last steps of pipelines."""
        self._pipelines.end()
        self._metrics.end()
        self._groups.end_cell(failed=failed)

    def children_ended(self, pids: set[int]) -> None:
        """Data loaders whose persistent workers were ended, or do not come free, start new ones."""
        note_stop()
        if pids:
            drop_workers(pids)

    def describe(self) -> FrameworkReport:
        """Describe PyTorch's build, the devices it finds, and the default group once it is set up."""
        return facts_of_package("PyTorch", "torch", TESTED, partial(_details, self._groups))

    def in_use(self) -> str:
        """PyTorch is in use once it is imported."""
        return "PyTorch" if "torch" in sys.modules else ""

    def configuration(self) -> dict[str, dict[str, Any]]:
        """Return the settings of the optimizers that step in this cell, and its batches."""
        return self._metrics.configuration()

    def steps(self) -> dict[str, int]:
        """Count the steps of the optimizers that record points."""
        return self._metrics.steps()

    def follow_steps(self, call: Callable[[int], object] | None) -> None:
        """Call ``call`` after each step of the optimizer that steps first; None ends that."""
        self._steps.follow(call)

    def stepping(self) -> Any:
        """Return the optimizer that steps first in this cell."""
        return self._steps.optimizer

    def recording(self) -> Recording | None:
        """Return PyTorch's profiler."""
        return TorchRecording() if "torch.autograd.profiler" in sys.modules else None

    def is_log(self, line: str) -> bool:
        """Whether PyTorch's profiler says that it starts or stops."""
        return LOG.match(line) is not None

    def on_host(self, value: Any) -> Any:
        """Copy tensors in lists, tuples and dictionaries to the host; a sharded tensor cannot be copied."""
        torch = sys.modules.get("torch")
        return value if torch is None else on_host(value)

    def parts(self, name: str, value: Any, namespace: Mapping[str, Any]) -> list[Part] | None:
        """Return the parts of a tensor, a model (with gradients and optimizers) or an optimizer."""
        return None if "torch" not in sys.modules else contents.parts(name, value, namespace)

    def setting(self, value: Any, path: str, name: str, namespace: Mapping[str, Any]) -> Settable | None:
        """Set a key of an optimizer's groups of parameters, such as ``lr``, or a tensor with one number."""
        return None if "torch" not in sys.modules else settings.setting(value, path, name, namespace)

    def states(self, namespace: Mapping[str, Any]) -> list[Part]:
        """Return the states of generators, samplers and loaders, and the step counters of optimizers."""
        return [] if "torch" not in sys.modules else contents.states(namespace)

    def save_values(
        self, values: Mapping[str, Any], namespace: Mapping[str, Any], size: int
    ) -> tuple[list[str], dict[str, Any], list[str]]:
        """Save models and optimizers with ``torch.distributed.checkpoint``."""
        return snapshots.save_values(values, namespace, size)

    def misfit(self, values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path) -> str:
        """Name the keys and shapes in which a snapshot differs from the variables of this rank."""
        return snapshots.misfit(values, namespace, folder)

    def load_values(self, values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path) -> list[str]:
        """Load models and optimizers of a snapshot into the variables of this rank."""
        return snapshots.load_values(values, namespace, folder)

    def number(self, value: Any) -> tuple[Any, Read] | None:
        """Accept a tensor with one element, on any device; flushing the metrics reads it."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return None
        return number(value), read

    def holder(self, kind: type) -> Look | None:
        """Look into tensors, models and optimizers."""
        return held.holder(kind)

    def hold(self, namespace: Mapping[str, Any], room: int) -> HeldState | None:
        """Copy this rank's part of modules and optimizers, schedulers, scalers and random states."""
        return None if "torch" not in sys.modules else ring.hold(namespace, room, self._steps.optimizer)

    def devices(self) -> list[DeviceMemory]:
        """Count the memory of the CUDA devices in use, as the caching allocator does."""
        return held.devices()

    def reserved(self) -> int | None:
        """The caching allocator's reserved bytes on all devices, once CUDA is in use.

        The current device is each thread's own: the calling thread knows nothing of the one that user code has set.
        """
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return None
        return sum(int(torch.cuda.memory_reserved(device)) for device in range(torch.cuda.device_count()))

    def is_out_of_memory(self, exception: BaseException) -> bool:
        """Whether torch lacked memory: the GPU allocator has an error class of its own, others have only messages."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(exception, RuntimeError):
            return False
        return isinstance(exception, torch.OutOfMemoryError) or any(words in str(exception) for words in NO_MEMORY)

    def free_memory(self) -> None:
        """Empty the caching allocator of the GPU, once CUDA is in use."""
        if self.reserved() is not None:
            sys.modules["torch"].cuda.empty_cache()

    def needs_regroup(self) -> bool:
        """Whether, in the last cell, a set-up failed on this rank or its groups were released."""
        return self._groups.unusable

    def is_apart(self) -> bool:
        """Whether the cell began a collective (``async_op=True``, FSDP's, DeepSpeed's) and did not wait for it."""
        return is_unfinished(self._groups.made_at)

    def waits(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> str:
        """Name the call in which the rank waits: a collective, DDP's backward, a set-up, or one that awaits the GPU."""
        on_device = self._groups.on_device
        found = call_that_waits(frame, call, on_device=on_device) if idle or arriving_in(frame) else ""
        if found or not on_device:
            return found
        found = call_that_waits_for_device(frame, call)
        return found if found and is_pending_on_device(self._groups.made_at) else ""

    def part_of(self, code: CodeType) -> Doing | None:
        """Loaders, modules, backward passes, optimizers, collectives and saved files."""
        return step_parts.part_of(code)

    def part_at(self, frame: FrameType, call: ast.Call | None) -> Doing | None:
        """``work.wait()``, and what waits for a device or copies to it."""
        return step_parts.part_at(frame, call)

    def sleeps(self, part: str) -> str:
        """DDP waits in the backward pass for gloo's reductions. With a GPU the main thread waits for autograd's own."""
        dist: Any = sys.modules.get("torch.distributed")
        if part != "backward" or dist is None or not dist.is_available() or not dist.is_initialized():
            return ""
        return "" if self._groups.on_device or dist.get_world_size() <= 1 else "all_reduce"

    def collectives(self) -> list[Collective]:
        """Return the collectives in torch's flight recorder."""
        return recorded_collectives(self._groups.made_at)

    def release(self) -> None:
        """Close the connections of gloo's groups, and abort NCCL's groups."""
        self._groups.release()

    def forbids_fewer(self) -> str:
        """Forbid fewer ranks while a model or tensor is sharded: it would lose the shards of the ranks that end."""
        return spread_names()

    def bequeath(self) -> str:
        """Return how this rank makes the default group, for a new rank; empty where it cannot be made again."""
        return self._groups.bequeath()

    def inherit(self, heritage: dict[int, str]) -> None:
        """Import torch now, and join the others' group in the next :meth:`recover`; if they made it alike."""
        if len(plans := set(heritage.values())) == 1:
            import torch.distributed

            if torch.distributed.is_available():
                self._groups.inherit(plans.pop())

    def rejoin(self) -> None:
        """Have DDP modules begin anew in the next recovery, as those that a new rank gets."""
        self._groups.rejoin()

    def recover(self, bound: frozenset[str]) -> list[str]:
        """Set up the default group again with its old arguments, and the DDP modules that used it."""
        return self._groups.recover(bound)


def _is_library(torch: Any) -> None:
    add_library(str(Path(torch.__file__).parent))


def _details(groups: TorchGroups, torch: Any) -> dict[str, str]:
    """Describe torch, which is imported already, in this rank. It asks CUDA nothing that would fix the rank's GPUs."""
    found = {"built for": _built_for(torch)}
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        found["backends"] = "none: built without torch.distributed"
    else:
        has = built_in(dist)
        lacks = [name for name in BACKENDS if name not in has]
        found["backends"] = f"{', '.join(has)}: not built in: {', '.join(lacks)}" if lacks else ", ".join(has)
        if "nccl" in has:
            found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["init_process_group()"] = "{}: {}".format(*groups.backends.choose())
        found["process group"] = _default_group(dist)
    found["GPUs"] = str(count_gpus())
    found["threads"] = str(torch.get_num_threads())
    return found


def _built_for(torch: Any) -> str:
    names = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}
    built = [f"{name} {version}" for key, name in names.items() if (version := getattr(torch.version, key, None))]
    return ", ".join(built) or "CPUs only"


def _default_group(dist: Any) -> str:
    if not dist.is_initialized():
        return "none"
    backend = dist.get_backend_config() if hasattr(dist, "get_backend_config") else dist.get_backend()
    return f"{backend}, {dist.get_world_size()} ranks"
