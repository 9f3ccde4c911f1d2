"""The text of one stream of one rank, cut into lines as a terminal would show them.

Progress bars redraw their line with carriage returns, so they write the same line many times; only its final look
counts. Nothing here fails, and memory is bounded: a line is cut after :data:`LONGEST` bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 64_000
"""UTF-8 bytes of one line; a longer one is cut as if it had line ends there."""

_WIDEST: Final = 4  # UTF-8 bytes of one character
_DEEPEST: Final = 100  # nested bars; anything deeper is no bar

_UP_OR_NEWLINE = re.compile(r"\x1b\[(\d*)A|\n")


def cleaned(text: str) -> str:
    """The final look of a line that may contain carriage returns.

    The text after the last carriage return counts; trailing ones only move the cursor.
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
    """Whether earlier text began the first of them."""
    redrawn: bool
    """Whether earlier text began the first of them and a redraw followed: it is the end of a progress bar."""


class LineSplitter:
    """Cuts text into lines, in whatever pieces the text comes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._up = 0  # how many lines the cursor is above the last one
        self._down = False  # a line end whose meaning depends on the next text
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
            # One carriage return stays in front, as the sign that the line was redrawn.
            kept = turn + tail + whole[len(shown) :][:1]
            self._parts, self._length = [kept], len(kept)

    def _overflow(self) -> list[str]:
        """The parts of the unfinished line that are too long to keep, as lines."""
        if self._length * _WIDEST <= LONGEST:
            return []
        pieces = _cut("".join(self._parts))
        rest = pieces.pop()
        self._parts, self._length = [rest], len(rest)
        return [cleaned(piece) for piece in pieces]

    def _level(self, text: str) -> str:
        """Fold nested bars, which step a line down, draw and step up again, into redraws of one line.

        A carriage return follows a step down; any other line end ends the line, wherever the cursor is.
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
    """The text written on ``line`` since spaces last overwrote it; ``None`` if they never did."""
    parts = line.split("\r")
    # The first part begins the line; the meaning of the last depends on a carriage return that may follow.
    for index in range(len(parts) - 2, 0, -1):
        if parts[index].isspace():
            return "\r".join(parts[index + 1 :])
    return None


def _cut(line: str) -> list[str]:
    """``line`` in pieces of at most :data:`LONGEST` bytes; a shorter last piece is the unfinished one."""
    room = LONGEST if line.isascii() else LONGEST // _WIDEST
    return [line[start : start + room] for start in range(0, len(line), room)] or [""]
