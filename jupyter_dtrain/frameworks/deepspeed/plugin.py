"""DeepSpeed in one rank: without its launcher, with or without a compiler, and again after torch has made new groups.

``deepspeed.initialize`` finds the rank by its environment. Beyond that:

* On hosts without a GPU the plug-in sets ``DS_ACCELERATOR=cpu``, so that DeepSpeed need not search and warn.
* DeepSpeed compiles its operations once on each host, for half a minute or more; a bar counts the seconds meanwhile
  (see :mod:`jupyter_dtrain.frameworks.torch.builds`). Without a compiler it does without its shared-memory
  communication, which only speeds up inference; an operation that needs a compiler raises an error with the fix.
* DeepSpeed keeps groups of its own as long as the process lives. When ``initialize`` finds a new default group of
  torch, it forgets them and makes new ones.

The loss is the argument of ``engine.backward``, before DeepSpeed divides it by the steps of an accumulation or scales
it. A pipeline's ``train_batch`` gives one for each micro-batch; if it does not reach its end, they make no point.

Under failure: an engine is bound to the groups that it was made with. After a release of these groups it cannot go on,
and a note names it. Its module keeps the parameters, for another engine (see :mod:`.engines`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from types import CodeType, ModuleType
from typing import Any

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package
from jupyter_dtrain.core.variables import Variable, given
from jupyter_dtrain.frameworks.accelerate import has_accelerator
from jupyter_dtrain.frameworks.torch.builds import building
from jupyter_dtrain.frameworks.torch.metrics import hearing, one_step, whole_step
from jupyter_dtrain.frameworks.torch.replicas import averages
from jupyter_dtrain.plugins.framework import Doing, Framework, user_names
from jupyter_dtrain.plugins.libraries import file_in
from jupyter_dtrain.plugins.patches import Patch, caller

from .engines import ENGINES, ZERO, make_engine, number_parameters

TESTED = "0.19"
"""The version that the tests run with."""
ACCELERATOR = "DS_ACCELERATOR"
_PARTS = {
    "step": "optimizer",
    "backward": "backward",
    "save_checkpoint": "checkpoint",
    "save_16bit_model": "checkpoint",
}

DEVICE = Patch(
    "deepspeed.accelerator.real_accelerator",
    reads=("_name",),
    why="On a host without a GPU, DeepSpeed searches for one on each rank and warns.",
    lost="DeepSpeed searches for a device by itself",
)
BUILDS = Patch(
    "deepspeed.ops.op_builder.builder",
    replaces=("OpBuilder.jit_load",),
    why="DeepSpeed compiles for half a minute or more in a rank that says nothing meanwhile, and which looks hung.",
    lost="a build of an extension may look like a hang",
)
SHARED_MEMORY = Patch(
    "deepspeed.comm.torch",
    replaces=("build_shm_op",),
    why="DeepSpeed compiles its communication through shared memory at its first use, even if it needs none of it.",
    lost="DeepSpeed needs a C++ compiler",
)
GROUPS = Patch(
    "deepspeed.comm.comm",
    replaces=("init_distributed", "cdb"),
    reads=("_release_process_group_references",),
    why="DeepSpeed keeps process groups of its own as long as the process lives, also when torch has made others.",
    lost="DeepSpeed keeps the groups of its first engine",
)
LOSSES = Patch(
    "deepspeed.runtime.engine",
    replaces=("DeepSpeedEngine.backward",),
    why="DeepSpeed divides a loss by the steps of an accumulation, and scales it, before torch's backward gets it.",
    lost="losses are shown as DeepSpeed divides them",
)
STEPS = Patch(
    "deepspeed.runtime.engine",
    replaces=("DeepSpeedEngine._take_model_step",),
    why="ZeRO steps once for each group of parameters, and not at all after an overflow.",
    lost="steps are counted as DeepSpeed's inner optimizers make them",
)
PIPELINES = Patch(
    "deepspeed.runtime.pipe.engine",
    replaces=("PipelineEngine.train_batch",),
    why="A pipeline gives the loss of each micro-batch to backward, and together they are one step's.",
    lost="each micro-batch of a pipeline has a loss of its own",
)


class DeepSpeed(Framework):
    """The plug-in for DeepSpeed in one rank."""

    name = "deepspeed"

    def prepare(self) -> None:
        """Wait for the parts of DeepSpeed that choose a device, compile, and communicate."""
        self._group: Any = None
        DEVICE.when_imported(_choose_device)
        BUILDS.when_imported(lambda module: BUILDS.replace(module.OpBuilder, "jit_load", _jit_load))
        SHARED_MEMORY.when_imported(_hook_shared_memory)
        GROUPS.when_imported(self._hook_comm)
        ENGINES.when_imported(lambda module: ENGINES.replace(module.DeepSpeedEngine, "__init__", make_engine))
        LOSSES.when_imported(lambda module: LOSSES.replace(module.DeepSpeedEngine, "backward", _backward))
        STEPS.when_imported(lambda module: STEPS.replace(module.DeepSpeedEngine, "_take_model_step", _as_one))
        ZERO.when_imported(lambda module: ZERO.replace(module.Init, "__init__", number_parameters))
        PIPELINES.when_imported(lambda module: PIPELINES.replace(module.PipelineEngine, "train_batch", _whole))

    def describe(self) -> FrameworkReport:
        """Describe the device that DeepSpeed computes on, and whether it can compile."""
        return facts_of_package("DeepSpeed", "deepspeed", TESTED, lambda _: _details())

    def in_use(self) -> str:
        """DeepSpeed is in use once it is imported."""
        return "DeepSpeed" if "deepspeed" in sys.modules else ""

    def part_of(self, code: CodeType) -> Doing | None:
        """Tell the engine's own steps, backward passes and saved files; torch's functions in them count first."""
        if file_in("deepspeed", code.co_filename) == "runtime/engine.py":
            part = _PARTS.get(code.co_name)
            return None if part is None else Doing(part)
        return None

    def forbids_fewer(self) -> str:
        """Forbid fewer ranks while a variable holds an engine, whose state ZeRO shards over the ranks."""
        engines = sys.modules.get("deepspeed.runtime.engine")
        kind = getattr(engines, "DeepSpeedEngine", None)
        names = [name for name, value in user_names() if kind is not None and isinstance(value, kind)]
        return f"DeepSpeed divides the state of {', '.join(names)} among the ranks" if names else ""

    def recover(self) -> list[str]:
        """Name the existing engines, which the user must make again."""
        if "deepspeed.comm.comm" not in sys.modules:
            return []
        kind = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
        names = [] if kind is None else sorted(name for name, value in user_names() if issubclass(type(value), kind))
        if not names:
            return []
        lost = (
            f"{', '.join(names)}: this DeepSpeed engine belongs to the earlier process groups. Make it again with "
            f"deepspeed.initialize(model={names[0]}.module, ...), with an optimizer of its own: the parameters are "
            f"unchanged."
        )
        return [lost]

    def _hook_comm(self, module: Any) -> None:
        def init_distributed(original: Any, *args: Any, **kwargs: Any) -> Any:
            if self._group is not None and _default_group() is not self._group:
                _forget_groups(module)
            result = original(*args, **kwargs)
            self._group = _default_group()
            return result

        GROUPS.replace(module, "init_distributed", init_distributed)


def _choose_device(module: ModuleType) -> None:  # noqa: ARG001 — wrapt's signature
    if not has_accelerator():
        given.offer(
            {ACCELERATOR: Variable("cpu", "no GPU here: so DeepSpeed neither searches for one nor warns")},
            DeepSpeed.name,
        )


def _jit_load(original: Any, builder: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        with building(f"DeepSpeed's {builder.name}"):
            return original(builder, *args, **kwargs)
    except Exception as error:
        if has_compiler():
            raise
        raise RuntimeError(
            f"DeepSpeed has to compile {builder.name}, and this host has no C++ compiler: install g++, use an "
            f'optimizer of torch, or give "Adam" the parameter "torch_adam": true.'
        ) from error


def _hook_shared_memory(module: Any) -> None:
    # DeepSpeed calls deprecated functions of torch, many times a step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    SHARED_MEMORY.replace(module, "build_shm_op", _build_shm_op)


def _build_shm_op(original: Any) -> Any:
    try:
        return original()
    except Exception:
        if has_compiler():
            raise
        return None


def _backward(original: Any, engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``DeepSpeedEngine.backward`` and record the loss as the user gives it, before DeepSpeed divides it."""
    with hearing(loss, caller(), divides=engine.gradient_accumulation_steps() > 1):
        return original(engine, loss, *args, **kwargs)


