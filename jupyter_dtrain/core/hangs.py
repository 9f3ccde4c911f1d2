"""Notices when a run seems to hang, and says where its ranks are. Nothing is ended by it.

A rank that says something moves, unless it says that it has not moved, which each rank does once a second. When none
of those that have not ended the run has moved for the setting ``hang_notice``, their stacks are shown, grouped; once,
until one moves again. For the thread that folds the run.
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
"""Seconds in which ranks say where they are."""


class Moving(Protocol):
    """As much of a run as is looked at here."""

    ranks: list[int]

    @property
    def unfinished(self) -> list[int]:
        """The ranks that have not ended it."""


class Asks(Protocol):
    """What finds out where ranks are; see :class:`.Questions`."""

    def stacks(self, ranks: list[int], patience: float, then: Callable[[Stacks], None]) -> None:
        """Ask; returns at once."""


class HangDetector:
    """Of one run."""

    def __init__(self, run: Moving, limit: float, questions: Asks, note: Callable[[str], None], now: float) -> None:
        """``limit``: seconds. ``note`` shows text with the run. Times are ``time.monotonic()`` seconds."""
        self._run = run
        self._limit = limit
        self._questions = questions
        self._note = note
        self._since = dict.fromkeys(run.ranks, now)
        self._told = False

    def hear(self, batch: Batch, now: float) -> None:
        """Something that a rank has said."""
        for event in batch.events:
            at = now - event.body.still if isinstance(event.body, Sample) else now
            self._since[batch.rank] = max(self._since[batch.rank], at)

    def tick(self, now: float) -> float:
        """Tell if it is time; when it may be."""
        ranks = list(self._run.unfinished)
        if not ranks:
            return math.inf
        due = max(self._since[rank] for rank in ranks) + self._limit
        if now < due:
            self._told = False
            return due
        if not self._told:
            self._told = True
            # Also of those that have ended: they may have done something else.
            self._questions.stacks(self._run.ranks, PATIENCE, self._tell)
        return math.inf

    def _tell(self, stacks: Stacks) -> None:
        if self._told and self._run.unfinished:
            self._note(describe_hang(stacks, list(self._run.unfinished), self._limit))
