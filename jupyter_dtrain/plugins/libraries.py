"""Distinguishes libraries from user code, by file name: Python's own code, this package's, and installed packages.

Tracebacks, names of losses, scripts and waits need it. Any thread may ask. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_added: list[str] = []


def add_library(folder: str) -> None:
    """Count code in ``folder`` as a library's, such as a framework that runs from its sources."""
    _added.append(folder)
    _folders.cache_clear()
    is_library.cache_clear()


@lru_cache(8192)
def is_library(file: str) -> bool:
    """Whether the code of ``file`` is a library's, by its real path."""
    real = file
    with contextlib.suppress(OSError):  # the working folder is gone, say, or os.chroot has put it out of reach
        real = os.path.realpath(file)
    return real.startswith(_folders()) or not _INSTALLED.isdisjoint(Path(real).parts)


@lru_cache(8192)
def file_in(package: str, file: str) -> str:
    """The place of ``file`` in the folder of an imported package, such as ``nn/modules/module.py``; else empty."""
    own = getattr(sys.modules.get(package), "__file__", None)
    root = f"{Path(own).parent}{os.sep}" if own else ""
    return file[len(root) :].replace(os.sep, "/") if root and file.startswith(root) else ""


@lru_cache(1)
def _folders() -> tuple[str, ...]:
    """The libraries' folders. They may lie below the user's own, as in a virtual environment."""
    paths = sysconfig.get_paths()
    folders = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(
        f"{os.path.realpath(folder)}{os.sep}" for folder in (*folders, str(Path(__file__).parents[1]), *_added)
    )
