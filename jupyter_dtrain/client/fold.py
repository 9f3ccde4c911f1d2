"""The one thread of a session that folds runs.

The IO thread of the ranks' channel, the thread that listens to the steward and the threads that call the session post
to it and go on; it alone changes runs and paints views. It also sends: a queued cell goes out the moment that its
ranks are free.

Under failure: a hole in the numbers of a rank is asked for; a rank that says nothing for :data:`QUIET` seconds is
asked where it stands; a dead rank's last events come with the news of its death. So every run ends, whichever message
was lost. A run whose ranks were told to end waits a moment for who told them and why.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from jupyter_dtrain.core.events import Batch, Event, Finished, from_wire
from jupyter_dtrain.core.hangs import HangDetector
from jupyter_dtrain.core.interruption import Acts, Interruption
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.stop_button import Latch
from jupyter_dtrain.wire.agent_messages import EventsRead, RankPosition, ReadEvents, ReadPosition, RunCell
from jupyter_dtrain.wire.questions import Answers, Questions
from jupyter_dtrain.wire.spool import read_file, spool_path
from jupyter_dtrain.wire.values import digests

from .entry import Entry

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.core.world import World
    from jupyter_dtrain.view import RunView
    from jupyter_dtrain.wire.channels import RanksChannel

QUIET = 1.0
"""Seconds without news after which a rank is asked for its state."""
CAUSE = 2.0
"""Seconds that a run whose ranks were told to end waits for the reason; a steward that is gone is missed in half."""
BURST = 256
"""Messages that are folded before deadlines are looked at again."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Steward(Acts, Protocol):
    """What the steward does for runs; see :class:`.Link`."""

    def advance(self, run: int) -> int:
        """The generation of what is sent after ``run``, whose process groups are broken. Raises as ``release``."""


