"""What a person can ask of a running loop between two of its steps, in the words of all who pass it on.

An act goes from a client over the steward to all ranks of a run. They stop their loops after the same step, do it, and
go on. Ranks, clients, pages and the store share these structs and the sentences that tell of them.

Under failure: :func:`parse_settings` raises :class:`~.errors.BadRequest` with what is wrong with a line, before any
rank has heard of it.
"""

from __future__ import annotations

import ast
import re
from typing import Final, Literal

import msgspec

from .errors import BadRequest
from .events import Error

ActKind = Literal["between", "set", "undo", "pause", "step", "stop-after", "save", "rewind"]
"""What is asked: to run code, to set values or put back those that the last ``set`` replaced, to pause, to make some
steps and pause again, to end the loop, to save a snapshot, to load a kept state."""

_PATH: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[-?\d+\]|\[(?:'[^']*'|\"[^\"]*\")\])*\Z")
"""A path such as ``opt.lr``, ``model.dropout.p``, ``opt[1].lr``, ``config['lr']``."""
_WORDS: Final = 120
"""Characters of code in the words for an act."""


class NewValue(msgspec.Struct, frozen=True):
    """One value that is to be set."""

    path: str
    """A variable's name and what follows it: ``opt.lr``, ``config['lr']``."""
    value: str
    """The value as Python writes it: a number, text, True, None, or a list, tuple or dict of those."""


class LoopAct(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person asks of a running loop."""

    kind: ActKind
    code: str = ""
    """``between``: the code."""
    settings: list[NewValue] = []
    """``set``: the values, all of them or none."""
    count: int = 0
    """``step``: how many steps; ``stop-after``: the step; ``rewind``: which of the kept states, 1 for the newest."""
    name: str = ""
    """``save``: the snapshot's name."""
    names: list[str] = []
    """``save``: the variables."""
    strict: bool = False
    """``between``: whether the loop ends on all ranks where the code raises on one."""

    @property
    def words(self) -> str:
        """What a person has asked for, as one line."""
        match self.kind:
            case "between":
                line = " ".join(self.code.split())
                return f"between {line[:_WORDS]}{'…' if len(line) > _WORDS else ''}"
            case "set":
                return " ".join(["set", *(f"{one.path}={one.value}" for one in self.settings)])
            case "step" | "stop-after" | "rewind":
                return f"{self.kind} {self.count}"
            case "save":
                return " ".join(["save", self.name, *self.names])
            case _:
                return self.kind


class Acted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of an act, or of one stage of it, on one rank."""

    ok: bool = True
    text: str = ""
    """What it has printed and shown, or the sentence that says what it has done, or why it was not done."""
    error: Error | None = None
    """What the person's own code has raised."""
    seconds: float = 0.0


def parse_settings(text: str) -> list[NewValue]:
    """The values of a line such as ``opt.lr=1e-4 model.dropout.p=0.1``.

    Raises :class:`BadRequest` for a path or a value that is none.
    """
    settings = []
    for part in _parts(text):
        path, equals, value = part.partition("=")
        path, value = path.strip(), value.strip()
        if not equals or not value or not _PATH.match(path):
            raise BadRequest(
                f"{part!r} is no PATH=VALUE such as opt.lr=1e-4: a path is a variable's name and attributes or items "
                f"of it, and a value has no spaces outside quotes and brackets."
            )
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise BadRequest(
                f"{value!r} is no value that set takes: a number, a text in quotes, True, False, None, or a list, "
                f"tuple or dict of those. For anything else: %distributed between"
            ) from None
        settings.append(NewValue(path, value))
    if not settings:
        raise BadRequest("There is nothing to set: name values as in opt.lr=1e-4 model.dropout.p=0.1")
    return settings


def _parts(text: str) -> list[str]:
    """``text`` cut at the spaces that stand outside quotes and brackets."""
    parts: list[str] = []
    part, quote, depth = "", "", 0
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if sign.isspace() and not quote and depth <= 0:
            parts, part = [*parts, part] if part else parts, ""
        else:
            part += sign
    return [*parts, part] if part else parts
