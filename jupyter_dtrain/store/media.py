"""What runs have logged beside numbers: images, histograms, text, tables and sound, each with its step.

Of a name the store keeps at most :data:`KEPT` steps of each rank, spread evenly over the run: where there are more, it
drops every second one. How many were logged is kept beside them, so that nobody takes the rest for all.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import MediaKind, MediaLogged
from jupyter_dtrain.core.media import KEPT

if TYPE_CHECKING:
    from .file import StoreFile

_COUNT: Final = """INSERT INTO media_counts (run, rank, name, logged) VALUES (?, ?, ?, ?)
    ON CONFLICT (run, rank, name) DO UPDATE SET logged = logged + excluded.logged"""
_ADD: Final = """INSERT INTO media (run, rank, name, step, number, kind, time, mime, caption, note, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def write(db: sqlite3.Connection, run: int, rank: int, one: MediaLogged, when: float) -> None:
    """Add what ``rank`` has logged to the run in row ``run``. Raises :class:`sqlite3.Error`."""
    db.execute(_COUNT, (run, rank, one.name, one.left_out + bool(one.data)))
    if not one.data:
        return
    db.execute(
        _ADD,
        (run, rank, one.name, one.step, one.number, one.kind, when, one.mime, one.caption, one.note, one.data),
    )
    if one.number:
        return  # its step is there already
    query = "SELECT DISTINCT step FROM media WHERE run = ? AND rank = ? AND name = ? ORDER BY step"
    steps = [step for (step,) in db.execute(query, (run, rank, one.name)).fetchall()]
    if len(steps) > KEPT:
        drop = [(run, rank, one.name, step) for step in steps[1:-1:2]]
        db.executemany("DELETE FROM media WHERE run = ? AND rank = ? AND name = ? AND step = ?", drop)


class Medium:
    """One thing that a run has logged beside numbers. Its data is read when it is asked for."""

    def __init__(
        self,
        store: StoreFile,
        medium: int,
        rank: int,
        name: str,
        kind: MediaKind,
        step: int,
        number: int,
        time: float,
        mime: str,
        caption: str,
        note: str,
        size: int,
    ) -> None:
        self._store = store
        self.id = medium
        """Its number in the store, which no other thing has."""
        self.rank = rank
        self.name = name
        self.kind = kind
        """``image``, ``figure``, ``histogram``, ``text``, ``table`` or ``audio``."""
        self.step = step
        self.number = number
        """Counts what was logged together under one name at one step, from 0."""
        self.time = time
        """When it was recorded, in seconds since the epoch."""
        self.mime = mime
        """``image/png``, ``audio/wav``, ``text/plain``; ``application/json`` for histograms and tables."""
        self.caption = caption
        self.note = note
        """How the data is less than what was logged; empty where it is all of it."""
        self.bytes = size

    @property
    def data(self) -> bytes:
        """A PNG or WAV file, or text or JSON in UTF-8.

        The JSON of a histogram has ``edges``, ``counts``, ``total``, ``lowest``, ``highest``, ``mean``, ``deviation``
        and ``not_finite``; that of a table ``columns``, ``rows`` and ``total``. Raises
        :class:`~jupyter_dtrain.core.errors.BadRequest` where its run is no longer in the store.
        """
        query = "SELECT data FROM media WHERE id = ?"
        row = self._store.ask(lambda db: db.execute(query, (self.id,)).fetchone())
        if row is None:
            raise BadRequest("What was logged is no longer in the store.")
        return bytes(row[0])

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} of rank {self.rank} at step {self.step}: {self.bytes} bytes>"


def find_media(store: StoreFile, clause: str, values: tuple[object, ...]) -> list[Medium]:
    """What the SQL ``clause`` names, by name, step, rank and number. Raises :class:`.StoreFailed`."""
    query = (
        "SELECT id, rank, name, kind, step, number, time, mime, caption, note, length(data) FROM media "  # noqa: S608 — our own
        f"WHERE {clause} ORDER BY name, step, rank, number"
    )
    rows = store.ask(lambda db: db.execute(query, values).fetchall())
    return [Medium(store, *row) for row in rows or []]
