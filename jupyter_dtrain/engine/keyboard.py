"""Refuses whatever would wait for a keyboard: a rank has none.

Under failure: nothing here waits. Each call raises at once, and its error names the way that works in cells.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from typing import Any, NoReturn

from IPython.core.error import UsageError

_CURE = (
    "{what} needs a keyboard, and a rank has none: a cell runs on all ranks at once. "
    "Set values with %%distributed -i NAMES, and look at variables with another %%distributed cell."
)


def refuse_keyboard(shell: Any) -> None:
    """Have questions, debuggers and exit() in this process raise. ``shell``: its IPython."""
    shell.ask_exit = _refuse_exit
    builtins.input = _refuse("input()")
    sys.breakpointhook = _refuse("breakpoint()")
    with contextlib.suppress(ImportError):
        import getpass

        getpass.getpass = _refuse("getpass()")
    import pdb  # noqa: T100 — to refuse it

    pdb.set_trace = _refuse("pdb.set_trace()")
    for magic in ("debug", "pdb"):
        shell.register_magic_function(_refuse_magic(magic), "line_cell" if magic == "debug" else "line", magic)


def _refuse(what: str) -> Any:
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
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
