"""argparse for magics: errors are usage errors, help is printed, and neither ends the kernel."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.run_names import check_run_name
from jupyter_dtrain.plugins.patches import Patch

Parsed = argparse.Namespace
Completer = Callable[[str], Iterable[str]]
"""Takes the beginning of an argument and returns its possible values, perhaps with others. It may raise a
``DtrainError``: then completion offers nothing."""


_said: set[str] = set()
"""The former names that :func:`say_renamed` has spoken of."""


def say_renamed(former: str, now: str) -> None:
    """Tell a person, once in a process, that ``former`` is called ``now``."""
    if former not in _said:
        _said.add(former)
        print(f"{former} is called {now} now. The former name works until the next release.", file=sys.stderr)


class _Former(argparse.Action):
    """A former name of an argument: it does what the argument does, and says its name."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, now: argparse.Action, **_: Any) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs=now.nargs,
            const=now.const,
            default=argparse.SUPPRESS,
            type=now.type,  # type: ignore[arg-type]  # typeshed's attribute is wider than its parameter
            choices=now.choices,
            help=argparse.SUPPRESS,
        )
        self._now = now

    def __call__(self, parser: Any, namespace: Parsed, values: Any, option_string: str | None = None) -> None:
        """Do what the argument does."""
        say_renamed(str(option_string), self._now.option_strings[-1])
        self._now(parser, namespace, values, option_string)


class HelpShown(Exception):
    """The parser has printed the help that ``-h`` asked for."""


ARGUMENTS = Patch(
    "argparse",
    reads=(
        "_action_groups",
        "_actions",
        "_group_actions",
        "_mutually_exclusive_groups",
        "_optionals",
        "_positionals",
        "_SubParsersAction",
    ),
    why="A parser has its arguments, their groups and what excludes what, and tells them only as the text of -h.",
    lost="Tab, and the pages of the reference, lack arguments that stand in groups",
)


