"""What a person writes to find runs: ``lr>1e-3 world:cnn tag:best loss<0.5 name~^cnn "two words" -word``.

All conditions of a filter must hold. :func:`parse` reads them and knows nothing of runs; :mod:`.selection` asks runs.
Under failure: a filter that cannot be read raises :class:`BadFilter`, which says what is wrong at which character.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from typing import Final, NamedTuple

from jupyter_dtrain.core.errors import BadRequest

OPERATORS: Final = (">=", "<=", "!=", "!~", ">", "<", "=", ":", "~")
"""Longer ones first: each is read as a whole."""
ORDERED: Final = (">", ">=", "<", "<=")
LONGEST: Final = 4000
"""Characters of a filter."""
MOST: Final = 100
"""Conditions of a filter."""
FORCED: Final = ("config", "metric")
"""Prefixes that say where a name is looked for, such as ``config:loss=mse``."""

_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"""[^\s"'<>=!~:]+""")
_WORD: Final = re.compile(r"\S+")
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\Z")
_DATES: Final = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S")
_PATTERN: Final = 200  # characters of a regular expression
_ENDLESS: Final = 2  # repetitions in it: each multiplies the time that it may take
_LOOKED: Final = 200  # characters of a value in which it is looked for


class BadFilter(BadRequest):
    """A filter, a column or an order that cannot be read.

    ``position`` is the number of characters before what is wrong, and ``length`` how many it has.
    """

    def __init__(self, words: str, option: str = "where", position: int = 0, length: int = 0) -> None:
        super().__init__(words, option=option)
        self.position, self.length = position, length


class Condition(NamedTuple):
    """One condition of a filter."""

    name: str
    """What is compared; empty for text that a run must contain."""
    operator: str
    """One of :data:`OPERATORS`, or empty where any value will do."""
    values: tuple[str, ...]
    """One of them must fit. Those with ``quoted`` are taken as they are, without wildcards."""
    quoted: bool
    negated: bool
    origin: str
    """``config``, ``metric``, or empty: wherever the name is found."""
    position: int
    length: int


def quote(text: str) -> str:
    """``text`` as one word of a filter."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def together(where: str = "", *, search: str | None = None, **fields: str | None) -> str:
    """A filter that also asks for words, and for fields such as ``world`` that have a value; None asks for nothing."""
    found = [where, *(f"{name}={quote(value)}" for name, value in fields.items() if value is not None)]
    return " ".join([one for one in found if one.strip()] + [quote(word) for word in (search or "").split()])


def parse(text: str) -> list[Condition]:
    """The conditions of a filter. Raises :class:`BadFilter`."""
    if len(text) > LONGEST:
        raise BadFilter(f"A filter may have {LONGEST:,} characters, and this one has {len(text):,}.", length=len(text))
    reader, found = _Reader(text), []
    while reader.more():
        found.append(reader.condition())
        if len(found) > MOST:
            raise BadFilter(f"A filter may have {MOST} conditions.", position=reader.at)
    return found


class _Reader:
    """A filter, and how far it has been read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def more(self) -> bool:
        """Whether there is anything after the space here."""
        self._take(_SPACE)
        return self.at < len(self._text)

    def condition(self) -> Condition:
        """The next condition."""
        first = self.at
        negated = self._text[first] == "-" and self.at + 1 < len(self._text) and not self._text[first + 1].isspace()
        self.at += negated
        begin = self.at
        quoted = self._next() in ('"', "'")
        name = self._quoted() if quoted else self._take(_NAME)
        operator, origin = self._operator(), ""
        if not name and not quoted:
            words = f"A name is missing before {operator!r}" if operator else f"{self._next()!r} begins no condition"
            raise self._wrong(f"{words}: write for example lr>0.01.", begin, max(1, self.at - begin))
        if name in FORCED and operator == ":" and not quoted:
            origin, within = name, self.at
            name = self._quoted() if self._next() in ('"', "'") else self._take(_NAME)
            if not name:
                raise self._wrong(f"A name is missing after {origin!r}: write for example {origin}:lr>0.01.", within)
            operator = self._operator()
        elif not operator:
            if not quoted:
                # A word ends at a space alone: `it's` is one.
                self.at = begin
                name = self._take(_WORD)
            return Condition("", ":", (name,), True, negated, "", first, self.at - first)
        if not operator:
            return Condition(name, "", (), False, negated, origin, first, self.at - first)
        values, exact = self._values(name, operator)
        if values == ("*",) and operator == ":" and not exact:
            operator, values = "", ()
        found = Condition(name, operator, values, exact, negated, origin, first, self.at - first)
        if operator in ("~", "!~"):
            self._check_pattern(values[0])
        return found

    def _values(self, name: str, operator: str) -> tuple[tuple[str, ...], bool]:
        begin = self.at
        if self._next() in ('"', "'"):
            return (self._quoted(),), True
        word = self._take(_WORD)
        if not word:
            raise self._wrong(f'A value is missing after {name}{operator} ("" stands for an empty one).', begin)
        if operator in ("~", "!~", *ORDERED):
            return (word,), False
        values = tuple(word.split("|"))
        if "" in values:
            raise self._wrong("A value is missing beside '|': a|b is either of two.", begin, len(word))
        return values, False

    def _operator(self) -> str:
        found = next((one for one in OPERATORS if self._text.startswith(one, self.at)), "")
        self.at += len(found)
        return found

    def _quoted(self) -> str:
        begin, mark, found = self.at, self._text[self.at], ""
        self.at += 1
        while self._next() != mark:
            if self._next() == "\\" and self.at + 1 < len(self._text):
                self.at += 1
            if self.at >= len(self._text):
                raise self._wrong(f"The quotation mark {mark} has no second one that ends the text.", begin)
            found += self._text[self.at]
            self.at += 1
        self.at += 1
        return found

    def _check_pattern(self, pattern: str) -> None:
        begin = self.at - len(pattern)
        try:
            compiled(pattern)
        except BadRequest as error:
            raise self._wrong(str(error), max(0, begin), len(pattern)) from None

    def _next(self) -> str:
        return self._text[self.at : self.at + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self.at)
        found = match[0] if match else ""
        self.at += len(found)
        return found

    def _wrong(self, words: str, position: int, length: int = 1) -> BadFilter:
        return BadFilter(f"At character {position + 1} of the filter: {words}", "where", position, length)


