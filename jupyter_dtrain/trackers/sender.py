"""Sends runs to one target, in a process of its own, until all that it was asked for is there.

A round looks at the store every :data:`PERIOD` seconds: it gives the world's runs that log something their rows, claims
what no other process sends, and sends what is new, a batch at a time, each followed by its position.

Under failure: a run that the tracker does not take keeps the reason in its row and is tried again, after 1 to
:data:`LONGEST` seconds; the others go on. :data:`REST` seconds after the end of the world this process ends, whatever
its tracker's library does then.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.events import RUNNING
from jupyter_dtrain.core.processes import still_runs
from jupyter_dtrain.store.file import StoreFile
from jupyter_dtrain.store.stored_run import StoredRun, run_with_id, world_is_over

from .facts import SentFacts, read_facts
from .reading import RunReader
from .state import AGE, Row, TrackedState, add_row, claim, save
from .target import TrackerTarget
from .tracker import TrackedRun, Tracker

PERIOD: Final = 1.0
"""Seconds between two looks at the store."""
BATCH: Final = 1000
"""Points of one batch: what may be sent twice if this process is killed."""
REST: Final = 600.0
"""Seconds that the rest may take after the end of the world."""
LONGEST: Final = 60.0
"""The most seconds between two attempts."""
MEDIA: Final = 16
"""Media to read at once."""
SHOWN: Final = 300
"""Characters of a tracker's error to show."""

_log = logging.getLogger(__name__)


class SendJob(msgspec.Struct, frozen=True):
    """What a process sends; it reads this from its standard input."""

    store: str
    """The store's file."""
    target: str
    """As :attr:`.target.TrackerTarget.text`."""
    world: str = ""
    """The id of the world whose runs go there; empty for none. Runs of worlds that are over come along."""
    steward: tuple[int, float] | None = None
    """The main process of this world, and when it was created."""
    runs: list[int] = []
    """Rows of further runs, which may still be running."""


class Sender:
    """Sends to one target. Use it from one thread."""

    def __init__(self, job: SendJob, target: TrackerTarget) -> None:
        self._job = job
        self._target = target
        self._store = StoreFile(Path(job.store))
        self._tracker: Tracker | None = None
        self._deliveries: dict[Row, Delivery] = {}
        self._limited = False

    def run(self) -> None:
        """Send until nothing is left; returns then, or ends the process when the time is up."""
        while True:
            began = time.monotonic()
            try:
                more = self.look()
            except DtrainError as error:
                _log.warning("%s", error)
                more = False
            except sqlite3.Error as error:
                _log.warning("The store cannot be written: %s", error)
                more = False
            if self._is_over():
                self._limit()
                if not self._deliveries:
                    return
            if not more:
                time.sleep(max(0.05, PERIOD - (time.monotonic() - began)))

    def look(self) -> bool:
        """Look once; whether there is more to send at once."""
        for row in self._find():
            if row not in self._deliveries:
                with self._store.writing() as db:
                    claimed = claim(db, row)
                if claimed is not None:
                    if self._tracker is None:
                        self._tracker = self._target.kind(self._target.where, self._target.flags)
                    self._deliveries[row] = Delivery(self._store, row, self._target, self._tracker, *claimed)
        more = False
        for row, delivery in list(self._deliveries.items()):
            more |= delivery.advance()
            if delivery.done:
                del self._deliveries[row]
        return more

    def _find(self) -> list[Row]:
        """The rows to send, of which those of the world's newest runs are made first."""
        target = (self._target.tracker, self._target.rest)
        fresh = "SELECT runs.id FROM runs JOIN worlds ON worlds.id = runs.world WHERE worlds.key = ? " + _UNTRACKED  # noqa: S608
        new = self._store.ask(lambda db: db.execute(fresh, (self._job.world, *target)).fetchall()) or []
        if new:
            with self._store.writing() as db:
                for (run,) in new:
                    add_row(db, Row(run, *target))
        query = (
            "SELECT tracked.run, worlds.key, worlds.ended, host, steward, steward_created FROM tracked "
            "JOIN runs ON runs.id = tracked.run JOIN worlds ON worlds.id = runs.world "
            "WHERE NOT done AND NOT deleted AND tracker = ? AND target = ? AND runs.started > ? ORDER BY tracked.run"
        )
        limit = time.time() - AGE
        rows = self._store.ask(lambda db: db.execute(query, (*target, limit)).fetchall()) or []
        wanted = set(self._job.runs)
        return [
            Row(run, *target)
            for run, key, *world in rows
            if key == self._job.world or run in wanted or world_is_over(*world)
        ]

    def _is_over(self) -> bool:
        if not self._job.world:
            return True
        query = "SELECT ended, host, steward, steward_created FROM worlds WHERE key = ?"
        rows = self._store.ask(lambda db: db.execute(query, (self._job.world,)).fetchall())
        if rows:
            return any(world_is_over(*row) for row in rows)
        # A world without a row has had no run yet.
        return self._job.steward is not None and not still_runs(*self._job.steward)

    def _limit(self) -> None:
        """Start the time that the rest may take, once no run goes on."""
        if not self._limited and not any(one.running for one in self._deliveries.values()):
            self._limited = True
            timer = threading.Timer(REST, os._exit, (3,))
            timer.daemon = True
            timer.start()


