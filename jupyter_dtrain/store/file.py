"""Questions to the store's file, and changes to it; and where the numbers of a new world's runs begin.

Under failure: a question and a change raise :class:`~jupyter_dtrain.core.errors.StoreFailed` with the reason in words,
and a change that raises has changed nothing. :func:`last_number` never raises.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from jupyter_dtrain.core.errors import DtrainError, StoreFailed
from jupyter_dtrain.core.structs import UNREADABLE
from jupyter_dtrain.wire.spool import run_numbers

from .schema import explain, open_for_reading, open_for_writing, transaction

T = TypeVar("T")


class StoreFile:
    """The SQLite file with the runs of all worlds of this user."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """It does not exist before the first run is stored."""

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T | None:
        """What ``question`` returns for the file; None before the first run is stored. Raises :class:`StoreFailed`."""
        db = open_for_reading(self.path)
        if db is None:
            return None
        try:
            with self.reading():
                return question(db)
        finally:
            db.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Say that what is read inside is damaged, where it is. Raises :class:`StoreFailed`."""
        try:
            yield
        except DtrainError:
            raise
        except sqlite3.Error as error:
            raise StoreFailed(explain(error, self.path)) from error
        except (ValueError, TypeError, *UNREADABLE) as error:
            raise StoreFailed(
                f"A run in the store {self.path} is damaged, and this part of it cannot be read ({error})."
            ) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which is undone when it raises. Raises :class:`StoreFailed`."""
        db = open_for_writing(self.path)
        try:
            with transaction(db):
                yield db
        except sqlite3.Error as error:
            raise StoreFailed(explain(error, self.path)) from error
        finally:
            db.close()


def last_number(store: Path, spool: Path, name: str) -> int:
    """The highest number of a run of the worlds called ``name``, after which a new one counts on; 0 if they have none.

    So ``world/17`` names one run, and the number in a cell is the one in lists. Both the store and the spools are
    asked: one may be unreadable, and a steward that was killed has left runs that only its spool has. ``spool``: the
    spool folder of a world, which lies beside those of other worlds. Never raises.
    """
    return max(_stored(store, name), _spooled(spool, name))


def _stored(store: Path, name: str) -> int:
    # Deleted runs count: their numbers are not given again. The first cell may come before a large file is migrated.
    query = "SELECT max(number) FROM runs JOIN worlds ON worlds.id = runs.world WHERE worlds.name = ?"
    with contextlib.suppress(StoreFailed, sqlite3.Error):
        if (db := open_for_reading(store, migrated=False)) is not None:
            with contextlib.closing(db):
                return db.execute(query, (name,)).fetchone()[0] or 0
    return 0


def _spooled(spool: Path, name: str) -> int:
    # Ids end with the time at which their world started, and numbers grow: the newest spool with a run has the highest.
    named = re.compile(re.escape(name) + r"-\d{8}-\d{6}-[0-9a-f]+\Z")
    with contextlib.suppress(OSError):
        worlds = sorted((path for path in spool.parent.iterdir() if named.match(path.name)), reverse=True)
        for world in worlds:
            if world != spool and (found := run_numbers(world)):
                return found[-1]
    return 0
