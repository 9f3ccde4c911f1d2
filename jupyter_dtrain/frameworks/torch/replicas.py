"""Finds the ranks that train copies of one model: those whose gradients are averaged with this rank's.

DistributedDataParallel, both FSDPs and libraries (:func:`averages`) say so when they wrap a model. An optimizer belongs
to the wrapper whose parameters it steps. Code that averages gradients by itself says nothing, so nothing is known.

A mesh whose dimensions were flattened into one is left out: some of its ranks may have to read the same data, as with
context parallel.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_dtrain.plugins.patches import Patch

_WHY = "Which ranks average the gradients of a model is known where the model is wrapped, and nowhere else."
_LOST = "the batch of all ranks is not shown"
DDP = Patch(
    "torch.nn.parallel.distributed",
    replaces=("DistributedDataParallel.__init__",),
    why=_WHY,
    lost=_LOST,
)
FSDP = Patch(
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    replaces=("FullyShardedDataParallel.__init__",),
    why=_WHY,
    lost=_LOST,
)
FULLY_SHARD = Patch(
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    replaces=("FSDPParamGroup.__init__",),
    reads=("_root_mesh",),
    why=_WHY,
    lost=_LOST,
)

_modules: weakref.WeakKeyDictionary[Any, Callable[[Any], list[int] | None]] = weakref.WeakKeyDictionary()
"""How to find the ranks of a wrapped module, which a recovery may have given another group."""
_optimizers: weakref.WeakKeyDictionary[Any, Callable[[], list[int] | None]] = weakref.WeakKeyDictionary()


def hook_wrappers() -> None:
    """Notice each module that DistributedDataParallel or one of the FSDPs wraps, once they are imported."""
    DDP.when_imported(lambda module: DDP.replace(module.DistributedDataParallel, "__init__", _wrap))
    FSDP.when_imported(lambda module: FSDP.replace(module.FullyShardedDataParallel, "__init__", _wrap))
    FULLY_SHARD.when_imported(lambda module: FULLY_SHARD.replace(module.FSDPParamGroup, "__init__", _shard))


def _wrap(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> None:
    """Make a wrapper with a ``process_group``, and note the group for its parameters."""
    original(wrapper, *args, **kwargs)
    _modules[wrapper] = _of_group


def _shard(original: Any, group: Any, params: Any, modules: Any, mesh_info: Any, *args: Any, **kwargs: Any) -> None:
    """Make a parameter group of ``fully_shard``, and note the ranks that average its gradients."""
    original(group, params, modules, mesh_info, *args, **kwargs)
    for one in modules:
        _modules[one] = functools.partial(_of_mesh, mesh_info.mesh)


def averages(optimizer: Any, group: Any) -> None:
    """Note that a library averages the gradients of ``optimizer`` over the ranks of ``group``."""
    if optimizer is not None:
        _optimizers[optimizer] = functools.partial(_ranks, group)


def replicas_of(optimizer: Any) -> list[int] | None:
    """Return the ranks that train the model of ``optimizer`` together, in order; None where that is not known."""
    try:
        if optimizer in _optimizers:
            return _optimizers[optimizer]()
        stepped = set(_parameters(optimizer))
        for module, ranks in list(_modules.items()):
            if not stepped.isdisjoint(map(id, module.parameters())):
                return ranks(module)
    except Exception:  # noqa: BLE001 — a group that is gone, or classes of the user's: then nothing is known
        return None
    return None


def _parameters(optimizer: Any) -> Iterator[int]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from map(id, group["params"])


def _of_group(module: Any) -> list[int]:
    return _ranks(module.process_group)


def _of_mesh(mesh: Any, _module: Any) -> list[int] | None:
    root = getattr(mesh, "_root_mesh", None) or mesh
    if mesh is not root and not set(mesh.mesh_dim_names or ("",)) <= set(root.mesh_dim_names or ()):
        return None
    return sorted(mesh.mesh.flatten().tolist())


def _ranks(group: Any) -> list[int]:
    found: list[int] = sys.modules["torch.distributed"].get_process_group_ranks(group)
    return sorted(found)
