"""What runs have logged beside numbers: images, histograms, text, tables and sound, each with its step.

Of a name the store keeps at most :data:`KEPT` steps of each rank, spread evenly over the run: where there are more, it
drops every second one. How many were logged is kept beside them, so that nobody takes the rest for all.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from jupyter_dtrain.core.events import MediaLogged

KEPT: Final = 100
"""Steps of one name and rank."""

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
    query = "SELECT DISTINCT step FROM media WHERE run = ? AND rank = ? AND name = ? ORDER BY step"
    steps = [step for (step,) in db.execute(query, (run, rank, one.name)).fetchall()]
    if len(steps) > KEPT:
        drop = [(run, rank, one.name, step) for step in steps[1:-1:2]]
        db.executemany("DELETE FROM media WHERE run = ? AND rank = ? AND name = ? AND step = ?", drop)
