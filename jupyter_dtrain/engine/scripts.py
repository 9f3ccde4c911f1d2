"""A script as torchrun would start it, in the ranks of a world: ``%distributed exec script.py ARGUMENTS``.

A script is a cell of one call, :func:`run_script`, so that its output, losses, errors and interrupts are a cell's. A
user's cell may make that call, too. In each rank the script is ``__main__``, has its arguments in ``sys.argv`` and its
folder first on ``sys.path``, and its names stay, as if a cell had defined them. Each run imports the modules of its
folder anew, since torchrun would see changes in them. A module of the same name from another place, which a cell has
imported, stands aside while the script runs.

Under failure: ``sys.argv``, ``sys.path``, ``__main__`` and the modules that stood aside are as before, however the
script ends; the names that it had defined by then stay.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import types
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from .libraries import is_library

_OWN = ("__file__", "__doc__")
"""Names of a module that are the script's while it runs."""
_folders: set[str] = set()
"""The folders of this process' scripts."""


def run_script(script: str | os.PathLike[str], *arguments: str, fresh: bool = False) -> None:
    """In a cell: run a script in this rank, as torchrun would.

    ``fresh``: in a namespace of its own that ends with it; default False, where its names stay. Raises what the script
    raises, except a ``SystemExit`` that means success.
    """
    from IPython.core.getipython import get_ipython

    path = Path(script).absolute()
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    # Tracebacks show the lines of the file as it is now.
    linecache.checkcache()
    shell = get_ipython()
    module = types.ModuleType("__main__") if fresh or shell is None else shell.user_module
    _folders.update(f"{folder}{os.sep}" for folder in (path.parent, path.parent.resolve()))
    is_script.cache_clear()
    with _as_main(path, [str(word) for word in arguments], module):
        try:
            exec(code, vars(module))  # noqa: S102 — to run it is what was asked for
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


@lru_cache(4096)
def is_script(file: str) -> bool:
    """Whether code of ``file`` belongs to a script that ran in this process: it, or a file beside or below it."""
    return file.startswith(tuple(_folders)) and not is_library(file)


@contextlib.contextmanager
def _as_main(path: Path, arguments: Sequence[str], module: Any) -> Iterator[None]:
    folder = str(path.parent)
    argv, main = sys.argv, sys.modules.get("__main__")
    before = {name: vars(module)[name] for name in _OWN if name in vars(module)}
    aside = _make_way(path.parent)
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
        sys.modules.update(aside)


def _make_way(folder: Path) -> dict[str, types.ModuleType]:
    """Forget the modules of ``folder``, and take away others with their names; return the latter, by name."""
    names = {entry.stem for entry in folder.iterdir() if entry.suffix == ".py" or entry.is_dir()}
    aside = {}
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top not in names or name == "__main__":
            continue
        places = _places(module)
        if not places or any(map(is_library, places)):
            continue
        here = [Path(place) == folder / f"{top}.py" or Path(place).is_relative_to(folder / top) for place in places]
        if not any(here):
            aside[name] = module
        del sys.modules[name]
    return aside


def _places(module: Any) -> list[str]:
    """Where a module comes from; a package without an ``__init__`` has folders only."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return [file]
    with contextlib.suppress(Exception):
        return [str(place) for place in module.__path__]
    return []
