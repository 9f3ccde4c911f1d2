"""The columns that a list of runs can have, and the values of runs in them.

A column has a key: a field of the run (:data:`FIELDS`), ``config:NAME``, ``metric:NAME:last`` (or ``min``, ``max``), or
``metric:NAME:at:OTHER:max`` (or ``min``): the value of a metric at the step at which another was highest. ``NAME`` and
``NAME.max`` alone are understood as in a filter.

Under failure: :class:`~.filters.BadFilter` for a key that cannot be read; :class:`StoreFailed`.
"""

from __future__ import annotations

import difflib
import re
import sqlite3
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from jupyter_dtrain.core.events import Series
from jupyter_dtrain.core.metrics import Columns, is_finite, is_loss, unpack

from .facts import RunFacts, StoreFacts
from .figures import Figure
from .file import StoreFile
from .filters import BadFilter

CellValue = str | float | bool | None
"""A value in the list of runs: containers are text there."""

SHOWN: Final = 300
"""Characters of a text in a cell of the list."""
AGGREGATES: Final = {"last": "last", "min": "lowest", "max": "highest"}
"""What is known of a metric, and what titles call it."""

_METRIC: Final = re.compile(r"metric:(?P<name>.+):(?P<which>last|min|max)\Z", re.DOTALL)
_AT: Final = re.compile(r"metric:(?P<name>.+):at:(?P<other>.+):(?P<which>min|max)\Z", re.DOTALL)
_EVALUATION: Final = re.compile("(val|valid|validation|eval|test|dev)", re.IGNORECASE)
_TITLE: Final = 80  # characters
_AT_ONCE: Final = 500  # runs whose points one query reads
_POINTS: Final = """SELECT series.run, series.rank, steps, amounts FROM series JOIN blocks ON blocks.series = series.id
    WHERE series.kind = 'metric' AND series.name = ? AND series.run {ids} ORDER BY blocks.number"""


class ColumnHead(msgspec.Struct, frozen=True):
    """A column of the list of runs."""

    key: str
    """By which a request asks for it and sorts by it, such as `config:lr` or `metric:val_acc:max`."""
    title: str
    """For people, such as `lr` or `highest val_acc`."""
    numeric: bool
    """Whether all its values are numbers."""


class _Field(NamedTuple):
    title: str
    read: Callable[[RunFacts], Any]


FIELDS: Final[dict[str, _Field]] = {
    "id": _Field("id", lambda run: run.id),
    "run": _Field("run", lambda run: run.label),
    "name": _Field("name", lambda run: run.name),
    "world": _Field("world", lambda run: run.world),
    "number": _Field("number", lambda run: run.number),
    "outcome": _Field("outcome", lambda run: run.outcome),
    "started": _Field("started", lambda run: run.started),
    "elapsed": _Field("took", lambda run: run.elapsed),
    "ranks": _Field("ranks", lambda run: run.ranks),
    "group": _Field("group", lambda run: run.group or None),
    "tags": _Field("tags", lambda run: ", ".join(run.tags) or None),
    "note": _Field("note", lambda run: run.note or None),
    "notebook": _Field("notebook", lambda run: run.notebook or None),
    "heading": _Field("heading", lambda run: run.heading or None),
    "kept": _Field("kept", lambda run: run.kept),
    "last loss": _Field("last loss", lambda run: None if (loss := _main_loss(run)) is None else loss.last),
    "lowest loss": _Field("lowest loss", lambda run: None if (loss := _main_loss(run)) is None else loss.low),
}
"""The columns that every run has."""


def _main_loss(run: RunFacts) -> Figure | None:
    """The run's own loss, whatever its name is; that of an evaluation only where there is no other."""
    names = sorted(
        filter(is_loss, run.ranks_of), key=lambda name: (name != "loss", _EVALUATION.match(name) is not None)
    )
    return run.figure(names[0]) if names else None


class RunColumn(NamedTuple):
    """A column, and how to read the value of a run in it."""

    head: ColumnHead
    read: Callable[[RunFacts], Any]
    at: tuple[str, str, str] | None = None
    """The metric, the other one, and ``min`` or ``max``, where the value has to be read from points."""


class KnownNames:
    """The names that a filter and columns may have."""

    def __init__(self, facts: StoreFacts, *, everything: bool) -> None:
        configs, metrics = facts.names(everything=everything)
        self.configs = {one.name for one in configs}
        self.metrics = {one.name for one in metrics}

    def aggregate(self, name: str) -> tuple[str, str]:
        """The metric and what of it, of a name such as ``loss`` or ``val_acc.max``."""
        base, _, which = name.rpartition(".")
        if base and which in AGGREGATES and name not in self.metrics:
            return base, which
        return name, "last"

    def knows(self, name: str) -> bool:
        """Whether some run has such a value."""
        return name in self.configs or self.aggregate(name)[0] in self.metrics

    def suggest(self, name: str) -> str:
        """The end of a message about a name that no run has."""
        near = difflib.get_close_matches(name[:100], [*self.configs, *self.metrics, *FIELDS], 1)
        return f" Do you mean {near[0]}?" if near else ""


