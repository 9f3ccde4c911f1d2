"""Calls of functions that a client has sent: each runs in a cell, and its value stays until the client takes it.

Under failure: a function that cannot be rebuilt here, or that raises, ends the cell on this rank as any error does.
"""

from __future__ import annotations

import linecache
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from jupyter_dtrain.wire.values import ARGUMENTS

from .rank_context import verb_cell


def run_call(name: str, ranks: object = None, left: Iterable[str] = ()) -> None:  # noqa: ARG001 — all ranks call it alike
    """In a cell: call the function that came with it; the namespace has its value as ``name``.

    ``left``: the names of values that nobody takes any more.
    """
    _, namespace = verb_cell()
    _forget(namespace, left)
    function, arguments = _taken(namespace)
    namespace[name] = function(*arguments)


def run_map(name: str, ranks: list[int], left: Iterable[str] = ()) -> None:
    """In a cell: call the function for each item of this rank's part; the value is the list of values.

    ``ranks``: those that share the items, each taking the next one in turn. ``left``: as for :func:`run_call`.
    """
    home, namespace = verb_cell()
    _forget(namespace, left)
    function, items = _taken(namespace)
    namespace[name] = [function(item) for item in items[ranks.index(home.place.rank) :: len(ranks)]]


def _forget(namespace: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        namespace.pop(name, None)


def _taken(namespace: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    """The function that came with the cell, and what it is called with; tracebacks know the function's lines."""
    function, given, (file, lines) = pickle.loads(namespace.pop(ARGUMENTS))  # noqa: S301 — came signed, from our session
    if lines:
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    return function, given
