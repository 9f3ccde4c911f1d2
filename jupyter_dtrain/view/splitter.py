"""The text of one stream of one rank, cut into lines as a terminal would show them.

Progress bars redraw their line with carriage returns, so that the same line is written many times; what counts is
what it looks like at the end. Nothing here fails, and memory is bounded: a line is cut after :data:`LONGEST` bytes.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 64_000
"""UTF-8 bytes of one line; a longer one is cut as if it had line ends there."""

_UP_OR_NEWLINE = re.compile(r"\x1b\[(\d*)A|\n")


def cleaned(text: str) -> str:
    """What a line that may contain carriage returns looks like in the end.

    The text after the last carriage return counts; trailing ones move the cursor only.
    """
    return text.rstrip("\r").rpartition("\r")[2] if "\r" in text else text


def printable(text: str) -> str:
    """``text`` without lone surrogates, which no UTF-8 message or terminal can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class LineSplitter:
    """Cuts text into lines, whatever the boundaries of the pieces in which it comes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._up = 0
        self.since = 0.0
        """When the unfinished line began. Unit: ``time.monotonic()`` seconds."""
        self.redrawn = False
        """Whether the unfinished line contains a carriage return."""

    @property
    def partial(self) -> str:
        """The unfinished line as it looks now; empty if there is none."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return cleaned(self._parts[0]) if self._parts else ""

    def feed(self, text: str, now: float) -> tuple[list[str], bool]:
        r"""The lines that ``text`` finishes.

        The flag tells whether the first of them is the end of a line that was redrawn over several writes, as a
        progress bar's. ``\\r\\n`` is an ordinary line end, also when it is split.
        """
        text = printable(text)
        if self._up or "\x1b[" in text:
            text = self._level(text)
        pieces = text.split("\n")
        if len(pieces) == 1:
            self._keep(text, now)
            return (self._overflow(), False)
        begun = bool(self._parts)
        first = "".join([*self._parts, pieces[0]])
        pieces[0] = first
        redrawn = begun and "\r" in first.rstrip("\r")
        rest = pieces.pop()
        self._parts, self._length, self.redrawn = [], 0, False
        lines: list[str] = []
        for piece in pieces:
            line = cleaned(piece) if "\r" in piece else piece
            if len(line) * 4 > LONGEST:
                lines.extend(_cut(line))
            else:
                lines.append(line)
        if rest:
            self._keep(rest, now)
            lines.extend(self._overflow())
        return lines, redrawn

    def take(self) -> str:
        """Remove and return the unfinished line."""
        text = self.partial
        self._parts, self._length, self.redrawn, self._up = [], 0, False, 0
        return text

    def _keep(self, text: str, now: float) -> None:
        if not text:
            return
        if not self._parts:
            self.since = now
        self._parts.append(text)
        self._length += len(text)
        if "\r" in text or self.redrawn:
            self.redrawn = True
            whole = "".join(self._parts)
            shown = whole.rstrip("\r")
            _head, turn, tail = shown.rpartition("\r")
            # One carriage return stays in front: it says at the line's end that the line was redrawn.
            kept = turn + tail + whole[len(shown) :][:1]
            self._parts, self._length = [kept], len(kept)

    def _overflow(self) -> list[str]:
        """Pieces of the unfinished line that are too long to be kept, as lines."""
        if self._length * 4 <= LONGEST:
            return []
        pieces = _cut("".join(self._parts))
        rest = pieces.pop()
        self._parts, self._length = [rest], len(rest)
        return [cleaned(piece) for piece in pieces]

    def _level(self, text: str) -> str:
        """Nested bars step a line down, draw, and step up again: fold that into redraws of one line."""

        def replace(match: re.Match[str]) -> str:
            if match[0] == "\n":
                if not self._up:
                    return "\n"
                self._up -= 1
            else:
                self._up = min(self._up + int(match[1] or 1), 100)
            return "\r"

        return _UP_OR_NEWLINE.sub(replace, text)


def _cut(line: str) -> list[str]:
    """``line`` in pieces of at most :data:`LONGEST` bytes; a last piece that is shorter is the unfinished one."""
    room = LONGEST if line.isascii() else LONGEST // 4
    return [line[start : start + room] for start in range(0, len(line), room)] or [""]
