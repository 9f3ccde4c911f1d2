"""What knows a framework: its environment, its set-up calls, its process groups.

The core names no framework. Each is a class behind the :class:`Framework` protocol, found by the entry point group
``jupyter_dtrain.frameworks``; importing one imports no framework, it only hooks into the import that the user's code
will do. A framework that is not installed costs nothing.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..launch.request import RankSpec
    from ..world import Placement

GROUP = "jupyter_dtrain.frameworks"


class Framework(Protocol):
    """One framework, in one rank."""

    name: str

    rendezvous: str | None
    """Module that serves as the world's rendezvous store when run with ``-m``, or None. It is given a listening
    socket: see :mod:`jupyter_dtrain.steward.rendezvous`."""

    def environment(self, place: Placement, spec: RankSpec) -> dict[str, str]:
        """Variables to set before user code, where the user has not set them."""

    def install(self, place: Placement, spec: RankSpec) -> None:
        """Hook into the framework's import. Called once, before user code."""

    def before_cell(self, generation: int) -> None:
        """A cell is about to run in the world's ``generation``."""

    def needs_regroup(self) -> bool:
        """Whether a set-up failed or was left half made, so that the next one must be in a new generation."""


def load_frameworks() -> list[Framework]:
    """One fresh object per framework that is known, by name. One that cannot be loaded is logged and left out."""
    found: list[Framework] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found.append(entry.load()())
        except Exception:
            logging.getLogger(__name__).exception("The framework plug-in %s cannot be loaded", entry.name)
    return found
