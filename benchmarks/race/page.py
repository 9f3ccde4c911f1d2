"""The race as one HTML page without anything from outside: a plot for each row, light or dark as the reader has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .result import Entry, Race, Row
from .tools import LIMITS, TOOLS, US

WIDE, HIGH, LEFT, RIGHT = 760, 22, 200, 190
"""Pixels of a plot: its width, one bar with its gap, what names take and what figures take."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --dim: #68707a; --paper: #fff; --us: #0b6bcb; --peer: #a8b3bf;
  --limit: #d9c79a; --line: #1c1e21; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --dim: #98a1ab; --paper: #16181b; --us: #5aa9f5;
  --peer: #5b6570; --limit: #7d6f49; --line: #e6e8ea; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 .5rem; } h3 { font-size: 1rem; margin: 1.6rem 0 .2rem; }
svg { max-width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .dim, p.dim, details { fill: var(--dim); color: var(--dim); font-size: .85rem; } p { margin: .2rem 0; }
.us { fill: var(--us); } .peer { fill: var(--peer); } .limit { fill: var(--limit); }
line { stroke: var(--line); stroke-width: 1.2; } table { border-collapse: collapse; }
td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; font-weight: normal; }
th { color: var(--dim); } a { color: var(--us); }
"""


def page(race: Race) -> str:
    """The whole page."""
    tools = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(race.versions.get(name, '') or 'not installed')}</td>"
        f'<td><a href="{escape(tool.docs)}">{escape(tool.how)}</a></td></tr>'
        for name, tool in TOOLS.items()
    )
    machine = race.machine
    facts = f"{machine['cores']} cores, {machine['memory, GiB']} GiB, Python {machine['python']}, {machine['system']}"
    links = "".join(
        f'<li><a href="#{escape(name)}">{escape(name)}</a>: {_score(rows)}' for name, rows in race.sections.items()
    )
    sections = "".join(
        f'<h2 id="{escape(name)}">{escape(name)}</h2>'
        + (f"<p class=dim>It took {race.seconds[name]:.0f} s.</p>" if name in race.seconds else "")
        + "".join(_row(row) for row in rows)
        for name, rows in race.sections.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>The race</title><style>{STYLE}</style>"
        f"<h1>The race</h1><p>{escape(facts)}</p><p>{US} is first in {_score(race.rows)}. Bars are medians, "
        "the thin lines go from the 5th to the 95th percentile. Figures on the right are medians and their ratio to "
        f"{US}, or to torchrun where the row says so.</p>"
        f"<table><tr><th>tool<th>version<th>how it is run</tr>{tools}</table><ul>{links}</ul>{sections}</html>\n"
    )


def _score(rows: Sequence[Row]) -> str:
    """In how many of the rows that have a first one it is us."""
    firsts = [row.first for row in rows if row.first]
    return f"{firsts.count(US)} of {len(firsts)} rows"


def figure(value: float, unit: str) -> str:
    """A value as a person reads it: three digits, seconds below one as milliseconds."""
    if unit == "s" and value < 1:
        value, unit = value * 1000, "ms"
    if value == round(value) and not unit:
        return f"{value:.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(digits, 3)}f}{'' if unit == '%' else ' '}{unit}".strip()


def _row(row: Row) -> str:
    shown = [name for name in row.entries if row.entries[name].values and not row.entries[name].never]
    shown.sort(key=lambda name: row.entries[name].median or 0.0, reverse=row.more_is_better)
    highest = max((spread[1] for name in shown if (spread := row.entries[name].spread)), default=0.0)
    scale = (WIDE - LEFT - RIGHT) / highest if highest > 0 else 0.0
    bars = "".join(_bar(row, name, index, scale) for index, name in enumerate(shown))
    plot = f'<svg viewBox="0 0 {WIDE} {HIGH * len(shown)}" width="{WIDE}" role="img">{bars}</svg>' if shown else ""
    never = [f"<b>{escape(name)}</b>: never; {escape(e.never)}" for name, e in row.entries.items() if e.never]
    missing = [f"<b>{escape(name)}</b>: {escape(e.missing)}" for name, e in row.entries.items() if e.missing]
    lines = [*never]
    if row.why():
        lines.append(f"Why {US} is not first: {escape(row.why())}")
    if row.note:
        lines.append(escape(row.note))
    told = "".join(f"<p class=dim>{line}</p>" for line in lines)
    left_out = f"<details><summary>{len(missing)} without a value</summary>{'<br>'.join(missing)}</details>"
    first = f" · first: {escape(row.first)}" if row.first else ""
    return f"<h3>{escape(row.title)}{first}</h3>{plot}{told}{left_out if missing else ''}"


def _bar(row: Row, name: str, index: int, scale: float) -> str:
    entry = row.entries[name]
    assert entry.median is not None
    assert entry.spread is not None
    kind = "us" if name.startswith(US) else "limit" if name in LIMITS else "peer"
    top, middle = index * HIGH + 3, index * HIGH + HIGH / 2
    wide = max(1.0, entry.median * scale)
    low, high = (LEFT + max(0.0, edge) * scale for edge in entry.spread)
    ratio = row.ratio(name)
    told = figure(entry.median, row.unit) + (f"  ({ratio:.2f})" if ratio is not None and name != US else "")
    return (
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{wide:.1f}" height="{HIGH - 6}" rx="2" />'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" />'
        f'<text x="{WIDE - RIGHT + 8}" y="{middle + 4}">{escape(told)}</text>'
        f"<title>{escape(_values(entry, row.unit))}</title>"
    )


def _values(entry: Entry, unit: str) -> str:
    return f"{len(entry.values)} values: {', '.join(figure(value, unit) for value in entry.values[:40])}"
