"""The steps in which a run is brought to its end, and what each of them says.

========  ==========================================================================================================
at once   SIGINT on every rank, again until it is taken
1 s       the steward frees ranks that wait for others; again every 2 s
5 s       a note shows where the ranks are that have not ended; an exception that ``except KeyboardInterrupt`` does
          not catch is raised in their cells, again and again
8 s       the cell ends; ranks that have not ended are named and left behind or, with ``force``, killed
========  ==========================================================================================================

The times are settings. A second press of Stop takes the steps up to the exception at once, and the cell ends a second
later; a third ends it. The exception goes on being raised in a rank that was left behind, until that is free.
Nothing here waits: the scheduler's thread calls it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .errors import DtrainError
from .stacks import Stacks, describe_stacks
from .world import count_ranks

if TYPE_CHECKING:
    from .settings import Settings

AGAIN = 0.5
"""Seconds after which a signal that was not taken is sent again, and the exception is raised again."""
RELEASE_AGAIN = 2.0
"""Seconds after which the steward is asked once more to free ranks."""
HURRIED = 1.0
"""Seconds that a second press of Stop leaves until the cell ends."""
DYING = 3.0
"""Seconds after which ranks that were killed should have been reported dead."""
FORCED = "since an interrupt with --force did not end it"


class AsksRanks(Protocol):
    """Asks ranks and passes their answers on; see :class:`.Questions`."""

    def stacks(self, ranks: list[int], patience: float, then: Callable[[Stacks], None]) -> None:
        """Ask ``ranks`` for their stacks; ``then`` gets them after ``patience`` seconds at most. Returns at once."""

    def interrupt(
        self, run: int, ranks: list[int], patience: float, then: Callable[[list[int]], None], *, force: bool = False
    ) -> None:
        """Interrupt the cell; ``then`` gets the ranks that took it within ``patience`` seconds. Returns at once."""


class Acts(Protocol):
    """Releases and kills ranks, which only the steward can do. Raises :class:`WorldLost` and :class:`Refused`."""

    def release(self, run: int) -> None:
        """Free the ranks that wait for others in ``run``."""

    def kill(self, ranks: list[int], reason: str) -> None:
        """Kill the processes of ``ranks``."""


class Unended(Protocol):
    """The part of a run that its interruption needs."""

    @property
    def number(self) -> int:
        """The number of the run in its world."""

    @property
    def unfinished(self) -> list[int]:
        """The ranks that have not ended the run."""


class Interruption:
    """The interruption of one run."""

    def __init__(
        self,
        run: Unended,
        settings: Settings,
        questions: AsksRanks,
        steward: Acts,
        note: Callable[[str], None],
        now: float,
    ) -> None:
        """``note`` shows a line of text with the run. Times are ``time.monotonic()`` seconds."""
        self._run = run
        self._questions = questions
        self._steward = steward
        self._note = note
        self._begun = now
        self._reached: set[int] = set()
        """Ranks whose cell has taken the signal."""
        self._signal_at = now
        self._release_at = now + settings.interrupt_release
        self._raise_at = now + settings.interrupt_raise
        self._end_at = now + settings.interrupt_timeout
        self._hurried = False
        self._released = self._raised = self._told = False
        self._killed = False
        self.force = False
        """Whether ranks that have not ended by the end are killed."""
        self.over = False
        """Whether the cell ends now, without the ranks that have not."""

    def press(self, now: float) -> None:
        """Hurry the steps, as the user pressed Stop again: a second press shortens them, a third ends the cell."""
        if self._hurried:
            self._end_at = min(self._end_at, now)
            return
        self._hurried = True
        self._release_at = min(self._release_at, now)
        self._raise_at = min(self._raise_at, now)
        self._end_at = min(self._end_at, now + HURRIED)

    def tick(self, now: float) -> float:
        """Do everything that is due, and give the time of the next step."""
        working = list(self._run.unfinished)
        if now >= self._signal_at:
            self._signal_at = now + AGAIN
            # Not again to a cell that has taken it: it may be cleaning up, and a second SIGINT would cut that short.
            self._signal([rank for rank in working if rank not in self._reached])
        if now >= self._release_at and working:
            self._release_at = now + RELEASE_AGAIN
            self._release(working, now)
        if now >= self._raise_at and working:
            self._raise_at = now + AGAIN
            self._raise(working, now)
        if now >= self._end_at:
            self._end(working, now)
        return min(self._signal_at, self._release_at, self._raise_at, self._end_at)

    def _signal(self, ranks: list[int]) -> None:
        if ranks:
            self._questions.interrupt(self._run.number, ranks, AGAIN, self._reached.update)

    def _release(self, working: list[int], now: float) -> None:
        if not self._released:
            self._released = True
            self._say(working, now, "The world now releases ranks that wait for others.")
        with contextlib.suppress(DtrainError):
            self._steward.release(self._run.number)

    def _raise(self, working: list[int], now: float) -> None:
        def report(stacks: Stacks) -> None:
            where = describe_stacks(stacks)
            if not self._run.unfinished:
                return
            if self._told:
                self._note(f"After the interrupt the cell was here:\n{where}")
            else:
                self._raise_in(working, now, f"An exception is raised in the cell, which was here:\n{where}")

        if self._raised:
            # Ranks may say late where they are, or be looked at from outside, which takes seconds more.
            self._raise_in(working, now, "An exception is raised in the cell.")
        else:
            self._raised = True
            # Ask where they are first: after the exception they are elsewhere.
            self._questions.stacks(working, AGAIN, report)

    def _raise_in(self, working: list[int], now: float, words: str) -> None:
        """Raise the exception in the cell, once more perhaps; before the first time, say so in these ``words``."""
        if not self._told:
            self._told = True
            self._say(working, now, words)
        self._questions.interrupt(self._run.number, working, AGAIN, lambda _: None, force=True)

    def _end(self, working: list[int], now: float) -> None:
        if self.force and working and not self._killed:
            self._killed = True
            # The reports of their deaths end the run; this deadline is for reports that do not come.
            self._end_at = now + DYING
            self._say(working, now, f"Killing {'it' if len(working) == 1 else 'them'}, as --force asks.")
            with contextlib.suppress(DtrainError):
                self._steward.kill(working, FORCED)
            return
        self.over = True
        # Other cells may run from now on, and a release would break their process groups.
        self._release_at = self._end_at = math.inf

    def _say(self, working: list[int], now: float, words: str) -> None:
        runs = "is still running" if len(working) == 1 else "are still running"
        who = count_ranks(working).capitalize()
        self._note(f"{who} {runs} {now - self._begun:.0f} s after the interrupt. {words}")
