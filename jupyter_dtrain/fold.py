"""The one thread of a session that folds runs.

The IO thread of the ranks' channel, the thread that listens to the steward and the threads that call the session post
to it and go on; it alone changes runs and paints views. It also sends: a queued cell goes out the moment that its
ranks are free.

Under failure: a hole in the numbers of a rank is asked for; a rank that says nothing for :data:`QUIET` seconds is
asked where it stands; a dead rank's last events come with the news of its death. So every run ends, whichever message
was lost.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .engine.spool import read_file, spool_path
from .events import Batch, Event, Finished, from_wire
from .frameworks import Watch
from .run import Run

if TYPE_CHECKING:
    from .channels import RanksChannel
    from .view import RunView
    from .world import World

QUIET = 1.0
"""Seconds without news after which a rank is asked for its state."""
RESEND_INTERRUPT = 0.5
BURST = 256
"""Messages that are folded before deadlines are looked at again."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Entry:
    """A run on its way: queued, sent, or left behind."""

    def __init__(
        self, run: Run, view: RunView | None, inputs: dict[str, bytes], timeout: float | None, watch: Watch
    ) -> None:
        self.run = run
        self.watch = watch
        self.view = view
        self.inputs = inputs
        self.timeout = timeout
        self.sent = False
        self.deadline: float | None = None
        """When the run is interrupted by its own ``timeout``."""
        self.give_up: float | None = None
        """After an interrupt: when the run ends without the ranks that are still busy."""
        self.signalled: dict[int, float] = {}
        self.reading: set[int] = set()
        self.asked: dict[int, float] = {}


