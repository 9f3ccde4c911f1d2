"""Folds the events of one world's runs into the tables.

A poll asks the source for new events and writes them in one transaction, together with the position where the source
reads on. So every event counts once, whatever happens between two polls; duplicates, from any source, are recognised by
their numbers. The writer's memory is a copy of what the file says, and is read again after any failure.

A run has ended when all its ranks have. A rank has ended at its ``Finished`` event, or as ``lost`` when it can never
write one, because its process or the world is gone. Where a rank goes on but its log ends early (its disk is full), the
client that ran the cell reports how it ended, or else the rank's next run shows that it did.

The outcome of an elastic run is that of its ranks, and of the runs that joined it in the place of lost ones. A run that
joins has a number of its own, and may end before the elastic run or after it. So the outcome is found when the elastic
run ends, and again whenever a run that joined it ends.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from jupyter_dtrain.core.events import (
    Configured,
    Environment,
    Error,
    Finished,
    MediaLogged,
    Metrics,
    Outcome,
    Output,
    Result,
    RunContext,
    Sample,
    Started,
    Steered,
    StepParts,
)
from jupyter_dtrain.core.fold import ElasticEnd, RunFold, elastic_end
from jupyter_dtrain.core.metrics import RankSteps
from jupyter_dtrain.core.steering import recorded
from jupyter_dtrain.core.step_summary import summarise
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.wire.spool import members
from jupyter_dtrain.wire.steward_messages import Followed

from . import configuration, happenings, media, text_storage
from .columns import ColumnWriter, Fresh
from .provenance import Commits, RunCommit
from .schema import transaction
from .source import Read, SpoolFolder

MAX_SOURCE = 1 << 20
"""Characters of a cell."""
MAX_JSON: Final = 64 << 10
"""Bytes of an error or a result."""
SKIPPED = ("display", "clear_output", "progress", "dropped")
"""Types of events that only the spool keeps."""


class WorldOwner(msgspec.Struct, frozen=True):
    """The world that the runs belong to."""

    id: str
    name: str
    size: int
    host: str
    spool: str
    started: float
    steward: int
    steward_created: float
    """When the steward's process on ``host``, with the id ``steward``, was created."""


class _Gone(NamedTuple):
    """All ranks of the world have ended: runs that began ``before`` that get nothing more."""

    before: float
    words: str
    dead: dict[int, str]


_FOLDED = ("pid", "host", "spool", "started", "outcome", "elapsed", "ended", "heard", "words", "next_seq")
"""Columns that the fold of a rank has under the same names."""
LASTS: Final = 5.0
"""Seconds after which a run without metrics gets its commit, too."""
COMMIT_PATIENCE: Final = 1.0
"""Seconds for which the end of a world waits for a commit that is being looked for."""
HAPPENED: Final = 100
"""What happened to runs that the ranks have not begun, so far as it is remembered."""
SUMMARY_PERIOD: Final = 10.0
"""Seconds between two notes of where the time of a run's steps goes: a steward may end without notice."""
_SET_STEP_TIME = """INSERT INTO step_times (run, seconds, summary) VALUES (?, ?, ?)
    ON CONFLICT (run) DO UPDATE SET seconds = excluded.seconds, summary = excluded.summary
    WHERE excluded.seconds >= step_times.seconds"""
"""A steward that took over a run in its middle has seen only its end, and keeps what the one before it has written."""
_SET_ACT = """INSERT INTO acts (run, number, told) VALUES (?, ?, ?)
    ON CONFLICT (run, number) DO UPDATE SET told = excluded.told"""
_SET_ENVIRONMENT = """INSERT INTO environments (run, rank, told) VALUES (?, ?, ?)
    ON CONFLICT (run, rank) DO UPDATE SET told = excluded.told"""
_SET_COMMIT = """INSERT OR IGNORE INTO commits (run, told) SELECT :run, :told
    WHERE EXISTS (SELECT 1 FROM runs WHERE id = :run AND NOT deleted)"""
_STORED = ("position", "bytes", "head")
"""Columns that say how much of a rank's log is in the file."""
_COLUMNS = (*_FOLDED, *_STORED)
_SET_PART = (
    f"INSERT INTO parts (run, rank, {', '.join(_COLUMNS)}) VALUES (?, ?{', ?' * len(_COLUMNS)}) "  # noqa: S608 — names of ours
    f"ON CONFLICT (run, rank) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS)}"
)


