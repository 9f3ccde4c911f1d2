"""One run, as a monitor observes it: when each check is due, and whether the run hangs.

For the server's event loop. Nothing here waits or fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.hangs import HangDetector

from .messages import RunSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jupyter_dtrain.core.events import Batch
    from jupyter_dtrain.core.hangs import AskStacks

    from .attention import RunFinding
    from .follower import FollowedRun


JUDGE: Final = 2.0
"""Seconds between two looks for what needs attention."""


class ObservedRun:
    """One run of an observed world."""

    def __init__(self, run: FollowedRun, limit: float, ask: AskStacks, show: Callable[[str], None], now: float) -> None:
        """``limit``: seconds without a move after which ``show`` gets words; ``ask`` finds out where ranks are."""
        self.run = run
        self.over = False
        """Whether its end was reported."""
        self.failed = 0
        """How many ranks had failed when that was last reported."""
        self.flush_at = 0.0
        """When the pages get the next message about it."""
        self.batches: list[Batch] = []
        """The events since the last look."""
        self._step: int | None = None
        """The step of the run; it changes seldom, because every change goes to all pages."""
        self._judge_at = 0.0
        self._hang_detector = HangDetector(run, limit, ask, show, now) if run.unfinished else None

    def summary(self) -> RunSummary:
        """The run in a few fields, for the list of worlds."""
        run = self.run
        states: dict[str, int] = {}
        for rank in run.ranks:
            state = run.run_state.shown(rank)
            states[state] = states.get(state, 0) + 1
        return RunSummary(
            number=run.number,
            cell=run.cell_id,
            step=self._step,
            ranks=run.ranks,
            outcome=run.outcome,
            started=run.started,
            ended=run.ended,
            elapsed=None if run.unfinished else run.elapsed,
            states=states,
        )

    def look(self, now: float) -> Iterable[RunFinding]:
        """The items that need the person's attention, if it is time to look."""
        batches, self.batches = self.batches, []
        if self.over:
            return ()
        if self._hang_detector is not None:
            for batch in batches:
                self._hang_detector.hear(batch, now)
            self._hang_detector.tick(now)
        if now < self._judge_at and self.run.unfinished:
            return ()
        self._judge_at = now + JUDGE
        self._step = self.run.fold.step
        return self.run.judge.look(self.run.picture(with_metrics=False))
