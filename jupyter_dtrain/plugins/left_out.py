"""Imports of other libraries without parts that this process does not use, and that cost much of its start.

Whoever imports such a part later, as a cell may, gets it.

Under failure: where a library cannot be imported without the part, it is imported with it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from .patches import Patch

_LAUNCHERS: Final = "ipyparallel.cluster"

LAUNCHERS = Patch(
    "ipyparallel",
    replaces=("__getattr__",),
    why="ipyparallel imports its launchers, and reads the entry points of all installed packages for them: a fifth of "
    "what a rank's parent process imports. No controller and no rank of ours uses them.",
    lost="a world starts more slowly",
)


@contextlib.contextmanager
def left_out(name: str) -> Iterator[None]:
    """Have what is imported in this block find no module ``name``: importing it raises :class:`ImportError`.

    Does nothing where it has been imported.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # for the import system: there is none
    try:
        yield
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def no_launchers() -> Iterator[None]:
    """Have ipyparallel do without :mod:`ipyparallel.cluster`, which comes when somebody asks for one of its names.

    Does nothing where ipyparallel has been imported.
    """
    if "ipyparallel" not in sys.modules:
        try:
            _import_without_launchers()
        except Exception:  # noqa: BLE001 — another version of ipyparallel; what is wrong with it comes below again
            for name in [name for name in sys.modules if name.partition(".")[0] == "ipyparallel"]:
                del sys.modules[name]
    yield


def _import_without_launchers() -> None:
    taken: list[str] = []

    def take(name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        taken.append(name)

    standing_in: Any = ModuleType(_LAUNCHERS)
    standing_in.__getattr__ = take
    sys.modules[_LAUNCHERS] = standing_in
    package: Any = importlib.import_module("ipyparallel")
    del sys.modules[_LAUNCHERS]
    if hasattr(package, "__getattr__"):
        raise ImportError("ipyparallel has names that come when somebody asks for them")

    def find(name: str) -> Any:
        if name not in taken:
            raise AttributeError(f"module 'ipyparallel' has no attribute {name!r}")
        return getattr(importlib.import_module(_LAUNCHERS), name)

    for name in taken:
        delattr(package, name)
    package.__getattr__ = find
