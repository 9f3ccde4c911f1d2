"""What a rank tells of its names while a person types: how they may go on, and what they stand for.

Asked on the control thread, also while a cell runs, so what is the user's own is hardly run: no property and no
``__repr__``, which might compute, talk to other ranks, or wait. What names attributes is asked: ``__dir__`` and
``__getattr__``, by which PyTorch's modules have their layers.

Under failure: a name that cannot be looked at is not there.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MOST: Final = 200
"""Completions of one answer."""
WIDTH: Final = 80
"""Characters of a value that are shown."""
DOC: Final = 6000
SOURCE: Final = 20_000
"""Characters of a docstring, and of a source, that are told."""

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), range)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)
"""Attributes that C code keeps: reading one runs nothing of the user's."""
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType)
_BOUND = (*_DATA, *_FUNCTIONS, types.WrapperDescriptorType, classmethod, staticmethod)
"""Descriptors that compute nothing."""


class Description(msgspec.Struct, frozen=True):
    """What a name stands for on one rank."""

    type: str
    value: str
    """In few words, such as ``float32 (64, 10) on cuda:0``; empty where there are none."""
    signature: str
    doc: str
    source: str
    """Where it was asked for and is known."""


def complete(namespace: Mapping[str, Any], hidden: Collection[str], text: str) -> list[tuple[str, str]]:
    """How ``text``, a name or a dotted path, may go on: names for its last part and their kinds, as IPython calls them.

    Names that begin with an underscore come only where ``text`` asks for them; ``hidden`` ones never.
    """
    path, _, start = text.rpartition(".")
    if path:
        try:
            value = resolve(namespace, path)
        except LookupError:
            return []
        names = [name for name in dir(value) if isinstance(name, str)]
        values = {name: _static(value, name) for name in names if name.startswith(start)}
    else:
        values = {name: namespace.get(name) for name in list(namespace) if name not in hidden}
    found = sorted(name for name in values if name.startswith(start) and (start[:1] == "_" or name[:1] != "_"))
    return [(name, _kind(values[name])) for name in found[:MOST]]


def describe(namespace: Mapping[str, Any], path: str, *, source: bool) -> Description | None:
    """What ``path``, a name or a dotted path, stands for; None where it stands for nothing."""
    try:
        value = resolve(namespace, path)
    except LookupError:
        return None
    is_code = isinstance(value, (type, *_FUNCTIONS))
    return Description(
        _type_name(value),
        _in_few_words(value),
        _signature(path, value) if is_code else "",
        (inspect.getdoc(value) or "")[:DOC] if is_code or not isinstance(value, (*_PLAIN, *_CONTAINERS)) else "",
        _source(value) if is_code and source else "",
    )


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
        if hasattr(type(static), "__get__") and not isinstance(static, _BOUND):
            raise LookupError(name)
    try:
        return getattr(value, name)
    except Exception as error:
        raise LookupError(name) from error


def _static(value: Any, name: str) -> Any:
    return inspect.getattr_static(value, name, None)


def _kind(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    if isinstance(value, property):
        return "property"
    if isinstance(value, (*_FUNCTIONS, classmethod, staticmethod)):
        return "function"
    return "instance"


def _type_name(value: Any) -> str:
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module in {"builtins", "__main__"} else f"{module}.{kind.__qualname__}"


def _in_few_words(value: Any) -> str:
    kind = type(value)
    if kind in _PLAIN:
        return _short(repr(value[: 2 * WIDTH] if kind in {str, bytes, bytearray} else value))
    if kind in _CONTAINERS:
        keys = [repr(key) for key in list(value)[:5] if type(key) in {int, str}] if kind is dict else []
        more = [*keys, "…"] if len(value) > len(keys) > 0 else keys
        return _short(f"of {len(value)}{': ' if more else ''}{', '.join(more)}")
    if not isinstance(value, type) and all(_holds_data(kind, name) for name in ("shape", "dtype")):
        try:
            dtype = str(value.dtype).removeprefix("torch.")
            words = f"{dtype} {tuple(value.shape)}"
            return _short(f"{words} on {value.device}" if _holds_data(kind, "device") else words)
        except Exception:  # noqa: BLE001 — what only looks like an array
            return ""
    return ""


def _holds_data(kind: type, name: str) -> bool:
    """Whether objects of this type have the attribute without computing it."""
    return isinstance(inspect.getattr_static(kind, name, None), _DATA)


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _signature(path: str, value: Any) -> str:
    try:
        return f"{path}{inspect.signature(value)}"
    except (TypeError, ValueError):
        return ""


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)[:SOURCE]
    except (OSError, TypeError):
        return ""
