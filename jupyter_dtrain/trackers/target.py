"""Where runs go: ``TRACKER[:WHERE][?FLAGS]``, such as ``wandb:my-project``, ``mlflow:http://host:5000?ranks``.

``WHERE`` is the tracker's own matter. The flag ``ranks`` sends the points of each rank, too. Passwords have no place in
a target, which the store keeps: each tracker has its own place for them.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest

from .tracker import Tracker

GROUP: Final = "jupyter_dtrain.trackers"
"""Each entry is a subclass of :class:`.tracker.Tracker`, by the name that a target begins with."""
FLAGS: Final = frozenset({"ranks", "offline"})

_PASSWORD: Final = re.compile(r"//[^/\s@]*:[^/\s@]*@")

_log = logging.getLogger(__name__)


class TrackerTarget(msgspec.Struct, frozen=True):
    """A tracker, and where in it runs go."""

    tracker: str
    where: str = ""
    """A project, a folder or an address; empty for what the tracker takes by itself."""
    flags: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The target as a person gives it; one target has one text."""
        return f"{self.tracker}:{self.rest}" if self.rest else self.tracker

    @property
    def rest(self) -> str:
        """What follows the tracker's name."""
        return f"{self.where}?{'&'.join(sorted(self.flags))}" if self.flags else self.where

    @property
    def kind(self) -> type[Tracker]:
        """The tracker's class. Raises :class:`BadRequest`."""
        return tracker_named(self.tracker)


@lru_cache(1)
def trackers() -> dict[str, type[Tracker]]:
    """All that are installed, by name. One that cannot be loaded is logged once and left out."""
    found: dict[str, type[Tracker]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            kind = entry.load()
            if not (isinstance(kind, type) and issubclass(kind, Tracker)):
                raise TypeError(f"{entry.value} is no Tracker.")  # noqa: TRY301 — logged below
        except Exception:  # noqa: BLE001 — logged: it is a stranger's module
            _log.exception("The tracker %s cannot be loaded", entry.name)
        else:
            found[entry.name] = kind
    return found


def tracker_named(name: str) -> type[Tracker]:
    """The tracker of this name. Raises :class:`BadRequest` where there is none."""
    if name not in trackers():
        known = ", ".join(trackers()) or "none"
        raise BadRequest(f"There is no tracker {name!r}. Installed are: {known}.", option="track")
    return trackers()[name]


def read_target(text: str) -> TrackerTarget:
    """The target that ``text`` means, without a look at whether it can be used. Raises :class:`BadRequest`."""
    tracker, _, rest = text.strip().partition(":")
    tracker, mark, flags = tracker.partition("?")
    if mark:
        rest = f"?{flags}{rest}"
    where, mark, flags = rest.rpartition("?")
    told = frozenset(flags.split("&"))
    if not mark or not told <= FLAGS:
        where, told = rest, frozenset()
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", tracker):
        raise BadRequest(
            f"{text!r} names no tracker: use for example wandb:PROJECT, mlflow:http://host:5000 or trackio:PROJECT.",
            option="track",
        )
    if _PASSWORD.search(where):
        raise BadRequest(
            f"The target of {tracker} has a password in its address, and targets are stored. Give the address without "
            f"it, and the password where {tracker} itself looks for it.",
            option="track",
        )
    return TrackerTarget(tracker, where, told)


def check_target(text: str) -> TrackerTarget:
    """The target that ``text`` means, complete: relative paths are absolute.

    Raises :class:`BadRequest` for one that cannot be used, and where the tracker's library is not installed.
    """
    target = read_target(text)
    kind = target.kind
    if importlib.util.find_spec(kind.package) is None:
        raise BadRequest(f"{kind.title} is not installed here: pip install {kind.package}", option="track")
    return TrackerTarget(target.tracker, kind.check(target.where), target.flags)
