"""From a request to a running ipyparallel cluster of MPI ranks.

A launcher (:mod:`.launcher`) knows the commands of one kind of place: this machine, hosts over ssh, or one that an
installed package adds by the entry point group :data:`GROUP`. The steward runs them and owns the processes.
:mod:`.options` lists the start options, :mod:`.starting` makes a request of them (:mod:`jupyter_dtrain.wire.requests`)
and starts the steward, :mod:`.worlds` is the registry of worlds that run.

Under failure: a launcher that cannot be loaded is logged once and left out; the others count. The launcher of this
machine needs no entry point.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.wire.requests import WorldRequest

from . import local
from .launcher import Launcher, LauncherDeclaration

GROUP: Final = "jupyter_dtrain.launchers"
"""Each entry is a :class:`.launcher.LauncherDeclaration`."""

_log = logging.getLogger(__name__)


@lru_cache(1)
def launchers() -> dict[str, LauncherDeclaration]:
    """All that are installed, by name: that of this machine first, the others by the names of their entry points."""
    found = {local.DECLARATION.name: local.DECLARATION}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            declared = entry.load()
            if not isinstance(declared, LauncherDeclaration) or declared.name in found:
                raise TypeError(f"{entry.value} is no launcher with a name of its own.")  # noqa: TRY301 — logged below
        except Exception:  # noqa: BLE001 — logged: it is a stranger's module
            _log.exception("The launcher %s cannot be loaded", entry.name)
        else:
            found[declared.name] = declared
    return found


def launcher(name: str) -> LauncherDeclaration:
    """The launcher of this name. Raises :class:`BadRequest` where there is none."""
    if name not in launchers():
        raise BadRequest(f"There is no launcher {name!r}. There is: {', '.join(launchers())}.")
    return launchers()[name]


def launcher_of(request: WorldRequest) -> Launcher:
    """The launcher of a world. Raises :class:`BadRequest` where its package is no longer installed."""
    return launcher(request.launcher).make(request)