class _Stored:
    """How far one rank's log was stored: the reader's position, and the text that was counted and kept."""

    def __init__(self) -> None:
        self.position = 0
        self.bytes = 0
        self.head = 0
        self.tail = text_storage.Tail()


class _Run:
    """A run that has not ended."""

    def __init__(self, row: int, began: float, ranks: list[int] | None) -> None:
        self.row = row
        self.began = began
        self.ranks = ranks
        """The ranks that run the cell, where that is known."""
        self.fold = RunFold(most_names=0)
        self.told: Followed | None = None
        self.trains = False
        """Whether the file says that it has logged a metric."""
        self.notebook, self.aside = "", False
        self.resumed = ""
        """The run with which it goes on, in words, until it trains."""
        self.asked = False
        """Whether its commit was looked for."""
        self.step_times_due = math.inf
        """When to write where the time of its steps goes, by this process's clock; never before there is news."""
        self._stored: dict[int, _Stored] = {}

    def stored(self, rank: int) -> _Stored:
        return self._stored.setdefault(rank, _Stored())

    @property
    def expected(self) -> list[int]:
        return self.ranks if self.ranks is not None else sorted(self.fold.ranks)

    def values(self, rank: int) -> Iterator[Any]:
        """The values of a rank's row, in the order of :data:`_COLUMNS`."""
        part, stored = self.fold.rank(rank), self.stored(rank)
        yield from (getattr(part, name) for name in _FOLDED)
        yield from (getattr(stored, name) for name in _STORED)

    def restore(self, rank: int, values: Sequence[Any], tail: bytes | None) -> None:
        """Take a row of a rank, and the end of its text, back from the file."""
        part, stored = self.fold.rank(rank), self.stored(rank)
        for name, value in zip(_COLUMNS, values, strict=True):
            setattr(part if name in _FOLDED else stored, name, value)
        part.reported = part.outcome not in (None, "lost")
        stored.tail = text_storage.Tail(text_storage.unpack(tail) if tail else ())


