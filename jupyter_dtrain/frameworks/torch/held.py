"""What PyTorch's tensors, models and optimizers hold: storages, and the names by which a script reaches them.

Only the sizes and addresses of storages are read, never a value, and no device is waited for. Gradients are left out
while a cell runs, since a backward pass replaces them without Python's lock.

Under failure: a tensor without a storage of its own, such as a sparse or a fake one, holds what its attributes hold.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.framework_report import imported
from jupyter_dtrain.core.memory import DeviceMemory
from jupyter_dtrain.plugins.framework import Attributes, Holds, Inner, Owned, TensorMemory
from jupyter_dtrain.plugins.patches import Patch

from .contents import WRAPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_dtrain.plugins.framework import Look

HOLDERS = Patch(
    "torch",
    calls=("_C.DisableTorchFunctionSubclass()",),
    reads=("_parameters", "_buffers", "_modules", "_local_tensor"),
    why="A look at what holds memory must not run code of a user's class of tensors or models.",
    lost="%distributed memory does not show PyTorch's tensors",
)
_INNER = "_local_tensor"
"""Where a DTensor has the piece of this rank."""


def holder(kind: type) -> Look | None:
    """What looks into tensors, models and optimizers; None for any other type."""
    torch: Any = imported("torch")
    if torch is None:
        return None
    if issubclass(kind, torch.Tensor):
        return partial(_look_into_tensor, Attributes(kind))
    if issubclass(kind, torch.nn.Module):
        return _look_into_model
    if issubclass(kind, torch.optim.Optimizer):
        return _look_into_optimizer
    return None


def devices() -> list[DeviceMemory]:
    """The caching allocator's counts of each CUDA device that has some memory, or has had some."""
    torch: Any = imported("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    found = []
    for place in range(torch.cuda.device_count()):
        reserved, peak = int(torch.cuda.memory_reserved(place)), int(torch.cuda.max_memory_allocated(place))
        if reserved or peak:
            found.append(DeviceMemory(f"cuda:{place}", int(torch.cuda.memory_allocated(place)), reserved, peak))
    return found


def _look_into_tensor(
    attributes: Attributes,
    tensor: Any,
    still: bool,  # noqa: FBT001 — as the contract has it
    /,
) -> Holds:
    torch = sys.modules["torch"]
    inside = [Inner("" if name == _INNER else f".{name}", value) for name, value in attributes.of(tensor)]
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 — torch has no public way
        if still and tensor.is_leaf and tensor.requires_grad and (gradient := tensor.grad) is not None:
            inside.append(Inner(".grad", gradient, "gradient"))
        # A class that handles its operations itself may compute even its shape, and has its memory in its attributes.
        is_own = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        return Holds(_storage(torch, tensor) if is_own else None, inside)


def _storage(torch: Any, tensor: Any) -> TensorMemory | None:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return None
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), int(storage.nbytes())
    except (RuntimeError, NotImplementedError):  # it has no memory that can be reached
        return None
    if not address:
        return None
    device = str(tensor.device)
    role: Any = "parameter" if issubclass(type(tensor), torch.nn.Parameter) else None
    graph = bool(tensor.requires_grad and not tensor.is_leaf)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorMemory((device, address), size, type(tensor).__name__, tuple(tensor.shape), dtype, device, role, graph)


def _look_into_model(model: Any, _still: bool, /) -> Holds:  # noqa: FBT001 — as above
    inside: list[Inner] = []
    for name, value in list(object.__getattribute__(model, "__dict__").items()):
        if name == "_parameters":
            inside += (Inner(f".{key}", one, "parameter") for key, one in _items(value))
        elif name == "_buffers":
            inside += (Inner(f".{key}", one, "buffer") for key, one in _items(value))
        elif name == "_modules":
            inside += (Inner("" if key in WRAPPED else f".{key}", one) for key, one in _items(value))
        else:
            inside.append(Inner(f".{name}", value))
    return Holds(None, inside)


def _look_into_optimizer(optimizer: Any, _still: bool, /) -> Holds:  # noqa: FBT001 — as above
    own = object.__getattribute__(optimizer, "__dict__")
    inside: list[Inner] = []
    places = {
        id(parameter): f'param_groups[{group}]["params"][{index}]'
        for group, one in enumerate(own.get("param_groups", ()))
        for index, parameter in enumerate(one.get("params", ()))
    }
    for parameter, state in _items(own.get("state", {})):
        otherwise = places.get(id(parameter), "…")
        for key, value in _items(state):
            inside.append(Inner(Owned(".state[", parameter, f"].{key}", otherwise), value, "optimizer state"))
    inside += (Inner(f".{name}", one) for name, one in list(own.items()) if name not in {"state", "param_groups"})
    return Holds(None, inside)


def _items(found: Any) -> Iterator[tuple[Any, Any]]:
    """The items of a dictionary of any class, without that class's code."""
    return iter(list(dict.items(found)) if issubclass(type(found), dict) else [])