class Fold:
    """Folds the runs of one session. Methods without a leading underscore may be called from any thread."""

    def __init__(self, interrupt_timeout: float, advance: Callable[[], int], ended: Callable[[Run], None]) -> None:
        """``advance`` asks the steward for a new generation; ``ended`` gets each run that has ended."""
        self._interrupt_timeout = interrupt_timeout
        self._advance = advance
        self._ended = ended
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._entries: list[Entry] = []
        self._left: dict[int, Entry] = {}
        self._posted: list[Entry] = []
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

    def interrupt(self, *, give_up_now: bool = False) -> None:
        """Interrupt every run; queued ones end without having been sent."""
        self._queue.put(lambda: self._interrupt_all(give_up_now=give_up_now))

    def hear(self, content: dict[str, Any]) -> None:
        """An announcement from a rank."""
        self._queue.put(lambda: self._hear(from_wire(content)))

    def rank_died(self, rank: int, words: str, events: list[Event], generation: int) -> None:
        """The steward says so, with the last events of the rank and the world's new generation."""
        self._queue.put(lambda: self._rank_died(rank, words, events, generation))

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
            self._closing = True

        self._queue.put(closing)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _call(self, task: Callable[[], None]) -> None:
        """Run ``task`` on the fold thread and wait for it."""
        if threading.current_thread() is self._thread:
            task()
            return
        done = threading.Event()

        def wrapped() -> None:
            try:
                task()
            finally:
                done.set()

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
        entry.sent = True
        now = time.monotonic()
        if entry.timeout is not None:
            entry.deadline = now + entry.timeout
        content = {
            "run": run.number,
            "code": run.source,
            "ranks": run.ranks,
            "generation": self._generation,
            "watch": msgspec.to_builtins(entry.watch),
        }
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
            self._channel.run(place.engine, content, entry.inputs)

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

    def _read(self, entry: Entry, rank: int) -> None:
        """Ask the rank for what was missed, a piece at a time."""
        if rank in entry.reading or self._channel is None or self._world is None:
            return
        entry.reading.add(rank)
        run = entry.run
        future = self._channel.ask(
            self._world.ranks[rank].engine, op="read", run=run.number, from_seq=run.next_seq(rank)
        )
        future.add_done_callback(lambda done: self._queue.put(lambda: self._was_read(entry, rank, done.result())))

    def _was_read(self, entry: Entry, rank: int, answer: dict[str, Any]) -> None:
        entry.reading.discard(rank)
        if answer.get("batch") is None:
            return
        self._apply(entry, from_wire(answer["batch"]))
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
            future = self._channel.ask(self._world.ranks[rank].engine, op="state")

            def came(done: Any, rank: int = rank) -> None:
                self._queue.put(lambda: self._state_came(entry, rank, done.result()))

            future.add_done_callback(came)

    def _state_came(self, entry: Entry, rank: int, answer: dict[str, Any]) -> None:
        entry.run.note_heard(rank)
        if answer.get("run") == entry.run.number and answer["next"] > entry.run.next_seq(rank):
            self._read(entry, rank)

    def _rank_died(self, rank: int, words: str, events: list[Event], generation: int) -> None:
        if self._world is not None:
            ranks = list(self._world.ranks)
            ranks[rank] = msgspec.structs.replace(ranks[rank], state="dead", words=words)
            self._world = msgspec.structs.replace(self._world, ranks=ranks)
        self._generation = max(self._generation, generation)
        for entry in [*self._entries, *self._left.values()]:
            if not entry.sent or rank not in entry.run.unfinished:
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
            for rank in entry.run.unfinished:
                entry.run.mark_lost(rank, f"rank {rank} is lost: {words}")
            self._end(entry)

    def _interrupt_all(self, *, give_up_now: bool) -> None:
        now = time.monotonic()
        for entry in list(self._entries):
            if not entry.sent:
                entry.run.interrupted = True
                entry.run.not_sent = "interrupted while it was queued"
                self._end(entry)
                continue
            self._interrupt(entry, now)
            if give_up_now:
                entry.give_up = now

    def _interrupt(self, entry: Entry, now: float) -> None:
        entry.run.interrupted = True
        if entry.give_up is None:
            entry.give_up = now + self._interrupt_timeout
        self._signal(entry, now)

    def _signal(self, entry: Entry, now: float) -> None:
        """Interrupt the ranks that have not been reached yet: one that has not begun the cell must be asked again."""
        if self._channel is None or self._world is None:
            return
        for rank in entry.run.unfinished:
            if now - entry.signalled.get(rank, -1.0) < RESEND_INTERRUPT:
                continue
            entry.signalled[rank] = now
            future = self._channel.ask(self._world.ranks[rank].engine, op="interrupt", run=entry.run.number)

            def answered(done: Any, rank: int = rank) -> None:
                if done.result().get("sent"):
                    self._queue.put(lambda: entry.signalled.__setitem__(rank, float("inf")))

            future.add_done_callback(answered)

    def _end_if_done(self, entry: Entry) -> None:
        if entry.run.unfinished:
            return
        if self._left.pop(entry.run.number, None) is None:
            self._end(entry)
        else:
            self._send_ready()

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
                self._generation = max(self._generation, self._advance())
        run.release()
        if run.outcome != "ok":
            self._refuse_queued(run)
        self._send_ready()

    def _refuse_queued(self, ended: Run) -> None:
        """What was queued behind a run that did not end well would meet ranks in an unknown state: it is not sent."""
        for entry in list(self._entries):
            if not entry.sent and set(entry.run.ranks) & set(ended.ranks):
                entry.run.interrupted = True
                entry.run.not_sent = f"run {ended.number}, which it was queued behind, ended with: {ended.outcome}"
                self._end(entry)

    def _tick(self) -> float:
        now = time.monotonic()
        wake = now + QUIET
        for entry in [*self._entries, *self._left.values()]:
            if not entry.sent:
                continue
            self._guard(lambda entry=entry: self._ask_quiet(entry, now))  # type: ignore[misc]
            if entry.deadline is not None and now >= entry.deadline and not entry.run.interrupted:
                entry.run.timed_out = True
                self._interrupt(entry, now)
            elif entry.run.interrupted and entry.give_up is not None:
                self._signal(entry, now)
                wake = min(wake, now + RESEND_INTERRUPT)
            if entry.give_up is not None and now >= entry.give_up:
                self._end(entry)
            for moment in (entry.deadline, entry.give_up):
                if moment is not None and moment > now:
                    wake = min(wake, moment)
            wanted = self._tell_view(entry, lambda view: view.tick(now))
            if wanted is not None:
                wake = min(wake, wanted)
        return wake
