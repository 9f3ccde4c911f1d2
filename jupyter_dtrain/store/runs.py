"""The reading side: stored runs, found by number, by name or by what a person wants to see, and the list of them.

Every call opens the file, reads and closes it. So nothing stays open, and a running run shows its present state.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.errors import BadRequest, StoreFailed
from jupyter_dtrain.core.events import OUTCOMES, RUNNING
from jupyter_dtrain.core.world import format_ranks

from . import filters, losses, views
from .facts import read_facts
from .file import StoreFile
from .run_list import RunList, Selection
from .schema import store_file
from .selection import choices, choose
from .stored_run import COLUMNS, KEPT, StoredRun, find_runs, run_with_id, world_is_over
from .views import TableView

if TYPE_CHECKING:
    from typing_extensions import Self

    from jupyter_dtrain.core.run import Run

before_reading: list[Callable[[], None]] = []
"""Calls before a run is looked up. A process with sessions has their stewards store what they have not stored yet."""

_NAME = re.compile(r"(?:(?P<world>[^/\s]+)/)?(?P<number>\d{1,18})\Z")
MOST_CHOICES: Final = 1000
"""Configuration values, and metrics, that a selection names for a person to choose from."""
_AT_ONCE = 500  # runs whose losses one query reads
_TEXT: Final = """(worlds.name || '/' || runs.number || char(10) || runs.name || char(10) || runs.note || char(10)
    || runs.tags || char(10) || runs.source)"""


def runs(
    limit: int = 20,
    world: str | None = None,
    *,
    outcome: str | None = None,
    search: str | None = None,
    tag: str | None = None,
    where: str = "",
    sort: str | Sequence[str] = (),
    everything: bool = False,
) -> RunList:
    """The newest ``limit`` stored trainings, newest first; of the worlds named ``world``, or of all.

    A training logs metrics, or takes more than some seconds; ``everything``: all other cells, too. ``outcome``: ok,
    error, interrupted, lost or running. ``search``: words, each of which the name, note, tags, configuration or cell of
    a run must contain. ``tag``: a tag that a run must have. ``where`` and ``sort``: a filter and an order as in
    :meth:`Store.select`, such as ``"lr>1e-3 loss<0.5"`` and ``"-val_acc.max"``. The list shows itself as a table, and
    ``.frame()`` makes a pandas DataFrame of it.

    Raises :class:`BadRequest` for what cannot be read, and :class:`StoreFailed` when the store cannot be.
    """
    wanted = filters.together(where, search=search, world=world, outcome=outcome, tag=tag)
    return Store.open().select(wanted, sort=sort, everything=everything, limit=limit).runs


class Store(StoreFile):
    """The runs of all worlds of this user."""

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """The store at ``path`` (default: this user's). Raises :class:`StoreFailed` when it cannot be read."""
        store = cls(store_file() if path is None else Path(path))
        store.ask(lambda _: None)
        return store

    def runs(
        self,
        limit: int = 20,
        world: str | None = None,
        *,
        outcome: str | None = None,
        search: str | None = None,
        tag: str | None = None,
        before: int | None = None,
    ) -> RunList:
        """The newest ``limit`` cells, trainings or not, as :func:`jupyter_dtrain.runs` has them with ``everything``.

        ``before``: the ``id`` of the run before which the list goes on.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise BadRequest(f"The number of runs must be a whole number above 0, not {limit!r}.")

        def look(db: sqlite3.Connection) -> RunList:
            where, values = _clause(db, world, outcome, search, tag, before)
            query = f"SELECT {COLUMNS} {KEPT} AND {where} ORDER BY runs.id DESC LIMIT ?"
            found = RunList(StoredRun(self, *row) for row in db.execute(query, (*values, min(limit, 1 << 32))))
            _read_losses(db, found)
            return found

        _bring_up_to_date()
        return self.ask(look) or RunList()

    def count(
        self,
        world: str | None = None,
        *,
        outcome: str | None = None,
        search: str | None = None,
        tag: str | None = None,
    ) -> int:
        """How many runs :meth:`runs` has without a limit."""

        def look(db: sqlite3.Connection) -> int:
            where, values = _clause(db, world, outcome, search, tag)
            return int(db.execute(f"SELECT count(*) {KEPT} AND {where}", values).fetchone()[0])

        return self.ask(look) or 0

    def select(
        self,
        where: str = "",
        *,
        sort: str | Sequence[str] = (),
        columns: str | Sequence[str] = (),
        group: str = "",
        everything: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> Selection:
        """The runs that a filter lets through, with chosen columns, sorted and in groups; the newest first.

        ``where``: such as ``lr>1e-3 tag:best loss<0.5 name~^cnn "two words" -word``. ``columns``: configuration values
        and metrics by name, such as ``lr``, ``val_acc.max`` or ``metric:loss:at:val_acc:max``. ``sort``: such names, or
        fields such as ``elapsed``; one that begins with ``-`` is descending. ``group``: a configuration value, or
        ``group``. ``everything``: cells that do not train, too. ``limit`` and ``offset``: a part of the list.

        Raises :class:`BadRequest` for what cannot be read, with its place, and :class:`StoreFailed`.
        """
        for label, value, least in (("limit", limit, 1), ("offset", offset, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise BadRequest(f"{label} must be a whole number of at least {least}, not {value!r}.")
        _bring_up_to_date()
        facts = read_facts(self)
        by, shown = ([one] if isinstance(one, str) else list(one) for one in (sort, columns))
        chosen = choose(self, facts, where, by, shown, group, everything=everything)
        part = chosen.runs[offset : None if limit is None else offset + limit]
        found = {run.id: run for run in self._runs_with([run.id for run in part])}
        part = [run for run in part if run.id in found]  # one may have been deleted since
        configs, metrics = facts.names(everything=everything)
        return Selection(
            RunList(found[run.id] for run in part),
            chosen.values(part),
            chosen.heads,
            total=len(chosen.runs),
            places=chosen.places(part),
            groups=chosen.groups,
            configs=choices(configs, MOST_CHOICES),
            metrics=choices(metrics, MOST_CHOICES),
            trainings=sum(run.training for run in facts.runs),
            every=sum(not run.aside for run in facts.runs),
            version=facts.version,
            hint=chosen.hint,
        )

    def _runs_with(self, ids: list[int]) -> RunList:
        """The runs with these ids, as far as they are there, with their losses; in any order."""

        def look(db: sqlite3.Connection) -> RunList:
            found = RunList()
            for first in range(0, len(ids), _AT_ONCE):
                some = ids[first : first + _AT_ONCE]
                query = f"SELECT {COLUMNS} {KEPT} AND runs.id IN ({', '.join('?' * len(some))})"
                found += [StoredRun(self, *row) for row in db.execute(query, some)]
            _read_losses(db, found)
            return found

        return (self.ask(look) if ids else None) or RunList()

    @property
    def version(self) -> str:
        """A word that changes with the store, also where a run that went on does so no more."""
        return read_facts(self).version

    def views(self) -> list[TableView]:
        """The saved views of the list of runs, by name."""
        return views.read(self)

    def save_view(self, view: TableView) -> TableView:
        """Save ``view`` under its name, in the place of one that has it. Raises :class:`BadRequest`."""
        return views.save(self, view)

    def delete_view(self, name: str) -> None:
        """Remove a saved view. Raises :class:`BadRequest` where there is none."""
        views.delete(self, name)

    def worlds(self) -> list[str]:
        """The names of all worlds that have runs, that of the newest run first."""
        query = f"SELECT worlds.name {KEPT} GROUP BY worlds.name ORDER BY max(runs.id) DESC"
        return [name for (name,) in self.ask(lambda db: db.execute(query).fetchall()) or []]

    def run(self, name: int | str, here: str | None = None) -> StoredRun:
        """The run called ``name``: ``"world/3"``, or its number alone, ``3``: of the world whose id is ``here``.

        Without ``here``, and where that world has no such run, a number alone means the newest run that has it. Where
        several worlds have one name, the newest counts; a world's id works in place of its name. Raises
        :class:`BadRequest` when there is no such run.
        """
        found = _NAME.match(str(name).strip())
        if found is None:
            raise BadRequest(
                f"{name!r} names no run. Give WORLD/RUN from %distributed runs (world/3), or the number alone (3), of "
                f"a run in the store{self._suggest(str(name))}"
            )
        _bring_up_to_date()
        number, world = int(found["number"]), found["world"]
        if world is None:
            where = "runs.number = ? ORDER BY worlds.key = ? DESC, runs.id DESC"
            values: tuple[Any, ...] = (number, here)
        else:
            where = "(worlds.name = ? OR worlds.key = ?) AND runs.number = ? ORDER BY runs.id DESC"
            values = (world, world, number)
        match = find_runs(self, f"{where} LIMIT 1", values)
        if not match:
            raise BadRequest(f"There is no run {name} in the store{self._suggest(world) or '.'}")
        return match[0]

    def run_with_id(self, run: int) -> StoredRun:
        """The run whose :attr:`StoredRun.id` is ``run``. Raises :class:`BadRequest` when there is none."""
        return run_with_id(self, run)

    def run_of(self, run: Run, patience: float = 5.0) -> StoredRun:
        """The stored form of a session's ``run``. It waits up to ``patience`` seconds for a run that has just ended.

        Raises :class:`BadRequest` when the store does not have the run.
        """
        _bring_up_to_date()
        deadline = time.monotonic() + patience
        while True:
            match = find_runs(self, "worlds.key = ? AND runs.number = ?", (run.world_id, run.number))
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
        """Runs that ended while no client controlled their world, and that no client has shown yet, oldest first."""
        query = f"SELECT worlds.driver, worlds.driver_created, {COLUMNS} {KEPT} AND seen = 0 AND runs.ended IS NOT NULL"
        rows = self.ask(lambda db: db.execute(f"{query} ORDER BY runs.id").fetchall())
        found = [(driver, created, StoredRun(self, *row)) for driver, created, *row in rows or []]
        return [run for driver, created, run in found if run.was_away(driver, created)]

    def mark_seen(self, shown: Iterable[StoredRun]) -> None:
        """Note that a client has shown how these ended. If the store cannot be written, they will be shown again."""
        with contextlib.suppress(StoreFailed), self.writing() as db:
            db.executemany("UPDATE runs SET seen = 1 WHERE id = ?", [(run.id,) for run in shown])

    def _suggest(self, world: str | None) -> str:
        """The end of a message about a run that is not there: it names runs that are."""
        newest = self.runs(1)
        if not newest:
            return ", which is empty."
        found = self.runs(1000, world) if world is not None else RunList()
        if not found:
            return f". The newest is {newest[0].label}."
        numbers = format_ranks(sorted({run.number for run in found}))
        return f". World {world!r} has the runs {numbers}: {found[0].label} is the newest."


def _bring_up_to_date() -> None:
    for call in before_reading:
        call()


def _read_losses(db: sqlite3.Connection, runs: RunList) -> None:
    for first in range(0, len(runs), _AT_ONCE):
        some = runs[first : first + _AT_ONCE]
        query = losses.NEWEST.format(runs=", ".join("?" * len(some)))
        found = losses.newest(db.execute(query, [run.id for run in some]))
        for run in some:
            run.take_newest(found.get(run.id))


def _clause(
    db: sqlite3.Connection,
    world: str | None,
    outcome: str | None,
    search: str | None,
    tag: str | None,
    before: int | None = None,
) -> tuple[str, list[Any]]:
    """The runs that :meth:`Store.runs` is asked for, as a condition for SQLite with its values; None is no condition.

    Raises :class:`BadRequest` for a word that is no outcome.
    """
    found: list[str] = ["NOT runs.aside"]
    values: list[Any] = []
    for condition, value in (
        ("worlds.name = ?", world),
        ("EXISTS (SELECT 1 FROM json_each(runs.tags) WHERE json_each.value = ?)", tag),
        ("runs.id < ?", before),
    ):
        if value is not None:
            found.append(condition)
            values.append(value)
    for word in (search or "").split():
        found.append(f"{_TEXT} LIKE ? ESCAPE '!'")
        values.append("%" + "".join(f"!{one}" if one in "!%_" else one for one in word) + "%")
    if outcome is not None:
        found.append(_ended_as(db, outcome))
        values += [outcome] if outcome != RUNNING else []
    return " AND ".join(found), values


def _ended_as(db: sqlite3.Connection, outcome: str) -> str:
    if outcome not in OUTCOMES:
        *words, last = OUTCOMES
        raise BadRequest(f"{outcome!r} is no outcome of a run: choose {', '.join(words)} or {last}.")
    if outcome not in ("lost", RUNNING):
        return "runs.outcome = ?"
    # The end of a run is not recorded where its steward was killed.
    rows = db.execute(
        "SELECT id, ended, host, steward, steward_created FROM worlds "
        "WHERE id IN (SELECT world FROM runs WHERE outcome IS NULL)"
    ).fetchall()
    over = ", ".join(str(world) for world, *facts in rows if world_is_over(*facts))
    if outcome == RUNNING:
        return f"(runs.outcome IS NULL AND runs.world NOT IN ({over}))"
    return f"(runs.outcome = ? OR (runs.outcome IS NULL AND runs.world IN ({over})))"
