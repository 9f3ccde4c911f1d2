"""Hooks into a framework's import, which no version of the framework can turn into a failed import.

A plug-in changes parts of its framework that are private, so another version may lack them. It registers each hook
here, with the words for what ranks do not have without it.

Under failure: a hook that raises is left out, and the import succeeds. The cell that imports the framework says once
what is missing and what that means. A hook looks its parts up (:func:`require`) before it changes any.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import wrapt

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
    """Sentences about hooks that were left out since the last call, for the user. Each is in one answer only."""
    with _lock:
        taken = _notices[:]
        _notices.clear()
    return taken


def _try(hook: Callable[[Any], object], otherwise: str, module: Any) -> None:
    try:
        hook(module)
    except Exception as error:  # noqa: BLE001 — the user's import goes on
        package = module.__name__.partition(".")[0]
        words = f"{package}{_version(package)} is not as this package knows it ({str(error).rstrip('.')}): {otherwise}."
        with _lock:
            if otherwise not in _told:
                _told.add(otherwise)
                _notices.append(f"{words} %distributed env names the version that is tested.")


def _version(package: str) -> str:
    found = str(getattr(sys.modules.get(package), "__version__", ""))
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found = found or importlib.metadata.version(package)
    return f" {found}" if found else ""
