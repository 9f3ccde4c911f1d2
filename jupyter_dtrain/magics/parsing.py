"""argparse for magics: errors are usage errors, help is printed, and neither ends the kernel."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from IPython.core.error import UsageError

Parsed = argparse.Namespace
Completer = Callable[[str], Iterable[str]]
"""Tells, while a person types, what an argument may be that begins so; it may offer more. May raise a ``DtrainError``:
then nothing is known."""


class HelpShown(Exception):
    """``-h`` was asked for and has been answered."""


class MagicParser(argparse.ArgumentParser):
    """A parser that never exits."""

    def __init__(self, **kwargs: Any) -> None:
        self.known: list[tuple[argparse.Action, Completer | None]] = []
        """The arguments, each with what completes its values."""
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **kwargs})

    def add_argument(self, *names: Any, completer: Completer | None = None, **kwargs: Any) -> argparse.Action:
        """As argparse's own. ``completer``: what the argument's values may be; its ``choices`` need none."""
        action = super().add_argument(*names, **kwargs)
        self.known.append((action, completer))
        return action

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Called after help was printed."""
        if status:
            raise UsageError((message or "").strip())
        raise HelpShown

    def error(self, message: str) -> NoReturn:
        """A wrong line."""
        raise UsageError(f"{message}\n{self.format_usage().strip()}\n{self.prog} -h tells more.")

    def parse_line(self, line: str) -> Parsed:
        """Parse what stands behind the magic's name. Raises :class:`UsageError` and :class:`HelpShown`."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"{self.prog}: {error} in {line.strip()!r}") from None
        return self.parse_args(_shield_negative(words))


def _shield_negative(words: list[str]) -> list[str]:
    """Ranks such as ``-1`` or ``-3,-1`` with a space before them: argparse would take them for options."""
    return [f" {word}" if word[:1] == "-" and word[1:2].isdigit() else word for word in words]


def names(text: str) -> list[str]:
    """``a,b c`` as a list of names. Raises :class:`argparse.ArgumentTypeError` for what is no name."""
    found = [name for name in text.replace(",", " ").split() if name]
    for name in found:
        if not name.isidentifier():
            raise argparse.ArgumentTypeError(f"{name!r} is not the name of a variable")
    if not found:
        raise argparse.ArgumentTypeError("no name was given")
    return found


def variable(text: str) -> str:
    """One name of a variable."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a variable")
    return text


def seconds(text: str) -> float:
    """A duration above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 seconds")
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.strip().isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text.strip()!r} is not a whole number above 0")
    return int(text)


def assignment(text: str) -> tuple[str, str]:
    """``NAME=value``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        # The value is not repeated: it may be a secret.
        raise argparse.ArgumentTypeError("write variables as NAME=value")
    return name, value
