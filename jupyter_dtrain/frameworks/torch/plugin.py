"""PyTorch in one rank: process groups in :mod:`.groups`, losses in :mod:`.metrics`, pipelines in :mod:`.pipelines`.

Outside a world none of this is active: under torchrun the same cell meets plain torch.
"""

from __future__ import annotations

import ast
import sys
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import wrapt

from jupyter_dtrain.core.facts import Facts, facts_of_package
from jupyter_dtrain.core.stacks import Collective
from jupyter_dtrain.core.variables import Variable, values_of
from jupyter_dtrain.core.world import rank_environment
from jupyter_dtrain.engine.framework import Framework
from jupyter_dtrain.frameworks.rendezvous import arriving_in
from jupyter_dtrain.wire.messages import Watching

from .builds import hook_builds
from .declared import TorchOptions
from .describe import torch_details
from .flight_recorder import RECORDED, is_unfinished, recorded_collectives
from .groups import TorchGroups
from .metrics import TorchMetrics, number
from .pipelines import TorchPipelines
from .spawn import hook_spawn
from .values import on_host
from .waits import call_that_waits

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.engine.metrics import MetricBuffer, Read
    from jupyter_dtrain.wire.requests import RankSpec


TESTED = "2.13"
"""The version that the tests run with."""


class Torch(Framework):
    """PyTorch in one rank."""

    name = "torch"
    rendezvous = "jupyter_dtrain.frameworks.torch.store"

    def environment(self) -> dict[str, Variable]:
        """Beyond what torchrun sets, which every rank has: NCCL's watchdog must not kill a rank that can be released.

        It ends the process when a collective times out, by default (``TORCH_NCCL_ASYNC_ERROR_HANDLING`` 3, by PyTorch's
        documentation) and as torchrun has it (1); its own abort asks for 0. The flight recorder, which tells what each
        rank has begun, is off unless it has a size.
        """
        return {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": Variable("0", "NCCL must not end a rank that a release can free"),
            "TORCH_FR_BUFFER_SIZE": Variable(RECORDED, "the flight recorder shows which collective a rank is in"),
        }

    def prepare(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Wait for ``torch`` and ``torch.distributed`` to be imported."""
        self._metrics = TorchMetrics(metrics)
        self._metrics.install()
        self._pipelines = TorchPipelines(self._metrics, metrics)
        self._pipelines.install()
        backend = spec.options_of(self.name, TorchOptions).torch_backend
        self._groups = TorchGroups(place, spec.generation, backend, spec.address)
        wrapt.register_post_import_hook(self._groups.hook, "torch.distributed")
        variables = rank_environment(place, master_addr=spec.master_addr, master_port=spec.master_port, run_id="")
        variables |= self.environment()
        wrapt.register_post_import_hook(partial(hook_spawn, values_of(variables)), "torch.multiprocessing.spawn")
        wrapt.register_post_import_hook(hook_builds, "torch.utils.cpp_extension")

    def before_cell(self, generation: int, watch: Watching) -> None:
        """Losses are taken from now on; set-ups of a new generation are counted from 0 on every rank."""
        self._metrics.begin(watch)
        self._pipelines.begin(on=watch.metrics)
        self._groups.begin_cell(generation)

    def after_cell(self) -> None:
        """Losses that wait for their optimizer step are points now; the last steps of pipelines are told."""
        self._pipelines.end()
        self._metrics.end()

    def describe(self) -> Facts:
        """What is compiled in and found; the default group, once it is set up."""
        return facts_of_package("PyTorch", "torch", TESTED, partial(torch_details, self._groups))

    def in_use(self) -> str:
        """Once it is imported."""
        return "PyTorch" if "torch" in sys.modules else ""

    def steps(self) -> dict[str, int]:
        """Of the optimizers whose steps are told as points."""
        return self._metrics.steps()

    def on_host(self, value: Any) -> Any:
        """Tensors in lists, tuples and dictionaries are copied to the host; one that is sharded cannot be."""
        torch = sys.modules.get("torch")
        return value if torch is None else on_host(value)

    def number(self, value: Any) -> tuple[Any, Read] | None:
        """A tensor with one element is read when the metrics are flushed, on whatever device it is."""
        return number(value)

    def reserved(self) -> int | None:
        """What the caching allocator holds, once CUDA is in use."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return None
        return int(torch.cuda.memory_reserved())

    def is_out_of_memory(self, exception: BaseException) -> bool:
        """A GPU's allocator has a class for it, the host's only words."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(exception, RuntimeError):
            return False
        return isinstance(exception, torch.OutOfMemoryError) or "can't allocate memory" in str(exception)

    def free_memory(self) -> None:
        """Empty the caching allocator of the GPU, once CUDA is in use."""
        if self.reserved() is not None:
            sys.modules["torch"].cuda.empty_cache()

    def needs_regroup(self) -> bool:
        """Whether, in the last cell, a set-up failed on this rank or its groups were released."""
        return self._groups.unusable

    def is_apart(self) -> bool:
        """A collective that was begun (``async_op=True``, FSDP's and DeepSpeed's own) and not waited for."""
        return is_unfinished(self._groups.made_at)

    def waits(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> str:
        """A collective, the end of DDP's backward, a set-up to which somebody has not come."""
        if not idle and not arriving_in(frame):
            return ""
        return call_that_waits(frame, call, on_device=self._groups.on_device)

    def collectives(self) -> list[Collective]:
        """What torch's flight recorder holds."""
        return recorded_collectives(self._groups.made_at)

    def release(self) -> None:
        """End the connections of gloo's groups, abort NCCL's."""
        self._groups.release()

    def recover(self) -> list[str]:
        """The default group again, as it was made, with the DDP modules that used it."""
        return self._groups.recover()
