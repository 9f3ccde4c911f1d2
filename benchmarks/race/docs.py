"""Writes the last race into the documentation: the table of docs/comparison.md between its two markers."""

from __future__ import annotations

import math
from pathlib import Path

from .page import figure
from .result import Entry, Race, Row
from .tools import LIMITS, TOOLS, US

COMPARISON = Path("docs/comparison.md")
BEGIN, END = "<!-- race: made by `python -m benchmarks.race --docs` -->", "<!-- race: end -->"
COLUMNS = [US, "ipyparallel", "jupyter-distributed", "nbdistributed"]
"""Tools with a column of their own; the others stand in the last one."""


def write(race: Race, path: Path = COMPARISON) -> None:
    """Replace what stands between the markers. Raises :class:`ValueError` where they are missing."""
    text = path.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n\n{table(race)}\n{END}{after}")


def table(race: Race) -> str:
    """The machine, the versions, one table, and why we are not first where we are not."""
    known = ", ".join(f"{name} {race.versions[name]}" for name in TOOLS if race.versions.get(name) and name != US)
    facts = f"{race.machine['cores']} cores, Python {race.machine['python']}; {known}"
    lines = [
        "| | " + " | ".join([*COLUMNS, "others"]) + " |",
        "| --- " * (len(COLUMNS) + 2) + "|",
        *(_line(row) for row in race.rows),
    ]
    reasons: dict[str, list[str]] = {}
    for row in race.rows:
        if row.why():
            reasons.setdefault(row.why(), []).append(row.title)
    told = [f"* {why} Rows: {'; '.join(titles)}." for why, titles in reasons.items()]
    notes = [_wrapped(line) for line in told]
    return "\n".join(
        [_wrapped(f"Medians on {facts}."), "", *lines, "", "Where another is first, and why:", "", *notes]
        if told
        else [_wrapped(f"Medians on {facts}."), "", *lines]
    )


def _line(row: Row) -> str:
    first = row.first
    cells = [_cell(row, name, first) for name in COLUMNS]
    others = [
        f"{name} {_cell(row, name, first)}"
        for name, entry in row.entries.items()
        if name not in COLUMNS and (entry.values or entry.never)
    ]
    return f"| {row.title} | {' | '.join(cells)} | {'; '.join(others)} |"


def _cell(row: Row, name: str, first: str) -> str:
    entry = row.entries.get(name, Entry())
    if entry.never:
        return "never"
    if entry.median is None or math.isinf(entry.median):
        return "-"
    shown = figure(entry.median, row.unit)
    return f"**{shown}**" if name == first and name not in LIMITS else shown


def _wrapped(line: str) -> str:
    """Prose is at most 120 characters wide."""
    lines = [""]
    for word in line.split():
        if len(lines[-1]) + len(word) + 1 > 118:
            lines.append("  " if line.startswith("*") else "")
        lines[-1] += word if not lines[-1].strip() else f" {word}"
    return "\n".join(lines)
