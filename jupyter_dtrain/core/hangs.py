"""Notices when a run seems to hang, and shows where its ranks are. It ends nothing.

A rank that sends events moves, except for what each rank reports once a second while a cell runs: how long the cell
has stood still, and where its time went. When no rank that still works on the run has moved for the setting
``hang_notice``, a notice shows where they are, and how the ranks ended that they may wait for. It stands until a rank
moves or ends. While a rank asks a person, or is held between two steps, nothing hangs: the others wait for it, and it
waits for the person. The scheduler's thread calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from .causes import is_echo, told_briefly
from .events import Configured, Environment, MediaLogged, Sample, StepParts
from .stacks import Stacks, describe_hang

if TYPE_CHECKING:
    from .events import Event
    from .fold import RunFold

AskStacks = Callable[[list[int], Callable[[Stacks], None]], None]
"""Asks ranks for their stacks, and returns at once; the last argument gets them soon, or never."""


LOOK: Final = 1.0
"""Seconds between two looks whether a rank still asks a person."""


class HangDetector:
    """Watches one run for a hang."""

    def __init__(
        self,
        fold: RunFold,
        size: int,
        limit: float,
        ask: AskStacks,
        show: Callable[[str], None],
        now: float,
        travel: float = 0.0,
    ) -> None:
        """``fold``: what the events of the run say; ``size``: ranks in the world; ``limit``: seconds.

        ``show`` shows a notice with the run; with empty words, the last one is no longer true. Times are
        ``time.monotonic()`` seconds. ``travel``: seconds for which the cell's values may be on their way.
        """
        self._fold = fold
        self._size = size
        self._limit = limit
        self._ask = ask
        self._show = show
        self._since = dict.fromkeys(fold.ranks, now + travel)
        self._begun: set[int] = set()
        self._told: list[int] = []
        """The ranks of the last notice, which were those that had not ended; none where no notice stands."""
        self._shown = False

    def hear(self, events: Iterable[Event], now: float) -> None:
        """Note from events of ranks when each last moved. ``now``: in ``time.monotonic()`` seconds."""
        for event in events:
            if isinstance(event.body, (StepParts, Configured, Environment, MediaLogged)):
                continue
            # The first event replaces the allowance for the cell's travel, which lies in the future. Later ones move
            # the time forward only: a sample says since when the cell stands still, perhaps before the last event.
            at = now - event.body.still if isinstance(event.body, Sample) else now
            self._since[event.rank] = max(self._since[event.rank], at) if event.rank in self._begun else at
            self._begun.add(event.rank)

    def tick(self, now: float) -> float:
        """Ask where the ranks are if none has moved for the limit; return when the next call may be useful."""
        ranks = self._fold.unfinished
        if ranks and self._fold.stands:
            # None of them stands still by itself: whatever ends that, they have their time anew.
            self._since = {rank: max(since, now) for rank, since in self._since.items()}
            self.withdraw()
            return now + LOOK
        if not ranks:
            return math.inf
        due = max(self._since[rank] for rank in ranks) + self._limit
        if now < due:
            self.withdraw()
            return due
        if self._told != ranks:
            self._told = ranks
            # Also ask the ranks that have ended: they may have called something else.
            self._ask(list(self._fold.ranks), lambda stacks: self._report(ranks, stacks))
        return math.inf

    def withdraw(self) -> None:
        """Take back the notice, if one stands."""
        self._told = []
        if self._shown:
            self._shown = False
            self._show("")

    def _report(self, ranks: list[int], stacks: Stacks) -> None:
        # `is`, not `==`: a notice that was taken back, or a newer question about the same ranks, has another list, and
        # an answer that comes late must then show nothing. The next tick asks again if a rank has ended since then.
        if self._told is ranks and ranks == self._fold.unfinished and not self._fold.stands:
            self._shown = True
            outside = [rank for rank in range(self._size) if rank not in self._fold.ranks]
            self._show(describe_hang(stacks, ranks, self._limit, _endings(self._fold), outside))


def _endings(fold: RunFold) -> dict[int, str]:
    """What became of each rank that does not work on the cell (it ended it, or has not begun it), in words."""
    found = {}
    for rank, part in fold.ranks.items():
        if part.outcome == "lost":
            found[rank] = part.words.removeprefix(f"rank {rank} ") or "dead"
        elif part.error is not None and part.outcome != "interrupted":
            found[rank] = "was released" if is_echo(part.error) else f"has failed: {told_briefly(part.error)}"
        elif part.state == "sent":
            found[rank] = "has not begun the cell"
        elif part.outcome is not None:
            found[rank] = "has ended the cell" if part.outcome == "ok" else part.outcome
    return found
