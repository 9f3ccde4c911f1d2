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

_modules: weakref.WeakKeyDictionary[Any, Callable[[Any], list[int] | None]] = weakref.WeakKeyDictionary()
"""How to find the ranks of a wrapped module, which a recovery may have given another group."""
_optimizers: weakref.WeakKeyDictionary[Any, Callable[[], list[int] | None]] = weakref.WeakKeyDictionary()


def hook_wrapper(name: str, module: Any) -> None:
    """Notice each module that the class ``name`` of ``module`` wraps; it has a ``process_group``."""
    kind = getattr(module, name)
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 — its name is seen in tracebacks
        original(self, *args, **kwargs)
        _modules[self] = _of_group

    kind.__init__ = __init__


def hook_fully_shard(module: Any) -> None:
    """Notice each module that ``fully_shard`` shards."""
    kind = module.FSDPParamGroup
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, params: Any, modules: Any, mesh_info: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, params, modules, mesh_info, *args, **kwargs)
        for one in modules:
            _modules[one] = functools.partial(_of_mesh, mesh_info.mesh)

    kind.__init__ = __init__


def averages(optimizer: Any, group: Any) -> None:
    """A library averages the gradients of ``optimizer`` over the ranks of ``group``."""
    if optimizer is not None:
        _optimizers[optimizer] = functools.partial(_ranks, group)


def replicas_of(optimizer: Any) -> list[int] | None:
    """The ranks that train the model of ``optimizer`` with this one, in order; None where that is not known."""
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
