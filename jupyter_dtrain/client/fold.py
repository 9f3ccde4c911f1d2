"""The one thread of a session that folds runs.

The IO thread of the ranks' channel, the thread that listens to the steward and the threads that call the session post
to it and go on; it alone changes runs. It also sends: a queued cell goes out the moment that its ranks are free (see
:mod:`.run_queue`). It calls no view: each run's :class:`~.painting.Painting` does that on a thread of its own, so that
a view that blocks delays no cell, no interrupt, no news of a death and no stop.

Under failure: this thread asks a rank for a hole in its numbers, and a quiet rank for where it stands (see
:mod:`.missed_events`). It sends a cell again to a rank that has not begun it (see :mod:`.delivery`). It asks the
steward for news when a rank is silent: a dead rank's last events come with the news of its death. So every run ends,
whichever message was lost. A run whose ranks were asked to end waits :data:`CAUSE` seconds to learn by whom and why. A
thread that waits for this one goes on after :data:`PATIENCE` seconds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jupyter_dtrain.core.causes import LEFT
from jupyter_dtrain.core.errors import WorldLost
from jupyter_dtrain.core.events import Batch, Event, Finished, from_wire
from jupyter_dtrain.core.hangs import HangDetector
from jupyter_dtrain.core.interruption import Acts, Interruption
from jupyter_dtrain.core.stacks import describe_stuck
from jupyter_dtrain.core.stop_button import Latch, shutdown
from jupyter_dtrain.wire.agent_messages import EventsRead, ReadEvents
from jupyter_dtrain.wire.questions import Questions

from .delivery import Delivery, travel
from .missed_events import QUIET, Holes
from .run_queue import RunQueue

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.core.world import Rank, World
    from jupyter_dtrain.wire.channels import RanksChannel

    from .submitted_run import Entry

CAUSE = 2.0
"""Seconds that a run whose ranks were asked to end waits for the reason; a missing steward is noticed in half."""
PATIENCE = 10.0
"""Seconds that another thread waits for this one, which itself waits for the steward for a second at a time."""
BURST = 256
"""Messages that are folded before deadlines are looked at again."""

_log = logging.getLogger(__name__)


class StewardActs(Acts, Protocol):
    """What only the steward can do for runs. Acts raise as a link's requests do; the fold goes on without."""

    def advance(self, run: int) -> int:
        """The generation of what is sent after ``run``, whose process groups are broken. Raises as ``release``."""

    def renew_soon(self) -> None:
        """Ask at once what this client may have missed."""

    @property
    def drives(self) -> bool:
        """Whether this client may run cells."""


