"""Refuses whatever would wait for a keyboard: a rank has none.

Under failure: nothing here waits. Each call raises at once, and its error names the way that works in cells. Code that
swallows the error may ask again without end, so the cell's output also shows the second question.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from IPython.core.error import UsageError

from jupyter_dtrain.plugins.patches import Patch, meant

INPUT = Patch(
    "builtins",
    replaces=("input",),
    why="input() in a rank reads an empty input, and its EOFError names no way that works in cells.",
    lost="input() finds the end of the rank's empty input",
)
BREAKPOINT = Patch(
    "sys",
    replaces=("breakpointhook",),
    why="A debugger that breakpoint() starts in a rank reads an empty input.",
    lost="breakpoint() starts a debugger without a keyboard",
)
PASSWORD = Patch(
    "getpass",
    replaces=("getpass",),
    why="getpass() in a rank opens a terminal that is not there, or reads an empty input.",
    lost="getpass() finds the end of the rank's empty input",
)
DEBUGGER = Patch(
    "pdb",
    replaces=("set_trace",),
    why="A debugger in a rank reads an empty input.",
    lost="pdb.set_trace() starts a debugger without a keyboard",
)
EXIT = Patch(
    "ipykernel.zmqshell",
    replaces=("ZMQInteractiveShell.ask_exit",),
    why="exit() would end one rank, and leave a hole in the world.",
    lost="exit() ends the rank",
)

_CURE = (
    "{what} needs a keyboard, and a rank has none: a cell runs on all ranks at once. "
    "Set values with %%distributed -i NAMES, and look at variables with another %%distributed cell."
)

_AGAIN = 2


def refuse_keyboard(shell: Any) -> None:
    """Have questions, debuggers and exit() in this process raise. ``shell``: its IPython."""
    asked: list[int] = []
    """The numbers of the cells that have asked, those of the last cell alone."""

    def show_repeat(what: str, prompt: str) -> None:
        asked[:] = [*(one for one in asked if one == shell.execution_count), shell.execution_count]
        if len(asked) == _AGAIN:
            question = f" The question is {prompt!r}." if prompt else ""
            words = f"This cell goes on after an error, and asks again: {_CURE.format(what=what)}{question}"
            print(f"[jupyter-dtrain] {words}", file=sys.stderr)  # noqa: T201 — into the cell's output

    for patch, name, what in (
        (INPUT, "input", "input()"),
        (BREAKPOINT, "breakpointhook", "breakpoint()"),
        (PASSWORD, "getpass", "getpass()"),
        (DEBUGGER, "set_trace", "pdb.set_trace()"),
    ):
        patch.when_imported(partial(_replace, patch, name, _refuse(what, show_repeat)))
    EXIT.when_imported(lambda _: EXIT.replace(shell, "ask_exit", _refuse_exit))
    for magic in ("debug", "pdb"):
        shell.register_magic_function(_refuse_magic(magic), "line_cell" if magic == "debug" else "line", magic)


def _replace(patch: Patch, name: str, ours: Callable[..., NoReturn], module: Any) -> None:
    patch.replace(module, name, ours)


def _refuse(what: str, show_repeat: Callable[[str, str], None]) -> Callable[..., NoReturn]:
    def refuse(_original: Any, prompt: Any = "", *_args: Any, **_options: Any) -> NoReturn:
        with contextlib.suppress(Exception):
            show_repeat(what, prompt if type(prompt) is str else "")
        raise meant(RuntimeError(_CURE.format(what=what)))

    return refuse


def _refuse_magic(name: str) -> Any:
    def magic(line: str = "", cell: str | None = None) -> NoReturn:  # noqa: ARG001 — IPython's signature
        raise UsageError(_CURE.format(what=f"%{name}"))

    return magic


def _refuse_exit(_original: Any) -> NoReturn:
    words = "exit() would end this rank and leave a hole in the world: use %distributed stop in the notebook."
    raise meant(RuntimeError(words))
