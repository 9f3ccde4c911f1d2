"""What a process runs in: its Python, the packages that it has imported, its processors, memory and folder.

No variable of the environment is read. It takes some 20 ms the first time, less than one later; call it on a thread
that nobody waits for. Under failure: what cannot be found out is left out.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from .events import Environment
from .secrets import environment_secrets, redact, redact_command

MOST: Final = 500
"""Packages that are named."""
WORDS: Final = 200
"""Words of a command that are kept, each of at most :data:`LONGEST` characters."""
LONGEST: Final = 1000
_NO_PACKAGE: Final = ("_", "sphinxcontrib")


def read_environment(devices: Sequence[str] = (), command: Sequence[str] = ()) -> Environment:
    """The environment of this process. ``devices``: their names; ``command``: that of a script, else empty."""
    known = environment_secrets()
    folder = ""
    with contextlib.suppress(OSError):  # it was removed
        folder = str(Path.cwd())
    system = os.uname()
    words = [word.encode("utf-8", "replace").decode()[:LONGEST] for word in command[:WORDS]]
    return Environment(
        python=platform.python_version(),
        packages=packages(),
        devices=list(devices),
        command=redact_command(words, known),
        folder=redact(folder.encode("utf-8", "replace").decode(), known),
        platform=f"{system.sysname} {system.release} {system.machine}",
        cpus=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
    )


def packages() -> dict[str, str]:
    """The versions of the packages whose modules this process has imported, by the names of the packages."""
    modules = {name.partition(".")[0] for name in list(sys.modules)}
    found: dict[str, str] = {}
    for module in sorted(modules - sys.stdlib_module_names):
        if module.startswith(_NO_PACKAGE):
            continue
        package = _package(module)
        if package is not None:
            found[package[0]] = package[1]
        if len(found) == MOST:
            break
    return found


@functools.lru_cache(4096)
def _package(module: str) -> tuple[str, str] | None:
    """The package of a module, with its version; None for a module of no package, such as the user's own."""
    for name in (module, _owners().get(module, "")):
        with contextlib.suppress(Exception):  # a package whose files are damaged
            if name:
                own = importlib.metadata.distribution(name)
                return str(own.metadata["Name"]), str(own.version)
    return None


@functools.cache
def _owners() -> dict[str, str]:
    """Packages by the names of their modules, where packages say that. Their lists of files would take far longer."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        with contextlib.suppress(Exception):  # as above
            for module in (one.read_text("top_level.txt") or "").split():
                found.setdefault(module, one.metadata["Name"])
    return found