class Fold:
    """Folds the runs of one session. Methods without a leading underscore may be called from any thread."""

    def __init__(self, settings: Settings, steward: Steward, ended: Callable[[Run], None]) -> None:
        """``ended`` gets each run that has ended."""
        self._settings = settings
        self._steward = steward
        self._ended = ended
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._entries: list[Entry] = []
        self._left: dict[int, Entry] = {}
        self._posted: list[Entry] = []
        self._questions = Questions(self._bound, lambda: self._queue.put(lambda: None))
        self._world: World | None = None
        self._channel: RanksChannel | None = None
        self._generation = 0
        self._spool = ""
        self._gone = ""
        """Why there is no world to send to, in words."""
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="dtrain-fold", daemon=True)
        self._thread.start()

    def bind(self, world: World, channel: RanksChannel, spool: str) -> None:
        """Talk to ``world`` from now on; whatever still runs in another is lost. ``spool``: folder of its spools."""
        self._call(lambda: self._bind(world, channel, spool))

    def submit(self, entry: Entry) -> None:
        """Send the run as soon as its ranks are free."""
        self._posted.append(entry)  # its ranks count as busy from now on
        self._queue.put(lambda: self._submit(entry))

    def adopt(self, entry: Entry) -> None:
        """Follow a run that another client has begun, from its first event on."""
        entry.adopted = True
        self._queue.put(lambda: self._adopt(entry))

    def refuse_queued(self, words: str) -> None:
        """What was not sent yet is not to be sent."""

        def refusing() -> None:
            for entry in [entry for entry in self._entries if not entry.sent]:
                self._refuse(entry, words)

        self._queue.put(refusing)

    def interrupt(self, *, force: bool = False, by: str = "", last: int | None = None) -> None:
        """Interrupt every run, or hurry its end; queued ones end without having been sent.

        ``force``: ranks that do not end are killed. ``by``: who has asked for it, where that was not this client;
        ``last``: the newest run that there was then, so that none is interrupted which has been submitted since.
        """
        self._queue.put(lambda: self._interrupt_all(force=force, by=by, last=last))

    def hear(self, content: dict[str, Any]) -> None:
        """An announcement from a rank."""
        self._queue.put(lambda: self._hear(from_wire(content)))

    def rank_died(self, rank: int, words: str, events: list[Event]) -> None:
        """The steward says so, with the last events of the rank."""
        self._queue.put(lambda: self._rank_died(rank, words, events))

    def set_generation(self, generation: int) -> None:
        """The steward has begun a new one."""

        def setting() -> None:
            self._generation = max(self._generation, generation)

        self._queue.put(setting)

    def world_lost(self, words: str) -> None:
        """No rank will be heard again."""
        self._call(lambda: self._world_lost(words))

    def busy(self) -> dict[int, int]:
        """Ranks that work, and on which run; queued runs count as well."""
        entries = [*list(self._left.values()), *list(self._posted), *list(self._entries)]
        return {rank: entry.run.number for entry in entries for rank in entry.run.unfinished}

    def left_behind(self) -> dict[int, int]:
        """Ranks that an interrupted run left behind, still working."""
        return {rank: entry.run.number for entry in list(self._left.values()) for rank in entry.run.unfinished}

    def close(self) -> None:
        """End the thread, after what was posted."""

        def closing() -> None:
            self._world_lost("this client has left it")
            self._closing = True

        self._queue.put(closing)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _call(self, task: Callable[[], None]) -> None:
        """Run ``task`` on the fold thread and wait for it."""
        if threading.current_thread() is self._thread:
            task()
            return
        done = Latch()

        def wrapped() -> None:
            try:
                task()
            finally:
                done.open()

        self._queue.put(wrapped)
        while not done.wait(1.0) and self._thread.is_alive():
            pass

    # The fold thread.

    def _loop(self) -> None:
        wake = time.monotonic() + QUIET
        while not self._closing:
            try:
                self._guard(self._queue.get(timeout=max(0.0, min(wake - time.monotonic(), QUIET))))
                for _ in range(BURST):
                    self._guard(self._queue.get_nowait())
            except queue.Empty:
                pass
            try:
                wake = self._tick()
            except Exception:  # noqa: BLE001 — the next tick may do better; without this thread nothing ends
                _log.exception("A tick failed")
                wake = time.monotonic() + QUIET

    def _guard(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception:  # noqa: BLE001 — a message that cannot be folded must not end the folding
            _log.exception("A message could not be folded")

    def _bind(self, world: World, channel: RanksChannel, spool: str) -> None:
        self._world_lost("its world was restarted")
        self._world, self._channel, self._generation = world, channel, world.generation
        self._spool, self._gone = spool, ""

    def _submit(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._posted.remove(entry)
        if self._gone:
            self._world_lost(self._gone)
        else:
            self._send_ready()
            self._tell_of_queue(entry)

    def _tell_of_queue(self, entry: Entry) -> None:
        """What the user has queued he knows; not what another client has begun."""
        before = [other for other in self._entries if other.adopted and set(other.run.ranks) & set(entry.run.ranks)]
        if before and not entry.sent:
            number = before[0].run.number
            self._note(entry, f"Waits for run {number}, which goes on since before this client joined; Stop ends both.")

    def _adopt(self, entry: Entry) -> None:
        assert self._world is not None
        self._entries.append(entry)
        self._watch(entry)
        for rank in entry.run.ranks:
            place = self._world.ranks[rank]
            if place.state == "dead":
                self._rank_died(rank, place.words, [])
            else:
                self._read(entry, rank)

    def _send_ready(self) -> None:
        taken: set[int] = {rank for entry in self._left.values() for rank in entry.run.unfinished}
        for entry in list(self._entries):
            wanted = set(entry.run.ranks)
            if not entry.sent and not wanted & taken:
                self._send(entry)
            taken |= wanted

    def _send(self, entry: Entry) -> None:
        assert self._channel is not None
        assert self._world is not None
        run = entry.run
        now = time.monotonic()
        self._watch(entry)
        if entry.timeout is not None:
            entry.deadline = now + entry.timeout
        names, pickles = list(entry.inputs), list(entry.inputs.values())
        cell = RunCell(
            run.number, run.source, run.ranks, self._generation, entry.watch, entry.cell, names, digests(pickles)
        )
        places = [self._world.ranks[rank] for rank in run.ranks]
        if dead := [place for place in places if place.state == "dead"]:
            # It died while the cell was queued; the others would wait for it.
            run.not_sent = "; ".join(place.words for place in dead)
            for place in dead:
                run.mark_lost(place.rank, place.words)
            self._end(entry)
            return
        for place in places:
            run.note_heard(place.rank)
            self._channel.run(place.engine, cell, pickles)

    def _watch(self, entry: Entry) -> None:
        entry.sent = True
        limit, now = self._settings.hang_notice, time.monotonic()

        def note(words: str) -> None:
            if entry.ending is None:  # then it is told where they are anyway
                self._note(entry, words)

        entry.hang_detector = HangDetector(entry.run, limit, self._questions, note, now)

    def _find(self, number: int) -> Entry | None:
        for entry in self._entries:
            if entry.run.number == number:
                return entry
        return self._left.get(number)

    def _hear(self, batch: Batch) -> None:
        entry = self._find(batch.run)
        if entry is None or batch.rank not in entry.run.ranks:
            return
        run = entry.run
        if batch.first > run.next_seq(batch.rank):
            self._read(entry, batch.rank)
            return
        self._apply(entry, batch)

    def _apply(self, entry: Entry, batch: Batch) -> None:
        fresh = entry.run.apply(batch)
        if fresh is None:
            return
        now = time.monotonic()
        if entry.hang_detector is not None:
            entry.hang_detector.hear(fresh, now)
        self._tell_view(entry, lambda view: view.feed(fresh, now))
        if fresh.events and isinstance(fresh.events[-1].body, Finished):
            self._tell_view(entry, lambda view: view.idle(fresh.rank, now))
            self._end_if_done(entry)

    def _tell_view(self, entry: Entry, tell: Callable[[RunView], T]) -> T | None:
        """A view that fails is left out from then on; the run goes on."""
        if entry.view is None:
            return None
        try:
            return tell(entry.view)
        except Exception:  # noqa: BLE001 — anybody may write a view
            _log.exception("The view of run %s failed", entry.run.number)
            entry.view = None
            return None

    def _note(self, entry: Entry, words: str) -> None:
        self._tell_view(entry, lambda view: view.note(words, time.monotonic()))

    def _read(self, entry: Entry, rank: int) -> None:
        """Ask the rank for what was missed, a piece at a time."""
        if rank in entry.reading or self._channel is None or self._world is None:
            return
        entry.reading.add(rank)
        run = entry.run
        request = ReadEvents(run.number, run.next_seq(rank))
        future = self._channel.ask(self._world.ranks[rank].engine, request)
        future.add_done_callback(lambda done: self._queue.put(lambda: self._was_read(entry, rank, done)))

    def _was_read(self, entry: Entry, rank: int, done: Future[EventsRead]) -> None:
        entry.reading.discard(rank)
        if done.exception() is not None or (batch := done.result().batch) is None:
            return
        self._apply(entry, batch)
        if rank in entry.run.unfinished:
            # Announcements that came meanwhile were not applied: ask until nothing is left.
            self._read(entry, rank)

    def _ask_quiet(self, entry: Entry, now: float) -> None:
        if self._channel is None or self._world is None:
            return
        for rank in entry.run.unfinished:
            if now - max(entry.run.heard(rank), entry.asked.get(rank, 0.0)) < QUIET:
                continue
            entry.asked[rank] = now
            entry.reading.discard(rank)
            self._questions.ask([rank], 2 * QUIET, lambda answers: self._states_came(entry, answers), ReadPosition())

    def _states_came(self, entry: Entry, answers: Answers[RankPosition]) -> None:
        for rank, answer in answers.items():
            if answer is None:
                continue
            entry.run.note_heard(rank)
            if answer.run == entry.run.number and answer.next > entry.run.next_seq(rank):
                self._read(entry, rank)

    def _rank_died(self, rank: int, words: str, events: list[Event]) -> None:
        if self._world is not None:
            ranks = list(self._world.ranks)
            ranks[rank] = msgspec.structs.replace(ranks[rank], state="dead", words=words)
            self._world = msgspec.structs.replace(self._world, ranks=ranks)
        for entry in [*self._entries, *self._left.values()]:
            if rank in entry.run.lost:
                self._end_if_done(entry)
            if not entry.sent or rank not in entry.run.unfinished:
                if entry.sent and entry.ending is None and entry.run.unfinished and rank not in entry.run.lost:
                    self._note(entry, f"{words[:1].upper()}{words[1:]}. It had no part in the rest of this cell.")
                continue
            with contextlib.suppress(OSError):
                path = spool_path(self._spool, entry.run.number, rank)
                self._apply_events(entry, rank, list(read_file(path, entry.run.next_seq(rank))))
            if rank not in entry.run.unfinished:
                # It had finished this run before it died, or its watch's own event was in the spool.
                continue
            self._apply_events(entry, rank, [event for event in events if event.run == entry.run.number])
            if rank not in entry.run.unfinished:
                continue
            entry.run.mark_lost(rank, words)
            self._tell_view(entry, lambda view: view.idle(rank, time.monotonic()))
            self._end_if_done(entry)

    def _apply_events(self, entry: Entry, rank: int, events: list[Event]) -> None:
        fresh = [event for event in events if event.seq >= entry.run.next_seq(rank)]
        if fresh:
            self._apply(entry, Batch(entry.run.number, rank, entry.run.next_seq(rank), fresh[-1].seq, fresh))

    def _world_lost(self, words: str) -> None:
        self._gone = words
        self._left.clear()
        for entry in list(self._entries):
            for rank in [*entry.run.unfinished, *self._unexplained(entry)]:
                entry.run.mark_lost(rank, f"rank {rank} is lost: {words}")
            self._end(entry)

    def _interrupt_all(self, *, force: bool, by: str, last: int | None) -> None:
        now = time.monotonic()
        for entry in list(self._entries):
            if last is not None and entry.sent and entry.run.number > last:
                continue
            if by and entry.ending is None:
                self._note(entry, f"Interrupted by {by}.")
            if not entry.sent:
                self._refuse(entry, "interrupted while it was queued")
            elif entry.ending is None:
                self._interrupt(entry, now)
            else:
                entry.ending.press(now)
            if force and entry.ending is not None:
                entry.ending.force = True

    def _interrupt(self, entry: Entry, now: float) -> None:
        entry.run.interrupted = True
        entry.ending = Interruption(
            entry.run,
            self._settings,
            self._questions,
            self._steward,
            lambda words: self._note(entry, words),
            now,
        )
        entry.ending.tick(now)

    def _bound(self) -> tuple[World, RanksChannel] | None:
        return None if self._channel is None or self._world is None else (self._world, self._channel)

    def _answer(self, now: float) -> float:
        """Pass on what was gathered; when the next patience is over."""
        wake, due = self._questions.tick(now)
        for task in due:
            self._guard(task)
        return wake

    def _end_if_done(self, entry: Entry) -> None:
        if entry.run.unfinished:
            return
        if self._left.pop(entry.run.number, None) is not None:
            self._send_ready()
        elif not self._unexplained(entry):
            self._end(entry)
        elif entry.cause_by is None:
            entry.cause_by = time.monotonic() + CAUSE

    def _unexplained(self, entry: Entry) -> list[int]:
        """Ranks that were lost to the run by their own word, while nobody has said that they died."""
        assert self._world is not None
        return [rank for rank in entry.run.lost if self._world.ranks[rank].state != "dead"]

    def _end(self, entry: Entry) -> None:
        if entry not in self._entries:
            return
        self._entries.remove(entry)
        run = entry.run
        run.end()
        self._ended(run)
        if entry.sent and run.busy:
            self._left[run.number] = entry
        self._tell_view(entry, lambda view: view.close(run, time.monotonic()))
        entry.view = None
        if run.regroup or run.busy:
            with contextlib.suppress(Exception):
                self._generation = max(
                    self._generation,
                    self._steward.advance(run.number),
                )
        run.release()
        if run.outcome != "ok":
            self._refuse_queued(run)
        self._send_ready()

    def _refuse_queued(self, ended: Run) -> None:
        """What was queued behind a run that did not end well would meet ranks in an unknown state: it is not sent."""
        for entry in list(self._entries):
            if not entry.sent and set(entry.run.ranks) & set(ended.ranks):
                self._refuse(entry, f"run {ended.number}, which it was queued behind, ended with: {ended.outcome}")

    def _refuse(self, entry: Entry, words: str) -> None:
        entry.run.interrupted = True
        entry.run.not_sent = words
        self._end(entry)

    def _tick(self) -> float:
        now = time.monotonic()
        wake = min(now + QUIET, self._answer(now))
        for entry in [*self._entries, *self._left.values()]:
            if not entry.sent:
                continue
            self._guard(lambda entry=entry: self._ask_quiet(entry, now))  # type: ignore[misc]
            if entry.deadline is not None and now >= entry.deadline and entry.ending is None:
                entry.run.timed_out = True
                self._interrupt(entry, now)
            if entry.cause_by is not None:
                wake = min(wake, entry.cause_by)
                if now >= entry.cause_by:
                    self._end(entry)
            elif entry.ending is not None:
                wake = min(wake, entry.ending.tick(now))
                if entry.ending.over:
                    self._end(entry)
            elif entry.hang_detector is not None:
                wake = min(wake, entry.hang_detector.tick(now), entry.deadline or math.inf)
            wanted = self._tell_view(entry, lambda view: view.tick(now))
            if wanted is not None:
                wake = min(wake, wanted)
        return wake
