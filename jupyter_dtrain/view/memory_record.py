"""The memory of ranks over a cell, as a notebook and a terminal show it: sentences, tables and a static picture.

A sentence says where memory was highest, and which line of the cell ran then. The picture has the course of each rank,
over what its names hold. Its text and its axes have the page's own colour, so it can be read on a light and a dark one.

Under failure: ranks without a record are named, with what else is known of them. However many ranks there are, the
picture has at most :data:`PANELS` courses, and the first table :data:`RANKS` rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jupyter_dtrain.core.contents import Kind
from jupyter_dtrain.core.events import Frame
from jupyter_dtrain.core.flames import label
from jupyter_dtrain.core.memory import HOST
from jupyter_dtrain.core.memory_record import LITTLE, KindsSeen, MemoryCourse, Place, RecordedMemory
from jupyter_dtrain.core.world import World, count_ranks, format_ranks, quantity

from .labels import human
from .memory import KINDS
from .tables import table

PANELS: Final = 8
RANKS: Final = 64
LINES: Final = 12
"""Rows of the table of lines."""

_COLOURS: Final[dict[Kind, str]] = {
    "parameter": "#0072B2",
    "gradient": "#D55E00",
    "optimizer state": "#8A63C7",
    "buffer": "#00785A",
    "value": "#E69F00",
}
_UNNAMED: Final = "#A6A6A6"
_PEAK: Final = "#D55E00"
_WIDTH: Final = 1000
_HIGH: Final = 200  # one panel, with its title and its axis
_LEFT: Final = 72  # room for the numbers of an axis
_TOP: Final = 24
_BOTTOM: Final = 24
_RIGHT: Final = 16
_POINTS: Final = 1000  # of all panels
_TICKS: Final = 3
_STEPS: Final = (1, 2, 2.5, 5, 10)
_CHARACTER: Final = 7.2  # the width of one in a legend
_SMALL: Final = 0.05  # of the largest rise, below which a place has no row
_BOLD: Final = 6.9  # in a title
_SOURCE: Final = 90  # characters of a line in the table


class _Panel(NamedTuple):
    """One course, and what the rank's names held meanwhile."""

    title: str
    seconds: float
    times: list[float]
    course: MemoryCourse
    kinds: list[tuple[float, Mapping[Kind, int]]]


def record_bundle(
    world: World, run: int, found: Mapping[int, RecordedMemory | None], last: Mapping[int, int]
) -> dict[str, str]:
    """A MIME bundle. ``found``: by rank, None for a rank without a record; ``last``: what else is known of its RSS."""
    told = {rank: one for rank, one in found.items() if one is not None}
    rows = [_of_ranks(run, told), *_of_lines(told)]
    sentences, notes = _sentences(told), _notes(world, run, told, [rank for rank in found if rank not in told], last)
    above = "".join(f"<div>{escape(words)}</div>" for words in sentences)
    below = "".join(f"<div>{escape(words)}</div>" for words in notes)
    tables = "".join(one["text/html"] for one in rows)
    return {
        "text/plain": "\n".join(
            [*sentences, *(f"\n{one['text/plain']}" for one in rows), *(["", *notes] if notes else [])]
        ),
        "text/html": f"{above}{record_svg(told)}{tables}{below}",
    }


def _sentences(told: Mapping[int, RecordedMemory]) -> list[str]:
    """Where memory was highest: on the host, and on GPUs."""
    courses = [(rank, course) for rank, one in told.items() for course in one.courses]
    found = []
    for of_host, name in ((False, "GPU memory"), (True, "resident memory")):
        own = [(rank, one) for rank, one in courses if (one.device == HOST) == of_host]
        if own:
            rank, most = max(own, key=lambda pair: pair[1].peak)
            rise = most.peak - most.begin
            words = f"The {name} of rank {rank} was highest at {human(most.peak)}"
            if rise < LITTLE:
                found.append(f"{words}, and hardly rose in this cell.")
            else:
                more = f"{human(rise)} more than when the cell began"
                found.append(f"{words} ({more}), after {most.at:.3g} s, {_where(most.place)}.")
            if held := _named(most, told[rank].kinds):
                found.append(f"Its names held then, as far as they had been looked at: {held}.")
    return found


def _where(place: Place) -> str:
    """A place as the end of a sentence."""
    if place.before is not None and place.before == place.line:
        return f"in {_quoted(place.before)}"
    begin = "the beginning" if place.before is None else _quoted(place.before)
    return f"between {begin} and {'the end' if place.line is None else _quoted(place.line)}"


