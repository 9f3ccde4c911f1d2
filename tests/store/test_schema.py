"""The store's file: made, brought to the newest version, and left alone when it is not for us."""

from __future__ import annotations

import math
import sqlite3
import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from jupyter_dtrain import StoreFailed
from jupyter_dtrain.store import Store, schema
from jupyter_dtrain.store.schema import MIGRATIONS, open_for_reading, open_for_writing


def everything(folder) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_store_is_for_this_user_alone(store):
    """The file is 0600 in a 0700 folder, under any umask, with write-ahead logging."""
    with closing(open_for_writing(store.path)) as db:
        mode = db.execute("PRAGMA journal_mode").fetchone()[0]
        modes = [stat.S_IMODE(path.stat().st_mode) for path in sorted(store.path.parent.iterdir())]

    assert mode == "wal"
    assert len(modes) == 3  # the file, and the two that belong to the log
    assert set(modes) == {0o600}
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_where_nothing_was_stored_nothing_is_found_and_nothing_is_made(store):
    """Reading makes no file."""
    assert open_for_reading(store.path) is None
    assert store.runs() == store.finished_away() == []
    assert not store.path.parent.exists()


def test_a_store_is_brought_to_the_next_version_with_what_it_holds(store, fake, monkeypatch):
    """Readers do that as well as writers."""
    fake.begin(1, "a cell")
    with closing(open_for_writing(store.path)) as db:
        fake.writer.poll(db)
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT DEFAULT 'new'",)))
    sources = [run.source for run in store.runs()]
    with closing(sqlite3.connect(store.path)) as db:
        colours = db.execute("SELECT colour FROM runs").fetchall()
        version = db.execute("PRAGMA user_version").fetchone()[0]

    assert sources == ["a cell"]
    assert colours == [("new",)]
    assert version == len(MIGRATIONS) + 1


def test_runs_of_the_first_version_get_names_and_the_figures_of_their_losses(store, monkeypatch):
    """From their cells and points: NaN is no best value, and what is no loss has no figures."""
    monkeypatch.setattr(schema, "MIGRATIONS", MIGRATIONS[:1])
    with closing(open_for_writing(store.path)) as db:
        db.execute("INSERT INTO worlds VALUES (1, 'w-1', 'w', 2, 'host', '', 0, 9, '', 1, 1, NULL, NULL)")
        db.execute("INSERT INTO runs VALUES (1, 1, 3, 'import torch\ntrain()', '[0]', 0, 1, 'ok', 1, 1)")
        for series, name in enumerate(("loss", "accuracy"), 1):
            db.execute("INSERT INTO series VALUES (?, 1, 'metric', 0, ?)", (series, name))
            for number, values in enumerate(([3.0, 0.5], [math.nan, 2.0])):
                steps = struct.pack("<2q", 2 * number, 2 * number + 1)
                amounts = struct.pack("<2d", *values)
                db.execute("INSERT INTO blocks VALUES (?, ?, 2, ?, ?, ?)", (series, number, steps, amounts, amounts))
    monkeypatch.undo()
    run = store.run("w/3")

    assert (run.name, run.note, run.tags, run.kept) == ("train()", "", [], False)
    assert [(one.name, one.last, one.best, one.step) for one in run.losses] == [("loss", 2.0, 0.5, 3)]


def test_a_migration_that_fails_changes_nothing(store, monkeypatch):
    """Not even its first statement takes effect."""
    open_for_writing(store.path).close()
    broken = ("CREATE TABLE extra (x)", "CREATE TABLE runs (y)")
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(StoreFailed, match=r"cannot be used.*runs already exists"):
        open_for_writing(store.path)
    with closing(sqlite3.connect(store.path)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        version = db.execute("PRAGMA user_version").fetchone()[0]

    assert "extra" not in tables
    assert version == len(MIGRATIONS)


def test_stewards_that_make_the_store_at_once_agree(tmp_path):
    """Eight that begin together all get a store of one version; again and again, since few rounds are close ones."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(60):
            store = Store(tmp_path / str(number) / "runs.sqlite")
            assert list(pool.map(closing_version, [store] * 8)) == [len(MIGRATIONS)] * 8


def closing_version(store: Store) -> int:
    """Open the store for writing, in this thread; its version."""
    with closing(open_for_writing(store.path)) as db:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        return version


def test_a_store_of_a_newer_version_is_left_as_it_is(store):
    """Reader and writer say so; no byte of it changes."""
    with closing(open_for_writing(store.path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = everything(store.path.parent)
    for use in (open_for_writing, open_for_reading, Store.open):
        with pytest.raises(StoreFailed, match=r"newer jupyter-dtrain \(version 99 of the store; this one knows 6\)"):
            use(store.path)
    store.mark_seen([])

    assert everything(store.path.parent).items() >= before.items()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"not a database at all " * 100, "is damaged.*not a database.*Move the file away", id="text"),
        pytest.param(b"SQLite format 3\x00" + b"\x07" * 4096, "is damaged", id="a header and rubbish"),
        pytest.param(None, "another program's", id="another program's"),
    ],
)
def test_a_file_that_is_no_store_is_left_as_it_is(store, content, words):
    """The message names the way on."""
    store.path.parent.mkdir()
    if content is None:
        with closing(sqlite3.connect(store.path)) as db:
            db.execute("CREATE TABLE mine (x)")
    else:
        store.path.write_bytes(content)
    before = store.path.read_bytes()
    for use in (open_for_writing, Store.open):
        with pytest.raises(StoreFailed, match=words):
            use(store.path)

    assert store.path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """It lies below a file."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match=r"file/dtrain/runs.sqlite cannot be used \(Not a directory\)"):
        open_for_writing(tmp_path / "file" / "dtrain" / "runs.sqlite")