def _whole(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Run one step of a pipeline engine, and record the losses of its micro-batches together as one point."""
    with whole_step():
        return original(engine, *args, **kwargs)


def _as_one(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Count one step of the engine: ZeRO steps once for each group of parameters, not at all after an overflow."""
    averages(engine.optimizer, getattr(engine, "data_parallel_group", None))
    with one_step(engine.optimizer):
        return original(engine, *args, **kwargs)


def _details() -> dict[str, str]:
    chosen = getattr(sys.modules.get("deepspeed.accelerator.real_accelerator"), "ds_accelerator", None)
    without = "none: DeepSpeed's own optimizers and its shared memory for inference cannot be compiled"
    return {
        "accelerator": str(getattr(chosen, "_name", "") or "not chosen yet"),
        "C++ compiler": "found" if has_compiler() else without,
    }


def has_compiler() -> bool:
    """Whether torch would find a C++ compiler here."""
    words = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    return shutil.which(words[0]) is not None


def _default_group() -> Any:
    dist: Any = sys.modules.get("torch.distributed")
    return dist.group.WORLD if dist is not None and dist.is_available() and dist.is_initialized() else None


def _forget_groups(comm: Any) -> None:
    GROUPS.put(comm, "cdb", None)
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    if hasattr(groups, "_release_process_group_references"):
        groups._release_process_group_references()  # noqa: SLF001 — as its own destroy_process_group does
