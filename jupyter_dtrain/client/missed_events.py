"""Fetches the events of a run that the session missed.

Ranks number their events and announce them; an announcement may be lost, and a rank that says nothing may have said
something. :class:`MissedEvents` reads a gap in the numbers from the rank, a piece at a time. It asks a rank that has
been quiet for :data:`QUIET` seconds how many events it has. If the rank has not begun the run, :mod:`.outgoing_cell`
learns of it.

The scheduler's thread calls everything here, and nothing waits: answers come back to that thread. A rank that never
answers is asked again; its death is the steward's to report. The end of a dead rank is in its spool, and comes with
that report.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from jupyter_dtrain.core.events import Batch, Event
from jupyter_dtrain.wire.agent_messages import EventsRead, RankPosition, ReadPosition
from jupyter_dtrain.wire.spool import read_file, spool_path

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.wire.questions import Answers

    from .outgoing_cell import OutgoingCell
    from .world_connection import WorldConnection

QUIET = 1.0
"""Seconds without news after which a rank is asked for its state."""


class MissedEvents:
    """What the session has missed of one run, and the questions to ranks that are under way."""

    def __init__(
        self, run: Run, connection: WorldConnection, outgoing: OutgoingCell, apply: Callable[[Batch], None]
    ) -> None:
        """``apply`` takes what was missed; ``outgoing`` learns of ranks that have not begun the run."""
        self._run = run
        self._connection = connection
        self._outgoing = outgoing
        self._apply = apply
        self._reading: set[int] = set()
        """The ranks that were asked for events, and have not answered."""
        self._asked: dict[int, float] = {}
        """When each quiet rank was asked last where it stands."""

    def read(self, rank: int, *, idle: bool = False) -> None:
        """Ask ``rank`` for the events that come next; ``idle``: it has not begun the run, as far as it says."""
        if rank in self._reading:
            return
        future = self._connection.read_events(rank, self._run.number, self._run.next_seq(rank))
        if future is not None:
            self._reading.add(rank)
            future.add_done_callback(lambda done: self._connection.post(lambda: self._was_read(rank, done, idle=idle)))

    def _was_read(self, rank: int, done: Future[EventsRead], *, idle: bool) -> None:
        self._reading.discard(rank)
        if done.exception() is not None:
            return
        if (batch := done.result().batch) is None:
            if idle:
                self._outgoing.unbegun(rank)
            return
        self._apply(batch)
        if rank in self._run.unfinished:
            # Announcements that came meanwhile were not applied: ask until nothing is left.
            self.read(rank)

    def read_spool(self, rank: int) -> list[Event]:
        """Apply, and return, what is new in the spool of ``rank``, as far as this host can read it."""
        found: list[Event] = []
        with contextlib.suppress(OSError):
            path = spool_path(self._connection.spool, self._run.number, rank)
            found.extend(read_file(path, self._run.next_seq(rank)))
        self._apply_all(rank, found)
        return found

    def read_end(self, rank: int, last: list[Event]) -> None:
        """Apply the end of a dead rank: what is in its spool, and its ``last`` events, which its watch has written."""
        found = self.read_spool(rank)
        left = [event for event in last if event.run == self._run.number and event not in found]
        if left and rank in self._run.unfinished:
            # The watch counts on from the spool. A full disk has kept out of it what the rank has announced since.
            ahead = max(0, self._run.next_seq(rank) - left[0].seq)
            self._apply_all(rank, [msgspec.structs.replace(event, seq=event.seq + ahead) for event in left])

    def _apply_all(self, rank: int, events: list[Event]) -> None:
        if events:
            self._apply(Batch(self._run.number, rank, self._run.next_seq(rank), events[-1].seq, events))

    def ask_quiet(self, now: float) -> None:
        """Ask the ranks that have been quiet for too long where they stand."""
        for rank in self._run.unfinished:
            if now - max(self._run.heard(rank), self._asked.get(rank, 0.0)) < QUIET:
                continue
            self._asked[rank] = now
            # An answer that was lost must not keep the rank from being asked again.
            self._reading.discard(rank)
            self._connection.questions.ask([rank], 2 * QUIET, self._positions_came, ReadPosition())

    def _positions_came(self, answers: Answers[RankPosition]) -> None:
        for rank, answer in answers.items():
            if answer is None:
                # It may have died, and the news of that may be lost.
                self._connection.steward.renew_soon()
                continue
            self._run.note_heard(rank)
            if answer.run == self._run.number:
                if answer.next > self._run.next_seq(rank):
                    self.read(rank)
            elif answer.state == "idle":
                self.read(rank, idle=True)
            elif answer.run is not None and not answer.finished and self._run.next_seq(rank) == 0:
                self._outgoing.refused(rank, answer.run)