def column_of(key: str, names: KnownNames, option: str) -> RunColumn:
    """The column that a key means. Raises :class:`BadFilter`."""
    if key in FIELDS:
        field = FIELDS[key]
        return RunColumn(ColumnHead(key, field.title, numeric=False), field.read)
    if key.startswith("config:") and key != "config:":
        return _config_column(key.removeprefix("config:"))
    if key.startswith("metric:"):
        if (at := _AT.match(key)) is not None:
            title = f"{cut_title(at['name'])} at {AGGREGATES[at['which']]} {cut_title(at['other'])}"
            reached = (at["name"], at["other"], at["which"])
            return RunColumn(ColumnHead(key, title, numeric=True), lambda run: run.reached.get(reached), reached)
        if (metric := _METRIC.match(key)) is not None:
            return metric_column(metric["name"], metric["which"])
        raise BadFilter(
            f"{cut_title(key)!r} is no column: write metric:NAME:last, :min or :max, or metric:NAME:at:OTHER:max.",
            option,
        )
    if key in names.configs:
        return _config_column(key)
    metric_name, which = names.aggregate(key)
    if metric_name in names.metrics:
        return metric_column(metric_name, which)
    raise BadFilter(
        f"No listed run has a configuration value or a metric named {cut_title(key)!r}.{names.suggest(key)} "
        f"Fields are {', '.join(FIELDS)}.",
        option,
    )


def _config_column(name: str) -> RunColumn:
    return RunColumn(ColumnHead(f"config:{name}", cut_title(name), numeric=False), lambda run: run.config.get(name))


def metric_column(name: str, which: str) -> RunColumn:
    """The column of a metric's last, lowest or highest value."""

    def read(run: RunFacts) -> float | None:
        figure = run.figure(name)
        if figure is None:
            return None
        return figure.last if which == "last" else figure.low if which == "min" else figure.high

    return RunColumn(ColumnHead(f"metric:{name}:{which}", f"{AGGREGATES[which]} {cut_title(name)}", numeric=True), read)


def with_type(column: RunColumn, runs: Sequence[RunFacts]) -> ColumnHead:
    """The column's head, which says whether its values in ``runs`` are numbers."""
    head = column.head
    if head.key.startswith("metric:"):
        return head
    values = [value for run in runs if (value := column.read(run)) is not None]
    return msgspec.structs.replace(head, numeric=bool(values) and all(map(is_number, values)))


def is_number(value: Any) -> bool:
    """Whether ``value`` is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def cut_title(text: str) -> str:
    """A name as far as messages and heads show it."""
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def cell_value(value: Any) -> CellValue:
    """A value as a list shows it."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if is_finite(value) else str(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def as_text(value: Any) -> str:
    """A value as text; lists and dicts as JSON."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, float) else msgspec.json.encode(value).decode()


def reach(store: StoreFile, column: RunColumn, runs: Sequence[RunFacts]) -> None:
    """Read a metric at the step at which another was lowest or highest, where it is not known yet.

    Raises :class:`StoreFailed`.
    """
    if (at := column.at) is None:
        return
    name, other, which = at
    wanted: dict[int, int] = {}
    lacking = [run for run in runs if at not in run.reached]
    for run in lacking:
        figure = run.figure(other)
        step = None if figure is None else figure.low_step if which == "min" else figure.high_step
        if step is not None and name in run.ranks_of:
            wanted[run.id] = step
    found: dict[int, dict[int, tuple[int, float]]] = {}
    every = list(wanted)
    for first in range(0, len(every), _AT_ONCE):
        ids = every[first : first + _AT_ONCE]
        store.ask(partial(_read_at, name=name, ids=ids, wanted=wanted, found=found))
    for run in lacking:
        values = [value for _, value in found.get(run.id, {}).values()]
        mean = sum(values) / len(values) if values else None
        run.reached[at] = mean if mean is not None and is_finite(mean) else None


def _read_at(
    db: sqlite3.Connection,
    name: str,
    ids: Sequence[int],
    wanted: Mapping[int, int],
    found: dict[int, dict[int, tuple[int, float]]],
) -> None:
    """Add step and value of the metric ``name`` on each rank of some runs, at the step that is wanted of each."""
    marks = f"IN ({', '.join('?' * len(ids))})"
    for run, rank, steps, amounts in db.execute(_POINTS.format(ids=marks), (name, *ids)):
        value = _value_at(unpack(Series(name, steps, amounts, amounts)), wanted[run])
        before = found.setdefault(run, {}).get(rank)
        if value is not None and (before is None or value[0] >= before[0]):
            found[run][rank] = value


def _value_at(points: Columns, step: int) -> tuple[int, float] | None:
    """The point at ``step``, else the newest one before it: metrics need not be logged at the same steps."""
    steps: array[int] = points.steps
    try:
        return step, points.values[steps.index(step)]
    except ValueError:
        before = max((one for one in steps if one < step), default=None)
        return None if before is None else (before, points.values[steps.index(before)])