def _named(course: MemoryCourse, kinds: Sequence[KindsSeen]) -> str:
    """What names held when memory was highest, in words."""
    seen = [(one.at, _held(one, course.device)) for one in kinds]
    held = {KINDS[kind]: round(_at(seen, kind, course.at)) for kind in KINDS}
    return ", ".join(f"{human(size)} of {words}" for words, size in held.items() if size >= LITTLE)


def _quoted(line: Frame) -> str:
    """A line in words, with the name of its file alone."""
    return _cut(label(msgspec.structs.replace(line, file=Path(line.file).name)))


def _cut(words: str) -> str:
    return words if len(words) <= _SOURCE else f"{words[: _SOURCE - 1]}…"


def _of_ranks(run: int, told: Mapping[int, RecordedMemory]) -> dict[str, str]:
    """The peak of each rank."""
    several = any(len(one.courses) > 1 for one in told.values())
    rows = []
    for rank, one in list(told.items())[:RANKS]:
        for course in one.courses:
            risen = course.peak - course.begin >= LITTLE
            at, where = (f"{course.at:.2f} s", _in_table(course.place)) if risen else ("", "")
            sizes = [human(size) for size in (course.begin, course.peak, course.end)]
            reserved = human(max(course.reserved, default=0)) if course.reserved else ""
            device = [course.device if course.device != HOST else "host (RSS)", reserved] if several else []
            rows.append([str(rank), *device[:1], *sizes, *device[1:], at, where])
    heads = ["rank", *(["memory"] if several else []), "at first", "peak", "at last"]
    heads += [*(["reserved"] if several else []), "peak after", "where the cell was"]
    what = "Memory" if several else "Resident memory"
    seconds = max(one.seconds for one in told.values())
    return table(f"{what} over run {run}, {seconds:.3g} s", heads, rows)


def _in_table(place: Place) -> str:
    before, line = place.before, place.line
    if before is not None and before == line:
        return _quoted(before)
    end = "the end" if line is None else _quoted(line)
    if before is None:
        return f"the beginning … {end}"
    return f"{_quoted(before)} … {end.removeprefix(f'{Path(before.file).name}, ')}"


def _of_lines(told: Mapping[int, RecordedMemory]) -> list[dict[str, str]]:
    """The places where memory rose most on some rank, those of GPUs first; none where it did not rise."""
    found: dict[tuple[bool, Place], dict[int, tuple[int, int]]] = {}
    for rank, one in told.items():
        for course in one.courses:
            for grown in course.grown:
                ranks = found.setdefault((course.device == HOST, grown.place), {})
                before = ranks.get(rank, (0, 0))
                ranks[rank] = max(before[0], grown.rise), max(before[1], grown.highest)
    several = any(not of_host for of_host, _ in found)
    rises = {key: max(rise for rise, _ in ranks.values()) for key, ranks in found.items()}
    most = {
        on_host: max((rise for key, rise in rises.items() if key[0] == on_host), default=0) for on_host in (True, False)
    }
    told_of = [key for key, rise in rises.items() if rise >= _SMALL * most[key[0]]]
    ordered = sorted(told_of, key=lambda key: (key[0], -rises[key]))
    rows = [
        [
            human(rises[key]),
            human(max(highest for _, highest in found[key].values())),
            *(["host" if key[0] else "GPU"] if several else []),
            _in_table(key[1]),
            "all" if len(found[key]) == len(told) else format_ranks(found[key]),
        ]
        for key in ordered[:LINES]
    ]
    heads = ["rise", "highest", *(["memory"] if several else []), "where the cell was", "ranks"]
    caption = "Where memory rose: the most in one visit, and the most that there was then"
    return [table(caption, heads, rows)] if rows else []


