"""The text of one stream of one rank, cut into lines as a terminal would show them.

Progress bars redraw their line with carriage returns, so that the same line is written many times; what counts is
what it looks like at the end. Nothing here fails, and memory is bounded: a line is cut after :data:`LONGEST` bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 64_000
"""UTF-8 bytes of one line; a longer one is cut as if it had line ends there."""

_WIDEST: Final = 4  # UTF-8 bytes of one character
_DEEPEST: Final = 100  # nested bars; more is no bar

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


@dataclass(frozen=True)
class Cut:
    """The lines that a piece of text finished."""

    lines: list[str]
    continued: bool
    """The first of them was begun by earlier text."""
    redrawn: bool
    """The first of them was begun by earlier text and redrawn since: it is the end of a progress bar."""


class LineSplitter:
    """Cuts text into lines, whatever the boundaries of the pieces in which it comes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._up = 0  # lines that the cursor is above the last one
        self._down = False  # a line end whose meaning the next text tells
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

    def feed(self, text: str, now: float) -> Cut:
        r"""The lines that ``text`` finishes. ``\r\n`` is an ordinary line end, also when it is split."""
        text = printable(text)
        if self._up or "\x1b[" in text:
            text = self._level(text)
        pieces = text.split("\n")
        if len(pieces) == 1:
            self._keep(text, now)
            return Cut(self._overflow(), continued=True, redrawn=False)
        continued = bool(self._parts)
        first = "".join([*self._parts, pieces[0]])
        if "\r" in first and (left := _since_erased(first)) is not None:
            first, continued = left, False
        pieces[0] = first
        redrawn = continued and "\r" in first.rstrip("\r")
        rest = pieces.pop()
        self._clear()
        lines: list[str] = []
        for piece in pieces:
            line = cleaned(piece)
            if len(line) * _WIDEST > LONGEST:
                lines.extend(_cut(line))
            else:
                lines.append(line)
        if rest:
            self._keep(rest, now)
            lines.extend(self._overflow())
        return Cut(lines, continued, redrawn)

    def take(self) -> str:
        """Remove and return the unfinished line."""
        text = self.partial
        self._clear()
        self._up, self._down = 0, False
        return text

    def _clear(self) -> None:
        self._parts, self._length, self.redrawn = [], 0, False

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
            if (left := _since_erased(whole)) is not None:
                whole = left
            if not whole.strip("\r"):
                self._clear()
                return
            shown = whole.rstrip("\r")
            _, turn, tail = shown.rpartition("\r")
            # One carriage return stays in front: it says at the line's end that the line was redrawn.
            kept = turn + tail + whole[len(shown) :][:1]
            self._parts, self._length = [kept], len(kept)

    def _overflow(self) -> list[str]:
        """Pieces of the unfinished line that are too long to be kept, as lines."""
        if self._length * _WIDEST <= LONGEST:
            return []
        pieces = _cut("".join(self._parts))
        rest = pieces.pop()
        self._parts, self._length = [rest], len(rest)
        return [cleaned(piece) for piece in pieces]

    def _level(self, text: str) -> str:
        """Nested bars step a line down, draw, and step up again: fold that into redraws of one line.

        A step down is followed by a carriage return; any other line end ends the line, wherever the cursor is.
        """
        if self._down:
            text, self._down = "\n" + text, False
        if self._up and text.endswith("\n"):
            text, self._down = text[:-1], True

        def replace(match: re.Match[str]) -> str:
            if match[0] == "\n":
                if not self._up:
                    return "\n"
                self._up -= 1
                return "\r" if text.startswith("\r", match.end()) else "\n"
            self._up = min(self._up + int(match[1] or 1), _DEEPEST)
            return "\r"

        return _UP_OR_NEWLINE.sub(replace, text)


def _since_erased(line: str) -> str | None:
    """What was written on ``line`` since it was last overwritten with spaces; ``None`` if it never was."""
    parts = line.split("\r")
    # The first part begins the line, and what the last one does is not decided before a carriage return follows.
    for index in range(len(parts) - 2, 0, -1):
        if parts[index].isspace():
            return "\r".join(parts[index + 1 :])
    return None


def _cut(line: str) -> list[str]:
    """``line`` in pieces of at most :data:`LONGEST` bytes; a last piece that is shorter is the unfinished one."""
    room = LONGEST if line.isascii() else LONGEST // _WIDEST
    return [line[start : start + room] for start in range(0, len(line), room)] or [""]
