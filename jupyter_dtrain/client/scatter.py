"""Data in one part for each rank, and back: scatter cuts a sequence, and gather joins the ranks' parts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from jupyter_dtrain.core.errors import BadRequest


def cut(name: str, data: Any, count: int) -> list[Any]:
    """``data`` in ``count`` consecutive parts, whose lengths differ by at most one. Raises :class:`BadRequest`."""
    try:
        length = len(data)
        edges = [length * place // count for place in range(count + 1)]
        return [data[start:stop] for start, stop in itertools.pairwise(edges)]
    except Exception as error:  # noqa: BLE001 — a user's class may raise anything
        raise BadRequest(
            f"{name!r} cannot be scattered: {type(data).__name__} objects have no length and no slices ({error}). "
            f"Give a list, an array or a tensor; push sends the same value to all ranks."
        ) from None


def join(parts: Sequence[Any]) -> Any:
    """The parts as one: lists, tuples, texts and arrays are put together; anything else becomes a list of the parts."""
    kinds = {type(part) for part in parts}
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in (list, tuple, str, bytes):
            whole = kind()
            for part in parts:
                whole = whole + part
            return whole
        # Libraries of arrays call it so, numpy among them.
        library = sys.modules.get(kind.__module__.partition(".")[0])
        concatenate = getattr(library, "concatenate", None)
        if concatenate is not None and all(getattr(part, "ndim", 0) for part in parts):
            return concatenate(list(parts))
    return list(parts)
