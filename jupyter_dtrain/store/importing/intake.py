"""Gives an imported run to the writer of the store, as the events of a world that has this one run.

The run's world has the tool's identity as its id, so that the run is found again. A run that has more points, or
another end, than the store has is written anew in its old row: its id, its number and a person's words stay.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from jupyter_dtrain.core.events import (
    Body,
    Configured,
    Error,
    Event,
    Finished,
    Metrics,
    Output,
    RunContext,
    Started,
)
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.processes import own_process

from ..columns import ColumnWriter, Fresh
from ..file import StoreFile, last_number
from ..schema import open_for_writing, transaction
from ..source import Read, SpoolFolder
from ..writer import StoreWriter, WorldOwner
from .foreign import ForeignRun, own_id

State = Literal["new", "changed", "same"]
"""Whether the store had a run before."""
_CHILDREN: Final = (
    *("parts", "series", "texts", "step_times", "acts", "environments", "media", "media_counts"),
    *("happenings", "commits"),
)
_PIECE: Final = 4000  # characters of text in one event


def take(store: StoreFile, run: ForeignRun) -> tuple[int, State]:
    """Store a run; its row, and whether it was there. Raises :class:`sqlite3.Error`, :class:`OSError`."""
    with contextlib.closing(open_for_writing(store.path)) as db:
        own = _own_runs(db).get(run.ours) if run.ours else None
        if own is not None:
            return own, "same"
        query = (
            "SELECT runs.id, number, runs.outcome, runs.name, deleted FROM runs JOIN worlds ON worlds.id = world "
            "WHERE worlds.key = ?"
        )
        known = db.execute(query, (run.key,)).fetchone()
        if known is not None and known[4]:
            # A person has deleted it, and brings it back now. No spool could do so.
            with transaction(db):
                db.execute("DELETE FROM worlds WHERE key = ?", (run.key,))
            known = None
        if known is not None and known[2] == run.outcome and _points(db, known[0]) == _told(run):
            return known[0], "same"
        if known is not None:
            _clear(db, known[0])
            run.name = known[3]
        number = last_number(store.path, _spool(store, run), run.world) + 1 if known is None else known[1]
        _write(db, store, run, number)
        row = db.execute(query, (run.key,)).fetchone()[0]
        with transaction(db):
            _settle(db, row, run, new=known is None)
    return row, "new" if known is None else "changed"


def _own_runs(db: sqlite3.Connection) -> dict[str, int]:
    """The rows of the runs that our worlds have made, by their ids at trackers."""
    query = "SELECT worlds.key, number, runs.id FROM runs JOIN worlds ON worlds.id = world WHERE NOT deleted"
    return {own_id(key, number): row for key, number, row in db.execute(query)}


def _write(db: sqlite3.Connection, store: StoreFile, run: ForeignRun, number: int) -> None:
    owner = WorldOwner(run.key, run.world, run.size, run.host, str(_spool(store, run)), run.started, *own_process())
    writer = StoreWriter(owner, _Told(run, number))
    while writer.poll(db):
        pass
    writer.close(db, f"imported from {run.title}")


def _settle(db: sqlite3.Connection, row: int, run: ForeignRun, *, new: bool) -> None:
    """What no event of a rank tells: resources beside metrics, and a person's words, which stay once they are there."""
    for rank, found in run.resources.items():
        _write_resources(db, row, rank, found)
    if run.commit is not None:
        told = msgspec.json.encode(run.commit)
        db.execute("INSERT INTO commits (run, told) VALUES (?, ?) ON CONFLICT (run) DO NOTHING", (row, told))
    if new:
        tags = msgspec.json.encode(run.tags).decode()
        # Kept: else the next world would remove a run of last year at once.
        db.execute("UPDATE runs SET note = ?, tags = ?, kept = 1 WHERE id = ?", (run.note, tags, row))
    db.execute("UPDATE runs SET seen = 1 WHERE id = ?", (row,))


def _write_resources(db: sqlite3.Connection, row: int, rank: int, found: dict[str, Columns]) -> None:
    fresh = Fresh()
    for name, columns in found.items():
        fresh.add("resource", pack(name, columns))
    ColumnWriter().write(db, row, rank, fresh)


def _clear(db: sqlite3.Connection, row: int) -> None:
    """Empty a run that is written anew, but for its row."""
    with transaction(db):
        for table in _CHILDREN:
            db.execute(f"DELETE FROM {table} WHERE run = ?", (row,))  # noqa: S608 — our own names
        db.execute(
            "UPDATE runs SET outcome = NULL, ended = NULL, elapsed = NULL, config = '{}', origins = '{}', trains = 0 "
            "WHERE id = ?",
            (row,),
        )


def _points(db: sqlite3.Connection, row: int) -> tuple[int, int]:
    """How many points and things beside numbers the store has of a run."""
    points = "SELECT coalesce(sum(points), 0) FROM blocks JOIN series ON series.id = series WHERE run = ? AND kind = ?"
    media = "SELECT coalesce(sum(logged), 0) FROM media_counts WHERE run = ?"
    return db.execute(points, (row, "metric")).fetchone()[0], db.execute(media, (row,)).fetchone()[0]


def _told(run: ForeignRun) -> tuple[int, int]:
    points = sum(len(columns.values) for metrics in run.metrics.values() for columns in metrics.values())
    return points, sum(medium.left_out + bool(medium.data) for _, medium in run.media)


def _spool(store: StoreFile, run: ForeignRun) -> Path:
    """The folder that its spools would have: a run that is imported has none."""
    return store.path.parent / "spool" / "".join(one if one.isalnum() else "-" for one in run.key)


class _Told(SpoolFolder):
    """A source whose events were told by another tool."""

    def __init__(self, run: ForeignRun, number: int) -> None:
        super().__init__(os.devnull)
        self._run = run
        self._number = number
        self._ranks = sorted({0, *run.metrics, *run.resources})

    def runs(self) -> frozenset[int]:
        """The one run."""
        return frozenset({self._number})

    def ranks(self, run: int) -> list[int]:  # noqa: ARG002 — there is one run
        """Those that have points, and rank 0."""
        return self._ranks

    def read(self, run: int, rank: int, position: int) -> Read:
        """All events of a rank at once."""
        if position:
            return Read([], position, more=False)
        events = [Event(run, rank, seq, when, body) for seq, (when, body) in enumerate(self._events(rank))]
        return Read(events, len(events), more=False)

    def _events(self, rank: int) -> Iterator[tuple[float, Body]]:
        run = self._run
        first = rank == self._ranks[0]
        yield (
            run.started,
            Started(
                0,
                run.host,
                "",
                source=run.source if first else "",
                ranks=self._ranks if first else [],
                name=run.name if first else "",
                context=RunContext(group=run.group) if first else RunContext(),
            ),
        )
        if first:
            if run.config:
                yield run.started, Configured(run.config, "set")
            if run.environment is not None:
                yield run.started, run.environment
            for at in range(0, len(run.text), _PIECE):
                yield run.ended, Output("stdout", run.text[at : at + _PIECE])
            yield from run.media
        series = [pack(name, columns) for name, columns in run.metrics.get(rank, {}).items() if columns.values]
        if series:
            yield run.ended, Metrics(series)
        if first and run.error is not None:
            yield run.ended, Error(*run.error, [])
        yield run.ended, Finished(run.outcome, max(0.0, run.ended - run.started))
