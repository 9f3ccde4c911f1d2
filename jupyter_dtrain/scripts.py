"""A script as torchrun would start it, in the ranks of a world: ``%distributed exec script.py ARGUMENTS``.

It goes as a cell of one call, :func:`run_script`, which a cell may make as well, so that its output, losses, errors and
interrupts are a cell's. In each rank it is ``__main__``, has its arguments in ``sys.argv`` and its folder first on
``sys.path``, and what it defines stays, as if it had been written in a cell. Modules that it imports from its own
folder are imported anew each time, since torchrun would see what was changed in them.

Under failure: what was changed of the process (``sys.argv``, ``sys.path``, ``__main__``) is as before, however the
script ends; what it had defined by then stays.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import BadRequest

_OWN = ("__file__", "__doc__")
"""Names of a module that are the script's while it runs."""
_imported: set[str] = set()
"""Names of modules that scripts have imported from their own folders."""
folders: set[str] = set()
"""Where the scripts of this process lie: code in them is the user's own."""


def script_cell(script: str | os.PathLike[str], arguments: Sequence[str] = (), *, fresh: bool = False) -> str:
    """The cell that runs ``script`` with ``arguments`` on ranks of this machine.

    ``fresh``: in a namespace of its own, of which nothing stays. Raises :class:`BadRequest` for a script that is not
    there, cannot be read, or is no Python.
    """
    path = Path(script).expanduser().absolute()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"No script to run at {path}: {error.strerror}.") from None
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadRequest(f"{path.name}, line {error.lineno}: {error.msg}. Nothing was run.") from None
    except ValueError as error:
        raise BadRequest(f"{path.name} is no Python: {error}.") from None
    call = ", ".join([repr(str(path)), *map(repr, arguments), *(["fresh=True"] if fresh else [])])
    return f"import jupyter_dtrain\njupyter_dtrain.run_script({call})"


def run_script(script: str | os.PathLike[str], *arguments: str, fresh: bool = False) -> None:
    """In a cell: run a script in this rank, as torchrun would.

    ``fresh``: in a namespace of its own, of which nothing stays; else what it defines is there afterwards. Raises what
    the script raises, but for a ``SystemExit`` that says success.
    """
    from IPython.core.getipython import get_ipython

    path = Path(script).absolute()
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    shell = get_ipython()
    module = types.ModuleType("__main__") if fresh or shell is None else shell.user_module
    namespace = vars(module)
    folders.add(f"{path.parent.resolve()}{os.sep}")
    with _as_main(path, arguments, module):
        try:
            exec(code, namespace)  # noqa: S102 — to run it is what was asked for
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


@contextlib.contextmanager
def _as_main(path: Path, arguments: Sequence[str], module: Any) -> Iterator[None]:
    folder = str(path.parent)
    for name in _imported:
        sys.modules.pop(name, None)
    _imported.clear()
    argv, main, known = sys.argv, sys.modules.get("__main__"), set(sys.modules)
    before = {name: vars(module)[name] for name in _OWN if name in vars(module)}
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, folder)
    sys.modules["__main__"] = module
    module.__file__, module.__doc__ = str(path), None
    try:
        yield
    finally:
        sys.argv = argv
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        if main is not None:
            sys.modules["__main__"] = main
        for name in _OWN:
            vars(module).pop(name, None)
        vars(module).update(before)
        _imported.update(name for name in set(sys.modules) - known if _lies_in(sys.modules[name], folder))


def _lies_in(module: Any, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(f"{folder}{os.sep}") and "site-packages" not in file
