"""Clears away the leftovers of earlier DeepSpeed engines when a process makes another one.

Under DeepSpeed's launcher a process makes its engine and ends. In a notebook the next cell makes another, often for
the same model, and after a failure it must. By then

* the model may have gradients of a failed step, to which the first step would add: this module drops them;
* DeepSpeed still takes the grid of a pipeline for that of every engine: a model without a pipeline forgets it;
* ZeRO 3 holds each parameter in parts, in groups that are gone: this module puts the parts together in the current
  group, and removes ZeRO's attributes from the parameters. That is a collective, like all of ``deepspeed.initialize``;
* ZeRO 3 has given numbers to parameters, more of them on one rank than on another where a failure cut it. It compares
  these numbers among ranks, so the ranks agree where to go on before it gives out the next.

Under failure: a parameter whose parts do not fit together raises an error. Another version of DeepSpeed, without the
parts that this module patches, stays unchanged.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from jupyter_dtrain.plugins.patches import Patch, meant, raises_on_purpose

_engines: weakref.WeakSet[Any] = weakref.WeakSet()
"""All engines of this process."""

ENGINES = Patch(
    "deepspeed.runtime.engine",
    replaces=("DeepSpeedEngine.__init__", "deepspeed.utils.groups.mpu"),
    reads=("_world",),
    why="A second engine for a model takes over what the first one has left: gradients, a pipeline's grid, and ZeRO's "
    "parts of parameters.",
    lost="a new DeepSpeed engine for the same model may take over what a failed cell has left",
)
ZERO = Patch(
    "deepspeed.runtime.zero.partition_parameters",
    replaces=("Init.__init__",),
    calls=("Init.param_id",),
    why="ZeRO 3 compares the numbers of parameters among ranks, and a failure leaves them different.",
    lost="ZeRO 3 may not go on after a failure",
)


def make_engine(original: Any, engine: Any, args: Any, model: Any, *rest: Any, mpu: Any = None, **kwargs: Any) -> None:
    """Clear away what an earlier engine has left, then run ``DeepSpeedEngine.__init__``."""
    if hasattr(model, "zero_grad"):
        _put_together(model)
        model.zero_grad(set_to_none=True)
    if mpu is None:
        _forget_pipeline()
    else:
        kwargs["mpu"] = mpu
    _engines.add(engine)
    original(engine, args, model, *rest, **kwargs)


def number_parameters(
    original: Any,
    context: Any,
    module: Any = None,
    data_parallel_group: Any = None,
    *args: Any,
    enabled: Any = True,
    **kwargs: Any,
) -> None:
    """Have all ranks begin with the same number, then run ``zero.Init.__init__``, which numbers parameters."""
    dist: Any = sys.modules["torch.distributed"]
    if not enabled:
        kwargs["enabled"] = enabled
    elif dist.is_initialized():
        _agree_on_numbers(sys.modules["deepspeed.runtime.zero.partition_parameters"], dist, data_parallel_group)
    original(context, module, data_parallel_group, *args, **kwargs)


@raises_on_purpose
def _agree_on_numbers(zero: Any, dist: Any, group: Any) -> None:
    torch: Any = sys.modules["torch"]
    accelerator: Any = sys.modules["deepspeed.accelerator"]
    device = accelerator.get_accelerator().current_device_name()
    following = torch.tensor([zero.Init.param_id], device=device)
    dist.all_reduce(following, dist.ReduceOp.MAX, group=group)
    zero.Init.param_id = int(following)


def _forget_pipeline() -> None:
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    kind = getattr(sys.modules.get("deepspeed.runtime.pipe.topology"), "PipelineParallelGrid", None)
    if kind is not None and isinstance(getattr(groups, "mpu", None), kind):
        ENGINES.put(groups, "mpu", None)


def _put_together(model: Any) -> None:
    """Reassemble the parameters that ZeRO 3 has sharded over process groups that are gone."""
    lost = [(name, param) for name, param in model.named_parameters() if _is_lost(param)]
    if not lost:
        return
    for engine in list(_engines):
        if getattr(engine, "module", None) is model:
            engine.destroy()  # its hooks would fetch the parts again
    for name, param in lost:
        param.data = _whole(name, param)
        for added in [added for added, value in vars(param).items() if added.startswith("ds_") or _is_zero(value)]:
            delattr(param, added)


def _is_lost(param: Any) -> bool:
    dist: Any = sys.modules["torch.distributed"]
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if not hasattr(param, "ds_id") or not hasattr(param, "ds_process_group") or not dist.is_initialized():
        return False
    return param.ds_process_group not in c10d._world.pg_map  # noqa: SLF001 — torch has no public list of groups


def _whole(name: str, param: Any) -> Any:
    """Assemble the value of a parameter from the shards of all ranks."""
    torch: Any = sys.modules["torch"]
    dist: Any = sys.modules["torch.distributed"]
    part, size = param.ds_tensor, dist.get_world_size()
    if part is None or getattr(param, "ds_zero_partition_world_size", size) != size or not part.numel():
        raise meant(
            RuntimeError(
                f"The parts of {name}, in which ZeRO 3 held it, cannot be put together: make the model again, and load "
                f"a checkpoint."
            )
        )
    accelerator: Any = sys.modules["deepspeed.accelerator"]
    mine = part.detach().to(accelerator.get_accelerator().current_device_name())
    parts = [torch.empty_like(mine) for _ in range(size)]
    raises_on_purpose(dist.all_gather)(parts, mine)
    return torch.cat(parts)[: param.ds_numel].view(param.ds_shape)


def _is_zero(value: Any) -> bool:
    """Whether ``value`` is a function that ZeRO has put on a parameter."""
    return callable(value) and "deepspeed" in str(getattr(value, "__module__", ""))
