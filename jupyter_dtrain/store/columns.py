"""Series of points as blocks of columns: many points in a row of the table, at whatever pace they come.

The points of a series from one poll form a block, or extend the last block while that is small. They are never parsed:
they stay the bytes that a rank packed.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator

import msgspec

from jupyter_dtrain.core.events import Sample, Series

from . import losses

BLOCK = 256
"""Points up to which a block is extended: a slow series must not need a row for each point."""


class Fresh:
    """The new points of one rank."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], list[Series]] = {}
        """The new points of each series, by its kind and name."""

    def add(self, kind: str, series: Series) -> None:
        """Add points; skip columns of unequal length."""
        size = len(series.values)
        if size and size % 8 == 0 and len(series.steps) == len(series.times) == size:
            self.series.setdefault((kind, series.name), []).append(series)

    def add_sample(self, sample: Sample, when: float) -> None:
        """Add a sample as points, one for each measured quantity."""
        for series in _points_of(sample, when):
            self.add("resource", series)


def _points_of(sample: Sample, when: float) -> Iterator[Series]:
    found: dict[str, float | None] = {"cpu": sample.cpu, "rss": sample.rss}
    if sample.workers:
        found |= {"workers": sample.workers, "workers rss": sample.workers_rss}
    found |= {"disk read": sample.disk_read, "disk written": sample.disk_written}
    found |= {"net received": sample.net_received, "net sent": sample.net_sent}
    if sample.gpu is not None:
        gpu = msgspec.structs.asdict(sample.gpu)
        found |= {f"gpu {name}": value for name, value in gpu.items() if name != "index"}
    step, time = struct.pack("<q", -1 if sample.step is None else sample.step), struct.pack("<d", when)
    for name, value in found.items():
        if value is not None:
            yield Series(name, step, time, struct.pack("<d", value))


class _Place:
    """Where the next points of a series go."""

    def __init__(self, row: int, number: int, points: int) -> None:
        self.row = row
        self.number = number
        self.points = points


class ColumnWriter:
    """Writes blocks. Call :meth:`forget` after a failed transaction: its memory of the file is then wrong."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, str, int, str], _Place] = {}

    def write(self, db: sqlite3.Connection, run: int, rank: int, fresh: Fresh) -> None:
        """Append the new points of ``rank`` to the run in row ``run``. Raises :class:`sqlite3.Error`."""
        for (kind, name), parts in fresh.series.items():
            key = (run, kind, rank, name)
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = _find(db, key)
            _append(db, place, parts)
            if kind == "metric":
                losses.write(db, place.row, parts)

    def ended(self, run: int) -> None:
        """Forget where points of the run in row ``run`` go: it gets no more."""
        for key in [key for key in self._places if key[0] == run]:
            del self._places[key]

    def forget(self) -> None:
        """Drop the memory of the file, which lacks the last writes."""
        self._places.clear()


def _find(db: sqlite3.Connection, key: tuple[int, str, int, str]) -> _Place:
    row = db.execute("SELECT id FROM series WHERE run = ? AND kind = ? AND rank = ? AND name = ?", key).fetchone()
    if row is None:
        made = db.execute("INSERT INTO series (run, kind, rank, name) VALUES (?, ?, ?, ?)", key).lastrowid
        assert made is not None
        return _Place(made, -1, 0)
    query = "SELECT number, points FROM blocks WHERE series = ? ORDER BY number DESC LIMIT 1"
    return _Place(row[0], *(db.execute(query, row).fetchone() or (-1, 0)))


def _append(db: sqlite3.Connection, place: _Place, parts: list[Series]) -> None:
    steps, times, values = (b"".join(getattr(one, part) for one in parts) for part in ("steps", "times", "values"))
    points = len(values) // 8
    if 0 < place.points < BLOCK:
        query = "SELECT steps, times, amounts FROM blocks WHERE series = ? AND number = ?"
        old = db.execute(query, (place.row, place.number)).fetchone()
        place.points += points
        db.execute(
            "UPDATE blocks SET points = ?, steps = ?, times = ?, amounts = ? WHERE series = ? AND number = ?",
            (place.points, old[0] + steps, old[1] + times, old[2] + values, place.row, place.number),
        )
    else:
        place.number += 1
        place.points = points
        db.execute(
            "INSERT INTO blocks (series, number, points, steps, times, amounts) VALUES (?, ?, ?, ?, ?, ?)",
            (place.row, place.number, points, steps, times, values),
        )
