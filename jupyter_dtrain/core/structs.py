"""The types that messages are read as, safe to use from several threads.

msgspec looks at a type when the first value is read as it, and Python code runs in between. Another thread that reads
a value as the same type in that moment crashes the process (msgspec 0.22). Here one thread at a time looks.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a read of damaged bytes raises. The last two are no errors of msgspec's own: text in another encoding, and JSON
that is nested without end."""

_lock = threading.Lock()
_known: set[Any] = set()


@overload
def readable(kind: type[T]) -> type[T]: ...
@overload
def readable(kind: Any) -> Any: ...
def readable(kind: Any) -> Any:
    """``kind``, once msgspec knows it and every type in it. Whatever reads values as a type gets the type from here.

    Raises ``TypeError`` for a type that msgspec cannot read.
    """
    if kind not in _known:
        with _lock:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
