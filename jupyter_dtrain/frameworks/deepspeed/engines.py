"""Another DeepSpeed engine in a process that has had one: what the earlier ones have left behind is cleared away.

Under DeepSpeed's launcher a process makes its engine and ends. In a notebook the next cell makes another, often for
the same model, and after a failure it has to. By then

* the model may have gradients of a step that failed, to which the first step would be added: they are dropped;
* DeepSpeed still holds the grid of a pipeline for that of every engine: it is forgotten for a model that has none;
* ZeRO 3 holds each parameter in parts, by groups that are gone: the parts are put together, in the group of now, and
  what it had added to the parameters is taken away. That is a collective, as all of ``deepspeed.initialize`` is.

Under failure: what cannot be put together says so. Another version, without the parts that are looked for here, is
left as it is.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

_engines: weakref.WeakSet[Any] = weakref.WeakSet()
"""All of this process."""


def making(original: Callable[..., None]) -> Callable[..., None]:
    """``DeepSpeedEngine.__init__``."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 — its name is seen in tracebacks
        model: Any = kwargs.get("model")
        if hasattr(model, "zero_grad"):
            _put_together(model)
            model.zero_grad(set_to_none=True)
        if kwargs.get("mpu") is None:
            _forget_pipeline()
        _engines.add(self)
        original(self, *args, **kwargs)

    return __init__


def _forget_pipeline() -> None:
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    kind = getattr(sys.modules.get("deepspeed.runtime.pipe.topology"), "PipelineParallelGrid", None)
    if kind is not None and isinstance(getattr(groups, "mpu", None), kind):
        groups.mpu = None


def _put_together(model: Any) -> None:
    """Make whole what ZeRO 3 holds in parts, in groups that are gone."""
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
    """The parameter's value, from the parts of all ranks."""
    torch: Any = sys.modules["torch"]
    dist: Any = sys.modules["torch.distributed"]
    part, size = param.ds_tensor, dist.get_world_size()
    if part is None or getattr(param, "ds_zero_partition_world_size", size) != size or not part.numel():
        raise RuntimeError(
            f"The parts of {name}, in which ZeRO 3 held it, cannot be put together: make the model again, and load a "
            f"checkpoint."
        )
    accelerator: Any = sys.modules["deepspeed.accelerator"]
    mine = part.detach().to(accelerator.get_accelerator().current_device_name())
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[: param.ds_numel].view(param.ds_shape)


def _is_zero(value: Any) -> bool:
    """Whether it is a function that ZeRO has put on a parameter."""
    return callable(value) and "deepspeed" in str(getattr(value, "__module__", ""))
