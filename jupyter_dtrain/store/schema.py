"""The store's file: where it lies, its tables, and how to open it.

``PRAGMA user_version`` counts the migrations that a file has seen. Opening an older file for writing applies the
missing ones in order, in one transaction. A file of a newer version, or of another program, stays untouched.

Several stewards write to one file, each in short transactions; readers never wait for them (WAL). The file is 0600 in
a folder of mode 0700.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from jupyter_core.paths import jupyter_data_dir

from jupyter_dtrain.core.errors import StoreFailed
from jupyter_dtrain.core.settings import STORE_VARIABLE

from . import losses

APPLICATION_ID = 0x6474726E
"""Marks our SQLite files (``PRAGMA application_id``)."""
BUSY_TIMEOUT = 5.0
"""Seconds that a writer waits for another one."""

_FIGURES = ", ".join(f"json_extract(told, '$[{place}]')" for place in range(6))

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE worlds (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,  -- the world's own id
            name TEXT NOT NULL,
            size INTEGER NOT NULL,
            host TEXT NOT NULL,
            spool TEXT NOT NULL,
            started REAL NOT NULL,
            ended REAL,
            words TEXT NOT NULL DEFAULT '',  -- why it ended
            steward INTEGER NOT NULL,  -- process ids on that host, and when these processes were created
            steward_created REAL NOT NULL,
            driver INTEGER,
            driver_created REAL
        )""",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,  -- #41: never given twice
            world INTEGER NOT NULL REFERENCES worlds ON DELETE CASCADE,
            number INTEGER NOT NULL,
            source TEXT NOT NULL DEFAULT '',
            ranks TEXT,  -- JSON; NULL until the lowest of them has begun
            started REAL NOT NULL,
            ended REAL,
            outcome TEXT,  -- NULL while it runs
            elapsed REAL,
            seen INTEGER NOT NULL DEFAULT 0,  -- whether somebody was shown how it ended
            UNIQUE (world, number)
        )""",
        """CREATE TABLE parts (
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            rank INTEGER NOT NULL,
            pid INTEGER NOT NULL DEFAULT 0,
            host TEXT NOT NULL DEFAULT '',
            spool TEXT NOT NULL DEFAULT '',
            started REAL,
            outcome TEXT,
            elapsed REAL,
            ended REAL,
            heard REAL,  -- when it said the last thing
            words TEXT NOT NULL DEFAULT '',
            position INTEGER NOT NULL DEFAULT 0,  -- where the source reads on
            next_seq INTEGER NOT NULL DEFAULT 0,  -- the event that comes next: earlier ones are in
            bytes INTEGER NOT NULL DEFAULT 0,  -- of text, as printed
            head INTEGER NOT NULL DEFAULT 0,  -- of which these are stored from the beginning
            error TEXT,
            result TEXT,
            PRIMARY KEY (run, rank)
        )""",
        """CREATE TABLE series (
            id INTEGER PRIMARY KEY,
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            kind TEXT NOT NULL,  -- metric or resource
            rank INTEGER NOT NULL,
            name TEXT NOT NULL,
            UNIQUE (run, kind, rank, name)
        )""",
        """CREATE TABLE blocks (
            series INTEGER NOT NULL REFERENCES series ON DELETE CASCADE,
            number INTEGER NOT NULL,
            points INTEGER NOT NULL,
            steps BLOB NOT NULL,  -- little-endian int64, float64, float64, as in events.Series
            times BLOB NOT NULL,
            amounts BLOB NOT NULL,
            PRIMARY KEY (series, number)
        )""",
        """CREATE TABLE texts (
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            rank INTEGER NOT NULL,
            number INTEGER NOT NULL,  -- from 0 on for the head; -1 for the tail
            pieces BLOB NOT NULL,  -- JSON: [[stream, text], ...]
            PRIMARY KEY (run, rank, number)
        )""",
        "CREATE INDEX unseen ON runs (seen, ended)",
    ),
    (
        "ALTER TABLE runs ADD COLUMN name TEXT NOT NULL DEFAULT ''",  # '': it has none of its own
        "ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]'",  # JSON
        "ALTER TABLE runs ADD COLUMN kept INTEGER NOT NULL DEFAULT 0",  # whether its age removes it no more
        # A row stays of a deleted run: while its spool is there, a steward would else store the run again.
        "ALTER TABLE runs ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0",
        # For losses alone, see losses.py: the newest value (NULL: not finite), its step, and the lowest finite value.
        "ALTER TABLE series ADD COLUMN last REAL",
        "ALTER TABLE series ADD COLUMN best REAL",
        "ALTER TABLE series ADD COLUMN step INTEGER",
        """UPDATE series SET
            best = (SELECT min(lowest_value(amounts)) FROM blocks WHERE blocks.series = series.id),
            (last, step) = (SELECT last_value(amounts), last_step(steps) FROM blocks
                WHERE blocks.series = series.id ORDER BY number DESC LIMIT 1)
            WHERE kind = 'metric' AND name LIKE '%loss%'""",
        "CREATE INDEX losses ON series (run, name, rank) WHERE step IS NOT NULL",
        "CREATE INDEX open_runs ON runs (world) WHERE outcome IS NULL",
    ),
    (
        # Whether runs that join it count for its outcome; runs of earlier versions were stored without that.
        "ALTER TABLE runs ADD COLUMN elastic INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN joins INTEGER",  # the number of the run that it joined
        "ALTER TABLE runs ADD COLUMN remark TEXT NOT NULL DEFAULT ''",  # more about an end that was ok
    ),
    (
        """CREATE TABLE step_times (
            run INTEGER PRIMARY KEY REFERENCES runs ON DELETE CASCADE,
            seconds REAL NOT NULL,  -- of steps, of all ranks together: what it was made from
            summary BLOB NOT NULL  -- JSON, a StepSummary: where the time of the steps goes
        )""",
    ),
    (
        """CREATE TABLE acts (
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            number INTEGER NOT NULL,
            told BLOB NOT NULL,  -- JSON, a RecordedAct: what a person has asked of the loop
            PRIMARY KEY (run, number)
        )""",
    ),
    (
        # Where the cell stands, and the other runs that it belongs to.
        "ALTER TABLE runs ADD COLUMN cell INTEGER",  # its number in the notebook
        "ALTER TABLE runs ADD COLUMN notebook TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN heading TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN batch TEXT NOT NULL DEFAULT ''",  # the group that a person named
        "ALTER TABLE runs ADD COLUMN resumes INTEGER",  # the row of the run that it goes on with, which may be deleted
        "ALTER TABLE runs ADD COLUMN first_step INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN aside INTEGER NOT NULL DEFAULT 0",  # whether it only prepared ranks
        "ALTER TABLE runs ADD COLUMN trains INTEGER NOT NULL DEFAULT 0",  # whether it has logged a metric
        "ALTER TABLE runs ADD COLUMN config TEXT NOT NULL DEFAULT '{}'",  # JSON, by name
        "ALTER TABLE runs ADD COLUMN origins TEXT NOT NULL DEFAULT '{}'",  # JSON: where each value of it comes from
        "UPDATE runs SET trains = 1 WHERE id IN (SELECT run FROM series WHERE kind = 'metric')",
        # `best` is the lowest finite value. Each with the step at which it was first reached.
        "ALTER TABLE series ADD COLUMN best_step INTEGER",
        "ALTER TABLE series ADD COLUMN highest REAL",
        "ALTER TABLE series ADD COLUMN highest_step INTEGER",
        "DROP INDEX losses",
        # From our own names alone.
        f"""UPDATE series SET (last, step, best, best_step, highest, highest_step) = (
            SELECT {_FIGURES}
            FROM (SELECT figures(blocks.number, steps, amounts) AS told FROM blocks WHERE blocks.series = series.id)
        ) WHERE kind = 'metric'""",  # noqa: S608
        "CREATE INDEX newest ON series (run, name, rank) WHERE step IS NOT NULL",
        """CREATE TABLE environments (
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            rank INTEGER NOT NULL,
            told BLOB NOT NULL,  -- JSON, an events.Environment
            PRIMARY KEY (run, rank)
        )""",
        """CREATE TABLE commits (
            run INTEGER PRIMARY KEY REFERENCES runs ON DELETE CASCADE,
            told BLOB NOT NULL  -- JSON, a provenance.RunCommit
        )""",
        """CREATE TABLE media (
            id INTEGER PRIMARY KEY,
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            rank INTEGER NOT NULL,
            name TEXT NOT NULL,
            step INTEGER NOT NULL,
            number INTEGER NOT NULL,  -- counts what was logged under a name at one step
            kind TEXT NOT NULL,
            time REAL NOT NULL,
            mime TEXT NOT NULL,
            caption TEXT NOT NULL,
            note TEXT NOT NULL,
            data BLOB NOT NULL
        )""",
        "CREATE INDEX media_of_runs ON media (run, name, rank, step, number)",
        """CREATE TABLE media_counts (
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            rank INTEGER NOT NULL,
            name TEXT NOT NULL,
            logged INTEGER NOT NULL,  -- what the rank was given, kept or not
            PRIMARY KEY (run, rank, name)
        )""",
        """CREATE TABLE happenings (
            id INTEGER PRIMARY KEY,
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            time REAL NOT NULL,
            words TEXT NOT NULL  -- a sentence: who interrupted it, which rank was replaced
        )""",
        "CREATE INDEX happenings_of_runs ON happenings (run)",
        """CREATE TABLE views (
            name TEXT PRIMARY KEY,
            told TEXT NOT NULL  -- JSON: the columns, order, filter and group of a list of runs
        )""",
        """CREATE TABLE tracked (
            run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
            tracker TEXT NOT NULL,  -- such as mlflow
            target TEXT NOT NULL,
            state TEXT NOT NULL DEFAULT '{}',  -- JSON: how far it has what the store has
            words TEXT NOT NULL DEFAULT '',  -- why it does not go on; empty where it does
            done INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (run, tracker, target)
        )""",
    ),
)
"""The statements that bring a file from each version to the next."""


_IDENTITY = """SELECT
    (SELECT user_version FROM pragma_user_version),
    (SELECT application_id FROM pragma_application_id),
    (SELECT count(*) FROM sqlite_master)"""
"""A single statement: between two, another steward could make the store, and the empty file would look foreign."""


def store_file() -> Path:
    """Path of the store: that in ``JUPYTER_DTRAIN_STORE``, else ``dtrain/runs.sqlite`` among Jupyter's data."""
    chosen = os.environ.get(STORE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(jupyter_data_dir()) / "dtrain" / "runs.sqlite"


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection to the store, which it makes or migrates if needed. Transactions are the caller's.

    Raises :class:`StoreFailed`, with a message for the user, and leaves the file as it was.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _make_file(path)
        if path.stat().st_size:
            with contextlib.closing(_connect(path, "ro")) as db:
                check(db, path)
        db = _connect(path, "rw")
        try:
            _log_ahead(db)
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            losses.register(db)
            _migrate(db, path)
        except BaseException:
            db.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise StoreFailed(explain(error, path)) from error
    return db


def open_for_reading(path: Path, *, migrated: bool = True) -> sqlite3.Connection | None:
    """A read-only connection; None before the first run is stored. Raises :class:`StoreFailed`.

    ``migrated``: default, the file has all of this version's tables. To migrate a large one takes a minute.
    """
    try:
        if not path.exists() or not path.stat().st_size:
            return None
        try:
            db, version = _checked(path, "ro")
        except sqlite3.OperationalError:
            # WAL needs a second file beside this one, which a read-only folder cannot take. It has no writers either.
            wal = path.with_name(path.name + "-wal")
            if os.access(path.parent, os.W_OK) or (wal.exists() and wal.stat().st_size):
                raise
            db, version = _checked(path, "ro&immutable=1")
        if version < len(MIGRATIONS) and (migrated or not version):
            db.close()
            if not version:
                return None
            open_for_writing(path).close()
            db = _connect(path, "ro")
    except (OSError, sqlite3.Error) as error:
        raise StoreFailed(explain(error, path)) from error
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """A transaction that keeps other writers out and is undone when it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def check(db: sqlite3.Connection, path: Path) -> int:
    """The version of the file, 0 for an empty one. Raises :class:`StoreFailed` for a file that is not usable here."""
    version: int
    version, owner, tables = db.execute(_IDENTITY).fetchone()
    if owner != APPLICATION_ID and tables:
        raise StoreFailed(
            f"{path} is another program's SQLite file, so runs are not stored. Move it away, and a new store begins."
        )
    if version > len(MIGRATIONS):
        raise StoreFailed(
            f"The store {path} was written by a newer jupyter-dtrain (version {version} of the store; this one knows "
            f"{len(MIGRATIONS)}), so runs are not stored and the file stays unchanged. Update jupyter-dtrain, or move "
            f"the file away."
        )
    return version


def explain(error: Exception, path: Path) -> str:
    """A message that says what is wrong with the store, and what to do."""
    words = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    if isinstance(error, sqlite3.DatabaseError) and any(part in words for part in ("not a database", "malformed")):
        return (
            f"The store {path} is damaged ({words}), so runs are not stored and the file stays unchanged. Move "
            f"the file away, and a new store begins."
        )
    return f"The store {path} cannot be used ({words}): runs are not stored until it can. Cells still run."


def _checked(path: Path, mode: str) -> tuple[sqlite3.Connection, int]:
    """A connection, and the version of the store that :func:`check` found."""
    db = _connect(path, mode)
    try:
        return db, check(db, path)
    except BaseException:
        db.close()
        raise


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # The keeper's thread opens, uses and closes its connection; a reader uses one within a single call.
    return sqlite3.connect(f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)


def _make_file(path: Path) -> None:
    """Make the file where it is missing. Raises :class:`OSError`, also where it cannot be written."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Never opened here: its close would end the locks of all other connections of this process, and a process that
        # closes its own then takes the log of changes from under them.
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None


def _log_ahead(db: sqlite3.Connection) -> None:
    """Turn WAL on. While another steward makes the file, SQLite refuses at once, whatever timeout is set."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    if check(db, path) == len(MIGRATIONS):
        return
    with transaction(db):
        # Another steward may have been faster.
        for statements in MIGRATIONS[check(db, path) :]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
