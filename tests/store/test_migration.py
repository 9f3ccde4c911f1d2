"""A store of version 5, made by running cells with the code of that version, is opened now and has lost nothing."""

from __future__ import annotations

import lzma
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_dtrain.store import Store
from jupyter_dtrain.store.file import last_number
from jupyter_dtrain.store.schema import MIGRATIONS, open_for_reading

DUMP = Path(__file__).with_name("version5.sql.xz")
"""Six runs of a world of two ranks: set-up, three trainings, one that failed, and one with NaN and much text."""
FILLED = {("series", name) for name in ("last", "best", "step")}
"""Columns that version 5 filled for losses alone, and that later ones fill for every metric."""


@pytest.fixture
def old(tmp_path):
    """The path of the old file, as its program left it."""
    path = tmp_path / "runs.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(lzma.decompress(DUMP.read_bytes()).decode())
    return path


def content(path):
    """Each row of each table, by the table's name: a dict of its columns."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [dict(row) for row in db.execute(f"SELECT * FROM {name} ORDER BY rowid")] for name in names}  # noqa: S608


def test_every_row_of_every_table_is_there_after_the_migration(old):
    """With each column and value that it had; what was empty may be known now."""
    before = content(old)
    with closing(open_for_reading(old)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    after = content(old)

    assert {table: len(rows) for table, rows in before.items()} == {table: len(after[table]) for table in before}
    assert {"worlds", "runs", "parts", "series", "blocks", "texts", "step_times", "acts"} <= set(before)
    for table, rows in before.items():
        for row, now in zip(rows, after[table], strict=True):
            for column, value in row.items():
                filled = value is None and (table, column) in FILLED
                assert now[column] == value or filled, (table, column)


def test_old_runs_are_read_as_new_ones(old):
    """With all points, text, acts and step times; and metrics have figures that only losses had."""
    store = Store.open(old)
    last, failed, steered, second, first, setup = store.runs()

    assert [run.number for run in (setup, first, second, steered, failed, last)] == [5, 6, 7, 8, 9, 10]
    assert [run.outcome for run in (last, failed, first)] == ["ok", "error", "ok"]
    assert (last.note, last.tags, failed.kept) == ("a note <b>", ["best", "two"], True)
    assert (steered.name, steered.acts[0].words, len(steered.metrics["loss"][1].values)) == (
        "steered one",
        "set opt.lr=0.02",
        120,
    )
    assert steered.step_time[0]
    assert "rank 1 fails" in failed.errors[1].evalue
    assert last.text(0).count("a line of text") > 1000
    assert [run.training for run in (setup, first, failed, last)] == [False, True, False, True]
    accuracy = first.metrics["accuracy"]
    figure = first.figures["accuracy"]
    assert figure.high == max(max(columns.values) for columns in accuracy.values())
    assert accuracy[0].values[accuracy[0].steps.index(figure.high_step)] == pytest.approx(figure.high, abs=0.5)
    assert figure.last == pytest.approx(sum(columns.values[-1] for columns in accuracy.values()) / 2)
    assert math.isnan(last.metrics["loss"][0].values[0])
    assert last.figures["loss"].low is None
    assert (first.config, first.group, first.lineage[0].id) == ({}, "", first.id)
    assert [run.number for run in store.select("accuracy.max>0.99", sort="-accuracy.max").runs] == [8, 6]


def test_the_first_run_number_does_not_wait_for_a_migration(old):
    """A world may run its first cell before a large file is migrated: its numbers go on from those of the old one."""
    with closing(sqlite3.connect(old)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (name,) = db.execute("SELECT name FROM worlds").fetchone()
        db.execute("BEGIN IMMEDIATE")  # as while another process migrates it

        assert last_number(old, old.parent / "spool" / "world", name) == 10
        db.execute("ROLLBACK")
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
