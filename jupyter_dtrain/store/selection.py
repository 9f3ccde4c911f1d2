"""The list of runs as a person wants to see it: chosen by a filter, with chosen columns, sorted and in groups.

Under failure: :class:`~.filters.BadFilter` for what cannot be read, with its place; :class:`StoreFailed`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.metrics import is_finite

from . import filters
from .facts import Choice, RunFacts, StoreFacts
from .file import StoreFile
from .filters import BadFilter
from .matching import tests_of
from .run_columns import (
    SHOWN,
    CellValue,
    ColumnHead,
    KnownNames,
    RunColumn,
    as_text,
    cell_value,
    column_of,
    is_number,
    reach,
    with_type,
)

MOST_COLUMNS: Final = 60
MOST_SORTS: Final = 8


class ColumnChoice(msgspec.Struct, frozen=True):
    """A configuration value or a metric that some of the listed runs have."""

    name: str
    runs: int
    """How many have it."""
    distinct: int
    """How many different values they have; of metrics, 0."""
    numeric: bool


class RunGroup(msgspec.Struct, frozen=True):
    """The runs that have one value in common."""

    value: CellValue
    words: str
    """The value, for people."""
    runs: int
    """How many, on all pages of the list together."""
    means: list[float | None]
    """The mean of each asked column over them; null where that is not numeric."""


def choose(
    store: StoreFile,
    facts: StoreFacts,
    where: str = "",
    sort: Sequence[str] = (),
    columns: Sequence[str] = (),
    group: str = "",
    *,
    everything: bool = False,
) -> ChosenRuns:
    """The runs that a filter lets through, in order. Raises :class:`BadFilter` and :class:`StoreFailed`."""
    if len(columns) > MOST_COLUMNS or len(sort) > MOST_SORTS:
        raise BadFilter(f"A list has at most {MOST_COLUMNS} columns and is sorted by {MOST_SORTS}.", "columns")
    conditions = filters.parse(where)
    names = KnownNames(facts, everything=everything)
    shown = [column_of(key, names, "columns") for key in columns]
    orders = [(column_of(key.removeprefix("-"), names, "sort"), key.startswith("-")) for key in sort]
    grouped = column_of(group, names, "group") if group else None
    if grouped is not None and grouped.head.key.startswith("metric:"):
        raise BadFilter("Runs are grouped by a field or a configuration value, not by a metric.", "group")
    used = [*shown, *(column for column, _ in orders), *([grouped] if grouped else [])]
    if any(column.head.key == "name" for column in used) or any(one.name == "name" for one in conditions):
        facts.read_names(store)
    tests, hint = tests_of(store, conditions, names)
    found = [run for run in facts.listed(everything=everything) if all(test(run) for test in tests)]
    found.sort(key=lambda run: (run.started, run.id), reverse=True)
    words = [one.values[0].casefold() for one in conditions if not one.name and not one.negated]
    if words and not orders:  # a name says more than a word somewhere in a cell
        found.sort(key=lambda run: not all(word in f"{run.own_name} {run.heading}".casefold() for word in words))
    for column, descending in reversed(orders):
        reach(store, column, found)
        found = _sorted(found, column, descending=descending)
    if grouped is not None:
        found = _together(found, grouped)
        for column in shown:
            reach(store, column, found)
    return ChosenRuns(store, found, shown, grouped, hint)


class ChosenRuns:
    """Runs in order, before the parts of them that a page shows are read."""

    def __init__(
        self, store: StoreFile, runs: list[RunFacts], columns: list[RunColumn], grouped: RunColumn | None, hint: str
    ) -> None:
        self._store, self._columns, self._grouped = store, columns, grouped
        self.runs = runs
        self.hint = hint
        self.heads = [with_type(column, runs) for column in columns]
        self._places: dict[int, int] = {}
        self.groups = self._count() if grouped is not None else []

    def values(self, runs: Sequence[RunFacts]) -> list[list[CellValue]]:
        """The values of some of the runs, in the order of the columns. Raises :class:`StoreFailed`."""
        for column in self._columns:
            reach(self._store, column, runs)
        return [[cell_value(column.read(run)) for column in self._columns] for run in runs]

    def places(self, runs: Sequence[RunFacts]) -> list[int]:
        """The places of their groups; empty where there are none."""
        return [self._places[run.id] for run in runs] if self.groups else []

    def _count(self) -> list[RunGroup]:
        assert self._grouped is not None
        members: list[tuple[CellValue, list[RunFacts]]] = []
        for run in self.runs:
            value = cell_value(self._grouped.read(run))
            if not members or _identity(members[-1][0]) != _identity(value):
                members.append((value, []))
            members[-1][1].append(run)
            self._places[run.id] = len(members) - 1
        return [
            RunGroup(
                value, _in_words(self._grouped.head, value), len(runs), [_mean(one, runs) for one in self._columns]
            )
            for value, runs in members
        ]


def _identity(value: CellValue) -> Any:
    # True is no 1 here, and 1 is 1.0.
    return type(value) is bool, value


def _in_words(head: ColumnHead, value: CellValue) -> str:
    if value is None:
        return f"no {head.title}"
    words = {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"
    return f"{head.title}: {words}" if head.key.startswith("config:") else words


def _mean(column: RunColumn, runs: Sequence[RunFacts]) -> float | None:
    values = [column.read(run) for run in runs]
    known = [value for value in values if value is not None]
    if not known or not all(map(is_number, known)):
        return None
    mean = sum(map(float, known)) / len(known)
    return mean if is_finite(mean) else None


def _sorted(runs: list[RunFacts], column: RunColumn, *, descending: bool) -> list[RunFacts]:
    """Without a value they come last in both directions; equal ones stay as they are."""
    pairs = [(column.read(run), run) for run in runs]
    known = [(_order(value), run) for value, run in pairs if value is not None]
    known.sort(key=_key, reverse=descending)
    return [*(run for _, run in known), *(run for value, run in pairs if value is None)]


def _key(pair: tuple[tuple[int, Any], RunFacts]) -> tuple[int, Any]:
    return pair[0]


def _order(value: Any) -> tuple[int, Any]:
    """Numbers before text; numbers in text count as numbers, so that world/10 comes after world/9."""
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, (int, float)):
        # NaN has no place among numbers, and would spoil theirs.
        return (0, value) if is_finite(value) else (2, str(value))
    text = as_text(value)
    parts = re.split(r"(\d{1,15})", text[:SHOWN].casefold())
    return 3, tuple((int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts))


def _together(runs: list[RunFacts], column: RunColumn) -> list[RunFacts]:
    """The runs of a group after each other, the groups in the order of their first runs; those without come last."""
    groups: dict[Any, list[RunFacts]] = {}
    for run in runs:
        groups.setdefault(_identity(cell_value(column.read(run))), []).append(run)
    ordered = sorted(groups.items(), key=lambda one: one[0][1] is None)
    return [run for _, members in ordered for run in members]


def choices(found: Collection[Choice], most: int) -> list[ColumnChoice]:
    """KnownNames for a person to choose from, at most ``most``."""
    return [ColumnChoice(*one) for one in list(found)[:most]]
