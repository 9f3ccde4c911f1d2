"""Keeps writing the store, whatever happens to its file.

One :class:`StoreIntake` lives in each steward. It opens the file, writes the runs of its own world, finishes those of
worlds whose steward was killed on this machine, and removes runs that are older than ``Settings.store_days``,
unless a person keeps them.

Under failure: one message tells the user the reason. After :data:`RETRY` seconds it tries the file again, and then
stores the content of the spools. No failure reaches the world.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from jupyter_dtrain.core.errors import StoreFailed
from jupyter_dtrain.core.processes import still_runs

from .schema import explain, open_for_writing, transaction
from .source import SpoolFolder
from .writer import SKIPPED, StoreWriter, WorldOwner

RETRY = 2.0
"""Seconds after which it tries a failed store again."""
PRUNED = 20
"""Number of old runs to remove between two polls."""

_log = logging.getLogger(__name__)


class StoreIntake:
    """Reads events from a source and writes them into the store. Use it from one thread."""

    def __init__(
        self,
        path: Path,
        owner: WorldOwner,
        source: SpoolFolder,
        days: float,
        say: Callable[[str], None],
        folder: str | None = None,
    ) -> None:
        """``days``: how long to keep runs. ``say``: shows a message to the user. ``folder``: as in the writer."""
        self._path = path
        self.writer = StoreWriter(owner, source, folder=folder)
        self._days = days
        self._say = say
        self._said: set[str] = set()
        self._db: sqlite3.Connection | None = None
        self._retry_at = 0.0
        self._orphans: list[StoreWriter] | None = None
        self._old: list[int] = []

    def poll(self) -> bool:
        """Store new events; return whether there is more to store at once. Never raises."""
        if time.monotonic() < self._retry_at:
            return False
        return self._guard(self._poll)

    def close(self, words: str) -> None:
        """Store the rest at the end of the world, and close the file. Never raises."""

        def closing(db: sqlite3.Connection) -> bool:
            self.writer.close(db, words)
            return False

        self._guard(closing)
        self._disconnect()

    def _guard(self, task: Callable[[sqlite3.Connection], bool]) -> bool:
        try:
            return task(self._db if self._db is not None else self._connect())
        except StoreFailed as error:
            self._failed(str(error))
        except (sqlite3.Error, OSError) as error:
            self._failed(explain(error, self._path))
        except Exception as error:  # noqa: BLE001 — whatever fails, the world goes on
            _log.exception("The store failed")
            self._failed(f"Runs cannot be stored ({type(error).__name__}: {error}). Cells still run.")
        return False

    def _failed(self, words: str) -> None:
        self._disconnect()
        self.writer.forget()
        self._retry_at = time.monotonic() + RETRY
        if words not in self._said:
            self._said.add(words)
            self._say(words)

    def _disconnect(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _connect(self) -> sqlite3.Connection:
        db = self._db = open_for_writing(self._path)
        if self._orphans is None:
            self._orphans = [writer for owner in _orphans(db) if (writer := _adopt(db, owner, self.writer.owner))]
            limit = time.time() - self._days * 86400
            self._old = [
                row[0] for row in db.execute("SELECT id FROM runs WHERE started < ? AND NOT kept", (limit,)).fetchall()
            ]
        return db

    def _poll(self, db: sqlite3.Connection) -> bool:
        more = self.writer.poll(db)
        if not more and not self.writer.active:
            if self._orphans:
                orphan = self._orphans[-1]
                if not orphan.poll(db):
                    orphan.close(db, "its main process was killed")
                    self._orphans.pop()
                return True
            if self._old:
                self._prune(db)
                return bool(self._old)
        return more

    def _prune(self, db: sqlite3.Connection) -> None:
        old, self._old = self._old[:PRUNED], self._old[PRUNED:]
        with transaction(db):
            db.executemany("DELETE FROM runs WHERE id = ? AND NOT kept", [(run,) for run in old])
            if not self._old:
                db.execute("DELETE FROM worlds WHERE id NOT IN (SELECT world FROM runs) AND ended IS NOT NULL")


def _orphans(db: sqlite3.Connection) -> list[WorldOwner]:
    """The worlds of this machine whose stewards ended without recording it."""
    rows = db.execute(
        "SELECT key, name, size, host, spool, started, steward, steward_created FROM worlds "
        "WHERE ended IS NULL AND host = ?",
        (socket.gethostname(),),
    ).fetchall()
    owners = [WorldOwner(*row) for row in rows]
    return [owner for owner in owners if not still_runs(owner.steward, owner.steward_created)]


def _adopt(db: sqlite3.Connection, owner: WorldOwner, by: WorldOwner) -> StoreWriter | None:
    """A writer for the world of ``owner``; None where another steward was faster."""
    with transaction(db):
        taken = db.execute(
            "UPDATE worlds SET steward = ?, steward_created = ? WHERE key = ? AND steward = ? AND steward_created = ?",
            (by.steward, by.steward_created, owner.id, owner.steward, owner.steward_created),
        ).rowcount
    return StoreWriter(owner, SpoolFolder(owner.spool, SKIPPED), afterwards=True) if taken else None
