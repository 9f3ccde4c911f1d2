"""From a request to a running ipyparallel cluster of MPI ranks.

A launcher (:mod:`.launcher`) knows the commands of one kind of place: this machine, or hosts over ssh. The steward
runs them and owns the processes. :mod:`.options` lists the start options, :mod:`.starting` makes a request of
them (:mod:`jupyter_dtrain.wire.requests`) and starts the steward, :mod:`.worlds` is the registry of worlds that run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jupyter_dtrain.wire.requests import WorldRequest

from . import local
from .hosts import Hosts
from .launcher import Launcher

LAUNCHERS: Final[dict[str, Callable[[], dict[str, Any]]]] = {"local": local.describe}
"""The function that describes each launcher: its name, title, start options as JSON Schema, cores and GPUs."""


def launcher_of(request: WorldRequest) -> Launcher:
    """The launcher of a world."""
    return Hosts(request) if request.hosts else local.Local(request)