class StoreWriter:
    """Writes the events of one world. Use it from one thread; the connection comes with each call."""

    def __init__(
        self, owner: WorldOwner, source: SpoolFolder, *, afterwards: bool = False, folder: str | None = None
    ) -> None:
        """``afterwards``: the world ended before now, at an unknown time.

        ``folder``: that of the code of runs without a notebook; None: the commits of runs are not looked for.
        """
        self._folder = folder
        self._commits = Commits()
        self._commits_found: list[tuple[int, RunCommit]] = []
        """Those that are not in the file yet."""
        self._happened: list[tuple[int, float, str]] = []
        """What happened to runs, by number, and is not in the file yet."""
        self.owner = owner
        self._afterwards = afterwards
        self._source = source
        self._world: int | None = None
        """The id of the world's row, once it has one."""
        self._known: set[int] = set()
        """The numbers of all runs that have a row."""
        self._active: dict[int, _Run] | None = None
        """The runs that have not ended, as in the file; None: read them from there."""
        self._newest: dict[int, int] = {}
        """The newest run that each rank had begun at the last look."""
        self._columns = ColumnWriter()
        self._told: dict[int, Followed] = {}
        self._dead: dict[int, str] = {}
        self._gone: list[_Gone] = []
        self._driver: tuple[int | None, float | None] = (None, None)
        self._news = False
        """Whether some report of the methods below is not in the file yet."""

    # Reports.

    def take_followed(self, followed: Followed) -> None:
        """Take a client's report on a run that it followed to its end."""
        self._told[followed.run] = followed
        self._news = True

    def set_driver(self, pid: int, created: float) -> None:
        """Note the process of the client that runs cells, and when it was created."""
        if self._driver != (pid, created):
            self._driver = (pid, created)
            self._news = True

    def rank_died(self, rank: int, words: str) -> None:
        """Note that a rank will write nothing more."""
        self._dead[rank] = words
        self._news = True

    def ranks_replaced(self, ranks: list[int], gone: Iterable[int] = ()) -> None:
        """Note that other processes write under the numbers ``ranks``, in later runs, and none under those in ``gone``.

        A rank that has another number wrote all of its earlier runs under the one that it had.
        """
        for rank in ranks:
            self._dead.pop(rank, None)
        for rank in gone:
            self._dead.setdefault(rank, f"rank {rank} has another number since %distributed resize")
            self._news = True

    def ranks_ended(self, words: str, when: float) -> None:
        """Note that no rank which ran at ``when`` will write anything more; there may be new ones."""
        self._gone.append(_Gone(when, words, self._dead))
        self._dead = {}
        self._news = True

    def happened(self, run: int, words: str) -> None:
        """Note that something has happened to the run of this number, in words."""
        self._happened = [*self._happened[-HAPPENED:], (run, time.time(), words)]
        self._news = True

    # Actions.

    @property
    def active(self) -> bool:
        """Whether a run goes on."""
        return bool(self._active)

    def forget(self) -> None:
        """Drop all memory of the file after a failure."""
        self._active = None
        self._news = True
        self._columns.forget()

    def poll(self, db: sqlite3.Connection) -> bool:
        """Store new events; return whether there is more. Raises :class:`sqlite3.Error` and :class:`OSError`."""
        try:
            active = self._active if self._active is not None else self._load(db)
            read = list(self._read(active))
            self._commits_found += self._commits.found()
            if not read and not self._news and not self._commits_found and not self._over(active):
                return False
            behind = {(number, rank) for number, rank, found in read if found.more}
            with transaction(db):
                self._write(db, active, read, behind)
        except BaseException:
            # The memory has followed the transaction, which is undone now: it must be read from the file again. That
            # holds for an interrupt, too, so this catches more than Exception.
            self.forget()
            raise
        for number, rank, _ in read:
            self._newest[rank] = max(number, self._newest.get(rank, 0))
        self._told = {number: told for number, told in self._told.items() if number in active}
        self._commits_found = []
        self._happened = [one for one in self._happened if one[0] not in self._known]
        self._news = bool(behind) and self._news
        # Kept while a rank has more to read: the rest may hold its own word on its end, which counts more than the end
        # of its world, and :meth:`_settle` judges the rank only then.
        if not behind:
            self._gone.clear()
        return bool(behind)

    def close(self, db: sqlite3.Connection, words: str) -> None:
        """Record the end of the world, because of ``words``: unfinished runs are lost. Raises as :meth:`poll`."""
        while self.poll(db):
            pass
        self.ranks_ended(words, math.inf)
        self.poll(db)
        self._commits_found += self._commits.found(COMMIT_PATIENCE)
        self.poll(db)
        if self._world is not None:
            db.execute("UPDATE worlds SET ended = ?, words = ? WHERE id = ?", (time.time(), words, self._world))

    def _over(self, active: dict[int, _Run]) -> bool:
        """Whether a rank of an active run has ended without an event."""
        return any(
            rank in self._dead or self._newest.get(rank, 0) > number
            for number, run in active.items()
            for rank in run.fold.unfinished
        )

    def _load(self, db: sqlite3.Connection) -> dict[int, _Run]:
        active: dict[int, _Run] = {}
        self._world, self._known, self._newest = None, set(), {}
        row = db.execute("SELECT id FROM worlds WHERE key = ?", (self.owner.id,)).fetchone()
        if row is not None:
            self._world = row[0]
            columns = "number, outcome, id, started, ranks, elastic, joins, notebook, aside, trains, first_step"
            rows = db.execute(f"SELECT {columns} FROM runs WHERE world = ?", row).fetchall()  # noqa: S608 — our own names
            self._known = {number for number, *_ in rows}
            for number, outcome, *facts in rows:
                if outcome is None:
                    active[number] = self._load_run(db, *facts)
            query = "SELECT rank, max(number) FROM parts JOIN runs ON runs.id = parts.run WHERE world = ? GROUP BY rank"
            self._newest = dict(db.execute(query, row).fetchall())
        self._active = active
        return active

    def _load_run(
        self,
        db: sqlite3.Connection,
        row: int,
        started: float,
        ranks: str | None,
        elastic: int,
        joins: int | None,
        notebook: str,
        aside: int,
        trains: int,
        first_step: int,
    ) -> _Run:
        run = _Run(row, started, None if ranks is None else msgspec.json.decode(ranks, type=readable(list[int])))
        run.fold.elastic, run.fold.joins = bool(elastic), joins
        run.notebook, run.aside, run.trains = notebook, bool(aside), bool(trains)
        run.asked = db.execute("SELECT 1 FROM commits WHERE run = ?", (row,)).fetchone() is not None
        query = f"SELECT rank, {', '.join(_COLUMNS)} FROM parts WHERE run = ?"  # noqa: S608 — our own names
        for rank, *values in db.execute(query, (row,)).fetchall():
            tail = db.execute(
                "SELECT pieces FROM texts WHERE run = ? AND rank = ? AND number = -1", (row, rank)
            ).fetchone()
            run.restore(rank, values, tail[0] if tail else None)
            run.fold.rank(rank).steps = RankSteps(first_step)
        return run

    def _read(self, active: dict[int, _Run]) -> Iterator[tuple[int, int, Read]]:
        found = self._source.runs()
        for number in sorted((found - self._known) | set(active)):
            run = active.get(number)
            for rank in self._source.ranks(number):
                if run is not None and rank in run.fold.outcomes:
                    continue
                position = 0 if run is None else run.stored(rank).position
                read = self._source.read(number, rank, position)
                if read.events or read.more or (run is not None and read.position != position):
                    yield number, rank, read

    def _write(
        self,
        db: sqlite3.Connection,
        active: dict[int, _Run],
        read: list[tuple[int, int, Read]],
        behind: set[tuple[int, int]],
    ) -> None:
        """Write what was read. ``behind``: the runs and ranks that have more to read."""
        for number, rank, found in read:
            run = active.get(number)
            if run is None:
                if not found.events:
                    continue
                run = active[number] = self._begin(db, number, found.events[0].time)
            self._apply(db, run, rank, found)
            if any(isinstance(event.body, StepParts) for event in found.events):
                run.step_times_due = min(run.step_times_due, time.monotonic() + SUMMARY_PERIOD)
        if self._news and self._world is not None:
            db.execute("UPDATE worlds SET driver = ?, driver_created = ? WHERE id = ?", (*self._driver, self._world))
            self._take_told(db, active)
        self._write_beside(db)
        for number, run in list(active.items()):
            self._look_for_commit(run)
            self._settle(db, number, run, behind)
            over = bool(run.expected) and not {*run.expected} & {*run.fold.unfinished}
            if over or time.monotonic() >= run.step_times_due:
                run.step_times_due = math.inf
                _write_step_times(db, run)
            if over:
                self._end(db, number, run)
                del active[number]

    def _write_beside(self, db: sqlite3.Connection) -> None:
        """Write what others than the ranks have told."""
        for number, when, words in self._happened:
            if (row := self._row_of(db, number)) is not None:
                happenings.write(db, row, when, words)
        for row, commit in self._commits_found:
            db.execute(_SET_COMMIT, {"run": row, "told": _to_json(commit)})

    def _row_of(self, db: sqlite3.Connection, number: int) -> int | None:
        query = "SELECT id FROM runs WHERE world = ? AND number = ?"
        found = db.execute(query, (self._world, number)).fetchone()
        return None if found is None else int(found[0])

    def _look_for_commit(self, run: _Run) -> None:
        """Have the commit of a run looked for, once it trains or has lasted a while."""
        if self._folder is None or run.asked or run.aside:
            return
        if run.trains or time.time() - run.began > LASTS:
            run.asked = True
            folder = Path(run.notebook).parent if run.notebook else None
            self._commits.ask(run.row, str(folder) if folder is not None and folder.is_dir() else self._folder)

    def _begin(self, db: sqlite3.Connection, number: int, when: float) -> _Run:
        owner = self.owner
        if self._world is None:
            self._world = db.execute(
                "INSERT INTO worlds (key, name, size, host, spool, started, steward, steward_created, driver, "
                "driver_created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    owner.id,
                    owner.name,
                    owner.size,
                    owner.host,
                    owner.spool,
                    owner.started,
                    owner.steward,
                    owner.steward_created,
                    *self._driver,
                ),
            ).lastrowid
        row = db.execute(
            "INSERT INTO runs (world, number, started) VALUES (?, ?, ?)", (self._world, number, when)
        ).lastrowid
        assert row is not None
        self._known.add(number)
        return _Run(row, when, None)

    def _apply(  # noqa: C901, PLR0912 — one case per event
        self, db: sqlite3.Connection, run: _Run, rank: int, read: Read
    ) -> None:
        stored = run.stored(rank)
        fresh = Fresh()
        head: list[text_storage.Piece] = []
        before = stored.bytes
        steered: set[int] = set()
        for event in read.events:
            if run.fold.take(event) is None:
                continue
            match event.body:
                case Output(stream, text, log=False):
                    _add_text(stored, head, stream, text)
                case Metrics(series):
                    for one in series:
                        fresh.add("metric", one)
                case Sample() as sample:
                    fresh.add_sample(sample, event.time)
                case Steered(number=number):
                    steered.add(number)
                case Configured() as configured:
                    configuration.write(db, run.row, configured)
                case Environment() as environment:
                    db.execute(_SET_ENVIRONMENT, (run.row, rank, _to_json(environment)))
                case MediaLogged() as medium:
                    media.write(db, run.row, rank, medium, event.time)
                case Started() as started:
                    self._write_start(db, run, started, event.time)
                case Error() as error:
                    self._write_json(db, run, rank, "error", _bounded_error(error))
                case Result() as result:
                    self._write_json(db, run, rank, "result", _bounded_result(result))
                case Finished(outcome="lost", words=words):
                    happenings.write(db, run.row, event.time, words or f"rank {rank} is lost")
        stored.position = read.position
        self._write_text(db, run, rank, head, changed=stored.bytes > before)
        self._columns.write(db, run.row, rank, fresh)
        if not run.trains and any(kind == "metric" for kind, _ in fresh.series):
            run.trains = True
            db.execute("UPDATE runs SET trains = 1 WHERE id = ?", (run.row,))
            happenings.write(db, run.row, run.began, run.resumed)
        self._write_part(db, run, rank)
        if steered:
            _write_acts(db, run, steered)

    def _write_start(self, db: sqlite3.Connection, run: _Run, started: Started, when: float) -> None:
        if started.elastic or started.joins is not None:
            _note_elastic(db, run.row, run.fold.joins)
            self._note_join(db, started, when)
        if started.ranks:
            run.ranks = started.ranks
            db.execute(
                "UPDATE runs SET source = ?, ranks = ?, started = min(started, ?), name = ? WHERE id = ?",
                (started.source[:MAX_SOURCE], _to_json(started.ranks), when, started.name, run.row),
            )
            context = started.context
            _write_context(db, run.row, started.cell, context)
            run.notebook, run.aside = context.notebook, context.aside
            if context.resumed:
                run.resumed = f"It goes on with run {context.resumed}, from step {context.first_step} on."
        elif run.ranks is None and started.together:  # the lowest rank may begin last, or never
            run.ranks = members(started)
            db.execute("UPDATE runs SET ranks = ? WHERE id = ?", (_to_json(run.ranks), run.row))
        for rank in run.ranks or ():
            run.fold.rank(rank)

    def _note_join(self, db: sqlite3.Connection, started: Started, when: float) -> None:
        if started.joins is not None and started.ranks:
            row = self._row_of(db, started.joins)
            if row is not None:
                verb = "has a new process, which joins" if len(started.ranks) == 1 else "have new processes, which join"
                happenings.write(db, row, when, f"{count_ranks(started.ranks)} {verb} the run.")

    def _write_json(
        self, db: sqlite3.Connection, run: _Run, rank: int, column: Literal["error", "result"], value: Any
    ) -> None:
        self._write_part(db, run, rank)
        query = f"UPDATE parts SET {column} = ? WHERE run = ? AND rank = ?"  # noqa: S608 — one of two names of ours
        db.execute(query, (_to_json(value), run.row, rank))

    def _write_part(self, db: sqlite3.Connection, run: _Run, rank: int) -> None:
        db.execute(_SET_PART, (run.row, rank, *run.values(rank)))

    def _write_text(
        self, db: sqlite3.Connection, run: _Run, rank: int, head: list[text_storage.Piece], *, changed: bool
    ) -> None:
        if head:
            last = db.execute(
                "SELECT number, pieces FROM texts WHERE run = ? AND rank = ? AND number >= 0 "
                "ORDER BY number DESC LIMIT 1",
                (run.row, rank),
            ).fetchone()
            number, stored = (-1, b"") if last is None else last
            if last is not None and len(stored) < text_storage.CHUNK:
                earlier = text_storage.unpack(stored)
                for stream, text in head:
                    text_storage.append(earlier, stream, text)
                head = earlier
            else:
                number += 1
            self._set_text(db, run, rank, number, head)
        if changed and (tail := run.stored(rank).tail.trimmed()):
            self._set_text(db, run, rank, -1, tail)

    def _set_text(
        self, db: sqlite3.Connection, run: _Run, rank: int, number: int, text: list[text_storage.Piece]
    ) -> None:
        db.execute(
            "INSERT INTO texts (run, rank, number, pieces) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (run, rank, number) DO UPDATE SET pieces = excluded.pieces",
            (run.row, rank, number, text_storage.pack(text)),
        )

    def _take_told(self, db: sqlite3.Connection, active: dict[int, _Run]) -> None:
        for number, told in self._told.items():
            # A run without a row never reached a rank, or none that could log it.
            db.execute("UPDATE runs SET seen = 1 WHERE world = ? AND number = ?", (self._world, number))
            if told.why:
                self._happened.append((number, time.time(), f"Interrupted by {told.why}."))
            if number in active:
                active[number].told = told
            elif told.interrupted:
                db.execute(
                    "UPDATE runs SET outcome = 'interrupted' WHERE world = ? AND number = ?", (self._world, number)
                )

    def _settle(self, db: sqlite3.Connection, number: int, run: _Run, behind: set[tuple[int, int]]) -> None:
        """End the ranks of ``run`` that will write nothing more."""
        told = run.told.ranks if run.told is not None else {}
        if run.ranks is None and told:
            run.ranks = sorted(int(rank) for rank in told)
        for rank in run.expected:
            run.fold.rank(rank)
        for rank in run.fold.unfinished:
            if (number, rank) in behind or rank not in run.expected:
                continue
            part = run.fold.rank(rank)
            outcome: Outcome = "lost"
            # In this order: a client saw how the rank ended, the others are conclusions from what is gone, and the last
            # one holds only because a rank works on one run at a time.
            if (own := told.get(str(rank))) is not None:
                outcome, words = own, "its log is incomplete: it could not be written"
            elif (gone := next((gone for gone in self._gone if run.began < gone.before), None)) is not None:
                words = gone.dead.get(rank) or f"rank {rank} is lost: {gone.words}"
                run.fold.abandoned = run.fold.abandoned or rank not in gone.dead
            elif rank in self._dead:
                words = self._dead[rank]
            elif self._newest.get(rank, 0) > number:
                words = "its log ends before the cell did: it could not be written"
            else:
                continue
            run.fold.lose(rank, words, (part.heard or run.began) if self._afterwards else None, outcome)
            if outcome == "lost":
                happenings.write(db, run.row, run.fold.rank(rank).ended or time.time(), words)
            self._write_part(db, run, rank)

    def _end(self, db: sqlite3.Connection, number: int, run: _Run) -> None:
        assert self._world is not None
        fold = run.fold
        _write_acts(db, run)
        outcome, remark = fold.end
        if fold.elastic and not fold.abandoned:
            outcome, remark = _end_of(db, self._world, number, run.row)
        if run.told is not None and run.told.interrupted:
            outcome = "interrupted"
        db.execute(
            "UPDATE runs SET outcome = ?, remark = ?, elastic = ?, ended = ?, elapsed = ?, ranks = ? WHERE id = ?",
            (
                outcome,
                remark,
                fold.elastic and not fold.abandoned,
                fold.ended,
                fold.elapsed or 0.0,
                _to_json(run.expected),
                run.row,
            ),
        )
        # A client cannot know beforehand whether a cell trains: one that does not goes on with no training.
        db.execute("UPDATE runs SET resumes = NULL, first_step = 0 WHERE id = ? AND NOT trains", (run.row,))
        if fold.joins is not None:
            _count_join(db, self._world, fold.joins)
        self._columns.ended(run.row)