class MagicParser(argparse.ArgumentParser):
    """A parser that never exits."""

    def __init__(self, **kwargs: Any) -> None:
        self.options_anywhere = False
        """Whether options may stand between plain words. Each option takes one value or none then."""
        self._completers: dict[int, Completer] = {}
        self._dashed: set[str] = set()
        """The options whose value may begin with a dash, as it is for another program."""
        self._typed: argparse.Action | None = None
        """The argument that takes the end of the line as it was typed."""
        self._elsewhere: dict[int, str] = {}
        """The helps of the arguments that the ``-h`` of another magic lists."""
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **kwargs})

    def add_argument(self, *names: Any, completer: Completer | None = None, **kwargs: Any) -> argparse.Action:
        """Like argparse's own method. ``completer`` offers values; an argument with ``choices`` needs none."""
        action = super().add_argument(*names, **kwargs)
        if completer is not None:
            self.completes(action, completer)
        return action

    def completes(self, action: argparse.Action, completer: Completer) -> None:
        """Have ``completer`` offer the values of an argument, which may be in a group."""
        self._completers[id(action)] = completer

    def formerly(self, action: argparse.Action, *names: str) -> None:
        """Let an argument go by its former ``names``, too, which ``-h`` does not show."""
        super().add_argument(*names, dest=action.dest, action=_Former, now=action)

    def takes_dashes(self, action: argparse.Action) -> None:
        """Let the value of an option begin with a dash: argparse would take it for an option of its own."""
        self._dashed.update(action.option_strings)

    def as_typed(self, action: argparse.Action) -> None:
        """Have an argument, the last one, take the rest of the line as it was typed, with its quotes: it is code.

        The options stand before it. Where it begins with a quote, it is one word as in a shell.
        """
        self._typed = action

    def listed_elsewhere(self, action: argparse.Action) -> None:
        """Leave an argument out of ``-h``, since that of another magic has it; Tab offers it all the same."""
        self._elsewhere[id(action)] = action.help or ""
        action.help = argparse.SUPPRESS

    def help_of(self, action: argparse.Action) -> str:
        """What an argument does, also of one that ``-h`` leaves out."""
        return self._elsewhere.get(id(action)) or action.help or ""

    @property
    def verbs(self) -> dict[str, MagicParser]:
        """The parsers of the verbs below this one, by name."""
        found = (one.choices for one in self._actions if isinstance(one, argparse._SubParsersAction))  # noqa: SLF001
        return {name: one for choices in found for name, one in choices.items()}

    @property
    def known(self) -> list[tuple[argparse.Action, Completer | None]]:
        """All arguments that Tab offers, those of groups too, each with its completer."""
        offered = [
            action
            for action in self._actions
            if self.help_of(action) != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        ]
        return [(action, self._completers.get(id(action))) for action in offered]

    def titled(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """The arguments that ``-h`` shows, by the titles of their groups; those outside of a group have none."""
        shown = [action for action, _ in self.known if action.help != argparse.SUPPRESS]
        usual = [*self._positionals._group_actions, *self._optionals._group_actions]  # noqa: SLF001 — listed nowhere else
        yield "", [action for action in usual if action in shown]
        for group in self._action_groups:
            if group not in (self._positionals, self._optionals):
                yield str(group.title), group._group_actions  # noqa: SLF001

    def excluded_by(self, action: argparse.Action) -> list[argparse.Action]:
        """The arguments that may not stand beside ``action``."""
        sets = [group._group_actions for group in self._mutually_exclusive_groups]  # noqa: SLF001
        return [other for one in sets if action in one for other in one if other is not action]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's own method, also for options between plain words: ``resize 4 --from 0 model``.

        argparse gives the first row of plain words to all positional arguments, and has no place for the next row.
        """
        if args is not None:
            args = self._with_dashed(list(args))
        if self.options_anywhere and args is not None:
            args = self._options_first(args)
        return super().parse_known_args(args, namespace)

    def _with_dashed(self, words: list[str]) -> list[str]:
        found: list[str] = []
        for word in words:
            if found and found[-1] in self._dashed and word.startswith("-"):
                found[-1] += f"={word}"
            else:
                found.append(word)
        return found

    def _options_first(self, words: list[str]) -> list[str]:
        first: list[str] = []
        plain: list[str] = []
        while words:
            word = words.pop(0)
            if not word.startswith("-"):
                plain.append(word)
                continue
            first.append(word)
            action = next((action for action, _ in self.known if word in action.option_strings), None)
            if words and action is not None and action.nargs is None:
                first.append(words.pop(0))
        return first + plain

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise instead of ending the process; argparse calls it after it has printed help."""
        if status:
            raise UsageError((message or "").strip())
        raise HelpShown

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError` for a line that cannot be parsed."""
        raise UsageError(f"{message}\n{self.format_usage().strip()}\n{self.prog} -h lists the options.")

    def parse_line(self, line: str) -> Parsed:
        """Parse the text after the magic's name. Raises :class:`UsageError` and :class:`HelpShown`."""
        try:
            words = self._words(line)
        except ValueError as error:
            raise UsageError(f"{self.prog}: {error} in {line.strip()!r}") from None
        return self.parse_args(_shield_negative(words))

    def _words(self, line: str) -> list[str]:
        """The words of a line, as a shell cuts it; code at its end is one word. Raises :class:`ValueError`."""
        first, _, rest = line.strip().partition(" ")
        below = self.verbs.get(first)
        if below is not None:
            return [first, *below._words(rest)]  # noqa: SLF001 — a parser of ours
        if self._typed is None:
            return shlex.split(line)
        known = {name: action for action, _ in self.known for name in action.option_strings} | {
            "-h": None,
            "--help": None,
        }
        options, rest = [], line.strip()
        while (option := rest.partition(" ")[0].partition("=")[0]) in known:
            word, _, rest = rest.partition(" ")
            options.append(word)
            rest = rest.strip()
            action = known[option]
            if action is not None and action.nargs is None and "=" not in word:
                value, _, rest = rest.partition(" ")
                options.append(value)
                rest = rest.strip()
        if not rest:
            return options
        with contextlib.suppress(ValueError):  # a quote that is code's own
            first, *others = shlex.split(rest)
            if rest[0] in "'\"" and (not others or others[0].partition("=")[0] in known):
                return [*options, first, *others]
        if late := next((word for word in rest.split()[-2:] if word.startswith("--") and word in known), ""):
            raise UsageError(f"{late} stands before the code: {self.prog} {late} …")
        return [*options, "--", rest]


def _shield_negative(words: list[str]) -> list[str]:
    """Put a space before ranks such as ``-1`` or ``-3,-1``: argparse would take them for options."""
    return [f" {word}" if word[:1] == "-" and word[1:2].isdigit() else word for word in words]


def names(text: str) -> list[str]:
    """``a,b c`` as a list of names. Raises :class:`argparse.ArgumentTypeError` for anything else."""
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


def run_name(text: str) -> str:
    """The name of a run."""
    try:
        return check_run_name(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
        # The message does not repeat the value: it may be a secret.
        raise argparse.ArgumentTypeError("write variables as NAME=value")
    return name, value


def run_numbers(text: str) -> list[int]:
    """The numbers in a list such as ``1,3-5,run``; ``run`` is a variable of the notebook that holds a run.

    Raises :class:`BadRequest`.
    """
    found: list[int] = []
    shell = get_ipython()
    for part in filter(None, map(str.strip, text.split(","))):
        held = shell.user_ns.get(part) if shell is not None else None
        if isinstance(held, Run):
            found.append(held.number)
            continue
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(1000):
            raise BadRequest(f"{part!r} names no runs. Use for example 3, 1,3 or 1,3-5.")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found
