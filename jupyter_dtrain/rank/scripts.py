"""A script as torchrun would start it, in the ranks of a world: ``%distributed run script.py ARGUMENTS``.

A script is a cell of one call, :func:`run_script`, so that its output, losses, errors and interrupts are a cell's. A
user's cell may make that call, too. In each rank the script is ``__main__``, has its arguments in ``sys.argv`` and its
folder first on ``sys.path``, and its names stay, as if a cell had defined them. Each run imports the modules of its
folder anew, since torchrun would see changes in them. A module of the same name from another place, which a cell has
imported, stands aside while the script runs. ``exec -m package.module`` runs a module in the same way, as ``python
-m`` does: the folder of work comes first on ``sys.path``.

Under failure: ``sys.argv``, ``sys.path``, ``__main__`` and the modules that stood aside are as before, however the
script ends; the names that it had defined by then stay.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import linecache
import os
import sys
import types
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_dtrain.plugins.libraries import is_library

from .loop_exits import LoopExits

_OWN = ("__file__", "__doc__", "__package__", "__spec__")
"""Names of a module that are the script's while it runs."""
_folders: set[str] = set()
"""The folders of this process' scripts."""


class RunningScript(NamedTuple):
    """A script that runs, or has run in this cell."""

    command: list[str]
    """Its path, or ``-m`` and the name of its module, and its arguments."""
    source: bytes | None
    """Its code; None for a module."""
    namespace: dict[str, Any]


_running: RunningScript | None = None


def running_script() -> RunningScript | None:
    """The last script of the cell that runs; None where it has run none."""
    return _running


def forget_script() -> None:
    """Let go of the script that the cell has run: the cell has ended."""
    global _running  # noqa: PLW0603 — a process runs one cell at a time
    _running = None


def run_script(script: str | os.PathLike[str], *arguments: str, module: bool = False, fresh: bool = False) -> None:
    """In a cell: run a script in this rank, as torchrun would.

    ``module``: ``script`` is the name of a module, as for ``python -m``. ``fresh``: in a namespace of its own that ends
    with it; default False, where its names stay. Raises what the script raises, except a ``SystemExit`` that means
    success, and :class:`ModuleNotFoundError` for a module that is not there.
    """
    global _running  # noqa: PLW0603 — as in forget_script
    from IPython.core.getipython import get_ipython

    path = Path(script).absolute()
    folder = Path.cwd() if module else path.parent
    shell = get_ipython()
    main = types.ModuleType("__main__") if fresh or shell is None else shell.user_module
    with _as_main(folder, main):
        spec: ModuleSpec | None = None
        source: bytes | None = None
        if module:
            spec, code = _find(os.fspath(script))
            path = Path(spec.origin or path)
        else:
            source = path.read_bytes()
            tree = ast.parse(source, str(path))
            tree = ast.fix_missing_locations(LoopExits().visit(tree))
            code = compile(tree, str(path), "exec", dont_inherit=True)
        # Tracebacks show the lines of the file as it is now.
        linecache.checkcache()
        _folders.update(f"{one}{os.sep}" for one in (folder, folder.resolve(), path.parent))
        is_script.cache_clear()
        sys.argv = [str(path), *map(str, arguments)]
        command = ["-m", os.fspath(script)] if module else [os.fspath(script)]
        _running = RunningScript([*command, *sys.argv[1:]], source, vars(main))
        vars(main).update(__file__=str(path), __doc__=None, __spec__=spec, __package__=spec and spec.parent)
        try:
            exec(code, vars(main))  # noqa: S102 — to run it is what was asked for
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


@lru_cache(4096)
def is_script(file: str) -> bool:
    """Whether code of ``file`` belongs to a script that ran in this process: it, or a file beside or below it."""
    return file.startswith(tuple(_folders)) and not is_library(file)


def _find(name: str) -> tuple[ModuleSpec, types.CodeType]:
    """The module ``name``, or the ``__main__`` of a package of that name, and its code; errors in Python's words."""
    spec, words = None, f"No module named {name}"
    # runpy, which would do this, has its own namespace for the module: its names could not stay.
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            package, name = name, f"{name}.__main__"
            words = f"No module named {name}; {package!r} is a package and cannot be directly executed"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # A package on the way is missing; what its own code does not find is another error.
        if error.name is None or not name.startswith(f"{error.name}."):
            raise
    if spec is None:
        raise ModuleNotFoundError(words, name=name)
    get_code = getattr(spec.loader, "get_code", None)
    code: types.CodeType | None = get_code(name) if get_code else None
    if code is None:
        raise ImportError(f"No code object available for {name}", name=name)
    return spec, code


@contextlib.contextmanager
def _as_main(path: Path, module: Any) -> Iterator[None]:
    folder = str(path)
    argv, main = sys.argv, sys.modules.get("__main__")
    before = {name: vars(module)[name] for name in _OWN if name in vars(module)}
    aside = _make_way(path)
    sys.path.insert(0, folder)
    sys.modules["__main__"] = module
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
