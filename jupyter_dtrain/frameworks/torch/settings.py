"""Values of PyTorch that a person may set between two steps: those of an optimizer's groups, and single numbers.

``opt.lr`` is no attribute of an optimizer: each of its groups of parameters has one. Wrappers of optimizers, such as
those of Accelerate, DeepSpeed and Lightning, have the groups of what they wrap.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jupyter_dtrain.plugins.framework import Settable

_OF_GROUPS: Final = re.compile(r"(?:\[(-?\d+)\])?\.(\w+)")
_GOES_ON: Final = frozenset(
    {
        "StepLR",
        "MultiStepLR",
        "ConstantLR",
        "LinearLR",
        "ExponentialLR",
        "PolynomialLR",
        "MultiplicativeLR",
        "CosineAnnealingLR",
        "ReduceLROnPlateau",
    }
)
"""Schedulers that make a rate from the last one."""
_FROM_BASE: Final = frozenset({"LambdaLR", "CyclicLR", "CosineAnnealingWarmRestarts"})
"""Those that make it from their ``base_lrs``."""


def setting(value: Any, path: str, name: str, namespace: Mapping[str, Any]) -> Settable | None:
    """A key of an optimizer's groups, of all of them or of one; or a tensor with one number."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return _number(torch, value) if not path else None
    found = _OF_GROUPS.fullmatch(path)
    groups = _groups(value) if found else None
    if not found or not groups:
        return None
    number, key = found[1], found[2]
    try:
        chosen = groups if number is None else [groups[int(number)]]
    except IndexError:
        return None
    if key == "params" or any(key not in group for group in chosen):
        return None

    def put(new: Sequence[Any]) -> None:
        for group, one in zip(chosen, new, strict=True):
            if isinstance(group[key], torch.Tensor):
                _fill(torch, group[key], one)
            else:
                group[key] = one

    values = [one.item() if _is_number(torch, one) else one for one in (group[key] for group in chosen)]
    return Settable(values, put, _note(groups, name, namespace) if key == "lr" else "")


def _groups(value: Any) -> list[dict[str, Any]] | None:
    """The groups of an optimizer's parameters, or of what wraps one; None for any other object."""
    kind = type(value)
    # Lightning's wrapper passes on whatever it has not itself.
    passes_on = kind.__name__.endswith("Optimizer") and hasattr(kind, "__getattr__")
    if inspect.getattr_static(value, "param_groups", None) is None and not passes_on:
        return None
    found = getattr(value, "param_groups", None)
    return found if isinstance(found, list) and all(isinstance(group, dict) for group in found) else None


def _is_number(torch: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and not hasattr(value, "to_local")


def _number(torch: Any, value: Any) -> Settable | None:
    if not _is_number(torch, value) or not value.is_floating_point() or value.is_meta:
        return None
    return Settable([value.item()], lambda new: _fill(torch, value, new[0]))


def _fill(torch: Any, tensor: Any, value: Any) -> None:
    with torch.no_grad():
        tensor.fill_(value)


def _note(groups: list[dict[str, Any]], name: str, namespace: Mapping[str, Any]) -> str:
    """What a scheduler of the loop's makes of a new rate."""
    schedulers: Any = sys.modules.get("torch.optim.lr_scheduler")
    kinds = [getattr(schedulers, kind, None) for kind in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau")]
    for variable, one in namespace.items():
        if not isinstance(one, tuple(kind for kind in kinds if kind is not None)):
            continue
        if getattr(getattr(one, "optimizer", None), "param_groups", None) is not groups:
            continue
        if type(one).__name__ in _GOES_ON:
            return f"{variable} goes on from there"
        again = f"{variable} sets {name} again at its next step"
        return f"{again}: set {variable}.base_lrs, too, if it is to stay" if type(one).__name__ in _FROM_BASE else again
    return ""
