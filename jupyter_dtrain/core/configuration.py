"""Hyper-parameters as JSON: what may be one, the text that stands for its name, and those that a job has said.

Values become plain ones without a call of anybody's own code: an object that overrides how it is converted is read as
what it is built of. What no plain value stands for raises :class:`ValueError`, with the reason as a clause.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import sys
import threading
from collections.abc import Mapping
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from .secrets import environment_secrets, redact, redact_value

LONGEST: Final = 8 << 10
"""Bytes of one value, as JSON."""
MAX_NAME: Final = 200
"""Characters of a name."""
DEPTH: Final = 6
"""Containers in each other."""

_KEPT: Final = MAX_NAME - 12
_BITS: Final = 63


class NamedValues(dict[str, Any]):
    """Values that belong together under one name, such as the fields of a dataclass: JSON, by name."""


def clean_name(name: object) -> str:
    """``name`` as one line of at most :data:`MAX_NAME` characters, without secrets; two long ones stay different."""
    try:
        words = str.__str__(name) if issubclass(type(name), str) else str(name)
    except Exception:  # noqa: BLE001 — a key may be anything, and a name ends no cell
        words = type(name).__name__
    text = " ".join(words.split())
    text = redact(text.encode("utf-8", "replace").decode()) or "value"
    if len(text) <= MAX_NAME:
        return text
    return f"{text[:_KEPT]}…{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def stored(name: str, value: Any) -> Any:
    """``value`` as it is stored: JSON without secrets. Raises :class:`ValueError` with why it cannot be."""
    found = redact_value(name, plain(value), environment_secrets())
    if len(msgspec.json.encode(found)) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST >> 10} kB")
    return found


def plain(value: Any, depth: int = DEPTH) -> Any:
    """``value`` as JSON: numbers, text, booleans, None, and lists and dictionaries of these.

    Members of enumerations become their values, paths text, tuples and sets lists, dataclasses and namespaces
    dictionaries, numbers of numpy those of Python; NaN, infinity and numbers of more than 64 bits text. Raises
    :class:`ValueError` with the reason, as a clause, for anything else.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if issubclass(kind, enum.Enum):
        return _member(value)
    if issubclass(kind, int):
        return _whole(int.__int__(value))
    if issubclass(kind, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else str(number)
    if issubclass(kind, str):
        return str.__str__(value).encode("utf-8", "replace").decode()
    if (numpy := sys.modules.get("numpy")) is not None and issubclass(kind, numpy.generic):
        return plain(value.item(), 0)
    if issubclass(kind, PurePath):
        return str(value)
    return _container(value, kind, depth)


def _container(value: Any, kind: type, depth: int) -> Any:
    named = fields_of(value)
    is_list = issubclass(kind, (list, tuple, set, frozenset))
    if named is None and not is_list:
        raise ValueError(f"{kind.__name__} is no number, text, boolean, None, or a small list or dictionary of these")
    if depth == 0:
        raise ValueError(f"it has more than {DEPTH} containers in each other")
    items = list(named.items()) if named is not None else list(base_of(kind).__iter__(value))
    if len(items) > LONGEST:
        raise ValueError(f"it has {len(items):,} items")
    if named is not None:
        return {_key(key): plain(one, depth - 1) for key, one in items}
    found = [plain(one, depth - 1) for one in items]
    return sorted(found, key=repr) if issubclass(kind, (set, frozenset)) else found


def base_of(kind: type) -> Any:
    """The one of Python's containers that ``kind`` is."""
    return next(one for one in (list, tuple, set, frozenset) if issubclass(kind, one))


def fields_of(value: Any) -> Mapping[Any, Any] | None:
    """The named values of a dictionary, a dataclass or a namespace, such as argparse's; None for anything else."""
    kind = type(value)
    if issubclass(kind, dict):
        return dict(dict.items(value))
    argparse = sys.modules.get("argparse")
    kinds = (SimpleNamespace,) if argparse is None else (SimpleNamespace, argparse.Namespace)
    is_data = any(
        "__dataclass_fields__" in type.__getattribute__(one, "__dict__")
        for one in type.__getattribute__(kind, "__mro__")
    )
    if not is_data and not issubclass(kind, kinds):
        return None
    try:
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:  # its fields are slots
        own = {}
    if not is_data:
        return dict(own)
    names = [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    return {name: own[name] for name in names if name in own}


def _member(value: Any) -> Any:
    own = object.__getattribute__(value, "__dict__")  # its attributes may be code of the user's
    found = own.get("_value_")
    return found if type(found) in (str, int, float, bool) else str(own.get("_name_"))


def _whole(number: int) -> Any:
    if number.bit_length() <= _BITS:
        return number
    if number.bit_length() > 8 * LONGEST:
        raise ValueError(f"it is a number of {number.bit_length():,} bits")
    return hex(number)


def _key(key: Any) -> str:
    found = plain(key, 0) if type(key) is not str else key
    return str(found).encode("utf-8", "replace").decode()[:MAX_NAME]


class _Said:
    """What :func:`jupyter_dtrain.config` has said outside a world, for the record of a job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}
        self._taken = 0
        self._count = 0

    def say(self, values: Mapping[str, Any]) -> None:
        with self._lock:
            self._values.update(values)
            self._count += 1

    def take(self) -> dict[str, Any]:
        with self._lock:
            if self._taken == self._count:
                return {}
            self._taken = self._count
            return dict(self._values)


_said = _Said()


def say_outside(values: Mapping[str, Any]) -> None:
    """Keep hyper-parameters, as :func:`stored` makes them, that a process outside a world has said."""
    _said.say(values)


def take_said() -> dict[str, Any]:
    """All that were kept, where some are new since the last call; else nothing."""
    return _said.take()
