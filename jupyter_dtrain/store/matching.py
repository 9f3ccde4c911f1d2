"""Whether runs fit the conditions of a filter.

Under failure: :class:`~.filters.BadFilter` for a value that a condition cannot have, with its place.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any, Final

from jupyter_dtrain.core.events import OUTCOMES

from . import filters
from .facts import RunFacts
from .file import StoreFile
from .filters import ORDERED, BadFilter, Condition
from .run_columns import FIELDS, KnownNames, as_text, cut_title, is_number, metric_column
from .stored_run import KEPT

_MOST_REGEX: Final = 2.0  # seconds that the regular expressions of one filter may take
_TEXT: Final = """(worlds.name || '/' || runs.number || char(10) || runs.name || char(10) || runs.note || char(10)
    || runs.tags || char(10) || runs.source || char(10) || runs.heading || char(10) || runs.batch || char(10)
    || runs.config)"""

_TEXTS: Final = ("run", "name", "world", "outcome", "group", "note", "notebook", "heading")
_NUMBERS: Final = ("id", "number", "ranks")
_OTHERS: Final = ("tag", "tags", "started", "elapsed", "age", "kept", "text")
_TRUE, _FALSE = ("yes", "true", "1", "on"), ("no", "false", "0", "off")


_Test = Callable[[RunFacts], bool]


def tests_of(store: StoreFile, conditions: Iterable[Condition], names: KnownNames) -> tuple[list[_Test], str]:
    """A test for each condition, and a sentence on a name that no listed run has. Raises :class:`BadFilter`."""
    found: list[_Test] = []
    hint = ""
    watch = _Patience()
    for one in conditions:
        test = _text_test(store, one) if not one.name else _field_test(one, watch)
        if test is None:
            test = _value_test(one, names, watch)
            known = {"config": one.name in names.configs, "metric": names.aggregate(one.name)[0] in names.metrics}
            if not known.get(one.origin, names.knows(one.name)):
                kind = {"config": "configuration value", "metric": "metric"}.get(
                    one.origin, "configuration value or metric"
                )
                hint = hint or f"No listed run has a {kind} named {cut_title(one.name)!r}.{names.suggest(one.name)}"
        found.append(_negated(test) if one.negated else test)
    return found, hint


def _negated(test: _Test) -> _Test:
    return lambda run: not test(run)


class _Patience:
    """How long the regular expressions of a filter have taken."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._known: dict[tuple[str, str], bool] = {}

    def find(self, pattern: re.Pattern[str], text: str) -> bool:
        """Whether the pattern is in the text. Raises :class:`BadFilter` where all took too long together."""
        key = (pattern.pattern, text)
        if key not in self._known:
            begun = time.perf_counter()
            self._known[key] = pattern.search(filters.looked(text)) is not None
            self._spent += time.perf_counter() - begun
            if self._spent > _MOST_REGEX:
                words = f"The regular expression {cut_title(pattern.pattern)!r} takes too long: make it simpler."
                raise BadFilter(words)
        return self._known[key]


def _text_test(store: StoreFile, one: Condition) -> _Test:
    word = "%" + "".join(f"!{char}" if char in "!%_" else char for char in one.values[0]) + "%"
    query = f"SELECT runs.id {KEPT} AND {_TEXT} LIKE ? ESCAPE '!'"
    ids = {run for (run,) in store.ask(lambda db: db.execute(query, (word,)).fetchall()) or []}
    return lambda run: run.id in ids


def _field_test(one: Condition, watch: _Patience) -> _Test | None:
    """The test of a field; None where the name is no field's."""
    if one.origin or one.name not in (*_TEXTS, *_NUMBERS, *_OTHERS):
        return None
    if not one.operator:
        read = (
            FIELDS["tags" if one.name == "tag" else one.name].read if one.name in FIELDS or one.name == "tag" else None
        )
        return lambda run: read is None or read(run) is not None
    if one.name in ("tag", "tags"):
        return _tag_test(one, watch)
    if one.name == "kept":
        wanted = _flag(one)
        return lambda run: run.kept is wanted
    if one.name in ("started", "elapsed", "age"):
        return _time_test(one)
    if one.name == "text":
        raise _wrong(one, 'text is looked for by its words alone: write "some words"')
    values = [_outcome(one, value) for value in one.values] if one.name == "outcome" else list(one.values)
    read = FIELDS[one.name].read
    if one.name in _NUMBERS or one.operator in ORDERED:
        if one.name not in _NUMBERS:
            raise _wrong(one, f"{one.name} is text: compare it with : or ~")
        return _number_test(one, read)
    same = _same_text(one, values, watch)
    if one.name == "notebook":
        return lambda run: same(run.notebook) or same(PurePath(run.notebook).name)
    return lambda run: same(read(run) or "")


