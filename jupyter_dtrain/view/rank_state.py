"""The state of a rank, in one word: folded here for every place that shows it.

Two parts know something: the steward knows the rank's process, and the rank's own events tell how far it is in a run.
A third fact, the call in which a rank waits for others, comes from the rank's agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .document import RankState as RunRankState

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import RankState


def rank_state(
    process: RankState, in_run: RunRankState | None, *, over: bool, waits: bool, replaced: bool = False
) -> RankState | RunRankState:
    """The state of a rank.

    ``process``: by the steward. ``in_run``: by the rank's events, in the newest run that it takes part in; None without
    one. ``over``: whether that run has ended on all its ranks. ``waits``: whether it waits for other ranks.
    ``replaced``: whether another process was the rank in that run.
    """
    if process not in ("idle", "running", "waiting") or in_run is None:
        return process
    if in_run == "running" and waits:
        return "waiting"
    # A rank whose process lives was replaced since it was lost.
    return "idle" if over and (replaced or in_run in ("ok", "dead")) else in_run
