"""Notices when a run seems to hang, and shows where its ranks are. It ends nothing.

A rank that sends events moves, except for the samples in which each rank reports once a second how long its cell has
stood still. When no rank that still works on the run has moved for the setting ``hang_notice``, a note shows their
stacks, grouped; once, until a rank moves again. The thread that folds the run calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .events import Sample
from .stacks import Stacks, describe_hang

if TYPE_CHECKING:
    from .events import Batch

PATIENCE = 1.0
"""Seconds that ranks may take to report where they are."""


class Moving(Protocol):
    """The part of a run that shows a hang."""

    ranks: list[int]

    @property
    def unfinished(self) -> list[int]:
        """The ranks that have not ended the run."""


class Asks(Protocol):
    """Finds out where ranks are; see :class:`.Questions`."""

    def stacks(self, ranks: list[int], patience: float, then: Callable[[Stacks], None]) -> None:
        """Ask; returns at once."""


class HangDetector:
    """Watches one run for a hang."""

    def __init__(self, run: Moving, limit: float, questions: Asks, note: Callable[[str], None], now: float) -> None:
        """``limit``: seconds. ``note`` shows text with the run. Times are ``time.monotonic()`` seconds."""
        self._run = run
        self._limit = limit
        self._questions = questions
        self._note = note
        self._since = dict.fromkeys(run.ranks, now)
        self._told = False

    def hear(self, batch: Batch, now: float) -> None:
        """Take events of a rank."""
        for event in batch.events:
            at = now - event.body.still if isinstance(event.body, Sample) else now
            self._since[batch.rank] = max(self._since[batch.rank], at)

    def tick(self, now: float) -> float:
        """Ask where ranks are if it is time; returns when it may be time again."""
        ranks = list(self._run.unfinished)
        if not ranks:
            return math.inf
        due = max(self._since[rank] for rank in ranks) + self._limit
        if now < due:
            self._told = False
            return due
        if not self._told:
            self._told = True
            # Also ask the ranks that have ended: they may have called something else.
            self._questions.stacks(self._run.ranks, PATIENCE, self._tell)
        return math.inf

    def _tell(self, stacks: Stacks) -> None:
        if self._told and self._run.unfinished:
            self._note(describe_hang(stacks, list(self._run.unfinished), self._limit))
