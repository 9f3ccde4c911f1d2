"""Points come back as they were, from few rows."""

from __future__ import annotations

import math
import sqlite3

from jupyter_dtrain.core.events import Metrics, Series
from jupyter_dtrain.store.columns import BLOCK
from tests.store.conftest import drain, points


def blocks(db: sqlite3.Connection) -> list[int]:
    """How many points each block has."""
    return [count for (count,) in db.execute("SELECT points FROM blocks ORDER BY series, number")]


def test_a_slow_series_is_no_row_a_point(store, db, fake):
    """A point a poll: blocks are added to until they are worth a row; a large one is one row at once."""
    fake.begin(1)
    for step in range(BLOCK + 44):
        fake.say(1, 0, points("slow", [float(step)], step))
        fake.writer.poll(db)
    fake.say(1, 1, points("fast", [0.5] * 10_000))
    fake.writer.poll(db)

    assert blocks(db) == [BLOCK, 44, 10_000]
    assert list(store.runs()[0].metrics["slow"][0].values) == [float(step) for step in range(BLOCK + 44)]


def test_values_that_are_not_finite_and_names_of_every_kind_come_back(store, db, fake):
    """Bit for bit."""
    names = ["loss", "", "a b", "'; DROP TABLE runs; --", '"', "ä🎉", "a\nb", "a\x00b", "x" * 200, "a/b", "%s"]
    strange = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308]
    fake.begin(1)
    for name in names:
        fake.say(1, 0, points(name, strange))
    drain(fake.writer, db)
    metrics = store.runs()[0].metrics

    assert sorted(metrics) == sorted(names)
    for name in names:
        assert [repr(value) for value in metrics[name][0].values] == [repr(value) for value in strange]


def test_columns_that_do_not_fit_each_other_are_left_out(store, db, fake):
    """The store keeps the whole columns beside them, and those that follow."""
    eight = b"\0" * 8
    fake.begin(1)
    fake.say(1, 0, Metrics([Series("bad", eight, eight, eight * 2), Series("odd", b"123", b"123", b"123")]))
    fake.say(1, 0, points("good", [1.0]))
    drain(fake.writer, db)

    assert list(store.runs()[0].metrics) == ["good"]
