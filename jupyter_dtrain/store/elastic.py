"""The outcome of a stored elastic run: that of its ranks, and of the runs that joined it in the place of lost ones.

A run that joins has a number of its own, and may end before the elastic run or after it. So the outcome is found when
the elastic run ends, and again whenever a run that joined it ends.

Every function raises :class:`sqlite3.Error`, inside the writer's transaction, which is then undone.
"""

from __future__ import annotations

import sqlite3

from jupyter_dtrain.core.fold import ElasticEnd, elastic_end


def note(db: sqlite3.Connection, run: int, joins: int | None) -> None:
    """The run in row ``run`` is elastic or, with the number of one, ``joins`` it."""
    db.execute("UPDATE runs SET elastic = ?, joins = ? WHERE id = ?", (joins is None, joins, run))


def end_of(db: sqlite3.Connection, world: int, number: int, run: int) -> ElasticEnd:
    """How the elastic run ``number`` of ``world``, in row ``run``, has ended as far as its runs have."""
    rows = db.execute("SELECT id FROM runs WHERE world = ? AND joins = ? ORDER BY number", (world, number)).fetchall()
    return elastic_end(_outcomes(db, run), [_outcomes(db, join) for (join,) in rows])


def count_join(db: sqlite3.Connection, world: int, number: int) -> None:
    """A run that joined run ``number`` of ``world`` has ended: if that one has ended, too, its outcome may change."""
    found = db.execute(
        "SELECT id FROM runs WHERE world = ? AND number = ? AND elastic "
        "AND outcome IS NOT NULL AND outcome != 'interrupted'",
        (world, number),
    ).fetchone()
    if found is not None:
        outcome, remark = end_of(db, world, number, *found)
        db.execute("UPDATE runs SET outcome = ?, remark = ? WHERE id = ?", (outcome, remark, *found))


def _outcomes(db: sqlite3.Connection, run: int) -> dict[int, str | None]:
    return dict(db.execute("SELECT rank, outcome FROM parts WHERE run = ?", (run,)).fetchall())
