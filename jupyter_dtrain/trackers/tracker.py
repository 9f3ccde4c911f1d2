"""What a tracker is for us: a class that opens a run in it, and an open run that takes points, media and facts.

Both are used by one thread of a process of their own, where the tracker's library may do as it likes. Any exception
means that this run is not taken now: the sender says so, waits and opens the run again, with the last position that it
has saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from .facts import SentFacts, StoredMedium
from .merging import Point
from .state import TrackedState


class TrackedRun(ABC):
    """A run that is open in a tracker."""

    @abstractmethod
    def add_points(self, points: Sequence[Point], *, ranks: bool) -> None:
        """Send points; when it returns, the tracker has them. ``ranks``: those of each rank as well."""

    @abstractmethod
    def add_medium(self, medium: StoredMedium) -> None:
        """Send an image, a text and the like, in the tracker's own type for it where it has one."""

    @abstractmethod
    def describe(self, facts: SentFacts) -> None:
        """Set name, note, tags, configuration and more; called first, and again when something of it has changed."""

    @abstractmethod
    def end(self, facts: SentFacts) -> None:
        """Say how the run has ended; when it returns, the tracker has everything."""

    def leave(self) -> None:  # noqa: B027 — most have nothing to let go of
        """Let go of a run that stays open in the tracker, since sending failed. May raise."""


class Tracker(ABC):
    """One kind of tracker. ``where`` comes from :meth:`check`."""

    title: ClassVar[str]
    """As its makers spell it."""
    package: ClassVar[str]
    """What pip installs and Python imports."""
    rewrites: ClassVar[bool] = False
    """Whether a run that was left open is written anew from its beginning, and not from the saved position on."""

    @classmethod
    def check(cls, where: str) -> str:
        """``where`` in its complete form. Raises :class:`~jupyter_dtrain.core.errors.BadRequest`."""
        return where

    @abstractmethod
    def __init__(self, where: str, flags: frozenset[str]) -> None: ...

    @abstractmethod
    def open(self, facts: SentFacts, state: TrackedState) -> TrackedRun:
        """The run in the tracker: a new one, or the one that ``state`` or the tracker itself knows.

        ``state.place`` is the tracker's own: what it puts there is saved. ``state.again``: an earlier process has sent
        an unknown part of what comes after the position.
        """


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as ``outer.inner``, for trackers without nesting; lists stay."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
