"""The events of its ranks that a session missed, requested again.

Ranks number their events and announce them; an announcement may be lost, and a rank that says nothing may have said
something. A hole in the numbers is read from the rank, a piece at a time; a rank that has been quiet for
:data:`QUIET` seconds is asked how many events it has. If it has not begun the run, :mod:`.delivery` learns of it.

For the thread that folds the runs. Nothing here waits: answers come back to that thread. A rank that never answers is
asked again; its death is the steward's to report. The end of a dead rank is in its spool, and comes with that report.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from jupyter_dtrain.core.events import Batch, Event
from jupyter_dtrain.wire.agent_messages import EventsRead, RankPosition, ReadPosition
from jupyter_dtrain.wire.spool import read_file, spool_path

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.wire.questions import Answers

    from .submitted_run import Entry

QUIET = 1.0
"""Seconds without news after which a rank is asked for its state."""


class AsksForEvents(Protocol):
    """A component that asks agents and passes on their answers; see :class:`.Questions`."""

    def ask(
        self,
        ranks: list[int],
        patience: float,
        then: Callable[[Answers[RankPosition]], None],
        question: ReadPosition,
    ) -> None:
        """Ask; ``then`` gets the answers that came within ``patience`` seconds. Returns at once."""


class Sent(Protocol):
    """Sends cells; see :class:`.Delivery`."""

    def unbegun(self, entry: Entry, rank: int) -> None:
        """``rank`` is idle and has not begun ``entry``."""

    def refused(self, entry: Entry, rank: int, run: int) -> None:
        """``rank`` works on ``run`` and has not begun ``entry``."""


class Holes:
    """The holes in the runs of one session."""

    def __init__(
        self,
        read: Callable[[int, int, int], Future[EventsRead] | None],
        questions: AsksForEvents,
        apply: Callable[[Entry, Batch], None],
        post: Callable[[Callable[[], None]], None],
        sent: Sent,
        silent: Callable[[], None],
    ) -> None:
        """``read`` asks a rank for a run's events from a number on, None where there is no world.

        ``apply`` folds what was missed; ``post`` gives a task to the thread that folds, from any thread. ``sent``
        learns of ranks that have not begun a run; ``silent`` is called when a rank has not said where it stands.
        """
        self._read = read
        self._questions = questions
        self._apply = apply
        self._post = post
        self._sent = sent
        self._silent = silent

    def read(self, entry: Entry, rank: int, *, idle: bool = False) -> None:
        """Ask ``rank`` for the events of ``entry`` that come next; ``idle``: it has not begun, as far as it says."""
        if rank in entry.reading:
            return
        future = self._read(rank, entry.run.number, entry.run.next_seq(rank))
        if future is not None:
            entry.reading.add(rank)
            future.add_done_callback(lambda done: self._post(lambda: self._was_read(entry, rank, done, idle=idle)))

    def _was_read(self, entry: Entry, rank: int, done: Future[EventsRead], *, idle: bool) -> None:
        entry.reading.discard(rank)
        if done.exception() is not None:
            return
        if (batch := done.result().batch) is None:
            if idle:
                self._sent.unbegun(entry, rank)
            return
        self._apply(entry, batch)
        if rank in entry.run.unfinished:
            # Announcements that came meanwhile were not applied: ask until nothing is left.
            self.read(entry, rank)

    def read_spool(self, entry: Entry, rank: int, folder: str) -> list[Event]:
        """Apply, and return, what is new in the spool of ``rank``, as far as this host can read it."""
        found: list[Event] = []
        with contextlib.suppress(OSError):
            found.extend(read_file(spool_path(folder, entry.run.number, rank), entry.run.next_seq(rank)))
        self._apply_all(entry, rank, found)
        return found

    def end(self, entry: Entry, rank: int, folder: str, last: list[Event]) -> None:
        """Apply the end of a dead rank: what is in its spool, and its ``last`` events, which its watch has written."""
        found = self.read_spool(entry, rank, folder)
        left = [event for event in last if event.run == entry.run.number and event not in found]
        if left and rank in entry.run.unfinished:
            # The watch counts on from the spool. A full disk has kept out of it what the rank has announced since.
            ahead = max(0, entry.run.next_seq(rank) - left[0].seq)
            self._apply_all(entry, rank, [msgspec.structs.replace(event, seq=event.seq + ahead) for event in left])

    def _apply_all(self, entry: Entry, rank: int, events: list[Event]) -> None:
        if events:
            self._apply(entry, Batch(entry.run.number, rank, entry.run.next_seq(rank), events[-1].seq, events))

    def ask_quiet(self, entry: Entry, now: float) -> None:
        """Ask the ranks of ``entry`` that have been quiet for too long where they stand."""
        for rank in entry.run.unfinished:
            if now - max(entry.run.heard(rank), entry.asked.get(rank, 0.0)) < QUIET:
                continue
            entry.asked[rank] = now
            entry.reading.discard(rank)
            self._questions.ask([rank], 2 * QUIET, lambda answers: self._states_came(entry, answers), ReadPosition())

    def _states_came(self, entry: Entry, answers: Answers[RankPosition]) -> None:
        for rank, answer in answers.items():
            if answer is None:
                self._silent()
                continue
            entry.run.note_heard(rank)
            if answer.run == entry.run.number:
                if answer.next > entry.run.next_seq(rank):
                    self.read(entry, rank)
            elif answer.state == "idle":
                self.read(entry, rank, idle=True)
            elif answer.run is not None and not answer.finished and entry.run.next_seq(rank) == 0:
                self._sent.refused(entry, rank, answer.run)
