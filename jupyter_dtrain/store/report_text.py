"""A report as Markdown and as CSV.

Markdown shows all that comes from runs as the text that it is: no markup in it, and no HTML, has an effect. In CSV no
text is a formula.
"""

from __future__ import annotations

import csv
import io
import re
import time
from typing import Any, Final

from jupyter_dtrain.view.labels import ending_of, number, took
from jupyter_dtrain.view.stored import moment

from .report_data import GENERATOR, RunsReport

COLUMNS: Final = ("run", "name", "outcome", "started", "seconds", "ranks", "group", "tags", "note")
"""The first columns of the table."""

_TABLE: Final = 12  # runs that a table of the text has side by side
_MARKS: Final = re.compile(r"([\\`*_\[\]|~$]|^\s*[#+-])")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def table_text(report: RunsReport) -> str:
    """A row for each run: what it is, its configuration, and the figures of each metric."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    settings, metrics = report.settings, report.metrics
    figures = ("last", "lowest", "highest")
    headers = [*COLUMNS, *(f"config:{name}" for name in settings)]
    headers += [f"{what} {name}" for name in metrics for what in figures]
    writer.writerow([harmless(header) for header in headers])
    for one in report.runs:
        run = one.run
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.started))
        row: list[Any] = [run.label, one.name, ending_of(run), started, round(run.elapsed, 3), len(run.ranks)]
        row += [run.group, ", ".join(run.tags), run.note]
        row += [one.config.get(name) if is_number(one.config.get(name)) else one.value(name) for name in settings]
        for name in metrics:
            row += ["" if value is None else value for value in one.figures.get(name, (None,) * 3)]
        writer.writerow([harmless(value) for value in row])
    return text.getvalue()


def markdown(report: RunsReport) -> str:
    """The report as a text: tables, code and small curves of block characters."""
    parts = [f"<!-- {GENERATOR} -->", f"# {marked(report.title)}"]
    if report.notes:
        parts.append(report.notes.replace("<", "&lt;"))
    parts.append(f"{len(report.runs)} {'run' if len(report.runs) == 1 else 'runs'}, written {moment(report.made)}.")
    headers = ["run", "name", "outcome", "took", "ranks", "started", "tags"]
    rows = [
        [
            *(one.run.label, one.name, ending_of(one.run), took(one.run.elapsed), str(len(one.run.ranks))),
            *(moment(one.run.started), ", ".join(one.run.tags)),
        ]
        for one in report.runs
    ]
    parts += ["## Runs", _table(headers, rows)]
    if names := [name for name in report.metrics if name != "epoch" and report.has_figures(name)]:
        headers = ["metric", "run", "course", "last", "lowest", "highest"]
        rows = [
            [name, one.title, one.spark(name), *map(number, one.figures.get(name, (None,) * 3))]
            for name in names
            for one in report.runs
            if name in one.metrics
        ]
        parts += ["## Metrics", _table(headers, rows)]
    for first in range(0, len(report.runs), _TABLE):
        some = report.runs[first : first + _TABLE]
        if settings := [name for name in report.settings if any(name in one.config for one in some)]:
            headers = ["value", *(one.title for one in some)]
            rows = [[name, *(one.value(name) for one in some)] for name in settings]
            parts += ["## Configuration", _table(headers, rows)]
    for one in report.runs:
        parts.append(f"## {marked(one.title)}")
        parts.append(marked(one.line))
        parts += [marked(line) for line in one.failures]
        if one.run.note:
            parts.append(marked(one.run.note))
        if source := one.source:
            parts.append(_code(source))
    return "\n\n".join(parts) + "\n"


def is_number(value: object) -> bool:
    """Whether a table keeps it as a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def harmless(value: object) -> object:
    """A cell of a CSV file: a program for tables takes text that begins with certain signs for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def marked(text: str) -> str:
    """Text that Markdown shows as it is."""
    text = "".join(one if one.isprintable() else " " for one in text)
    return _MARKS.sub(r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        f"| {' | '.join(words if place == 1 else marked(words) for words in line)} |"
        for place, line in enumerate(lines)
    )


def _code(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{text}\n{fence}"
