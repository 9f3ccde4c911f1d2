"""Imports of other libraries without parts that this process does not use, and that cost much of its start.

Whoever imports such a part later, as a cell may, gets it.

Under failure: an ipyparallel that cannot be imported without its launchers is imported with them. What else is left out
is what the library itself can do without.
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
    replaces=("__getattr__", "__all__"),
    why="ipyparallel imports its launchers, and reads the entry points of all installed packages for them: an eighth "
    "of the time that a rank's parent process imports. No controller and no rank of ours uses them, so the module gets "
    "a function that imports them when somebody asks for one.",
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


def import_ipyparallel() -> None:
    """Import ipyparallel without :mod:`ipyparallel.cluster`, which comes when somebody asks for one of its names.

    Does nothing where ipyparallel has been imported.
    """
    if "ipyparallel" in sys.modules:
        return
    try:
        _import_without_launchers()
    except Exception:  # noqa: BLE001 — another version of ipyparallel; what is wrong with it comes below again
        for name in [name for name in sys.modules if name.partition(".")[0] == "ipyparallel"]:
            del sys.modules[name]
        importlib.import_module("ipyparallel")


def _import_without_launchers() -> None:
    taken: list[str] = []

    def take(name: str) -> None:
        if name == "__all__":  # all names are asked for, and none is known
            raise ImportError("ipyparallel imports all names of its launchers")
        if name.startswith("__"):
            raise AttributeError(name)
        taken.append(name)

    standing_in: Any = ModuleType(_LAUNCHERS)
    standing_in.__getattr__ = take
    sys.modules[_LAUNCHERS] = standing_in
    package: Any = importlib.import_module("ipyparallel")
    del sys.modules[_LAUNCHERS]
    if hasattr(package, "__getattr__") or hasattr(package, "__all__"):
        raise ImportError("ipyparallel says by itself which names it has")

    def find(name: str) -> Any:
        if name not in taken and name != "cluster":
            raise AttributeError(f"module 'ipyparallel' has no attribute {name!r}")
        launchers = importlib.import_module(_LAUNCHERS)
        return launchers if name == "cluster" else getattr(launchers, name)

    for name in taken:
        delattr(package, name)
    package.__all__ = [*(name for name in vars(package) if not name.startswith("_")), *taken]
    package.__getattr__ = find