_UNTRACKED: Final = (
    "AND NOT aside AND NOT deleted AND (trains OR EXISTS (SELECT 1 FROM media WHERE media.run = runs.id)) "
    "AND NOT EXISTS (SELECT 1 FROM tracked WHERE tracked.run = runs.id AND tracker = ? AND target = ?)"
)
"""Of a world's runs those that have logged something and that the target was not asked to take."""


class Delivery:
    """Sends one run."""

    def __init__(
        self, store: StoreFile, row: Row, target: TrackerTarget, tracker: Tracker, state: TrackedState, before: int
    ) -> None:
        """``before``: the process that sent it before; 0 for none."""
        self._store = store
        self._row = row
        self._target = target
        self._tracker = tracker
        self._state = state
        if before:
            state.place["sender"] = str(before)
        self._reader = RunReader(store, row.run, dict(state.sent))
        self._open: TrackedRun | None = None
        self._told = ""
        self._failures = 0
        self._next = 0.0
        self.done = False
        """Whether the tracker has all, or the run is no longer in the store."""
        self.running = True
        """Whether the run went on at the last look."""

    def advance(self) -> bool:
        """Send a batch; whether there is more to send at once. Raises :class:`StoreFailed`, nothing of the tracker."""
        if time.monotonic() < self._next:
            return False
        try:
            run = run_with_id(self._store, self._row.run)
        except BadRequest:
            self.done = True
            return False
        self.running = run.outcome == RUNNING
        try:
            more = self._advance(run)
        except (DtrainError, sqlite3.Error):
            raise
        except Exception as error:  # noqa: BLE001 — whatever a tracker's library raises
            self._failed(run, error)
            return False
        self._failures = 0
        return more

    def _advance(self, run: StoredRun) -> bool:
        facts = self._store.ask(lambda db: read_facts(db, run))
        assert facts is not None
        if self._open is None:
            self._begin(facts)
        assert self._open is not None
        if facts.digest != self._told:
            self._open.describe(facts)
            self._told = facts.digest
        self._reader.poll(run.ranks, ended=run.ended is not None)
        points = self._reader.take(BATCH)
        if points:
            self._open.add_points(points, ranks="ranks" in self._target.flags)
            self._state.sent |= {point.name: point.place for point in points}
        media = self._reader.media(self._state.medium, MEDIA)
        for medium in media:
            self._open.add_medium(medium)
            self._state.medium = medium.id
        if points or media:
            self._save()
        if points or media or self._reader.more:
            return True
        if run.ended is not None and not self._reader.waits:
            self._open.end(facts)
            self._open = None
            self.done = True
            self._state.claim, self._state.again = None, False
            self._save(done=True)
        return False

    def _begin(self, facts: SentFacts) -> None:
        if self._tracker.rewrites:
            self._state.sent, self._state.medium = {}, 0
        self._reader = RunReader(self._store, self._row.run, dict(self._state.sent))
        self._open = self._tracker.open(facts, self._state)
        self._told = ""
        self._save()

    def _save(self, words: str = "", *, done: bool = False) -> None:
        with self._store.writing() as db:
            save(db, self._row, self._state, words, done=done)

    def _failed(self, run: StoredRun, error: Exception) -> None:
        _log.warning("%s does not take run %s", self._target.tracker, run.label, exc_info=error)
        left, self._open = self._open, None
        self._state.again = True
        self._failures += 1
        self._next = time.monotonic() + min(LONGEST, 2.0 ** min(self._failures - 1, 10))
        said = " ".join(str(error).split())[:SHOWN] or type(error).__name__
        self._save(f"{self._target.kind.title} does not take run {run.label}: {said.rstrip('.')}.")
        if left is not None:
            try:
                left.leave()
            except Exception:  # noqa: BLE001 — whatever a tracker's library raises
                _log.exception("%s does not let go of run %s", self._target.tracker, run.label)