class Fold:
    """Folds the runs of one session. Methods without a leading underscore may be called from any thread."""

    def __init__(self, settings: Settings, steward: StewardActs, ended: Callable[[Run], None]) -> None:
        """``ended`` gets each run that has ended."""
        self._settings = settings
        self._steward = steward
        self._ended = ended
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._runs = RunQueue()
        self._showing: list[Entry] = []
        """Runs that have ended, and whose views have not shown that yet."""
        self._questions = Questions(self._bound, lambda: self._tasks.put(lambda: None))
        self._delivery = Delivery(
            self._bound, self._questions, lambda: steward.drives, lambda entry: self._interrupt(entry, time.monotonic())
        )
        self._holes = Holes(
            self._read, self._questions, self._apply, self._tasks.put, self._delivery, steward.renew_soon
        )
        self._world: World | None = None
        self._channel: RanksChannel | None = None
        self._generation = 0
        self._spool = ""
        self._gone = ""
        """Why there is no world to send to, in words."""
        self._presses: list[float] = []
        """When each press of Stop that is held back is due."""
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="dtrain-fold", daemon=True)
        self._thread.start()

    def bind(self, world: World, channel: RanksChannel, spool: str) -> None:
        """Talk to ``world`` from now on; whatever still runs in another is lost. ``spool``: folder of its spools.

        Raises :class:`WorldLost` when the fold thread does not do it within :data:`PATIENCE` seconds.
        """
        if not self._call(lambda: self._bind(world, channel, spool)):
            raise WorldLost(
                f"The thread that follows this kernel's runs is stuck ({self._place()}): restart the kernel, then "
                f"%distributed attach {world.name}."
            )

    def submit(self, entry: Entry) -> None:
        """Send the run as soon as its ranks are free; they count as busy from now on."""
        self._runs.post(entry)
        self._tasks.put(lambda: self._submit(entry))

    def adopt(self, entry: Entry) -> None:
        """Follow a run that another client has begun, from its first event on."""
        entry.adopted = True
        self._runs.post(entry)
        self._tasks.put(lambda: self._adopt(entry))

    def refuse_queued(self, words: str) -> None:
        """End the runs that were not sent yet, without sending them."""

        def refusing() -> None:
            for entry in self._runs.unsent:
                self._refuse(entry, words)

        self._tasks.put(refusing)

    def interrupt(self, *, force: bool = False, by: str = "", last: int | None = None) -> None:
        """Interrupt every run, or hurry its end; queued ones end without having been sent.

        ``force``: ranks that do not end are killed. ``by``: the client that asked for it, if that is not this one.
        ``last``: the newest run at that time; runs that were submitted later go on.
        """
        self._tasks.put(lambda: self._interrupt_all(force=force, by=by, last=last))

    def press(self) -> None:
        """Interrupt every run because this process got a SIGINT, unless its kernel is being restarted or ended."""
        due = time.monotonic() + shutdown.patience
        self._tasks.put(lambda: self._presses.append(due))

    def note(self, run: int, words: str) -> None:
        """Show ``words`` with the run, while it goes on."""

        def noting() -> None:
            if (entry := self._runs.find(run)) is not None:
                entry.painting.note(words)

        self._tasks.put(noting)

    def hear(self, content: dict[str, Any]) -> None:
        """Take an announcement from a rank."""
        self._tasks.put(lambda: self._hear(from_wire(content)))

    def rank_fell(self, rank: int, words: str) -> None:
        """A rank has ended, as ``words`` say; its end comes with :meth:`rank_died`."""
        self._tasks.put(lambda: self._rank_fell(rank, words))

    def rank_died(self, rank: int, words: str, events: list[Event]) -> None:
        """Take the steward's news that ``rank`` died, with its last events."""
        self._tasks.put(lambda: self._rank_died(rank, words, events))

    def ranks_replaced(self, ranks: list[Rank], size: int) -> None:
        """Talk to ``ranks`` from now on: they are other processes, and the world has ``size`` of them."""
        self._tasks.put(lambda: self._change(ranks, size))

    def ranks_stuck(self, run: int, waiting: dict[int, str]) -> None:
        """Take the steward's news that it cannot free ranks of ``run``, with the call in which each waits."""
        self._tasks.put(lambda: self._ranks_stuck(run, waiting))

    def set_generation(self, generation: int) -> None:
        """Send cells in ``generation`` from now on: the steward has begun it."""

        def setting() -> None:
            self._generation = max(self._generation, generation)

        self._tasks.put(setting)

    def world_lost(self, words: str) -> None:
        """End every run as lost: no rank will be heard again. Returns when that is done, or is under way."""
        if not self._closing and not self._call(lambda: self._world_lost(words)):
            _log.warning("The thread that follows runs is stuck (%s); it ends them when it goes on", self._place())

    def busy(self) -> dict[int, int]:
        """The ranks that work or are waited for, and the number of the run; a queued run counts as well."""
        return self._runs.busy()

    def running(self) -> list[Run]:
        """The runs that have not ended, in order; queued ones too."""
        return self._runs.running()

    def followed(self) -> set[int]:
        """The numbers of the runs that go on: those of :meth:`running`, and those that left ranks behind."""
        return {run.number for run in self.running()} | set(self.left_behind().values())

    def left_behind(self) -> dict[int, int]:
        """The ranks that still work on a run that an interrupt has ended, and its number."""
        return self._runs.left_behind()

    def close(self) -> None:
        """End every run. The thread ends when their views have shown that, which nothing here waits for.

        Called again, it does nothing.
        """
        if self._closing:
            return

        def closing() -> None:
            self._world_lost(LEFT)
            self._channel = None
            self._closing = True

        self._call(closing)

    def _call(self, task: Callable[[], None]) -> bool:
        """Run ``task`` on the fold thread and wait for it, at most :data:`PATIENCE` seconds; whether it was run."""
        if threading.current_thread() is self._thread:
            task()
            return True
        done = Latch()

        def wrapped() -> None:
            try:
                task()
            finally:
                done.open()

        self._tasks.put(wrapped)
        until = time.monotonic() + PATIENCE
        while not done.wait(0.5) and self._thread.is_alive() and time.monotonic() < until:
            pass
        return done.is_open

    def _place(self) -> str:
        """Where the fold thread is, in words."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 — public but for its name
        return "it has ended" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"

    # The fold thread.

    def _loop(self) -> None:
        wake = time.monotonic() + QUIET
        while self._showing or not self._closing:
            try:
                self._guard(self._tasks.get(timeout=max(0.0, min(wake - time.monotonic(), QUIET))))
                for _ in range(BURST):
                    self._guard(self._tasks.get_nowait())
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
        self._runs.add(entry)
        if self._gone:
            self._world_lost(self._gone)
            return
        self._send_ready()
        before = self._runs.adopted_before(entry)
        # The user knows what he has queued himself.
        if before is not None and not entry.sent:
            entry.painting.note(
                f"Waits for run {before.number}, which was running before this client joined; Stop ends both."
            )

    def _adopt(self, entry: Entry) -> None:
        assert self._world is not None
        self._runs.add(entry)
        self._watch(entry)
        if self._gone:
            self._world_lost(self._gone)
            return
        for rank in entry.run.ranks:
            place = self._world.rank(rank)
            if place.state == "dead":
                self._rank_died(rank, place.words, [])
                continue
            # The rank itself remembers its newest runs only.
            self._holes.read_spool(entry, rank, self._spool)
            if rank in entry.run.unfinished:
                self._holes.read(entry, rank)

    def _send_ready(self) -> None:
        while (entry := self._runs.next_ready()) is not None:
            self._send(entry)

    def _send(self, entry: Entry) -> None:
        assert self._world is not None
        run = entry.run
        now = time.monotonic()
        self._watch(entry)
        if entry.timeout is not None:
            entry.deadline = now + entry.timeout
        places = [self._world.rank(rank) for rank in run.ranks]
        if dead := [place for place in places if place.state == "dead"]:
            # They died while the cell was queued; the others would wait for them.
            run.not_sent = "; ".join(place.words for place in dead)
            for place in dead:
                run.mark_lost(place.rank, place.words)
            self._end(entry)
            return
        self._delivery.send(entry, self._generation)

    def _watch(self, entry: Entry) -> None:
        entry.sent = True
        entry.painting.begin()
        limit, now = self._settings.hang_notice, time.monotonic()

        def show(words: str) -> None:
            # An interruption says by itself where ranks are.
            if entry.ending is None or not words:
                over = "" if words or entry.ending is not None else "The cell moves again."
                entry.painting.stand("hang", words, over)

        entry.hang_detector = HangDetector(entry.run, limit, self._questions, show, now, travel(entry))

    def _hear(self, batch: Batch) -> None:
        entry = self._runs.find(batch.run)
        if entry is None or batch.rank not in entry.run.ranks:
            return
        if batch.first > entry.run.next_seq(batch.rank):
            self._holes.read(entry, batch.rank)
        else:
            self._apply(entry, batch)

    def _apply(self, entry: Entry, batch: Batch) -> None:
        before = entry.run.divergence
        fresh = entry.run.apply(batch)
        self._runs.note_join(entry.run)
        if fresh is None:
            return
        if before is None and (found := entry.run.divergence) is not None:
            entry.painting.note(f"{found.words}. %distributed check {found.name} says by how much.")
        if entry.hang_detector is not None:
            entry.hang_detector.hear(fresh, time.monotonic())
        entry.painting.feed(fresh, entry.run.totals[fresh.rank])
        if fresh.events and isinstance(fresh.events[-1].body, Finished):
            entry.painting.idle(fresh.rank)
            self._end_if_done(entry)

    def _read(self, rank: int, run: int, from_seq: int) -> Future[EventsRead] | None:
        if (bound := self._bound()) is None:
            return None
        world, channel = bound
        return channel.ask(world.rank(rank).engine, ReadEvents(run, from_seq))

    def _rank_fell(self, rank: int, words: str) -> None:
        for entry in self._runs.sent:
            if rank in entry.run.unfinished:
                entry.painting.note(f"{words[:1].upper()}{words[1:]}.")

    def _change(self, ranks: list[Rank], size: int | None = None) -> None:
        if (before := self._world) is None:
            return
        self._world = before.changed(ranks, size)
        for entry in self._runs.sent:
            for rank in before.others(self._world, entry.run.unfinished):
                # The whole run is in its spool: only idle ranks get other numbers.
                self._end_rank(entry, rank, f"rank {rank} is another process since %distributed resize", [])

    def _rank_died(self, rank: int, words: str, events: list[Event]) -> None:
        if self._world is not None:
            self._change([msgspec.structs.replace(self._world.rank(rank), state="dead", words=words)])
        for entry in self._runs.sent:
            if rank in entry.run.lost:
                self._end_if_done(entry)
            if rank not in entry.run.unfinished:
                if entry.ending is None and entry.run.unfinished and rank not in entry.run.lost:
                    entry.painting.note(f"{words[:1].upper()}{words[1:]}. This cell goes on without it.")
                continue
            self._end_rank(entry, rank, words, events)

    def _end_rank(self, entry: Entry, rank: int, words: str, events: list[Event]) -> None:
        self._holes.end(entry, rank, self._spool, events)
        if rank in entry.run.unfinished:
            entry.run.mark_lost(rank, words)
            entry.painting.idle(rank)
            self._end_if_done(entry)

    def _ranks_stuck(self, run: int, waiting: dict[int, str]) -> None:
        entry = self._runs.find(run)
        if entry is not None and entry.run.outcome == "running" and waiting.items() - entry.stuck.items():
            entry.stuck = waiting
            entry.painting.note(describe_stuck(waiting))

    def _world_lost(self, words: str) -> None:
        self._gone = words
        self._runs.forget_left()
        for entry in self._runs.open:
            for rank in [*entry.run.unfinished, *self._unexplained(entry)]:
                entry.run.mark_lost(rank, f"rank {rank} is lost: {words}")
                entry.run.abandoned = True
            self._end(entry)

    def _interrupt_all(self, *, force: bool, by: str, last: int | None) -> None:
        now = time.monotonic()
        for entry in [] if by else self._showing:
            entry.painting.hurry(now)
        for entry in self._runs.open:
            if last is not None and entry.sent and entry.run.number > last:
                continue
            if by and entry.ending is None:
                entry.painting.note(f"Interrupted by {by}.")
            if not entry.sent:
                self._refuse(entry, "interrupted while it was queued")
            elif entry.ending is None:
                self._interrupt(entry, now)
            else:
                entry.ending.press(now)
            if force and entry.ending is not None:
                entry.ending.force = True

    def _take_presses(self, now: float) -> float:
        """Interrupt the runs for presses that are due; when the next one is."""
        while self._presses and self._presses[0] <= now:
            self._presses.pop(0)
            if not shutdown.asked:
                self._interrupt_all(force=False, by="", last=None)
        return self._presses[0] if self._presses else math.inf

    def _interrupt(self, entry: Entry, now: float) -> None:
        entry.run.interrupted = True
        note = entry.painting.note
        entry.ending = Interruption(entry.run, self._settings, self._questions, self._steward, note, now)
        if entry.hang_detector is not None:
            entry.hang_detector.withdraw()
        entry.ending.tick(now)

    def _bound(self) -> tuple[World, RanksChannel] | None:
        return None if self._channel is None or self._world is None else (self._world, self._channel)

    def _answer(self, now: float) -> float:
        """Pass on what ranks have answered; when the next patience is over."""
        wake, due = self._questions.tick(now)
        for task in due:
            self._guard(task)
        return wake

    def _end_if_done(self, entry: Entry) -> None:
        if entry.run.unfinished:
            return
        if self._runs.came_back(entry):
            self._send_ready()
        elif not self._unexplained(entry):
            self._end(entry)
        elif entry.cause_by is None:
            entry.cause_by = time.monotonic() + CAUSE
            self._steward.renew_soon()

    def _unexplained(self, entry: Entry) -> list[int]:
        """The ranks that said that they must end, and that the steward has not reported dead."""
        assert self._world is not None
        return [rank.rank for rank in self._world.ranks if rank.rank in entry.run.lost and rank.state != "dead"]

    def _end(self, entry: Entry) -> None:
        if not self._runs.end(entry):
            return
        run = entry.run
        run.end()
        self._ended(run)
        if entry.sent and run.busy:
            self._runs.leave(entry)
        self._showing.append(entry)
        entry.painting.close(run, time.monotonic(), lambda: self._tasks.put(lambda: self._release(entry)))
        if run.regroup or run.busy:
            with contextlib.suppress(Exception):
                self._generation = max(self._generation, self._steward.advance(run.number))
        if run.outcome != "ok":
            # The runs queued behind it would meet ranks in an unknown state.
            for other in self._runs.behind(run):
                self._refuse(other, f"run {run.number}, which it was queued behind, ended with: {run.outcome}")
        self._send_ready()

    def _release(self, entry: Entry) -> None:
        """Let the threads go on that wait for the run."""
        if entry in self._showing:
            self._showing.remove(entry)
            entry.run.release()

    def _refuse(self, entry: Entry, words: str) -> None:
        entry.run.interrupted = True
        entry.run.not_sent = words
        self._end(entry)

    def _tick(self) -> float:
        now = time.monotonic()
        wake = min(now + QUIET, self._answer(now), self._take_presses(now))
        for entry in self._runs.sent:
            self._guard(lambda entry=entry: self._holes.ask_quiet(entry, now))  # type: ignore[misc]
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
        for entry in list(self._showing):
            if entry.painting.is_late(now):
                # No line of a log says so: it might go where the view is blocked, and block this thread too.
                self._release(entry)
        return wake
