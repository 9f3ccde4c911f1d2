"""The words that a person gives a run (name, note, tags), and the name of a run that nobody has named.

Plain functions of text; they raise :class:`BadRequest` for what cannot be such a name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Final

from .errors import BadRequest

WIDTH: Final = 60
"""Characters of a name."""
NOTE: Final = 10_000
TAG: Final = 40
TAGS: Final = 20
_LOOKED: Final = 20_000  # characters of a cell in which a name is looked for

_LINE: Final = re.compile(r"import\b|from\s+\S+\s+import\b|[#%!?@]|if\s+__name__\b|(global|nonlocal)\b|pass\b")
"""The beginning of a line that says nothing about its cell."""
_PLAIN: Final = re.compile(r"[\w.,\s]+(:[^=]+)?=[^=(]*$")
"""An assignment without a call."""
_OPENING: Final = re.compile(r"(async\s+)?(def|class|try|else|finally)\b")
"""A line whose block says more than itself."""
_SETS_UP: Final = re.compile(r"environ\b|getenv\(|\b(init\w*|get_rank|get_world_size|\w*seed\w*|set_device)\(")
"""A line with which many cells begin alike."""
_TRAINS: Final = re.compile(r"(?<![.\w])train\w*\(|\btrainer\.\w+\(|\bfit\(", re.IGNORECASE)
_QUOTES: Final = re.compile(r"[rRbBuUfF]{0,2}(\"\"\"|''')")


def telling_line(source: str) -> str:
    """The first line of a cell that tells it from others, cut to :data:`WIDTH` characters.

    That is a line that trains, else one that calls something other than what many cells begin with (the environment,
    process groups, seeds), else any other; never an import, a comment, a magic, a docstring or ``if __name__``. Empty
    for a cell that has nothing else.
    """
    return _telling_line(source[:_LOOKED])


@functools.lru_cache(maxsize=1024)  # the cells of a sweep are one
def _telling_line(source: str) -> str:
    call = other = first = ""
    for line in _code(source):
        first = first or line
        if call:
            # Only a line that trains comes before it, and most lines do not.
            if _TRAINS.search(line) and _calls(line):
                return cut_name(line)
            continue
        if _calls(line):
            if _TRAINS.search(line):
                return cut_name(line)
            call = line
        elif not other and not _OPENING.match(line):
            other = line
    return cut_name(call or other or first)


def _calls(line: str) -> bool:
    """Whether a line calls something other than what many cells begin with."""
    return "(" in line and not (_PLAIN.match(line) or _OPENING.match(line) or _SETS_UP.search(line))


def name_from_place(heading: str, cell: int | None) -> str:
    """The name of a run by where its cell stands, such as ``Shapes CNN [4]``; empty without a heading."""
    place = "" if cell is None else f" [{cell}]"
    return f"{cut_name(heading, WIDTH - len(place))}{place}" if heading else ""


def cut_name(words: str, width: int = WIDTH) -> str:
    """The words as the name of a run: cut to ``width`` characters."""
    return words if len(words) <= width else words[: width - 1].rstrip() + "…"


def _code(source: str) -> Iterator[str]:
    """The stripped lines that are neither imports, comments, magics nor docstrings."""
    until = ""
    for line in map(str.strip, source.splitlines()):
        if until:
            if until in line:
                until = ""
            continue
        if (quotes := _QUOTES.match(line)) is not None:
            until = "" if quotes[1] in line[quotes.end() :] else quotes[1]
        elif _LINE.match(line):
            # The names of an import may fill several lines.
            until = ")" if line.startswith("from") and "(" in line and ")" not in line else ""
        elif line.strip("()[]{},:;\"' ") and not re.fullmatch(r"[\"'].*[\"']", line):
            yield line


def check_run_name(name: str) -> str:
    """``name``, stripped. Raises :class:`BadRequest`."""
    name = _text(name, "The name of a run").strip()
    if len(name) > WIDTH or not name.isprintable():
        raise BadRequest(f"The name of a run must be one line of at most {WIDTH} characters, not {name[:80]!r}.")
    return name


def check_note(note: str) -> str:
    """``note``, without space around it. Raises :class:`BadRequest`."""
    note = _text(note, "A note").strip()
    if len(note) > NOTE:
        raise BadRequest(f"A note may have {NOTE} characters, and this one has {len(note)}.")
    return note


def check_tags(tags: Iterable[str]) -> list[str]:
    """``tags``, stripped and each once. Raises :class:`BadRequest`."""
    if isinstance(tags, str):
        raise BadRequest(f"Tags must be a list of words, such as [{tags!r}].")
    found = list(dict.fromkeys(_text(tag, "A tag").strip() for tag in tags))
    for tag in found:
        if not 0 < len(tag) <= TAG or not tag.isprintable() or "," in tag:
            raise BadRequest(f"A tag must be 1 to {TAG} characters without a comma, not {tag[:80]!r}.")
    if len(found) > TAGS:
        raise BadRequest(f"A run may have {TAGS} tags, not {len(found)}.")
    return found


def _text(value: object, label: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{label} must be text, not {value!r}.")
    return value.encode("utf-8", "replace").decode()
