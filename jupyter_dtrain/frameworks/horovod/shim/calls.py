"""The stand-in's module ``horovod.torch``: all its names, and the calls on whole states and objects.

Names, arguments and results are those of Horovod 0.28. Under failure: torch.distributed's own errors; a name that the
stand-in lacks raises :class:`NotInStandIn`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.distributed as dist

from . import buckets, collectives, optimizer, world
from .install import SHIM_VERSION
from .world import NotInStandIn, check, rank, size

__version__ = SHIM_VERSION

_FROM = {
    buckets: ("Average", "Sum", "Adasum", "Min", "Max", "Product", "Compression"),
    collectives: ("Handle", "barrier", "poll", "synchronize"),
    optimizer: ("DistributedOptimizer",),
    world: ("HorovodInternalError", "global_process_set", "init", "is_initialized", "shutdown"),
}
_names = {name: getattr(module, name) for module, names in _FROM.items() for name in names}
globals().update(_names | collectives.variants | world.PLACES | world.BUILDS)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The ``obj`` of ``root_rank``; it must be picklable."""
    check(process_set)
    found = [obj]
    dist.broadcast_object_list(found, root_rank)
    return found[0]


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The ``obj`` of each rank; they must be picklable."""
    check()
    found = [None] * size()
    dist.all_gather_object(found, obj)
    return found


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the tensors of ``root_rank``: a dictionary of them, or a list of them or of named ones."""
    check()
    if not isinstance(params, dict | list):
        kind = type(params).__name__
        raise ValueError(f"broadcast_parameters takes a dictionary or a list, such as model.state_dict(), not {kind}.")
    pairs = sorted(params.items()) if isinstance(params, dict) else params
    tensors = [one[1] if isinstance(one, tuple) else one for one in pairs]
    begin = collectives.variants["broadcast_async_"]
    for handle in [begin(one, root_rank) for one in tensors if isinstance(one, torch.Tensor)]:
        collectives.synchronize(handle)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give all ranks the state and the options that ``optimizer`` has on ``root_rank``; it travels pickled."""
    check()
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast")
    # A rank that has made no step has no state, so each tensor must travel with its shape.
    optimizer.load_state_dict(broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank))


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotInStandIn(f"horovod.torch.{name}")
