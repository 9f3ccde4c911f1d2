"""Questions to the store's file, and changes to it.

Under failure: everything raises :class:`~jupyter_dtrain.core.errors.StoreFailed` with the reason in words; a change
that raises has changed nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from jupyter_dtrain.core.errors import DtrainError, StoreFailed
from jupyter_dtrain.core.structs import UNREADABLE

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