def _notes(
    world: World, run: int, told: Mapping[int, RecordedMemory], others: list[int], last: Mapping[int, int]
) -> list[str]:
    notes = []
    if going := [rank for rank, one in told.items() if not one.over]:
        notes.append(f"{count_ranks(going).capitalize()}: the cell goes on; this is its memory so far.")
    if any(place.before != place.line for place in _places(told)):
        notes.append(
            "Between two lines: native code kept the rank from looking, or the lines took less than a look; memory "
            "rose in one of them, or in a line that ran between them."
        )
    if cut := [rank for rank, one in told.items() if one.cut]:
        notes.append(f"{count_ranks(cut).capitalize()}: too many objects to look at all names.")
    if len(told) > RANKS:
        notes.append(f"The first table has the lowest {RANKS} of {len(told)} ranks; -r chooses others.")
    if (courses := sum(len(one.courses) for one in told.values())) > PANELS:
        notes.append(f"The picture has the {PANELS} highest of {quantity(courses, 'course')}; -r chooses ranks.")
    dead = [rank for rank in others if world.ranks[rank].has_ended]
    for rank in dead:
        known = (
            f" When it was last heard of in this run, it had {human(last[rank])} of resident memory."
            if rank in last
            else ""
        )
        notes.append(f"Rank {rank}: dead, and its record with it.{known}")
    if silent := [rank for rank in others if rank not in dead]:
        notes.append(f"{count_ranks(silent).capitalize()}: no record of run {run}, or no answer.")
    return notes


def _places(told: Mapping[int, RecordedMemory]) -> list[Place]:
    return [grown.place for one in told.values() for course in one.courses for grown in course.grown[:LINES]]


# The picture.


