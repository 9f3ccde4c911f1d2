"""The runs of a session in the order in which they were submitted, and which of them may be sent.

A cell is sent when no earlier run holds one of its ranks: one that was submitted before it and has not ended, or one
that an interrupt has ended while the rank still works on it. Queueing is done here, so that a cell that was not sent
yet can be refused, and no rank ever holds two.

Only :meth:`RunQueue.post`, :meth:`RunQueue.busy`, :meth:`RunQueue.running` and :meth:`RunQueue.left_behind` may be
called from any thread; the rest belongs to the thread that folds the runs. Nothing here waits or fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run

    from .submitted_run import Entry


class RunQueue:
    """The runs of one session that have not ended, or that ranks still work on."""

    def __init__(self) -> None:
        self._posted: list[Entry] = []
        self._open: list[Entry] = []
        self._left: dict[int, Entry] = {}

    def post(self, entry: Entry) -> None:
        """Count the ranks of ``entry`` as busy, until :meth:`add` takes it."""
        self._posted.append(entry)

    def add(self, entry: Entry) -> None:
        """Queue ``entry`` behind all others."""
        self._open.append(entry)
        if entry in self._posted:
            self._posted.remove(entry)

    @property
    def open(self) -> list[Entry]:
        """The runs that have not ended, in order."""
        return list(self._open)

    @property
    def sent(self) -> list[Entry]:
        """The runs that ranks have got: those that have not ended, then those that left ranks behind."""
        return [entry for entry in [*self._open, *self._left.values()] if entry.sent]

    @property
    def unsent(self) -> list[Entry]:
        """The runs that wait for ranks, in order."""
        return [entry for entry in self._open if not entry.sent]

    def find(self, run: int) -> Entry | None:
        """The run of this number, unless all its ranks are through with it."""
        return next((entry for entry in self._open if entry.run.number == run), self._left.get(run))

    def note_join(self, run: Run) -> None:
        """Where ``run`` joins an elastic one that goes on, that one counts it as its own."""
        if run.joins is not None and (entry := self.find(run.joins)) is not None:
            entry.run.joined_by(run)

    def next_ready(self) -> Entry | None:
        """The first run that may be sent now."""
        taken = {rank for entry in self._left.values() for rank in entry.run.unfinished}
        for entry in self._open:
            # A lost rank holds up nothing: a new one may be in its place.
            wanted = set(entry.run.ranks) - set(entry.run.lost)
            if not entry.sent and not wanted & taken:
                return entry
            taken |= wanted
        return None

    def behind(self, run: Run) -> list[Entry]:
        """The runs that wait and share a rank with ``run``."""
        return [entry for entry in self.unsent if set(entry.run.ranks) & set(run.ranks)]

    def adopted_before(self, entry: Entry) -> Run | None:
        """The first run that another client has begun and that shares a rank with ``entry``."""
        ranks = set(entry.run.ranks)
        return next((other.run for other in self._open if other.adopted and ranks & set(other.run.ranks)), None)

    def end(self, entry: Entry) -> bool:
        """Take ``entry`` out; whether it was in. Its ranks stay taken while they are :meth:`left_behind`."""
        if entry not in self._open:
            return False
        self._open.remove(entry)
        return True

    def leave(self, entry: Entry) -> None:
        """``entry`` has ended, and some of its ranks still work on it."""
        self._left[entry.run.number] = entry

    def came_back(self, entry: Entry) -> bool:
        """The ranks of ``entry`` are through with it; whether it had left them behind."""
        return self._left.pop(entry.run.number, None) is not None

    def forget_left(self) -> None:
        """The ranks that were left behind are gone."""
        self._left.clear()

    def busy(self) -> dict[int, int]:
        """The ranks that work or are waited for, and the number of the run; a queued run counts as well."""
        # A run is in two of the lists for a moment, never in none.
        entries = [*list(self._left.values()), *list(self._posted), *list(self._open)]
        return {rank: entry.run.number for entry in entries for rank in entry.run.unfinished}

    def running(self) -> list[Run]:
        """The runs that have not ended, in order."""
        # A run is in both lists for a moment, never in none.
        entries = [*list(self._posted), *list(self._open)]
        return sorted({entry.run.number: entry.run for entry in entries}.values(), key=lambda run: run.number)

    def left_behind(self) -> dict[int, int]:
        """The ranks that still work on a run that an interrupt has ended, and its number."""
        return {rank: entry.run.number for entry in list(self._left.values()) for rank in entry.run.unfinished}
