"""Hooks into a framework's import. No version of the framework can make them fail its import.

A plug-in changes private parts of its framework, which another version may lack. It registers each hook here, with
words that say what ranks lack without it.

Under failure: this module leaves out a hook that raises, and the import succeeds. The cell that imports the framework
says once what is missing and what follows from it. A hook looks its parts up (:func:`require`) before it changes any.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import wrapt

from jupyter_dtrain.core.facts import installed_version

_lock = threading.Lock()
_notices: list[str] = []
_told: set[str] = set()


def when_imported(module: str, hook: Callable[[Any], object], *, otherwise: str) -> None:
    """Call ``hook`` with ``module`` once user code imports it, or now if it is there.

    ``otherwise``: what happens without the hook, as a clause: "losses do not appear by themselves".
    """
    wrapt.register_post_import_hook(partial(_try, hook, otherwise), module)


def require(owner: Any, *names: str) -> None:
    """Raise :class:`AttributeError`, which names what ``owner`` lacks, unless it has all attributes ``names``."""
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        where = getattr(owner, "__name__", None) or type(owner).__name__
        raise AttributeError(f"{where} has no {', '.join(missing)}")


def take_notices() -> list[str]:
    """Sentences for the user about hooks that were left out since the last call. One answer alone has each."""
    with _lock:
        taken = _notices[:]
        _notices.clear()
    return taken


def _try(hook: Callable[[Any], object], otherwise: str, module: Any) -> None:
    try:
        hook(module)
    except Exception as error:  # noqa: BLE001 — the user's import goes on
        package = module.__name__.partition(".")[0]
        why = str(error).rstrip(".")
        words = f"{package}{_version(package)} lacks parts that jupyter-dtrain uses ({why}): {otherwise}."
        with _lock:
            if otherwise not in _told:
                _told.add(otherwise)
                _notices.append(f"{words} %distributed env names the tested version.")


def _version(package: str) -> str:
    found = str(getattr(sys.modules.get(package), "__version__", "")) or installed_version(package)
    return f" {found}" if found else ""
