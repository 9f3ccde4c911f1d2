"""Reads what the store has of one run that was not read before: blocks of points, media, and whether more may come.

Nothing is kept but the points that wait for another rank. Under failure: reads raise
:class:`~jupyter_dtrain.core.errors.StoreFailed`, and go on where they were.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Final, NamedTuple

from jupyter_dtrain.core.events import Series
from jupyter_dtrain.store.file import StoreFile

from .facts import StoredMedium
from .merging import Merger, Point
from .state import Key

BLOCKS: Final = 64
"""Blocks of a series to read at once."""


class _Read(NamedTuple):
    block: int
    points: int


class RunReader:
    """The new things of one run."""

    def __init__(self, store: StoreFile, run: int, sent: dict[str, Key]) -> None:
        """``sent``: the place up to which the points of each metric are sent."""
        self._store = store
        self._run = run
        self._sent = sent
        self._mergers: dict[str, Merger] = {}
        self._read: dict[int, _Read] = {}
        self._open: list[int] = []
        """The ranks that may still log."""
        self._heard: dict[int, float] = {}
        self.more = True
        """Whether the store has points that were not read."""

    def poll(self, ranks: list[int], *, ended: bool) -> None:
        """Read on. ``ranks``: all of the run. ``ended``: whether it has ended, as the store had it before."""
        if self._store.ask(lambda db: self._poll(db, ranks, ended=ended)) is None:
            self.more = False

    def take(self, most: int) -> list[Point]:
        """The points that are complete, at most about ``most``."""
        found: list[Point] = []
        now = time.monotonic()
        for merger in self._mergers.values():
            found += merger.take(self._open, self._heard, now, most - len(found))
        return found

    @property
    def waits(self) -> bool:
        """Whether points were read that have not left."""
        return any(merger.waits for merger in self._mergers.values())

    def media(self, after: int, most: int) -> list[StoredMedium]:
        """Media whose row comes after ``after``, in their order."""
        query = (
            "SELECT id, rank, name, kind, step, number, time, mime, caption, data FROM media "
            "WHERE run = ? AND id > ? ORDER BY id LIMIT ?"
        )
        rows = self._store.ask(lambda db: db.execute(query, (self._run, after, most)).fetchall())
        return [StoredMedium(*row) for row in rows or []]

    def _poll(self, db: sqlite3.Connection, ranks: list[int], *, ended: bool) -> bool:
        parts = db.execute("SELECT rank, outcome, heard FROM parts WHERE run = ?", (self._run,)).fetchall()
        query = "SELECT id, rank, name FROM series WHERE run = ? AND kind = 'metric' ORDER BY id"
        arrived, self.more = time.monotonic(), False
        for series, rank, name in db.execute(query, (self._run,)).fetchall():
            self._read_series(db, series, rank, name, arrived)
        # After the points: what a rank has said by then is read.
        over = {rank for rank, outcome, _ in parts if outcome is not None}
        # With more to read, no rank may count as one that has ended, or that is past a step.
        self._open = [] if ended and not self.more else [rank for rank in ranks if self.more or rank not in over]
        self._heard = {} if self.more else {rank: heard for rank, _, heard in parts if heard is not None}
        return True

    def _read_series(self, db: sqlite3.Connection, series: int, rank: int, name: str, arrived: float) -> None:
        block, points = self._read.get(series, _Read(0, 0))
        rows = db.execute(
            "SELECT number, points, steps, times, amounts FROM blocks WHERE series = ? AND number >= ? "
            "AND NOT (number = ? AND points = ?) ORDER BY number LIMIT ?",
            (series, block, block, points, BLOCKS),
        ).fetchall()
        self.more |= len(rows) == BLOCKS
        for number, size, *columns in rows:
            skip = 8 * points if number == block else 0
            if name not in self._mergers:
                self._mergers[name] = Merger(name, self._sent.get(name))
            self._mergers[name].add(rank, Series(name, *(column[skip:] for column in columns)), arrived)
            block, points = number, size
        if rows:
            self._read[series] = _Read(block, points)
