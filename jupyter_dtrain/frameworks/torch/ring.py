"""A copy of a PyTorch training's state on this rank, and the way back: in place, and without other ranks.

Of a sharded tensor it is this rank's part. Whoever holds a parameter, a buffer or an optimizer's state goes on with it:
DDP's and FSDP's hooks, and compiled code.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from jupyter_dtrain.plugins.framework import HeldState

from .values import undisturbed

_WITH_STATE: Final = (
    ("torch.optim.lr_scheduler", "LRScheduler"),
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau"),
    ("torch.amp.grad_scaler", "GradScaler"),
)
"""Classes whose ``state_dict`` is a part of a training's state."""


class _Saved(NamedTuple):
    tensor: Any
    """The part of the live tensor on this rank."""
    value: Any
    """The copy in host memory."""

    def put_back(self) -> None:
        self.tensor.copy_(self.value)


class TrainingState(HeldState):
    """The copy."""

    def __init__(self, found: _Objects, torch: Any) -> None:
        self._torch = torch
        self.names = found.names
        self._tensors = [_saved(tensor) for tensor in found.tensors]
        self._optimizers = [_OptimizerState(one, torch) for one in found.optimizers]
        self._others = [(one, copy.deepcopy(one.state_dict())) for one in found.others]
        self._random = _random_states(torch)
        saved = [*self._tensors, *(one for state in self._optimizers for one in state.saved)]
        self.size = sum(one.value.nbytes for one in saved)
        self.finite = all(bool(torch.isfinite(one.value).all()) for one in saved if one.value.is_floating_point())

    def put_back(self) -> None:
        """Copy all back in place."""
        with undisturbed(), self._torch.no_grad():
            for one in self._tensors:
                one.put_back()
            for state in self._optimizers:
                state.put_back()
        for other, state_dict in self._others:
            other.load_state_dict(copy.deepcopy(state_dict))
        for put, state in self._random:
            put(state)


class _OptimizerState:
    """The state and the settings of one optimizer."""

    def __init__(self, optimizer: Any, torch: Any) -> None:
        self._torch = torch
        self._optimizer = optimizer
        self._states = {
            parameter: {key: self._saved(value) for key, value in optimizer.state.get(parameter, {}).items()}
            for parameter in _parameters(optimizer)
        }
        self._groups = [
            {key: self._saved(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]

    @property
    def saved(self) -> list[_Saved]:
        found = [*self._states.values(), *self._groups]
        return [value for one in found for value in one.values() if isinstance(value, _Saved)]

    def _saved(self, value: Any) -> Any:
        return _saved(value) if isinstance(value, self._torch.Tensor) else copy.deepcopy(value)

    def put_back(self) -> None:
        for parameter, saved in self._states.items():
            if not saved:
                self._optimizer.state.pop(parameter, None)
                continue
            state = self._optimizer.state[parameter]
            for key in state.keys() - saved.keys():
                del state[key]
            _put_all(state, saved)
        for group, saved in zip(self._optimizer.param_groups, self._groups, strict=True):
            _put_all(group, saved)


def _put_all(into: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for key, value in saved.items():
        if isinstance(value, _Saved):
            value.put_back()
        else:
            into[key] = copy.deepcopy(value)


class _Objects:
    """What in a namespace belongs to a training."""

    def __init__(self, namespace: Mapping[str, Any], torch: Any) -> None:
        others = tuple(
            kind for module, name in _WITH_STATE if (kind := getattr(sys.modules.get(module), name, None)) is not None
        )
        tensors: dict[int, Any] = {}
        optimizers: dict[int, Any] = {}
        states: dict[int, Any] = {}
        self.names: list[str] = []
        for name, value in namespace.items():
            if isinstance(value, torch.nn.Module):
                tensors.update((id(one), one) for one in (*value.parameters(), *value.buffers()))
            elif isinstance(value, torch.optim.Optimizer):
                optimizers[id(value.param_groups)] = value
                tensors.update((id(one), one) for one in _parameters(value))
            elif isinstance(value, others):
                states[id(value)] = value
            else:
                continue
            self.names.append(name)
        self.tensors = [one for one in tensors.values() if not one.is_meta]
        self.optimizers = list(optimizers.values())
        self.others = list(states.values())

    def size(self, torch: Any) -> int:
        """Bytes of the copy, about."""
        states = (
            value
            for one in self.optimizers
            for state in one.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )
        return sum(_local(one).nbytes for one in (*self.tensors, *states))


@undisturbed()
def hold(namespace: Mapping[str, Any], room: int) -> TrainingState | None:
    """Copy the state. None without a module or an optimizer; :class:`MemoryError` where it is larger than ``room``."""
    torch = sys.modules["torch"]
    if not hasattr(torch, "optim"):
        return None  # it is being imported
    found = _Objects(namespace, torch)
    if not found.tensors:
        return None
    if (size := found.size(torch)) > room:
        raise MemoryError(f"{size} bytes")
    with torch.no_grad():
        return TrainingState(found, torch)


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _saved(tensor: Any) -> _Saved:
    here = _local(tensor)
    return _Saved(here, here.to("cpu", copy=True))


def _parameters(optimizer: Any) -> Iterable[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _random_states(torch: Any) -> list[tuple[Callable[[Any], object], Any]]:
    """The random states of this rank, each with what sets it."""
    found: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    if (numpy := sys.modules.get("numpy")) is not None:
        found.append((numpy.random.set_state, numpy.random.get_state()))
    return found
