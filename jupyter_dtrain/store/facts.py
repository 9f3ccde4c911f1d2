"""What is known of every run in the store without reading points or text: the rows that lists choose from and sort.

A process keeps them as long as the file does not change, and of a changed file reads again only what can be new: a
list of thousands of runs is filtered and sorted without a query for each. Under failure: :class:`StoreFailed`; a row
that is damaged has no configuration, and the others are listed.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from jupyter_dtrain.core.events import RUNNING
from jupyter_dtrain.core.run_names import name_from_place, telling_line
from jupyter_dtrain.core.structs import UNREADABLE, readable

from . import configuration
from .figures import FIGURES, Figure, figure_of
from .file import StoreFile
from .stored_run import KEPT, TRAINS_FROM, world_is_over

MOST_CACHED: Final = 10_000
"""Runs, the newest, of which a process keeps what it has read; it reads older ones with each change of the file."""
NO_STORE: Final = "none"
"""The version of a store before its first run."""

_AT_ONCE: Final = 500  # runs that one condition names; for more, all are read
_SETTLED: Final = 60.0  # seconds after which nobody writes about a run that has ended
_TICK: Final = 50_000_000  # ns in which a file may change twice and show one time
_ROWS: Final = f"""SELECT runs.id, runs.world, runs.number, runs.started, runs.ended, runs.outcome, runs.elapsed,
    runs.ranks, runs.name, runs.note, runs.tags, runs.kept, runs.cell, runs.notebook, runs.heading, runs.batch,
    runs.trains, runs.aside, runs.config, worlds.name, worlds.host, worlds.steward, worlds.steward_created,
    worlds.ended, CASE WHEN runs.outcome IS NULL THEN (SELECT max(heard) FROM parts WHERE run = runs.id) END
    {KEPT} ORDER BY runs.id DESC"""  # noqa: S608 — our own names


class RunFacts(msgspec.Struct, eq=False):
    """A run, as far as lists are concerned."""

    id: int
    world: str
    number: int
    started: float
    outcome: str
    """``running`` while it goes on."""
    elapsed: float
    ranks: int
    own_name: str
    """Empty where no person gave it one."""
    note: str
    tags: list[str]
    kept: bool
    cell: int | None
    notebook: str
    heading: str
    group: str
    trains: bool
    aside: bool
    config: dict[str, Any]
    ranks_of: dict[str, list[tuple[Any, ...]]]
    """Of each metric, what each rank has of it."""
    figures: dict[str, Figure] = {}
    """Of the metrics that were asked for."""
    reached: dict[tuple[str, str, str], float | None] = {}
    """A metric's value at the lowest or highest of another, once that was asked for; see :mod:`.selection`."""
    line: str | None = None
    """The line of its cell that names it; None until it was asked for."""

    @property
    def label(self) -> str:
        """``world/3``."""
        return f"{self.world}/{self.number}"

    @property
    def name(self) -> str:
        """As :attr:`StoredRun.name`, where :meth:`StoreFacts.read_names` has read what it needs."""
        return self.own_name or name_from_place(self.heading, self.cell) or self.line or ""

    def figure(self, name: str) -> Figure | None:
        """A metric in short; None where the run has none of this name."""
        if name not in self.ranks_of:
            return None
        if name not in self.figures:
            self.figures[name] = figure_of(self.ranks_of[name])
        return self.figures[name]

    @property
    def training(self) -> bool:
        """Whether a list of trainings has it."""
        return not self.aside and (self.trains or self.elapsed > TRAINS_FROM)


class Choice(NamedTuple):
    """A configuration value, or a metric, that some runs have."""

    name: str
    runs: int
    distinct: int
    numeric: bool


class StoreFacts(msgspec.Struct, eq=False):
    """All runs of a store, the newest first, at one version of its file."""

    version: str
    """Equal versions mean equal facts."""
    file: str
    """The version of the file."""
    running: int
    """Runs that go on."""
    runs: list[RunFacts]
    choices: dict[bool, tuple[list[Choice], list[Choice]]] = {}

    def listed(self, *, everything: bool) -> list[RunFacts]:
        """The trainings; with ``everything`` all runs but those of our own verbs."""
        return [run for run in self.runs if (not run.aside if everything else run.training)]

    def names(self, *, everything: bool) -> tuple[list[Choice], list[Choice]]:
        """The configuration values and the metrics that listed runs have: of the former, those that differ first."""
        if everything not in self.choices:
            runs = self.listed(everything=everything)
            self.choices[everything] = _configs(runs), _metrics(runs)
        return self.choices[everything]

    def read_names(self, store: StoreFile) -> None:
        """Read the cells of runs that have no other name. Raises :class:`StoreFailed`."""
        lacking = {run.id: run for run in self.runs if run.line is None and not run.own_name and not run.heading}
        for run, source in _of_runs(store, "SELECT id, source FROM runs WHERE id {ids}", lacking):
            if (found := lacking.get(run)) is not None:
                found.line = telling_line(source)