def _same_text(one: Condition, values: Sequence[str], watch: _Patience) -> Callable[[str], bool]:
    if one.operator in ("~", "!~"):
        pattern, inverse = filters.compiled(values[0]), one.operator == "!~"
        return lambda text: watch.find(pattern, text) is not inverse
    inverse = one.operator == "!="
    if one.quoted:
        return lambda text: any(text == value for value in values) is not inverse
    return lambda text: any(filters.fits(value, text) for value in values) is not inverse


def _tag_test(one: Condition, watch: _Patience) -> _Test:
    if one.operator in ORDERED:
        raise _wrong(one, "a tag is text: write tag:best")
    inverse = one.operator in ("!=", "!~")
    plain = one._replace(operator={"!=": ":", "!~": "~"}.get(one.operator, one.operator))
    same = _same_text(plain, one.values, watch)
    return lambda run: any(same(tag) for tag in run.tags) is not inverse


def _outcome(one: Condition, value: str) -> str:
    wanted = {"died": "lost"}.get(value.casefold(), value.casefold())
    if wanted not in OUTCOMES and "*" not in wanted and one.operator not in ("~", "!~"):
        *words, last = OUTCOMES
        raise _wrong(one, f"{cut_title(value)!r} is no outcome of a run: choose {', '.join(words)} or {last}")
    return wanted


def _flag(one: Condition) -> bool:
    word = one.values[0].casefold()
    if word not in (*_TRUE, *_FALSE) or one.operator not in (":", "=", "!="):
        raise _wrong(one, f"{one.name} is yes or no: write {one.name}:yes")
    return (word in _TRUE) is (one.operator != "!=")


def _time_test(one: Condition) -> _Test:
    text = one.values[0]
    if one.name == "started":
        moment = filters.moment_in(text)
        if moment is None:
            raise _wrong(one, f"{cut_title(text)!r} is no date: write started>2026-11-30, or age<7d")
        day = 86400.0 if len(text) <= len("2026-11-30") else 60.0
        if one.operator in (":", "="):
            return lambda run: moment <= run.started < moment + day
        if one.operator in ORDERED:
            compare = _COMPARE[one.operator]
            return lambda run: compare(run.started, moment)
        raise _wrong(one, "a date is compared with <, > or :")
    span = filters.seconds_in(text)
    if span is None or one.operator not in ORDERED:
        raise _wrong(one, f"{one.name} is a duration: write {one.name}>90s, 5m, 2h or 7d")
    compare = _COMPARE[one.operator]
    if one.name == "elapsed":
        return lambda run: compare(run.elapsed, span)
    now = time.time()
    return lambda run: compare(now - run.started, span)


def _number_test(one: Condition, read: Callable[[RunFacts], Any]) -> _Test:
    wanted = [_needed_number(one, value) for value in one.values]
    if one.operator in ORDERED:
        compare = _COMPARE[one.operator]
        return lambda run: compare(read(run), wanted[0])
    if one.operator in ("~", "!~"):
        raise _wrong(one, f"{one.name} is a number")
    inverse = one.operator == "!="
    return lambda run: (read(run) in wanted) is not inverse


def _needed_number(one: Condition, value: str) -> float:
    found = filters.number_in(value)
    if found is None:
        raise _wrong(one, f"{cut_title(value)!r} is no number")
    return found


def _value_test(one: Condition, names: KnownNames, watch: _Patience) -> _Test:
    """The test of a configuration value or a metric."""
    metric, which = names.aggregate(one.name)
    column = metric_column(metric, which)
    ordered = one.operator in ORDERED
    limit = _needed_number(one, one.values[0]) if ordered else 0.0
    compare = _COMPARE.get(one.operator)
    inverse = one.operator in ("!=", "!~")
    pattern = filters.compiled(one.values[0]) if one.operator in ("~", "!~") else None

    def test(run: RunFacts) -> bool:
        has = one.name in run.config and one.origin != "metric"
        value = run.config[one.name] if has else None
        if (not has or (ordered and not is_number(value))) and one.origin != "config":
            value = column.read(run)
            has = value is not None
        if not has or not one.operator:
            return has
        if compare is not None:
            return is_number(value) and compare(value, limit)
        if pattern is not None:
            return watch.find(pattern, as_text(value)) is not inverse
        return any(_equal(value, wanted, exact=one.quoted) for wanted in one.values) is not inverse

    return test


def _equal(value: Any, wanted: str, *, exact: bool) -> bool:
    if isinstance(value, bool):
        return wanted.casefold() in (_TRUE if value else _FALSE)
    if isinstance(value, (int, float)):
        number = filters.number_in(wanted)
        return number is not None and (value == number or abs(value - number) <= 1e-9 * abs(number))
    if value is None:
        return wanted.casefold() in ("none", "null")
    text = as_text(value)
    return text == wanted if exact else filters.fits(wanted, text)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
}


def _wrong(one: Condition, words: str) -> BadFilter:
    return BadFilter(f"At character {one.position + 1} of the filter: {words}.", "where", one.position, one.length)
