"""Reports of ranks at the end of a cell, short enough for a row of the store: errors and results of bounded size.

Plain functions of plain data; nothing here fails.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from jupyter_dtrain.core.events import Error, Result

MAX_JSON: Final = 64 << 10
"""Bytes of an error or a result."""


def bounded_error(error: Error) -> Error:
    """``error``, shortened where it is longer."""
    if len(to_json(error)) <= MAX_JSON:
        return error
    return Error(
        error.ename[:1000],
        error.evalue[:20_000],
        error.frames[-20:] if len(to_json(error.frames[-20:])) < MAX_JSON // 2 else [],
        syntax=error.syntax[:1000] if error.syntax is not None else None,
        left_out=error.left_out + len(error.members),
    )


def bounded_result(result: Result) -> Result:
    """``result``; a longer one as text alone, shortened."""
    if len(to_json(result)) <= MAX_JSON:
        return result
    text = str(result.data.get("text/plain", ""))[: MAX_JSON // 4]
    return Result({"text/plain": text}, execution_count=result.execution_count)


def to_json(value: Any) -> str:
    """``value`` as JSON."""
    return msgspec.json.encode(value).decode()
