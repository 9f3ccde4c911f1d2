"""A profile as tables: by rank, by kind of collective, by operator, and beside the profile before it.

Plain functions of plain data; nothing here fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.traces import Analysis, CollectiveKind, Operator, RankShare
from jupyter_dtrain.core.world import format_ranks, percent, quantity

from .labels import human
from .tables import table

SHOWN: Final = 10
"""Operators, and kinds of collectives, in a table."""
PERFETTO: Final = "https://ui.perfetto.dev"

_UNITS: Final = (("µs", 1.0, 0), ("ms", 1e3, 1), ("s", 1e6, 2))
"""The units of a duration: microseconds in each, and the digits after its point."""

Last = tuple[int, int, Analysis]
"""The run and the step of the profile before, and what it says."""


class ProfileTable(msgspec.Struct, frozen=True):
    """A table of a profile: all cells are text."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


class PanelProfile(msgspec.Struct, frozen=True):
    """Some steps of a loop that runs, on its ranks, for a panel."""

    path: str
    """The trace."""
    tables: list[ProfileTable]
    remarks: list[str]
    """What is missing, and how far the ranks' collectives are matched, as sentences."""
    file: str = ""
    """The place of the trace below a server's root, by which pages can download it; empty where it is not there."""


def profile_for_panel(
    path: Path, run: int, step: int, found: Analysis, notes: Sequence[str], last: Last | None
) -> PanelProfile:
    """A profile for a panel."""
    return PanelProfile(str(path), _tables(run, step, found, last), [*notes, *_matched(found)])


def _tables(run: int, step: int, found: Analysis, last: Last | None) -> list[ProfileTable]:
    ranks = [one.rank for one in found.ranks]
    caption = (
        f"Run {run}, {quantity(found.steps, 'step')} from step {step + 1} on, "
        f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}: {duration(found.step)} a step"
    )
    tables = [_by_rank(caption, found)]
    if found.collectives:
        tables.append(_by_kind(found))
    if found.operators:
        tables.append(_by_operator(found))
    if last is not None:
        tables.append(_compared(found, last))
    return tables


def profile_tables(
    path: Path, run: int, step: int, found: Analysis, notes: Sequence[str], last: Last | None
) -> dict[str, str]:
    """A MIME bundle with all tables as text and as HTML."""
    tables = [table(one.caption, one.columns, one.rows) for one in _tables(run, step, found, last)]
    ends = [*notes, *_matched(found), f"Open {path} on {PERFETTO} (Open trace file)."]
    html = "".join(one["text/html"] for one in tables) + "".join(f"<div>{_linked(line)}</div>" for line in ends)
    plain = "\n\n".join(one["text/plain"] for one in tables) + "\n\n" + "\n".join(ends)
    return {"text/plain": plain, "text/html": html}


def _by_rank(caption: str, found: Analysis) -> ProfileTable:
    hosts = len({one.host for one in found.ranks}) > 1
    columns = ["rank", *(["host"] if hosts else []), "step", "computing", "communicating", "exposed", "hidden"]
    columns += ["comes late by", "comes last"]
    if found.on_device:
        columns += ["host wait", "kernel wait"]
    return ProfileTable(caption, columns, [_rank_row(one, hosts=hosts, device=found.on_device) for one in found.ranks])


def _rank_row(one: RankShare, *, hosts: bool, device: bool) -> list[str]:
    row = [str(one.rank), *([one.host] if hosts else []), duration(one.step)]
    row += [percent(one.computing), percent(one.communicating), percent(one.exposed), percent(one.hidden)]
    row += [duration(one.late), percent(one.last)]
    return row + ([percent(one.host_wait), percent(one.kernel_wait)] if device else [])


def _by_kind(found: Analysis) -> ProfileTable:
    def row(one: CollectiveKind) -> list[str]:
        size = "" if one.size is None else human(one.size)
        rate = "" if one.bandwidth is None else f"{human(round(one.bandwidth))}/s"
        return [one.name, str(one.ranks), _count(one.calls, found.steps), size, duration(one.time), rate]

    headers = ["collective", "ranks", "a step", "size", "time", "bus bandwidth"]
    return ProfileTable(
        "Collectives, timed from the last rank's arrival", headers, list(map(row, found.collectives[:SHOWN]))
    )


def _by_operator(found: Analysis) -> ProfileTable:
    each = max(1, found.steps * len(found.ranks))

    def row(one: Operator) -> list[str]:
        times = [duration(one.own / each), *([duration(one.device / each)] if found.on_device else [])]
        return [one.name, percent(one.share), *times, _count(one.calls, each)]

    headers = ["operator", "share", "own time a step", *(["on the GPU"] if found.on_device else []), "calls a step"]
    where = "the ranks' time on the GPU" if found.on_device else "the ranks' time"
    return ProfileTable(f"Operators, by their share of {where}", headers, list(map(row, found.operators[:SHOWN])))


def _compared(found: Analysis, last: Last) -> ProfileTable:
    """The steps and the operators of two profiles side by side."""
    run, step, before = last
    rows = [["a step", duration(before.step), duration(found.step), _change(before.step, found.step)]]

    def of(analysis: Analysis) -> dict[str, float]:
        each = max(1, analysis.steps * len(analysis.ranks))
        return {one.name: (one.device if analysis.on_device else one.own) / each for one in analysis.operators}

    then, now = of(before), of(found)
    moved = sorted({*then, *now}, key=lambda name: -abs(now.get(name, 0.0) - then.get(name, 0.0)))
    for name in moved[: SHOWN // 2]:
        old, new = then.get(name, 0.0), now.get(name, 0.0)
        rows.append([name, duration(old), duration(new), _change(old, new)])
    caption = f"Beside the last profile (run {run}, from step {step + 1} on), and what changed most"
    return ProfileTable(caption, ["", "then", "now", "change"], rows)


def _matched(found: Analysis) -> list[str]:
    total = found.matched + found.unmatched
    if not total or len(found.ranks) == 1:
        return []
    share = f"{found.matched / total:.0%}"
    apart = "" if math.isnan(found.spread) else f"; the ranks of one end within {duration(found.spread)}"
    return [f"{share} of the ranks' collectives are matched with those of the others{apart}."]


def _linked(line: str) -> str:
    link = f"<a href='{PERFETTO}' target='_blank' rel='noopener'>{PERFETTO}</a>"
    return escape(line).replace(PERFETTO, link)


def _count(number: int, each: int) -> str:
    return f"{number / max(1, each):,.1f}".removesuffix(".0")


def _change(old: float, new: float) -> str:
    if not old or math.isnan(old) or math.isnan(new):
        return "new" if new else ""
    return f"{(new - old) / old:+.0%}"


def duration(microseconds: float) -> str:
    """Microseconds in a unit that leaves few digits; empty where there are none."""
    if math.isnan(microseconds):
        return ""
    unit, length, digits = next((one for one in _UNITS if microseconds < one[1] * 1000), _UNITS[-1])
    return f"{microseconds / length:.{digits}f} {unit}"