def _write_context(db: sqlite3.Connection, run: int, cell: int | None, context: RunContext) -> None:
    world, _, number = context.resumes.rpartition("/")
    query = "SELECT runs.id FROM runs JOIN worlds ON worlds.id = world WHERE worlds.key = ? AND number = ?"
    resumed = db.execute(query, (world, int(number))).fetchone() if number.isdecimal() else None
    db.execute(
        "UPDATE runs SET cell = ?, notebook = ?, heading = ?, batch = ?, resumes = ?, first_step = ?, aside = ? "
        "WHERE id = ?",
        (
            cell,
            context.notebook,
            context.heading,
            context.group,
            None if resumed is None else resumed[0],
            context.first_step,
            context.aside,
            run,
        ),
    )


def _write_acts(db: sqlite3.Connection, run: _Run, numbers: set[int] | None = None) -> None:
    # One that was begun before this process read the run has no words here, and those that are there stay.
    acts = [act for act in recorded(run.fold, numbers) if act.words]
    db.executemany(_SET_ACT, [(run.row, act.number, _to_json(act)) for act in acts])
    for act in acts:
        happenings.write_act(db, run.row, act)


def _write_step_times(db: sqlite3.Connection, run: _Run) -> None:
    if (summary := summarise(run.fold, whole=True)) is not None:
        seconds = sum(one.whole.seconds for one in run.fold.step_times.ranks.values())
        db.execute(_SET_STEP_TIME, (run.row, seconds, msgspec.json.encode(summary)))


