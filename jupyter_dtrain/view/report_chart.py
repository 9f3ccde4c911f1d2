"""Charts of a report: curves of several runs as SVG that stands inside a page, without any library.

A chart has no colours of its own. Its classes (``c0`` and so on for colours, ``d0`` for dashes) get them from
:data:`STYLE`, which knows a light and a dark page, and no element has a style of its own: a page may forbid that.

Plain functions of plain data; all text is escaped, and nothing here fails on NaN or the infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

from jupyter_dtrain.core.metrics import is_finite

from .labels import human

LIGHT: Final = ("#0072b2", "#d55e00", "#008f68", "#b8558c", "#9a7200", "#2b8cc4", "#6b6b6b", "#5d3a9b")
DARK: Final = ("#56b4e9", "#f08a3c", "#2ec495", "#e39ac4", "#e6c229", "#9fd3f5", "#b5b5b5", "#b39ddb")
"""The colours of runs, as the Runs tab has them on a light and on a dark page: ``labextension/src/theme.ts``."""
DASHES: Final = ("", "8 4", "2 3", "9 3 2 3", "5 2")

_WIDTH: Final = 560
_HEIGHT: Final = 280
_LEFT: Final = 64
_RIGHT: Final = 14
_TOP: Final = 14
_BELOW: Final = 40
_DECADES: Final = 1000  # a positive metric whose values differ by more gets a logarithmic axis
_HUGE: Final = 1e307
_FEW: Final = 60  # points of an evaluation that get a dot each
_BAD: Final = 40  # marks of one chart for values that are no numbers
_LABELS: Final = 8  # of a logarithmic axis


def _rules() -> str:
    colours = "".join(f".c{place}{{--c:{colour}}}" for place, colour in enumerate(LIGHT))
    dark = "".join(f".c{place}{{--c:{colour}}}" for place, colour in enumerate(DARK))
    dashes = "".join(f".d{place}{{stroke-dasharray:{dash or 'none'}}}" for place, dash in enumerate(DASHES))
    return (
        f"{colours}{dashes}"
        ".chart{width:100%;height:auto;display:block;font-size:11px}"
        ".chart text{fill:var(--quiet)}"
        ".chart .grid{stroke:var(--grid);fill:none}"
        ".line{stroke:var(--c);fill:none;stroke-width:1.8;stroke-linejoin:round}"
        ".dot{fill:var(--c);stroke:var(--page);stroke-width:1}"
        ".later{stroke-width:1.2;opacity:.75}"
        ".bad{fill:var(--alarm)}"
        ".bar{fill:var(--c)}"
        f"@media screen and (prefers-color-scheme:dark){{{dark}}}"
    )


STYLE: Final = _rules()
"""The rules for all charts. The page sets ``--page``, ``--quiet``, ``--grid`` and ``--alarm``."""


class DrawnCurve(NamedTuple):
    """One line of a chart."""

    colour: int
    dash: int
    xs: Sequence[float]
    ys: Sequence[float]
    """NaN leaves a gap."""
    bad: Sequence[float] = ()
    """Where a value was NaN or infinite."""
    evaluates: bool = False
    """Whether it lies over a curve of training, as an evaluation does: each of its points gets a dot."""


def chart(title: str, axis: str, curves: Sequence[DrawnCurve], unit: str = "number") -> str:
    """A chart as an ``<svg>`` element; empty where no value is finite and none is bad.

    ``axis``: the name of the horizontal one. ``unit``: ``number``, ``bytes``, ``rate`` (bytes a second) or ``percent``.
    """
    curves = [one._replace(ys=[_within(y) for y in one.ys]) for one in curves]
    points = [(x, y) for one in curves for x, y in zip(one.xs, one.ys, strict=True) if is_finite(x) and is_finite(y)]
    bad = sorted({x for one in curves for x in one.bad if is_finite(x)})
    if not points and not bad:
        return ""
    low, high, logarithmic = _range([y for _, y in points], unit)
    xs = [*(x for x, _ in points), *bad]
    first, last = min(xs), max(xs)
    raised: Callable[[float], float] = math.log10 if logarithmic else float
    bottom, right = _HEIGHT - _BELOW, _WIDTH - _RIGHT
    span = raised(high) - raised(low) or 1.0

    def across(x: float) -> float:
        return round(_LEFT + (x - first) / (last - first or 1) * (right - _LEFT), 1)

    def up(y: float) -> float:
        return round(bottom - (raised(y) - raised(low)) / span * (bottom - _TOP), 1)

    said = written(unit)
    parts = []
    for value in _log_ticks(low, high) if logarithmic else ticks(low, high, 6):
        parts.append(f'<path class="grid" d="M{_LEFT} {up(value)}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{up(value) + 4:.1f}" text-anchor="end">{escape(said(value))}</text>')
    for value in ticks(first, last, 6):
        parts.append(f'<path class="grid" d="M{across(value)} {bottom}v5"/>')
        words = escape(_axis_number(value))
        parts.append(f'<text x="{across(value)}" y="{bottom + 18}" text-anchor="middle">{words}</text>')
    scale = ", logarithmic scale" if logarithmic else ""
    parts.append(f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{escape(axis)}{scale}</text>')
    for one in curves:
        parts += _drawn(one, across, up, positive=logarithmic)
    thin = max(1, math.ceil(len(bad) / _BAD))
    parts += [f'<path class="bad" d="M{across(x) - 5:.1f} {_TOP - 9}h10l-5 9z"/>' for x in bad[::thin]]
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_attribute(title)}">'
        f"{''.join(parts)}</svg>"
    )


def bars(title: str, edges: Sequence[float], counts: Sequence[float], colour: int) -> str:
    """A histogram as an ``<svg>`` element. ``edges``: one more than ``counts``; empty for anything else."""
    if len(edges) != len(counts) + 1 or not counts or not all(map(is_finite, [*edges, *counts])):
        return ""
    low, high, most = edges[0], edges[-1], max(counts)
    if high <= low or most <= 0:
        return ""
    width, height, below = 280, 130, 22
    found = []
    for left, right, count in zip(edges, edges[1:], counts, strict=False):
        x, wide = (left - low) / (high - low) * width, max(0.5, (right - left) / (high - low) * width - 0.5)
        tall = max(0.0, count / most * (height - below - 4))
        found.append(f'<rect x="{x:.1f}" y="{height - below - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>')
    ends = (
        f'<text x="0" y="{height - 6}">{escape(format(low, ".3g"))}</text>'
        f'<text x="{width}" y="{height - 6}" text-anchor="end">{escape(format(high, ".3g"))}</text>'
    )
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{_attribute(title)}">'
        f'<g class="bar c{colour}">{"".join(found)}</g>{ends}</svg>'
    )


def sample(colour: int, dash: int) -> str:
    """A short piece of a run's line, for legends and tables."""
    return (
        f'<svg class="sample" width="26" height="8" viewBox="0 0 26 8" aria-hidden="true">'
        f'<path class="line c{colour} d{dash}" d="M0 4H26"/></svg>'
    )


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, about ``count`` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    if not is_finite(rough) or rough <= 0:
        return [low, high]
    power = 10.0 ** math.floor(math.log10(rough))
    if not power:
        return [low, high]
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, min(last, first + 2 * count) + 1)]


