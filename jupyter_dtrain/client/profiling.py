"""Profiles of the loop that runs now, as a session makes them; :mod:`jupyter_dtrain.wire.profiling` has the way there.

Under failure: as there. A profile that fails leaves the last one as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_dtrain.core.traces import Analysis
from jupyter_dtrain.core.world import Ranks, World, parse_ranks
from jupyter_dtrain.view.profiles import profile_for_panel, profile_tables
from jupyter_dtrain.wire.profiling import PATIENCE, STEPS, Profiling, check_request

if TYPE_CHECKING:
    from .link import Link
    from .rank_requests import RankRequests


class LoopProfile:
    """Some steps of all ranks: a trace in a file, and what it says. Shows itself as tables."""

    def __init__(
        self, path: Path, run: int, step: int, analysis: Analysis, notes: list[str], last: LoopProfile | None
    ) -> None:
        self.path = path
        """The trace, which Perfetto opens."""
        self.run = run
        """The number of the run."""
        self.step = step
        """The step after which it begins; the first step of a cell is 1."""
        self.analysis = analysis
        """What the trace says: by rank, by operator and by kind of collective."""
        self.notes = notes
        """What is missing from it, as sentences."""
        self.last = last
        """The profile before this one in this notebook; None for the first."""

    @property
    def steps(self) -> int:
        """How many steps it has, at most."""
        return self.analysis.steps

    @property
    def ranks(self) -> list[int]:
        """The ranks that are in it."""
        return [one.rank for one in self.analysis.ranks]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return profile_tables(self.path, self.run, self.step, self.analysis, self.notes, _compared(self.last))

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]


class SessionProfiles:
    """The profiles of one session. Thread-safe: two at a time have different keys, and a rank takes one."""

    def __init__(self, link: Link, requests: RankRequests, world: Callable[[], World]) -> None:
        """``world``: the world as it is now."""
        self._link = link
        self._requests = requests
        self._world = world
        self._last: LoopProfile | None = None

    def profile(self, steps: int, ranks: Ranks, path: str | os.PathLike[str] | None, timeout: float) -> LoopProfile:
        """As :meth:`.Session.profile`."""
        check_request(steps, path)
        self._link.check()
        chosen = parse_ranks(ranks, self._world().size)
        one = Profiling(self._requests.ask_agents, self._world, chosen, steps, timeout)
        try:
            traces = one.take()
        finally:
            one.end()
        file, analysis = one.save(traces, None if path is None else Path(path), self._link.listing.name)
        self._last = LoopProfile(file, one.run, one.after, analysis, one.notes, self._last)
        return self._last

    def for_panel(self, ranks: list[int]) -> dict[str, Any]:
        """The next steps of ``ranks`` as JSON of a :class:`.PanelProfile`. Raises as :meth:`profile`."""
        found = self.profile(STEPS, ranks, None, PATIENCE)
        last = _compared(found.last)
        shown = profile_for_panel(found.path, found.run, found.step, found.analysis, found.notes, last)
        content: dict[str, Any] = msgspec.to_builtins(shown)
        return content


def _compared(last: LoopProfile | None) -> tuple[int, int, Analysis] | None:
    return None if last is None else (last.run, last.step, last.analysis)
