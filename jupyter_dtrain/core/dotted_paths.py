"""Dotted paths such as ``model.layer.weight``, looked up without running a property or a ``__repr__`` of the user's."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)
"""Attributes that C code keeps: reading one runs nothing of the user's."""


FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType)


BOUND = (*DATA, *FUNCTIONS, types.WrapperDescriptorType, classmethod, staticmethod)
"""Descriptors that compute nothing."""


def resolve(namespace: Mapping[str, Any], path: str) -> Any:
    """The value of a dotted path. Raises :class:`LookupError` when there is none, or only a property would tell."""
    first, *rest = path.split(".")
    if first not in namespace:
        raise LookupError(path)
    value = namespace[first]
    for name in rest:
        value = _attribute(value, name)
    return value


def _attribute(value: Any, name: str) -> Any:
    try:
        static = inspect.getattr_static(value, name)
    except AttributeError:
        if not hasattr(type(value), "__getattr__"):
            raise LookupError(name) from None
    else:
        if hasattr(type(static), "__get__") and not is_plainly(static, *BOUND):
            raise LookupError(name)
    try:
        return getattr(value, name)
    except Exception as error:
        raise LookupError(name) from error


def is_plainly(value: Any, *kinds: type) -> bool:
    """As ``isinstance``, which asks a ``__class__`` that may be computed."""
    return issubclass(type(value), kinds)