def record_svg(told: Mapping[int, RecordedMemory]) -> str:
    """The courses of ranks, as SVG: the highest of GPUs, then of the host, on one scale for each."""
    panels = _panels(told)
    if not panels:
        return ""
    columns = 1 if len(panels) == 1 else 2
    width = _WIDTH / columns
    shown = [kind for kind in KINDS if any(kinds.get(kind) for panel in panels for _, kinds in panel.kinds)]
    height = _HIGH * -(-len(panels) // columns) + 24
    tops = {on_host: _top(panels, on_host=on_host) for on_host in (True, False)}
    parts = []
    for place, panel in enumerate(panels):
        x, y = width * (place % columns), _HIGH * (place // columns)
        top = tops[panel.course.device == HOST]
        parts.append(f'<g transform="translate({x:g},{y:g})">{_Drawing(panel, width, top).draw(shown)}</g>')
    parts.append(f'<g transform="translate({_LEFT},{height - 16})">{_legend(panels, shown)}</g>')
    names = escape("; ".join(f"{panel.title}, peak {human(panel.course.peak)}" for panel in panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="100%" role="img" '
        f'style="max-width:1200px" aria-label="Memory over time of {names}">'
        f'<g font-family="system-ui,sans-serif" font-size="12" fill="currentColor">{"".join(parts)}</g></svg>'
    )


def _panels(told: Mapping[int, RecordedMemory]) -> list[_Panel]:
    found = []
    for rank, one in told.items():
        for course in one.courses:
            if len(course.points) == len(one.times) > 0:
                title = f"Rank {rank}" + ("" if course.device == HOST else f", {course.device}")
                kinds = [(seen.at, _held(seen, course.device)) for seen in one.kinds]
                found.append(_Panel(title, one.seconds, one.times, course, kinds))
    # Of a rank with several devices it is not known which of them a name's memory is on.
    highest = sorted(found, key=lambda panel: (panel.course.device == HOST, -panel.course.peak))[:PANELS]
    return [_thinned(panel, -(-len(panel.times) * len(highest) // _POINTS)) for panel in found if panel in highest]


def _thinned(panel: _Panel, each: int) -> _Panel:
    """``panel`` with one point for ``each`` of them, the highest."""
    course = panel.course
    places = range(0, len(panel.times), max(1, each))
    points, reserved = (
        [max(sizes[at : at + each]) for at in places if at < len(sizes)] for sizes in (course.points, course.reserved)
    )
    thinner = msgspec.structs.replace(course, points=points, reserved=reserved)
    return panel._replace(times=[panel.times[at] for at in places], course=thinner)


def _held(seen: KindsSeen, device: str) -> Mapping[Kind, int]:
    return seen.host if device == HOST else seen.devices


def _top(panels: Sequence[_Panel], *, on_host: bool) -> int:
    own = [panel.course for panel in panels if (panel.course.device == HOST) == on_host]
    return max([1, *(max(one.peak, *one.reserved, *one.points) for one in own)])


class _Drawing:
    """Draws one panel."""

    def __init__(self, panel: _Panel, width: float, top: int) -> None:
        self._panel = panel
        self._right, self._foot, self._top = width - _RIGHT, _HIGH - _BOTTOM, top
        self._end = max(panel.seconds, panel.times[-1], 1e-3)
        self._times = [*panel.times, self._end]

    def draw(self, shown: Sequence[Kind]) -> str:
        """What names hold stands at the bottom, the memory without a name above it."""
        course = self._panel.course
        parts = self._areas(shown, [*course.points, course.end])
        parts.append(self._line([*course.points, course.end], ""))
        if course.reserved:
            parts.append(self._line(course.reserved, ' stroke-dasharray="5 3"'))
        return "".join([*parts, *self._axes(), self._title()])

    def _x(self, at: float) -> float:
        return _LEFT + (self._right - _LEFT) * at / self._end

    def _y(self, size: float) -> float:
        return self._foot - (self._foot - _TOP) * size / self._top

    def _points(self, sizes: Sequence[float]) -> list[str]:
        return [f"{self._x(at):.1f},{self._y(size):.1f}" for at, size in zip(self._times, sizes, strict=False)]

    def _line(self, sizes: Sequence[float], style: str) -> str:
        points = " ".join(self._points(sizes))
        return f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.2"{style}/>'

    def _areas(self, shown: Sequence[Kind], sizes: Sequence[float]) -> list[str]:
        parts, lower = [], [0.0] * len(sizes)
        for kind in [*shown, None]:
            if kind is None:
                upper = list(sizes)
            else:
                held = [_at(self._panel.kinds, kind, at) for at in self._times]
                upper = [min(low + size, most) for low, size, most in zip(lower, held, sizes, strict=True)]
            if upper != lower:
                border = " ".join([*self._points(upper), *reversed(self._points(lower))])
                colour = _UNNAMED if kind is None else _COLOURS[kind]
                parts.append(f'<polygon points="{border}" fill="{colour}" fill-opacity="0.85"/>')
            lower = upper
        return parts

    def _axes(self) -> list[str]:
        parts = []
        for size in _ticks(self._top):
            y, grid = self._y(size), f'stroke="currentColor" stroke-opacity="{0.15 if size else 0.6}"'
            parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{self._right:g}" y2="{y:.1f}" {grid}/>')
            number = human(round(size)) if size else "0"
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number}</text>')
        for at in _ticks(self._end):
            side = "middle" if at else "start"
            parts.append(f'<text x="{self._x(at):.1f}" y="{self._foot + 15}" text-anchor="{side}">{at:.6g} s</text>')
        return parts

    def _title(self) -> str:
        course, title, mark = self._panel.course, self._panel.title, ""
        if course.peak - course.begin >= LITTLE:
            x, y = self._x(course.at), self._y(course.peak)
            mark = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_PEAK}" stroke="currentColor"/>'
            title = f"{title}: {human(course.peak)} {_where(course.place)}"
        room = int((self._right - _LEFT) / _BOLD)
        told = title if len(title) <= room else f"{title[: room - 1]}…"
        words = f'<text x="{_LEFT}" y="15" font-weight="600">{escape(told)}</text>'
        return f"<title>{escape(title)}</title>{mark}{words}"


def _ticks(end: float) -> list[float]:
    """Round numbers from 0 to ``end``, a few."""
    power = 10 ** math.floor(math.log10(end / _TICKS))
    step = next(one * power for one in _STEPS if one * power * (_TICKS + 1) >= end)
    return [step * place for place in range(int(end / step) + 1)]


def _at(kinds: Sequence[tuple[float, Mapping[Kind, int]]], kind: Kind, at: float) -> float:
    """How much memory names held at a moment: as much as when they were looked at last, or else first."""
    if not kinds:
        return 0.0
    place = bisect_right(kinds, at, key=lambda pair: pair[0])
    return float(kinds[max(0, place - 1)][1].get(kind, 0))


def _legend(panels: Sequence[_Panel], shown: Sequence[Kind]) -> str:
    boxes = [(_COLOURS[kind], KINDS[kind]) for kind in shown] + [
        (_UNNAMED, "without a name: activations, gradients, libraries")
    ]
    parts, left = [], 0.0
    for colour, words in boxes:
        parts.append(f'<rect x="{left:g}" y="0" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{left + 17:g}" y="10.5">{words}</text>')
        left += 17 + _CHARACTER * len(words) + 14
    if any(panel.course.device != HOST for panel in panels):
        dashes = 'stroke="currentColor" stroke-width="1.2" stroke-dasharray="5 3"'
        parts.append(f'<line x1="{left:g}" y1="6" x2="{left + 24:g}" y2="6" {dashes}/>')
        parts.append(f'<text x="{left + 29:g}" y="10.5">reserved by the framework</text>')
    return "".join(parts)
