"""The scheduler of a session: the one thread that sends cells, in order, and follows their runs.

The IO thread of the ranks' channel, the thread that listens to the steward and the threads that call the session post
to it and go on; it alone changes runs. A queued cell goes out the moment that its ranks are free (see
:mod:`.run_queue`); what becomes of a run is in :mod:`.submitted_run`. The scheduler calls no view: each run's
:class:`~.painting.Painting` does that on a thread of its own, so that a view that blocks delays no cell, no interrupt,
no news of a death and no stop.

Under failure: a run reads what it has missed from its ranks, and its cell goes again to a rank that has not begun it
(see :mod:`.missed_events`, :mod:`.outgoing_cell`). The scheduler asks the steward for news when a rank is silent: a
dead rank's last events come with the news of its death. So every run ends, whichever message was lost. A thread that
waits for this one goes on after :data:`PATIENCE` seconds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_dtrain.core.causes import LEFT
from jupyter_dtrain.core.errors import WorldLost
from jupyter_dtrain.core.events import Event, from_wire
from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.core.stop_button import Latch, shutdown

from .missed_events import QUIET
from .run_queue import RunQueue
from .world_connection import WorldConnection

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.core.world import AddressedRank, AddressedWorld
    from jupyter_dtrain.wire.channels import RanksChannel

    from .submitted_run import SubmittedRun
    from .world_connection import StewardActs

PATIENCE = 10.0
"""Seconds that another thread waits for this one, which itself waits for the steward for a second at a time."""
BURST = 256
"""Messages that are taken before deadlines are looked at again."""

_log = logging.getLogger(__name__)


class RunScheduler:
    """Owns the runs of one session. Methods without a leading underscore may be called from any thread."""

    def __init__(self, settings: Settings, steward: StewardActs, ended: Callable[[Run], None]) -> None:
        """``ended`` gets each run that has ended."""
        self._steward = steward
        self._ended = ended
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._connection = WorldConnection(settings, steward, self._tasks.put)
        self._runs = RunQueue()
        self._showing: list[SubmittedRun] = []
        """Runs that have ended, and whose views have not shown that yet."""
        self._gone = ""
        """Why there is no world to send to, in words."""
        self._presses: list[float] = []
        """When each press of Stop that is held back is due."""
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="dtrain-scheduler", daemon=True)
        self._thread.start()

    def bind(self, world: AddressedWorld, channel: RanksChannel, spool: str) -> None:
        """Talk to ``world`` from now on; whatever still runs in another is lost. ``spool``: folder of its spools.

        Raises :class:`WorldLost` when the scheduler's thread does not do it within :data:`PATIENCE` seconds.
        """
        if not self._call(lambda: self._bind(world, channel, spool)):
            raise WorldLost(
                f"The thread that follows this kernel's runs is stuck ({self._place()}): restart the kernel, then "
                f"%distributed attach {world.name}."
            )

    def submit(self, submitted: SubmittedRun) -> None:
        """Send the run as soon as its ranks are free; they count as busy from now on."""
        self._runs.post(submitted)
        self._tasks.put(lambda: self._submit(submitted))

    def adopt(self, submitted: SubmittedRun) -> None:
        """Follow a run that another client has begun, from its first event on."""
        self._runs.post(submitted)
        self._tasks.put(lambda: self._adopt(submitted))

    def refuse_queued(self, words: str) -> None:
        """End the runs that were not sent yet, without sending them."""

        def refusing() -> None:
            for submitted in self._runs.unsent:
                self._refuse(submitted, words)

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
            if (submitted := self._runs.find(run)) is not None:
                submitted.painting.note(words)

        self._tasks.put(noting)

    def hear(self, content: dict[str, Any]) -> None:
        """Take an announcement from a rank."""
        self._tasks.put(lambda: self._hear(content))

    def rank_fell(self, rank: int, words: str) -> None:
        """A rank has ended, as ``words`` say; its end comes with :meth:`rank_died`."""
        self._tasks.put(lambda: self._rank_fell(rank, words))

    def rank_died(self, rank: int, words: str, events: list[Event]) -> None:
        """Take the steward's news that ``rank`` died, with its last events."""
        self._tasks.put(lambda: self._rank_died(rank, words, events))

    def ranks_replaced(self, ranks: list[AddressedRank], size: int) -> None:
        """Talk to ``ranks`` from now on: they are other processes, and the world has ``size`` of them."""
        self._tasks.put(lambda: self._change(ranks, size))

    def ranks_stuck(self, run: int, waiting: dict[int, str]) -> None:
        """Take the steward's news that it cannot free ranks of ``run``, with the call in which each waits."""
        self._tasks.put(lambda: self._ranks_stuck(run, waiting))

    def set_generation(self, generation: int) -> None:
        """Send cells in ``generation`` from now on: the steward has begun it."""

        def setting() -> None:
            self._connection.generation = max(self._connection.generation, generation)

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

    def adopted(self) -> list[Run]:
        """Those of :meth:`running` that another client has begun."""
        return self._runs.adopted()

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
            self._connection.channel = None
            self._closing = True

        self._call(closing)

    def _call(self, task: Callable[[], None]) -> bool:
        """Run ``task`` on the scheduler's thread, and wait :data:`PATIENCE` seconds at most; whether it was run."""
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
        """Where the scheduler's thread is, in words."""
        frame = frame_of(self._thread.ident)
        return "it has ended" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"

    # The scheduler's thread.

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
        except Exception:  # noqa: BLE001 — the thread that ends all runs survives a message that cannot be taken
            _log.exception("A message could not be taken")

    def _bind(self, world: AddressedWorld, channel: RanksChannel, spool: str) -> None:
        self._world_lost("its world was restarted")
        connection = self._connection
        connection.world, connection.channel, connection.spool, connection.generation = (
            world,
            channel,
            spool,
            world.generation,
        )
        self._gone = ""

    def _submit(self, submitted: SubmittedRun) -> None:
        self._runs.add(submitted)
        if self._gone:
            self._world_lost(self._gone)
            return
        self._send_ready()
        before = self._runs.adopted_before(submitted)
        # The user knows what he has queued himself.
        if before is not None and not submitted.sent:
            submitted.painting.note(
                f"Waits for run {before.number}, which was running before this client joined; Stop ends both."
            )

    def _adopt(self, submitted: SubmittedRun) -> None:
        assert self._connection.world is not None
        self._runs.add(submitted)
        submitted.begin(self._connection, self._changed)
        if self._gone:
            self._world_lost(self._gone)
            return
        for rank in submitted.run.ranks:
            place = self._connection.world.rank(rank)
            if place.state == "dead":
                self._rank_died(rank, place.words, [])
            else:
                submitted.read_from_start(rank)

    def _send_ready(self) -> None:
        # A run may end well just as its world is lost; those that are queued behind it end with the world.
        while not self._gone and (submitted := self._runs.next_ready()) is not None:
            self._send(submitted)

    def _send(self, submitted: SubmittedRun) -> None:
        assert self._connection.world is not None
        run = submitted.run
        submitted.begin(self._connection, self._changed)
        places = [self._connection.world.rank(rank) for rank in run.ranks]
        if dead := [place for place in places if place.state == "dead"]:
            # They died while the cell was queued; the others would wait for them.
            run.not_sent = "; ".join(place.words for place in dead)
            for place in dead:
                run.mark_lost(place.rank, place.words)
            self._end(submitted)
            return
        submitted.send()

    def _hear(self, content: dict[str, Any]) -> None:
        batch = from_wire(content)
        submitted = self._runs.find(batch.run)
        if submitted is not None and submitted.sent and batch.rank in submitted.run.ranks:
            submitted.hear(batch)

    def _rank_fell(self, rank: int, words: str) -> None:
        for submitted in self._runs.sent:
            if rank in submitted.run.unfinished:
                submitted.painting.note(f"{words[:1].upper()}{words[1:]}.")

    def _change(self, ranks: list[AddressedRank], size: int | None = None) -> None:
        if (before := self._connection.world) is None:
            return
        self._connection.world = before.changed(ranks, size)
        for submitted in self._runs.sent:
            for rank in before.others(self._connection.world, submitted.run.unfinished):
                # The whole run is in its spool: only idle ranks get other numbers.
                submitted.lose_rank(rank, f"rank {rank} is another process since %distributed resize", [])

    def _rank_died(self, rank: int, words: str, events: list[Event]) -> None:
        if self._connection.world is not None:
            self._change([msgspec.structs.replace(self._connection.world.rank(rank), state="dead", words=words)])
        for submitted in self._runs.sent:
            if rank in submitted.run.lost:
                self._changed(submitted)
            if rank in submitted.run.unfinished:
                submitted.lose_rank(rank, words, events)
            else:
                submitted.note_death(rank, words)

    def _ranks_stuck(self, run: int, waiting: dict[int, str]) -> None:
        if (submitted := self._runs.find(run)) is not None:
            submitted.note_stuck(waiting)

    def _world_lost(self, words: str) -> None:
        self._gone = words
        self._runs.forget_left()
        for submitted in self._runs.open:
            run = submitted.run
            if submitted.sent:
                try:
                    # What a rank has said already counts: the store has it from the same file.
                    submitted.read_spools()
                except Exception:  # noqa: BLE001 — the run ends all the same
                    _log.exception("What the ranks have said last in run %s could not be read", run.number)
            for rank in [*run.unfinished, *self._unexplained(run)]:
                run.mark_lost(rank, f"rank {rank} is lost: {words}")
                run.abandoned = True
            self._end(submitted)

    def _interrupt_all(self, *, force: bool, by: str, last: int | None) -> None:
        now = time.monotonic()
        for submitted in [] if by else self._showing:
            submitted.painting.hurry(now)
        for submitted in self._runs.open:
            if last is not None and submitted.sent and submitted.run.number > last:
                continue
            if submitted.sent:
                submitted.interrupt(now, force=force, by=by)
            else:
                if by:
                    submitted.painting.note(f"Interrupted by {by}.")
                self._refuse(submitted, "interrupted while it was queued")

    def _take_presses(self, now: float) -> float:
        """Interrupt the runs for presses that are due; when the next one is."""
        while self._presses and self._presses[0] <= now:
            self._presses.pop(0)
            if not shutdown.asked:
                self._interrupt_all(force=False, by="", last=None)
        return self._presses[0] if self._presses else math.inf

    def _answer(self, now: float) -> float:
        """Pass on what ranks have answered; when the next patience is over."""
        wake, due = self._connection.questions.tick(now)
        for task in due:
            self._guard(task)
        return wake

    def _changed(self, submitted: SubmittedRun) -> None:
        """A rank has ended the run, or has joined another run with it."""
        self._runs.note_join(submitted.run)
        if submitted.run.unfinished:
            return
        if self._runs.came_back(submitted):
            self._send_ready()
        elif self._unexplained(submitted.run):
            submitted.await_cause()
        else:
            self._end(submitted)

    def _unexplained(self, run: Run) -> list[int]:
        """The ranks that said that they must end, and that the steward has not reported dead."""
        assert self._connection.world is not None
        return [rank.rank for rank in self._connection.world.ranks if rank.rank in run.lost and rank.state != "dead"]

    def _end(self, submitted: SubmittedRun) -> None:
        if not self._runs.end(submitted):
            return
        run = submitted.run
        run.end()
        self._ended(run)
        if submitted.sent and run.busy:
            self._runs.leave(submitted)
        self._showing.append(submitted)
        submitted.painting.close(run, time.monotonic(), lambda: self._tasks.put(lambda: self._release(submitted)))
        if run.regroup or run.busy:
            with contextlib.suppress(Exception):
                self._connection.generation = max(self._connection.generation, self._steward.advance(run.number))
        if run.outcome != "ok":
            # The runs queued behind it would meet ranks in an unknown state.
            for other in self._runs.behind(run):
                self._refuse(other, f"run {run.number}, which it was queued behind, ended with: {run.outcome}")
        self._send_ready()

    def _release(self, submitted: SubmittedRun) -> None:
        """Let the threads go on that wait for the run."""
        if submitted in self._showing:
            self._showing.remove(submitted)
            submitted.run.release()

    def _refuse(self, submitted: SubmittedRun, words: str) -> None:
        submitted.run.interrupted = True
        submitted.run.not_sent = words
        self._end(submitted)

    def _tick(self) -> float:
        now = time.monotonic()
        wake = min(now + QUIET, self._answer(now), self._take_presses(now))
        for submitted in self._runs.sent:
            try:
                wake = min(wake, submitted.tick(now))
            except Exception:  # noqa: BLE001 — the other runs go on, and the next tick may do better
                _log.exception("Run %s was not looked after for a moment", submitted.run.number)
            if submitted.over:
                self._end(submitted)
        for submitted in list(self._showing):
            if submitted.painting.is_late(now):
                # No line of a log says so: it might go where the view is blocked, and block this thread too.
                self._release(submitted)
        return wake