class _Kept:
    """What this process has read of one store."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.path = Path()
        self.facts: StoreFacts | None = None
        self.rows: dict[int, tuple[tuple[Any, ...], bool, RunFacts]] = {}
        """The row that each run was made from, and whether nobody writes about it any more."""


_kept = _Kept()


def read_facts(store: StoreFile) -> StoreFacts:
    """All runs of ``store``, as they are now. Raises :class:`StoreFailed`."""
    with _kept.lock:
        if _kept.path != store.path:
            _kept.path, _kept.facts, _kept.rows = store.path, None, {}
        version = _version_of(store.path)
        known = _kept.facts
        if known is None or known.file != version or known.running:
            runs = store.ask(_read) or []
            running = sum(run.outcome == RUNNING for run in runs)
            # One whose steward was killed goes on no more, and no file says so.
            known = _kept.facts = StoreFacts(f"{version}+{running}", version, running, runs)
        return known


def _version_of(path: Path) -> str:
    """A word that changes with the store's file."""
    told, newest = [], 0
    for one in (path, path.with_name(path.name + "-wal")):
        try:
            state = one.stat()
        except OSError:
            continue
        if state.st_size:
            told.append(f"{state.st_ino:x}-{state.st_size:x}-{state.st_mtime_ns:x}")
            newest = max(newest, state.st_mtime_ns)
    now = time.time_ns()
    # The next change may come in the same tick of the clock: then this word stands for nothing.
    return ".".join(told or [NO_STORE]) + (f"~{now:x}" if told and abs(now - newest) < _TICK else "")


def _read(db: sqlite3.Connection) -> list[RunFacts]:
    rows = db.execute(_ROWS).fetchall()
    over: dict[int, bool] = {}
    found: list[RunFacts] = []
    fresh: dict[int, RunFacts] = {}
    before, _kept.rows = _kept.rows, {}
    now = time.time()
    for place, row in enumerate(rows):
        run, _, _, started, ended, outcome = row[:6]
        known = before.get(run)
        if known is not None and known[1] and known[0] == row:
            facts = known[2]
        else:
            facts = fresh[run] = _facts(row)
            # The cell does not change once its run has begun.
            if known is not None and known[2].started == started and known[2].line:
                facts.line = known[2].line
        if outcome is None:
            _tell_the_end(facts, row, over, now)
        if place < MOST_CACHED:
            _kept.rows[run] = row, ended is not None and now - ended > _SETTLED, facts
        found.append(facts)
    _read_figures(db, fresh)
    return found


def _tell_the_end(facts: RunFacts, row: tuple[Any, ...], over: dict[int, bool], now: float) -> None:
    """The outcome and the duration of a run whose end is not recorded."""
    world, started, (host, steward, created, ended, heard) = row[1], row[3], row[20:25]
    if world not in over:
        over[world] = world_is_over(ended, host, steward, created)
    facts.outcome = "lost" if over[world] else RUNNING
    if row[6] is None:
        until = (heard or started) if over[world] else now
        facts.elapsed = max(0.0, until - started)


def _facts(row: tuple[Any, ...]) -> RunFacts:
    run, _, number, started, _, outcome, elapsed, ranks, name, note, tags, kept, cell, notebook, heading = row[:15]
    group, trains, aside, config, world = row[15:20]
    values: dict[str, Any] = {}
    if config != "{}":
        with contextlib.suppress(ValueError, *UNREADABLE):
            values = configuration.read(config)
    return RunFacts(
        id=run,
        world=world,
        number=number,
        started=started,
        outcome=outcome or RUNNING,
        elapsed=elapsed or 0.0,
        ranks=len(_listed(ranks)),
        own_name=name,
        note=note,
        tags=_listed(tags),
        kept=bool(kept),
        cell=cell,
        notebook=notebook,
        heading=heading,
        group=group,
        trains=bool(trains),
        aside=bool(aside),
        config=values,
        ranks_of={},
    )


def _listed(text: str | None) -> list[Any]:
    if not text or text == "[]":
        return []
    with contextlib.suppress(ValueError, *UNREADABLE):
        found: list[Any] = msgspec.json.decode(text, type=readable(list[Any]))
        return found
    return []


def _read_figures(db: sqlite3.Connection, runs: dict[int, RunFacts]) -> None:
    if not runs:
        return
    if len(runs) > _AT_ONCE:
        rows: Iterable[tuple[Any, ...]] = db.execute(FIGURES)
    else:
        marks = ", ".join("?" * len(runs))
        rows = db.execute(f"{FIGURES} AND run IN ({marks})", list(runs))
    for run, name, *figures in rows:
        if run in runs:
            runs[run].ranks_of.setdefault(name, []).append(tuple(figures))


def _configs(runs: list[RunFacts]) -> list[Choice]:
    values: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in run.config.items():
            values.setdefault(name, []).append(value)
    found = []
    for name, every in values.items():
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in every)
        try:
            distinct = len(set(every))
        except TypeError:  # lists and dicts
            distinct = len({repr(value) for value in every})
        found.append(Choice(name, len(every), distinct, numeric))
    # One that some runs lack differs, too.
    return sorted(found, key=lambda one: (one.distinct == 1 and one.runs == len(runs), -one.runs, one.name))


def _metrics(runs: list[RunFacts]) -> list[Choice]:
    counts: dict[str, int] = {}
    for run in runs:
        for name in run.ranks_of:
            counts[name] = counts.get(name, 0) + 1
    return sorted(
        (Choice(name, count, 0, True) for name, count in counts.items()), key=lambda one: (-one.runs, one.name)
    )


def _of_runs(store: StoreFile, query: str, runs: Collection[int]) -> list[tuple[Any, ...]]:
    """The rows of a query whose ``{ids}`` names some runs. Raises :class:`StoreFailed`."""
    if not runs:
        return []
    if len(runs) > _AT_ONCE:
        return store.ask(lambda db: db.execute(query.format(ids="IS NOT NULL")).fetchall()) or []
    marks = f"IN ({', '.join('?' * len(runs))})"
    return store.ask(lambda db: db.execute(query.format(ids=marks), list(runs)).fetchall()) or []
