"""The stored part of one rank's text: its beginning, chunk by chunk, and its end.

Text comes in pieces, ``(stream, text)``. Sizes are bytes of UTF-8. Plain data; nothing here fails.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from jupyter_dtrain.core.structs import readable

HEAD = 256 << 10
"""Bytes of the beginning of a rank's text that are stored."""
TAIL = 64 << 10
"""Bytes of its end that are stored beyond these."""
CHUNK = 4 << 10
"""Bytes up to which one row of the table of texts is extended."""

Piece = tuple[str, str]


class Tail:
    """The end of a rank's text: its last :data:`TAIL` bytes, once :meth:`trimmed` was called."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._pieces = list(pieces)

    def add(self, stream: str, text: str) -> None:
        """Append ``text`` of ``stream``."""
        append(self._pieces, stream, text)

    def trimmed(self) -> list[Piece]:
        """Drop text that is too old; return the rest."""
        kept: list[Piece] = []
        room = TAIL
        for stream, text in reversed(self._pieces):
            data = text.encode("utf-8", "replace")
            kept.append((stream, text if len(data) <= room else data[-room:].decode("utf-8", "ignore")))
            room -= len(data)
            if room <= 0:
                break
        self._pieces = kept[::-1]
        return self._pieces


def cut(text: str, room: int) -> tuple[str, str]:
    """The part of ``text`` that fits ``room`` bytes, and the rest."""
    data = text.encode("utf-8", "replace")
    if len(data) <= room:
        return text, ""
    head = data[: max(0, room)].decode("utf-8", "ignore")
    return head, text[len(head) :]


def size(text: str) -> int:
    """Bytes of ``text``."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def append(pieces: list[Piece], stream: str, text: str) -> None:
    """Add to ``pieces``; short text of one stream stays one piece."""
    if pieces and pieces[-1][0] == stream and len(pieces[-1][1]) < CHUNK:
        pieces[-1] = (stream, pieces[-1][1] + text)
    else:
        pieces.append((stream, text))


def pack(pieces: list[Piece]) -> bytes:
    """Encode the pieces for the file."""
    return msgspec.json.encode(pieces)


def unpack(data: bytes) -> list[Piece]:
    """Decode pieces from the file."""
    return msgspec.json.decode(data, type=readable(list[Piece]))
