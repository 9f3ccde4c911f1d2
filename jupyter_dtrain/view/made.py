"""What made runs, and what differs between them, as text and as HTML: configuration, code, versions, commits.

Plain functions of plain data, bounded whatever the data holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from .labels import number
from .tables import table

_VALUES: Final = 100  # rows of a table
_WIDE: Final = 60  # characters of a value
_DIFF: Final = 60  # lines of a difference between two cells


class RunDifference(msgspec.Struct, frozen=True):
    """Something in which runs differ."""

    name: str
    values: list[Any]
    """Of each run, in their order; null where it has none."""


class CodeDifference(msgspec.Struct, frozen=True):
    """How the code of a run differs from that of the first run."""

    run: int
    title: str
    """`cell`, or `uncommitted changes`."""
    diff: str
    """Lines as `diff -u` writes them; bounded."""


class Differences(msgspec.Struct, frozen=True):
    """What differs between runs, in their order, and how much is the same."""

    config: list[RunDifference]
    same: int
    """Values of the configuration that all runs have in common."""
    versions: list[RunDifference]
    """Of Python, packages, devices and hosts."""
    commits: list[RunDifference]
    """Commit, branch, and whether files differed from it."""
    code: list[CodeDifference]
    metrics: list[RunDifference]
    """Last, lowest and highest of each metric, such as ``lowest loss``."""

    runs: list[str]
    """Their labels."""

    def __repr__(self) -> str:
        shown = differing(self.runs, self)
        return "These runs have the same configuration, code and versions." if shown is None else shown["text/plain"]

    def _repr_html_(self) -> str | None:
        shown = differing(self.runs, self)
        return None if shown is None else shown["text/html"]


def short(value: object) -> str:
    """A value of a configuration on one line, cut; a dash for none."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "True", False: "False"}[value]
    if isinstance(value, float):
        return number(value)
    words = " ".join(f"{value}"[: 4 * _WIDE].split())
    words = "".join(char if char.isprintable() else "�" for char in words)
    return words if len(words) <= _WIDE else words[: _WIDE - 1] + "…"


def made_by(config: Mapping[str, Any], origins: Mapping[str, str], lines: Sequence[str]) -> dict[str, str] | None:
    """What made a run: lines of words, and a table of its configuration; None where nothing is known."""
    if not config and not lines:
        return None
    text, html = list(lines), [f"<p>{escape(line)}</p>" for line in lines]
    if config:
        shown = list(config.items())[:_VALUES]
        more = f", {len(config) - _VALUES} more: .config has them" if len(config) > _VALUES else ""
        rows = [
            [short(name), "None" if value is None else short(value), origins.get(name, "")] for name, value in shown
        ]
        found = table(f"Configuration{more}", ["name", "value", "from"], rows)
        text.append(found["text/plain"])
        html.append(found["text/html"])
    return {"text/plain": "\n".join(text), "text/html": "".join(html)}


def differing(labels: Sequence[str], found: Differences) -> dict[str, str] | None:
    """What differs between the runs ``labels``: a table, and the lines of code; None where nothing does."""
    parts = (("config", found.config), ("version", found.versions), ("git", found.commits))
    rows = [[kind, short(one.name), *map(short, one.values)] for kind, every in parts for one in every]
    text, html = [], []
    if rows:
        more = f"; {len(rows) - _VALUES} more" if len(rows) > _VALUES else ""
        same = f"; {found.same} values of the configuration are the same" if found.same else ""
        shown = table(f"What differs{more}{same}", ["", "name", *labels], rows[:_VALUES])
        text.append(shown["text/plain"])
        html.append(shown["text/html"])
    for one in found.code:
        lines = one.diff.splitlines()
        cut = [f"… {len(lines) - _DIFF} more lines: .differences has them"] if len(lines) > _DIFF else []
        told = "\n".join([f"Code ({one.title}):", *lines[:_DIFF], *cut])
        text.append(told)
        html.append(f"<pre>{escape(told)}</pre>")
    return {"text/plain": "\n".join(text), "text/html": "".join(html)} if text else None
