"""The runs of a session in the order in which they were submitted, and which of them may be sent.

A cell is sent when no earlier run holds one of its ranks: one that was submitted before it and has not ended, or one
that an interrupt has ended while the rank still works on it. Queueing is done here, so that a cell that was not sent
yet can be refused, and no rank ever holds two.

Only :meth:`RunQueue.post`, :meth:`RunQueue.busy`, :meth:`RunQueue.running`, :meth:`RunQueue.adopted` and
:meth:`RunQueue.left_behind` may be called from any thread; the rest belongs to the thread of the scheduler. Nothing
here waits or fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run

    from .submitted_run import SubmittedRun


class RunQueue:
    """The runs of one session that have not ended, or that ranks still work on."""

    def __init__(self) -> None:
        self._posted: list[SubmittedRun] = []
        self._open: list[SubmittedRun] = []
        self._left: dict[int, SubmittedRun] = {}

    def post(self, submitted: SubmittedRun) -> None:
        """Count the ranks of ``submitted`` as busy, until :meth:`add` takes it."""
        self._posted.append(submitted)

    def add(self, submitted: SubmittedRun) -> None:
        """Queue ``submitted`` behind all others."""
        self._open.append(submitted)
        if submitted in self._posted:
            self._posted.remove(submitted)

    @property
    def open(self) -> list[SubmittedRun]:
        """The runs that have not ended, in order."""
        return list(self._open)

    @property
    def sent(self) -> list[SubmittedRun]:
        """The runs that ranks have got: those that have not ended, then those that left ranks behind."""
        return [submitted for submitted in [*self._open, *self._left.values()] if submitted.sent]

    @property
    def unsent(self) -> list[SubmittedRun]:
        """The runs that wait for ranks, in order."""
        return [submitted for submitted in self._open if not submitted.sent]

    def find(self, run: int) -> SubmittedRun | None:
        """The run of this number, unless all its ranks are through with it."""
        return next((submitted for submitted in self._open if submitted.run.number == run), self._left.get(run))

    def note_join(self, run: Run) -> None:
        """Where ``run`` joins an elastic one that goes on, that one counts it as its own."""
        if run.joins is not None and (submitted := self.find(run.joins)) is not None:
            submitted.run.joined_by(run)

    def next_ready(self) -> SubmittedRun | None:
        """The first run that may be sent now."""
        taken = {rank for submitted in self._left.values() for rank in submitted.run.unfinished}
        for submitted in self._open:
            # A lost rank holds up nothing: a new one may be in its place.
            wanted = set(submitted.run.ranks) - set(submitted.run.lost)
            if not submitted.sent and not wanted & taken:
                return submitted
            taken |= wanted
        return None

    def behind(self, run: Run) -> list[SubmittedRun]:
        """The runs that wait and share a rank with ``run``."""
        return [submitted for submitted in self.unsent if set(submitted.run.ranks) & set(run.ranks)]

    def adopted_before(self, submitted: SubmittedRun) -> Run | None:
        """The first run that another client has begun and that shares a rank with ``submitted``."""
        ranks = set(submitted.run.ranks)
        return next((other.run for other in self._open if other.adopted and ranks & set(other.run.ranks)), None)

    def end(self, submitted: SubmittedRun) -> bool:
        """Take ``submitted`` out; whether it was in. Its ranks stay taken while they are :meth:`left_behind`."""
        if submitted not in self._open:
            return False
        self._open.remove(submitted)
        return True

    def leave(self, submitted: SubmittedRun) -> None:
        """``submitted`` has ended, and some of its ranks still work on it."""
        self._left[submitted.run.number] = submitted

    def came_back(self, submitted: SubmittedRun) -> bool:
        """The ranks of ``submitted`` are through with it; whether it had left them behind."""
        return self._left.pop(submitted.run.number, None) is not None

    def forget_left(self) -> None:
        """The ranks that were left behind are gone."""
        self._left.clear()

    def busy(self) -> dict[int, int]:
        """The ranks that work or are waited for, and the number of the run; a queued run counts as well."""
        # A run is in two of the lists for a moment, never in none.
        runs = [*list(self._left.values()), *list(self._posted), *list(self._open)]
        return {rank: submitted.run.number for submitted in runs for rank in submitted.run.unfinished}

    def running(self) -> list[Run]:
        """The runs that have not ended, in order."""
        # A run is in both lists for a moment, never in none.
        runs = [*list(self._posted), *list(self._open)]
        return sorted({submitted.run.number: submitted.run for submitted in runs}.values(), key=lambda run: run.number)

    def adopted(self) -> list[Run]:
        """Those of them that another client has begun."""
        return [submitted.run for submitted in [*list(self._posted), *list(self._open)] if submitted.adopted]

    def left_behind(self) -> dict[int, int]:
        """The ranks that still work on a run that an interrupt has ended, and its number."""
        return {
            rank: submitted.run.number for submitted in list(self._left.values()) for rank in submitted.run.unfinished
        }