def _add_text(part: _Stored, head: list[text_storage.Piece], stream: str, text: str) -> None:
    part.bytes += text_storage.size(text)
    if part.head < text_storage.HEAD:
        first, text = text_storage.cut(text, text_storage.HEAD - part.head)
        part.head += text_storage.size(first)
        if text:
            part.head = text_storage.HEAD  # a character of several bytes may have left a gap
        text_storage.append(head, stream, first)
    if text:
        part.tail.add(stream, text)


def _note_elastic(db: sqlite3.Connection, run: int, joins: int | None) -> None:
    """The run in row ``run`` is elastic or, with the number of one, ``joins`` it."""
    db.execute("UPDATE runs SET elastic = ?, joins = ? WHERE id = ?", (joins is None, joins, run))


def _end_of(db: sqlite3.Connection, world: int, number: int, run: int) -> ElasticEnd:
    """How the elastic run ``number`` of ``world``, in row ``run``, has ended as far as its runs have."""
    rows = db.execute("SELECT id FROM runs WHERE world = ? AND joins = ? ORDER BY number", (world, number)).fetchall()
    return elastic_end(_outcomes(db, run), [_outcomes(db, join) for (join,) in rows])


def _count_join(db: sqlite3.Connection, world: int, number: int) -> None:
    """A run that joined run ``number`` of ``world`` has ended: if that one has ended, too, its outcome may change."""
    found = db.execute(
        "SELECT id FROM runs WHERE world = ? AND number = ? AND elastic "
        "AND outcome IS NOT NULL AND outcome != 'interrupted'",
        (world, number),
    ).fetchone()
    if found is not None:
        outcome, remark = _end_of(db, world, number, *found)
        db.execute("UPDATE runs SET outcome = ?, remark = ? WHERE id = ?", (outcome, remark, *found))


def _outcomes(db: sqlite3.Connection, run: int) -> dict[int, str | None]:
    return dict(db.execute("SELECT rank, outcome FROM parts WHERE run = ?", (run,)).fetchall())


def _bounded_error(error: Error) -> Error:
    """``error``, shortened where it is longer."""
    if len(_to_json(error)) <= MAX_JSON:
        return error
    return Error(
        error.ename[:1000],
        error.evalue[:20_000],
        error.frames[-20:] if len(_to_json(error.frames[-20:])) < MAX_JSON // 2 else [],
        syntax=error.syntax[:1000] if error.syntax is not None else None,
        left_out=error.left_out + len(error.members),
    )


def _bounded_result(result: Result) -> Result:
    """``result``; a longer one as text alone, shortened."""
    if len(_to_json(result)) <= MAX_JSON:
        return result
    text = str(result.data.get("text/plain", ""))[: MAX_JSON // 4]
    return Result({"text/plain": text}, execution_count=result.execution_count)


def _to_json(value: Any) -> str:
    """``value`` as JSON."""
    return msgspec.json.encode(value).decode()