def written(unit: str) -> Callable[[float], str]:
    """How a chart's numbers are written."""
    if unit in ("bytes", "rate"):
        return lambda value: human(max(0, round(value))) + ("/s" if unit == "rate" else "")
    if unit == "percent":
        return lambda value: f"{value:.6g} %"
    return _axis_number


def _within(value: float) -> float:
    """A value whose distance from any other one is a number."""
    return max(-_HUGE, min(value, _HUGE)) if is_finite(value) else value


def _range(values: Sequence[float], unit: str) -> tuple[float, float, bool]:
    """The lowest and highest value of the vertical axis, and whether it is a logarithmic one."""
    if not values:
        return 0.0, 1.0, False
    low, high = min(values), max(values)
    if unit != "number":
        low, high = min(0.0, low), max(high, 1.0)
    elif low > 0 and high / low > _DECADES:
        return low / 1.1, high * 1.1, True
    if high == low:
        apart = abs(low) / 10 or 1.0
        return low - apart, high + apart, False
    apart = 0.04 * (high - low)
    if not is_finite(apart):
        return low, high, False
    return (low if unit != "number" else low - apart), high + apart, False


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [10.0**power for power in powers if low <= 10.0**power <= high]
    return found[:: math.ceil(len(found) / _LABELS)] if found else [low, high]


def _drawn(
    curve: DrawnCurve, across: Callable[[float], float], up: Callable[[float], float], *, positive: bool
) -> list[str]:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(curve.xs, curve.ys, strict=True):
        if is_finite(x) and is_finite(y) and (y > 0 or not positive):
            pieces[-1].append((across(x), up(y)))
        elif pieces[-1]:
            pieces.append([])
    kinds = f"c{curve.colour} d{curve.dash}{' later' if curve.evaluates else ''}"
    found = [f'<path class="line {kinds}" d="{_path(piece)}"/>' for piece in pieces if piece]
    points = [point for piece in pieces for point in piece]
    if (curve.evaluates and len(points) <= _FEW) or len(points) == 1:
        found += [f'<circle class="dot c{curve.colour}" cx="{x}" cy="{y}" r="3.2"/>' for x, y in points]
    return found


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _axis_number(value: float) -> str:
    size = abs(value)
    if value and (size >= 1e6 or size < 1e-3):  # noqa: PLR2004 — longer than six digits
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:.5g}"


def _attribute(words: str) -> str:
    return escape("".join(one if one.isprintable() else " " for one in words[:200]))
