"""A rank's names for a person who types: their completions, and what they stand for.

A rank answers while a cell runs, too, so it runs hardly any user code: no property and no ``__repr__``, which might
compute, talk to other ranks, or wait. It does call ``__dir__`` and ``__getattr__``, by which neural networks have
their layers. Since these may wait all the same, :mod:`.questions` answers on a thread of its own.

Under failure: the answer leaves out a name that cannot be inspected.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.dotted_paths import DATA, FUNCTIONS, is_plainly, resolve
from jupyter_dtrain.wire.agent_messages import NameDescription

from .contents import full_type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

MOST: Final = 500
"""Completions in one answer."""
WIDTH: Final = 80
"""Characters of a value in an answer."""
DOC: Final = 6000
SOURCE: Final = 20_000
"""Characters of a docstring, and of a source, in an answer."""

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), range)
_CONTAINERS = (list, tuple, set, frozenset, dict)


def complete(namespace: Mapping[str, Any], hidden: Collection[str], text: str) -> list[tuple[str, str]]:
    """Completions of ``text``, a name or a dotted path: names for its last part and their kinds in IPython's words.

    Names that begin with an underscore come only where ``text`` asks for them; ``hidden`` ones never.
    """
    path, _, start = text.rpartition(".")
    if path:
        try:
            value = resolve(namespace, path)
        except LookupError:
            return []
        names = [name for name in dir(value) if is_plainly(name, str)]
        values = {name: inspect.getattr_static(value, name, None) for name in names if name.startswith(start)}
    else:
        values = {name: namespace.get(name) for name in list(namespace) if name not in hidden}
    found = sorted(name for name in values if name.startswith(start) and (start[:1] == "_" or name[:1] != "_"))
    return [(name, _kind(values[name])) for name in found[:MOST]]


def describe(namespace: Mapping[str, Any], path: str, *, source: bool) -> NameDescription | None:
    """The thing that ``path``, a name or a dotted path, stands for; None where it stands for nothing."""
    try:
        value = resolve(namespace, path)
    except LookupError:
        return None
    is_code = is_plainly(value, type, *FUNCTIONS)
    return NameDescription(
        full_type_name(value),
        _tried(lambda: _in_few_words(value)),
        _tried(lambda: f"{path}{_signature(value)}") if is_code else "",
        "" if is_plainly(value, *_PLAIN, *_CONTAINERS) else _tried(lambda: inspect.getdoc(value) or "")[:DOC],
        _tried(lambda: inspect.getsource(value))[:SOURCE] if is_code and source else "",
    )


def _tried(words: Callable[[], str]) -> str:
    """The words, or none where user code fails."""
    try:
        return words()
    except Exception:  # noqa: BLE001 — user code may raise anything
        return ""


def _kind(value: Any) -> str:
    if is_plainly(value, types.ModuleType):
        return "module"
    if is_plainly(value, type):
        return "class"
    if is_plainly(value, property):
        return "property"
    if is_plainly(value, *FUNCTIONS, classmethod, staticmethod):
        return "function"
    return "instance"


def _in_few_words(value: Any) -> str:
    kind = type(value)
    if kind in _PLAIN:
        return _short(repr(value[: 2 * WIDTH] if kind in {str, bytes, bytearray} else value))
    if kind in _CONTAINERS:
        keys = [repr(key) for key in list(value)[:5] if type(key) in {int, str}] if kind is dict else []
        more = [*keys, "…"] if len(value) > len(keys) > 0 else keys
        return _short(f"of {len(value)}{': ' if more else ''}{', '.join(more)}")
    if not is_plainly(value, type) and all(_holds_data(kind, name) for name in ("shape", "dtype")):
        dtype = str(value.dtype).rpartition(".")[2]
        words = f"{dtype} {tuple(value.shape)}"
        return _short(f"{words} on {value.device}" if _holds_data(kind, "device") else words)
    return ""


def _holds_data(kind: type, name: str) -> bool:
    """Whether objects of this type have the attribute without computing it."""
    return is_plainly(inspect.getattr_static(kind, name, None), *DATA)


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


class _Shown:
    """Stands for a default value or an annotation, so that its own ``__repr__`` does not run."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def _signature(value: Any) -> inspect.Signature:
    empty = inspect.Parameter.empty
    found = inspect.signature(value)
    parameters = []
    for one in found.parameters.values():
        kept = one.replace(annotation=empty)
        if one.default is not empty:
            kept = kept.replace(default=_Shown(_in_few_words(one.default) if type(one.default) in _PLAIN else "…"))
        parameters.append(kept)
    return found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
