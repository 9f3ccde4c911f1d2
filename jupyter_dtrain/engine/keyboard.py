"""Refuses whatever would wait for a keyboard: a rank has none.

Under failure: nothing here waits. Each call raises at once, and its error names the way that works in cells. Code that
swallows the error may ask again without end, so the second question of a cell is also told in its output.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from IPython.core.error import UsageError

_CURE = (
    "{what} needs a keyboard, and a rank has none: a cell runs on all ranks at once. "
    "Set values with %%distributed -i NAMES, and look at variables with another %%distributed cell."
)

_AGAIN = 2


def refuse_keyboard(shell: Any) -> None:
    """Have questions, debuggers and exit() in this process raise. ``shell``: its IPython."""
    shell.ask_exit = _refuse_exit
    asked: list[int] = []
    """The numbers of the cells that have asked, those of the last cell alone."""

    def tell(what: str, prompt: str) -> None:
        asked[:] = [*(one for one in asked if one == shell.execution_count), shell.execution_count]
        if len(asked) == _AGAIN:
            question = f" The question is {prompt!r}." if prompt else ""
            words = f"This cell goes on after an error, and asks again: {_CURE.format(what=what)}{question}"
            print(f"[jupyter-dtrain] {words}", file=sys.stderr)  # noqa: T201 — into the cell's output

    builtins.input = _refuse("input()", tell)
    sys.breakpointhook = _refuse("breakpoint()", tell)
    with contextlib.suppress(ImportError):
        import getpass

        getpass.getpass = _refuse("getpass()", tell)
    import pdb  # noqa: T100 — to refuse it

    pdb.set_trace = _refuse("pdb.set_trace()", tell)
    for magic in ("debug", "pdb"):
        shell.register_magic_function(_refuse_magic(magic), "line_cell" if magic == "debug" else "line", magic)


def _refuse(what: str, tell: Callable[[str, str], None]) -> Any:
    def refuse(*args: Any, **_options: Any) -> NoReturn:
        tell(what, args[0] if args and type(args[0]) is str else "")
        raise RuntimeError(_CURE.format(what=what))

    return refuse


def _refuse_magic(name: str) -> Any:
    def magic(line: str = "", cell: str | None = None) -> NoReturn:  # noqa: ARG001 — IPython's signature
        raise UsageError(_CURE.format(what=f"%{name}"))

    return magic


def _refuse_exit() -> NoReturn:
    raise RuntimeError(
        "exit() would end this rank and leave a hole in the world: use %distributed stop in the notebook."
    )
