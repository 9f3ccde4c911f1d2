"""What ``horovod.torch`` is where the stand-in is installed: all its names, and the calls on whole states and objects.

Names, arguments and results are those of Horovod 0.28; :mod:`.world`, :mod:`.collectives`
and :mod:`.optimizer` have the most of them. Under failure: what torch.distributed raises; a name that
the stand-in lacks raises :class:`NotInStandIn`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from .collectives import (
    Adasum,
    Average,
    Compression,
    Handle,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from .install import SHIM_VERSION
from .optimizer import DistributedOptimizer
from .world import (
    HorovodInternalError,
    NotInStandIn,
    check,
    cross_rank,
    cross_size,
    cuda_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    without,
)

__version__ = SHIM_VERSION
mpi_enabled = mpi_built = mpi_threads_supported = ddl_built = ccl_built = without

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "HorovodInternalError",
    "Max",
    "Min",
    "NotInStandIn",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]


class _Shape(NamedTuple):
    """Stands for a tensor that is sent by itself."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """What ``root_rank`` has as ``obj``; it must be picklable."""
    check(process_set)
    found = [obj]
    dist.broadcast_object_list(found, root_rank)
    return found[0]


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """What each rank has as ``obj``; they must be picklable."""
    check()
    found = [None] * size()
    dist.all_gather_object(found, obj)
    return found


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the tensors of ``root_rank``: a dictionary of them, or a list of them or of named ones."""
    check()
    if isinstance(params, dict):
        tensors = [value for _, value in sorted(params.items())]
    elif isinstance(params, list):
        tensors = [one[1] if isinstance(one, tuple) else one for one in params]
    else:
        raise ValueError(
            f"broadcast_parameters takes a dictionary or a list, as model.state_dict() is one, not {type(params)}"
        )
    begun = [broadcast_async_(tensor, root_rank) for tensor in tensors if isinstance(tensor, torch.Tensor)]
    for handle in begun:
        synchronize(handle)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give all ranks the state and the options that ``optimizer`` has on ``root_rank``."""
    check()
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast")
    mine = optimizer.state_dict()
    # Of each tensor, first what it is like; a rank that has made no step has none.
    outline = {key: {name: _outlined(value) for name, value in one.items()} for key, one in mine["state"].items()}
    outline, groups = broadcast_object((outline, mine["param_groups"]), root_rank)
    state: dict[Any, dict[str, Any]] = {}
    for key, one in outline.items():
        state[key] = {}
        for name, value in one.items():
            if isinstance(value, _Shape):
                own = mine["state"][key][name].detach() if rank() == root_rank else None
                tensor = own if own is not None else torch.empty(value.shape, dtype=value.dtype, device=value.device)
                device = tensor.device
                state[key][name] = broadcast_(_where_it_travels(tensor), root_rank).to(device)
            else:
                state[key][name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _outlined(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return _Shape(tuple(value.shape), value.dtype, value.device.type)


def _where_it_travels(tensor: torch.Tensor) -> torch.Tensor:
    """On a device if the group has only NCCL; Adam keeps its number of steps on the host."""
    if tensor.is_cpu and "gloo" not in str(dist.get_backend_config()):
        return tensor.cuda()
    return tensor


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotInStandIn(f"horovod.torch.{name}")
