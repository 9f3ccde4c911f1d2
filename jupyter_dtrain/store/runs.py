"""The reading side: stored runs, found by number or name.

Every call opens the file, reads and closes it. So nothing stays open, and a running run shows its present state.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from jupyter_dtrain.core.clients import still_runs
from jupyter_dtrain.core.errors import BadRequest, StoreFailed
from jupyter_dtrain.core.events import Error, Outcome, Output, Result, Series
from jupyter_dtrain.core.metrics import RunMetrics
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.world import format_ranks
from jupyter_dtrain.wire.spool import read_file

from . import pieces
from .schema import explain, open_for_reading, open_for_writing, store_file, transaction

if TYPE_CHECKING:
    from typing_extensions import Self

    from jupyter_dtrain.core.run import Run

AWAY = 60.0
"""Seconds after which an unseen run counts as ended away, where its driver's process cannot be checked."""

T = TypeVar("T")

_RUN = """runs.id, runs.number, runs.source, runs.ranks, runs.started, runs.ended, runs.outcome, runs.elapsed,
    worlds.name, worlds.key, worlds.size, worlds.host, worlds.steward, worlds.steward_created, worlds.ended
    FROM runs JOIN worlds ON worlds.id = runs.world"""
_NAME = re.compile(r"(?:#?(?P<id>\d{1,18})|(?P<world>[^/\s]+)/(?P<number>\d{1,18}))\Z")


def runs(limit: int = 20, world: str | None = None) -> list[StoredRun]:
    """The newest ``limit`` stored runs, newest first; of the worlds named ``world``, or of all.

    Raises :class:`StoreFailed` when the store cannot be read.
    """
    return Store.open().runs(limit, world)


