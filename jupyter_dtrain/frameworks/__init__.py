"""What knows a framework: its environment, its set-up calls, its process groups.

The core names no framework. Each is a class behind the :class:`Framework` protocol, found by the entry point group
``jupyter_dtrain.frameworks``; importing one imports no framework, it only hooks into the import that the user's code
will do. A framework that is not installed costs nothing.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from ..engine.metrics import MetricBuffer, Read
    from ..launch.request import RankSpec
    from ..world import Placement

GROUP = "jupyter_dtrain.frameworks"


class Watch(msgspec.Struct, frozen=True):
    """What a cell wants to see without a line of code."""

    metrics: bool = True
    grad_norm: bool = False


class Framework(Protocol):
    """One framework, in one rank."""

    name: str

    rendezvous: str | None
    """Module that serves as the world's rendezvous store when run with ``-m``, or None. It is given a listening
    socket: see :mod:`jupyter_dtrain.steward.rendezvous`."""

    def environment(self, place: Placement, spec: RankSpec) -> dict[str, str]:
        """Variables to set before user code, where the user has not set them."""

    def install(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Hook into the framework's import. Called once, before user code. ``metrics``: where losses go."""

    def before_cell(self, generation: int, watch: Watch) -> None:
        """A cell is about to run in the world's ``generation``; ``watch`` says what it wants to see."""

    def after_cell(self) -> None:
        """The cell has ended: add what waits to be a point of its metrics."""

    def number(self, value: Any) -> tuple[Any, Read] | None:
        """For a tensor of this framework with one element: what to add to the metrics, and what reads it later.

        None for values of any other kind. Raises :class:`ValueError` for a tensor that is no number.
        """

    def reserved(self) -> int | None:
        """Bytes of memory of the rank's GPU that this framework holds; None where it uses none. Any thread."""

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
