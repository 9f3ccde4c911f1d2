"""A copy of a PyTorch training's state on this rank, and the way back: in place, and without other ranks.

Of a sharded tensor it is this rank's part. The copy keeps no tensors of the training, but knows where they are: code
may put others in their place at each step, as some optimizers do with their state. What is there at the way back takes
the numbers, so that whoever holds it goes on with it: DDP's and FSDP's hooks, and compiled code. Only where nothing of
the same shape is there, it is a new tensor.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from jupyter_dtrain.plugins.framework import HeldState

from .values import undisturbed

_WITH_STATE: Final = (
    ("torch.optim.lr_scheduler", "LRScheduler"),
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau"),
    ("torch.amp.grad_scaler", "GradScaler"),
)
"""Classes whose ``state_dict`` is a part of a training's state."""


class _Copy:
    """A tensor's part on this rank, in host memory. It keeps no tensor of a device."""

    def __init__(self, tensor: Any) -> None:
        here = _local(tensor)
        self.value = here.to("cpu", copy=True)
        self._device = here.device
        self._sharded = hasattr(tensor, "device_mesh") and partial(
            type(tensor).from_local,
            device_mesh=tensor.device_mesh,
            placements=tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    def fits(self, live: Any) -> bool:
        """Whether ``live`` can take the copied numbers."""
        return (
            isinstance(live, sys.modules["torch"].Tensor)
            and not live.is_meta
            and _local(live).shape == self.value.shape
        )

    def put(self, live: Any) -> Any:
        """``live`` with the copied numbers, or a new tensor where it cannot take them."""
        if not self.fits(live):
            new = self.value.to(self._device, copy=True)
            return self._sharded(new) if self._sharded else new
        _local(live).copy_(self.value)
        return live


class _ParameterCopy:
    """A parameter, which code may have replaced in its module since, or whose ``data`` it may have replaced."""

    def __init__(self, parameter: Any, owner: Mapping[str, Any], name: str) -> None:
        """``owner``: the parameters of its module, if it is known."""
        self.copied = _Copy(parameter)
        self._parameter, self._owner, self._name = parameter, owner, name

    def put_back(self) -> None:
        live: Any = self._owner.get(self._name)
        if not self.copied.fits(live):
            live = self._parameter
        if (new := self.copied.put(live)) is not live:
            live.data = new


class _BufferCopies:
    """The buffers of a module."""

    def __init__(self, module: Any) -> None:
        self._live = module._buffers  # noqa: SLF001 — torch has no public way to a module's own, with those that are None
        self.copied = _copied(dict(self._live))

    def put_back(self) -> None:
        for name, copied in self.copied.items():
            self._live[name] = _put(self._live.get(name), copied)


class TrainingState(HeldState):
    """The copy."""

    def __init__(self, found: _Objects, torch: Any) -> None:
        self._torch = torch
        self.names = found.names
        parameters = [_ParameterCopy(*one) for one in found.parameters]
        buffers = [_BufferCopies(one) for one in found.modules]
        optimizers = [_OptimizerState(one) for one in found.optimizers]
        self._parts: list[_ParameterCopy | _BufferCopies | _OptimizerState] = [*parameters, *buffers, *optimizers]
        self._others = [(one, _copied(one.state_dict())) for one in found.others]
        self._random = _random_states(torch)
        copied = [part.copied for part in self._parts]
        saved = [one.value for one in _leaves(copied) if isinstance(one, _Copy)]
        self.size = sum(one.nbytes for one in saved)
        self.finite = all(bool(torch.isfinite(one).all()) for one in saved if one.is_floating_point())

    def put_back(self) -> None:
        """Copy all back: in place, or as new tensors where the training has others now."""
        with undisturbed(), self._torch.no_grad():
            for part in self._parts:
                part.put_back()
            for other, copied in self._others:
                other.load_state_dict(_put(None, copied))
        for put, state in self._random:
            put(state)


class _OptimizerState:
    """The state and the settings of one optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        # Not copied as a whole: its keys are the live parameters.
        self._states = {key: _copied(value) for key, value in optimizer.state.items()}
        self._groups = [
            {key: _copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]

    @property
    def copied(self) -> list[Any]:
        return [*self._states.values(), *self._groups]

    def put_back(self) -> None:
        live = self._optimizer.state
        for key in [key for key in live if key not in self._states]:
            del live[key]
        for key, copied in self._states.items():
            live[key] = _put(live.get(key), copied)
        # A group that was added since stays as it is.
        for group, copied in zip(self._optimizer.param_groups, self._groups, strict=False):
            for key, value in copied.items():
                group[key] = _put(group.get(key), value)


def _copied(value: Any) -> Any:
    """A copy in host memory of what an optimizer, say, keeps; with a :class:`_Copy` for each tensor."""
    if isinstance(value, sys.modules["torch"].Tensor):
        return value if value.is_meta else _Copy(value)
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one) for one in value)
    return copy.deepcopy(value)


def _put(live: Any, copied: Any) -> Any:
    """What was copied, put into ``live`` where that is its dictionary or its tensor; otherwise as a new object."""
    match copied:
        case _Copy():
            return copied.put(live)
        case dict():
            into = live if isinstance(live, dict) else {}
            for key in into.keys() - copied.keys():
                del into[key]
            into.update({key: _put(into.get(key), one) for key, one in copied.items()})
            return into
        case list() | tuple() if type(copied) in (list, tuple):
            return type(copied)(_put(None, one) for one in copied)
    return copy.deepcopy(copied)


def _leaves(value: Any) -> Iterator[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
    if inner is None:
        yield value
    else:
        for one in inner:
            yield from _leaves(one)


class _Objects:
    """What in a namespace belongs to a training."""

    def __init__(self, namespace: Mapping[str, Any], stepping: Any, torch: Any) -> None:
        others = tuple(
            kind for module, name in _WITH_STATE if (kind := getattr(sys.modules.get(module), name, None)) is not None
        )
        parameters: dict[int, tuple[Any, Mapping[str, Any], str]] = {}
        modules: dict[int, Any] = {}
        optimizers: dict[int, Any] = {}
        states: dict[int, Any] = {}
        self.names: list[str] = []
        kinds = (torch.nn.Module, torch.optim.Optimizer, *others)
        for name, value in _with_attributes(namespace, stepping, kinds):
            if isinstance(value, torch.nn.Module):
                modules.update((id(one), one) for one in value.modules())
            elif isinstance(value, torch.optim.Optimizer):
                optimizers[id(value.param_groups)] = value
            else:
                states[id(value)] = value
            self.names.append(name)
        for module in modules.values():
            own = module._parameters  # noqa: SLF001 — as above
            parameters.update((id(one), (one, own, name)) for name, one in own.items() if one is not None)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                for one in group["params"]:
                    parameters.setdefault(id(one), (one, {}, ""))
        self.parameters = [one for one in parameters.values() if not one[0].is_meta]
        self.modules = list(modules.values())
        self.optimizers = list(optimizers.values())
        self.others = list(states.values())

    def size(self, torch: Any) -> int:
        """Bytes of the copy, about."""
        buffers = [list(one.buffers(recurse=False)) for one in self.modules]
        held = [[one for one, *_ in self.parameters], buffers, [list(one.state.values()) for one in self.optimizers]]
        return sum(_local(one).nbytes for one in _leaves(held) if isinstance(one, torch.Tensor) and not one.is_meta)


def _with_attributes(namespace: Mapping[str, Any], stepping: Any, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """The objects of these kinds by name; those that only an attribute of a variable has, as a trainer's, too."""
    seen: set[int] = set()
    for name, value in namespace.items():
        if isinstance(value, kinds):
            seen.add(id(value))
            yield name, value
    for name, value in namespace.items():
        if id(value) in seen or isinstance(value, (type, ModuleType)):
            continue
        with contextlib.suppress(Exception):  # a class of the user's may have another __dict__
            for attribute, inner in list(vars(value).items()):
                if isinstance(inner, kinds) and id(inner) not in seen:
                    seen.add(id(inner))
                    yield f"{name}.{attribute}", inner
    if stepping is not None and id(stepping) not in seen:
        yield "the optimizer", stepping


@undisturbed()
def hold(namespace: Mapping[str, Any], room: int, stepping: Any = None) -> TrainingState | None:
    """Copy the state. None without a module or an optimizer; :class:`MemoryError` where it is larger than ``room``.

    ``stepping``: the optimizer that steps, which may be out of sight.
    """
    torch = sys.modules["torch"]
    if not hasattr(torch, "optim"):
        return None  # it is being imported
    found = _Objects(namespace, stepping, torch)
    if not found.parameters:
        return None
    if (size := found.size(torch)) > room:
        raise MemoryError(f"{size} bytes")
    with torch.no_grad():
        return TrainingState(found, torch)


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


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