class Store:
    """The runs of all worlds of this user."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The SQLite file; it does not exist before the first run is stored."""

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """The store at ``path`` (default: this user's). Raises :class:`StoreFailed` when it cannot be read."""
        store = cls(store_file() if path is None else Path(path))
        store._ask(lambda _: None)
        return store

    def runs(self, limit: int = 20, world: str | None = None) -> list[StoredRun]:
        """Like :func:`jupyter_dtrain.runs`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise BadRequest(f"The number of runs must be a whole number above 0, not {limit!r}.")
        where, values = ("", ()) if world is None else ("WHERE worlds.name = ?", (world,))
        return self._find(f"{where} ORDER BY runs.id DESC LIMIT ?", (*values, min(limit, 1 << 32)))

    def run(self, name: int | str) -> StoredRun:
        """The run called ``name``: ``41``, ``"#41"``, or ``"world/3"``: run 3 of the newest world of that name.

        A world's id works in place of its name. Raises :class:`BadRequest` when there is no such run.
        """
        found = _NAME.match(str(name).strip())
        if found is None:
            raise BadRequest(
                f"{name!r} names no run. Give its number from %distributed runs (41 or #41), or WORLD/RUN "
                f"(world/3).{self._suggest(str(name))}"
            )
        if found["id"]:
            match = self._find("WHERE runs.id = ?", (int(found["id"]),))
            if not match:
                raise BadRequest(f"There is no run #{found['id']} in the store: {self._extent()}.")
        else:
            values = (found["world"], found["world"], int(found["number"]))
            match = self._find(
                "WHERE (worlds.name = ? OR worlds.key = ?) AND runs.number = ? ORDER BY runs.id DESC LIMIT 1", values
            )
            if not match:
                raise BadRequest(f"There is no run {name} in the store.{self._suggest(found['world'])}")
        return match[0]

    def run_of(self, run: Run, patience: float = 5.0) -> StoredRun:
        """The stored form of a session's ``run``. It waits up to ``patience`` seconds for a run that has just ended.

        Raises :class:`BadRequest` when the store does not have the run.
        """
        deadline = time.monotonic() + patience
        while True:
            match = self._find("WHERE worlds.key = ? AND runs.number = ?", (run.world_id, run.number))
            if match and (match[0].ended is not None or not run.done):
                return match[0]
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if match:
            return match[0]
        raise BadRequest(f"Run {run.number} is not in the store: no rank began it, or the store cannot be written.")

    def __getitem__(self, name: int | str) -> StoredRun:
        return self.run(name)

    def __repr__(self) -> str:
        return f"<Store {self.path}>"

    def finished_away(self) -> list[StoredRun]:
        """Runs that ended while their driver was gone and that no client has shown yet, oldest first."""
        unseen = "WHERE seen = 0 AND runs.ended IS NOT NULL ORDER BY runs.id"
        rows = self._ask(
            lambda db: db.execute(f"SELECT worlds.driver, worlds.driver_created, {_RUN} {unseen}").fetchall()
        )
        found = [(driver, created, StoredRun(self, *row)) for driver, created, *row in rows or []]
        return [run for driver, created, run in found if _was_away(run, driver, created)]

    def mark_seen(self, shown: Iterable[StoredRun]) -> None:
        """Note that a client has shown how these ended. If the store cannot be written, they will be shown again."""
        with contextlib.suppress(StoreFailed, sqlite3.Error):
            db = open_for_writing(self.path)
            try:
                with transaction(db):
                    db.executemany("UPDATE runs SET seen = 1 WHERE id = ?", [(run.id,) for run in shown])
            finally:
                db.close()

    def _find(self, clause: str, values: tuple[Any, ...]) -> list[StoredRun]:
        rows = self._ask(lambda db: db.execute(f"SELECT {_RUN} {clause}", values).fetchall())
        return [StoredRun(self, *row) for row in rows or []]

    def _extent(self) -> str:
        row = self._ask(lambda db: db.execute("SELECT min(id), max(id), count(*) FROM runs").fetchone())
        if row is None or not row[2]:
            return "it is empty"
        return f"it has {row[2]}, from #{row[0]} to #{row[1]}" if row[2] > 1 else f"it has only #{row[0]}"

    def _suggest(self, world: str) -> str:
        """A hint to the runs of a world, for a name without a run number or with a wrong one."""
        found = self.runs(1000, world)
        numbers = format_ranks(sorted({run.number for run in found}))
        return f" World {world!r} has the runs {numbers}: {world}/{found[0].number} is the newest." if found else ""

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T | None:
        """The answer; None before the first run is stored. Raises :class:`StoreFailed`."""
        db = open_for_reading(self.path)
        if db is None:
            return None
        try:
            return question(db)
        except sqlite3.Error as error:
            raise StoreFailed(explain(error, self.path)) from error
        finally:
            db.close()


class StoredPart(msgspec.Struct, frozen=True):
    """One rank of a stored run."""

    rank: int
    pid: int
    host: str
    spool: str
    """Path, on ``host``, of the whole log, which exists for some days."""
    outcome: Outcome | None
    """None while the rank works."""
    elapsed: float | None
    """Seconds."""
    words: str
    """Why the rank is lost, or what is wrong with its log."""
    bytes: int
    """How many bytes of text it printed."""


class StoredRun:
    """A run in the store. Its members raise :class:`StoreFailed` when the store cannot be read.

    ``outcome`` and ``ended`` show the time of the request for the run; everything else is read on access.
    """

    def __init__(
        self,
        store: Store,
        run: int,
        number: int,
        source: str,
        ranks: str | None,
        started: float,
        ended: float | None,
        outcome: Outcome | None,
        elapsed: float | None,
        world: str,
        world_id: str,
        size: int,
        host: str,
        steward: int,
        steward_created: float,
        world_ended: float | None,
    ) -> None:
        self._store = store
        self.id = run
        """Its number in the store: ``#41``."""
        self.number = number
        """Its number in its world."""
        self.source = source
        """The cell."""
        self.ranks: list[int] = msgspec.json.decode(ranks, type=readable(list[int])) if ranks else []
        self.world = world
        """The world's name; ``world_id`` is unique."""
        self.world_id = world_id
        self.size = size
        """Ranks in the world."""
        self.started = started
        """Seconds since the epoch, as ``ended``."""
        self.ended = ended
        self._outcome = outcome
        self._elapsed = elapsed
        self._host = host
        self._steward = (steward, steward_created)
        self._world_ended = world_ended

    @property
    def outcome(self) -> Outcome | Literal["running"]:
        """How it ended, like :attr:`Run.outcome`; also ``lost`` when its world was killed."""
        if self._outcome is not None:
            return self._outcome
        here = self._host == socket.gethostname()
        return "lost" if self._world_ended or (here and not still_runs(*self._steward)) else "running"

    @property
    def elapsed(self) -> float:
        """Seconds that the cell took on its slowest rank, or has taken so far."""
        if self._elapsed is not None:
            return self._elapsed
        until = time.time()
        if self.outcome == "lost":
            heard = self._rows("SELECT max(heard) FROM parts WHERE run = ?")
            until = heard[0][0] if heard and heard[0][0] else self.started
        return max(0.0, until - self.started)

    @property
    def parts(self) -> dict[int, StoredPart]:
        """The ranks that have begun it."""
        rows = self._rows(
            "SELECT rank, pid, host, spool, outcome, elapsed, words, bytes FROM parts WHERE run = ? ORDER BY rank"
        )
        return {row[0]: StoredPart(*row) for row in rows}

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """How each rank ended, without those that have not."""
        return {rank: part.outcome for rank, part in self.parts.items() if part.outcome is not None}

    @property
    def metrics(self) -> RunMetrics:
        """All points that its ranks have logged: ``run.metrics["loss"][0].values`` are the losses of rank 0."""
        return self._columns("metric")

    @property
    def resources(self) -> RunMetrics:
        """Each rank's resources, about once a second: ``cpu`` (per cent of a core), ``rss`` (bytes) and more.

        With GPUs also ``gpu utilisation``, ``gpu used`` and so on, as in :class:`~jupyter_dtrain.core.events.Gpu`.
        """
        return self._columns("resource")

    @property
    def errors(self) -> dict[int, Error]:
        """The exceptions that ended the cell, by rank; very long ones are shortened."""
        rows = self._rows("SELECT rank, error FROM parts WHERE run = ? AND error IS NOT NULL ORDER BY rank")
        return {rank: msgspec.json.decode(text, type=readable(Error)) for rank, text in rows}

    @property
    def results(self) -> dict[int, Result]:
        """The value of the cell's last expression, by rank, as representations; large ones only as text."""
        rows = self._rows("SELECT rank, result FROM parts WHERE run = ? AND result IS NOT NULL ORDER BY rank")
        return {rank: msgspec.json.decode(text, type=readable(Result)) for rank, text in rows}

    def text(self, rank: int, stream: Literal["stdout", "stderr"] | None = None) -> str:
        """The text that ``rank`` printed, in order: of both streams, or of one.

        A long text comes whole from the rank's spool while that exists. After that you get its beginning and its end,
        with a line between them that says how much is missing. Raises :class:`KeyError` for a rank that did not run
        the cell.
        """
        part = self.parts[rank]
        stored = list(self._pieces(rank))
        missing = part.bytes - sum(pieces.size(text) for _, _, text in stored)
        if missing > 0:
            with contextlib.suppress(OSError):
                said = (event.body for event in read_file(part.spool))
                spooled = [body for body in said if isinstance(body, Output) and not body.log]
                return "".join(output.text for output in spooled if stream in (None, output.stream))
        texts = [text for number, kind, text in stored if number >= 0 and stream in (None, kind)]
        if missing > 0:
            texts.append(f"\n[… {missing} bytes are missing: their log no longer exists …]\n")
        return "".join([*texts, *(text for number, kind, text in stored if number < 0 and stream in (None, kind))])

    def tail(self, rank: int, lines: int = 10) -> list[str]:
        """The last ``lines`` lines of ``rank``'s text, from the store alone. Raises :class:`KeyError`."""
        if rank not in self.parts:
            raise KeyError(rank)
        text = "".join(text for _, _, text in self._pieces(rank)).rstrip("\n")
        return [line.rpartition("\r")[2] for line in text.split("\n")[-lines:]] if text else []

    def _pieces(self, rank: int) -> Iterator[tuple[int, str, str]]:
        rows = self._rows(
            "SELECT number, pieces FROM texts WHERE run = ? AND rank = ? ORDER BY number < 0, number", rank
        )
        for number, data in rows:
            for stream, text in pieces.unpack(data):
                yield number, stream, text

    def _columns(self, kind: str) -> RunMetrics:
        found = RunMetrics(self.ranks)
        rows = self._rows(
            "SELECT rank, name, steps, times, amounts FROM series JOIN blocks ON blocks.series = series.id "
            "WHERE run = ? AND kind = ? ORDER BY series.id, number",
            kind,
        )
        for rank, name, *columns in rows:
            found.add(rank, Series(name, *columns))
        return found

    def _rows(self, query: str, *values: Any) -> list[Any]:
        return self._store._ask(lambda db: db.execute(query, (self.id, *values)).fetchall()) or []  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<run #{self.id} ({self.world}/{self.number}): {self.outcome}, {self.elapsed:.1f} s>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from jupyter_dtrain.view.stored import bundle

        return bundle(self)


def _was_away(run: StoredRun, driver: int | None, created: float | None) -> bool:
    """Whether ``run`` ended while its driver, a process that was ``created`` then, was gone."""
    if driver is None or created is None or run._host != socket.gethostname():  # noqa: SLF001 — of this module
        return run.ended is not None and time.time() - run.ended > AWAY
    return not still_runs(driver, created)