def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression that is found in bounded time in :func:`looked` text. Raises :class:`BadRequest`.

    Python's own may take for ever where one repetition stands in another.
    """
    if len(pattern) > _PATTERN:
        raise BadRequest(f"a regular expression may have {_PATTERN} characters, and this one has {len(pattern)}.")
    plain = re.sub(r"\\[^0-9]", "x", pattern)
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", plain)
    if re.search(r"\\[0-9]|\(\?(?!:)", plain):
        raise BadRequest("a filter's regular expressions know no back references, look-around or flags.")
    if re.search(r"\)\s*[*+{]", plain):
        raise BadRequest("a filter's regular expressions repeat single characters and sets only, not groups.")
    if len(re.findall(r"[*+]|\{\d*,?\d*\}", plain)) > _ENDLESS:
        raise BadRequest(f"a regular expression of a filter may have {_ENDLESS} repetitions.")
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadRequest(f"{pattern!r} is no regular expression: {error}.") from None


def looked(text: str) -> str:
    """The part of ``text`` in which a regular expression is looked for."""
    return text[:_LOOKED]


def fits(wanted: str, text: str) -> bool:
    """Whether ``text`` is ``wanted``, without regard to case; ``*`` in it is any text. Time grows with both lengths."""
    first, *parts = wanted.casefold().split("*")
    text = text.casefold()
    if not parts:
        return text == first
    last = parts.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in parts:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def number_in(text: str) -> float | None:
    """The number that ``text`` is; None for other text, and for NaN."""
    with contextlib.suppress(ValueError):
        found = float(text)
        return None if math.isnan(found) else found
    return None


def seconds_in(text: str) -> float | None:
    """The seconds that a duration such as ``90``, ``5m``, ``1.5h`` or ``7d`` has; None for other text."""
    match = _DURATION.match(text.lower())
    unit = None if match is None else _UNITS.get(match[2])
    return None if match is None or unit is None else float(match[1]) * unit


def moment_in(text: str) -> float | None:
    """Seconds since the epoch of a date, perhaps with a time of day, by this machine's zone; None for other text."""
    for form in _DATES:
        with contextlib.suppress(ValueError, OverflowError):
            return time.mktime(time.strptime(text, form))
    return None
