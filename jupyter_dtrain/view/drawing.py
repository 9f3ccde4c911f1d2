"""A run's metrics as an SVG picture, for readers of a notebook that do not know our own MIME type.

matplotlib draws it; it is imported when a picture is wanted, or beforehand by :func:`prepare`. Where it is missing or
fails there is no picture; a log line records that, and no error is raised.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.metrics import is_main

from .document import band_of, in_order
from .step_time import COLOURS, name_of, packed
from .timelines import NAMES, caption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jupyter_dtrain.core.metrics import Columns
    from jupyter_dtrain.core.pipelines import Timeline
    from jupyter_dtrain.core.step_summary import StepSummary

    from .document import Picture

SVG_BYTES: Final = 190_000
"""A larger picture is drawn again without the lines of single ranks, and then left out."""

_CHARTS: Final = 6
_LINES: Final = 8  # ranks that get a line each
_ENOUGH: Final = 20_000  # points of a rank that its part of the mean uses
_POINTS: Final = 240
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A000")
"""Colours of ranks 0, 1, …: distinct with any colour vision, and the same as in the widget."""

_PIPELINES: Final = 4
_LANES: Final = 16  # ranks of a pipeline
_BOXES: Final = 1200  # of all pipelines
_KINDS: Final = {
    "F": ("#8CC7EE", ""),
    "B": ("#A63F00", ""),
    "I": ("#E6952F", "////"),
    "W": ("#00604A", "||||"),
    "G": ("#888888", ""),
}
"""Colour and pattern of a stage's computations; the colours differ in lightness, as in the widget."""

_LABEL: Final = 14
"""Letters of ranks that are named beside a bar; more are counted."""

_NUMBER: Final = re.compile(r"(?<=[ \"ML])(-?\d+\.\d\d)\d+(?=[ \"\n])")
"""A coordinate; finer than a hundredth of a point is invisible."""

_drawing = threading.Lock()
"""matplotlib may be used by one thread at a time, and two runs may end at once."""

_log = logging.getLogger("jupyter_dtrain")


def prepare() -> None:
    """Import what a picture needs; a separate thread can call it while a run goes on."""
    # Its first import on a machine logs, as a warning, that it builds a cache.
    fonts = logging.getLogger("matplotlib.font_manager")
    fonts.addFilter(_is_not_about_the_cache)
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401 — imported for its side effect
    except Exception:  # noqa: BLE001 — absent or broken, there will be no picture
        _log.debug("matplotlib cannot be imported", exc_info=True)
    finally:
        fonts.removeFilter(_is_not_about_the_cache)


def _is_not_about_the_cache(record: logging.LogRecord) -> bool:
    return "font cache" not in record.getMessage()


@contextlib.contextmanager
def no_glyph_warnings() -> Iterator[None]:
    """Keep quiet on characters that matplotlib's font lacks: the SVG has them as text, which the browser draws."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def svg(picture: Picture) -> str | None:
    """The main metrics, mean and spread over ranks, and the steps of pipelines; None where drawing fails."""
    names = in_order(picture.metrics)
    names = ([name for name in names if is_main(name)] or names)[:_CHARTS]
    metrics = {name: picture.metrics[name] for name in names}
    marks = [mark.step for mark in picture.marks]
    spent = picture.step_time
    for lines, most in ((_LINES, _PIPELINES), (0, _PIPELINES), (0, 1), (0, 0)):
        drawn = draw(lambda figure: _fill(figure, metrics, picture.timelines[:most], lines, marks, spent))  # noqa: B023
        if drawn is None or len(drawn.encode()) <= SVG_BYTES:
            return drawn
    return None


def draw(fill: Callable[[Any], None]) -> str | None:
    """As SVG, what ``fill`` draws into an empty figure; None where that fails."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except Exception:  # noqa: BLE001 — as above
        return None
    look: dict[Any, Any] = {"svg.fonttype": "none", "path.simplify": True, "svg.hashsalt": "dtrain"}
    try:
        with _drawing, no_glyph_warnings(), mpl.rc_context(look):
            figure = Figure()
            FigureCanvasSVG(figure)
            fill(figure)
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    except Exception:  # noqa: BLE001 — a library may raise anything over the data
        _log.exception("The picture of a run could not be drawn")
        return None
    return _NUMBER.sub(r"\1", file.getvalue())


def _fill(
    figure: Any,
    metrics: Mapping[str, Mapping[int, Columns]],
    timelines: Sequence[Timeline],
    lines: int,
    marks: Sequence[int],
    spent: StepSummary | None,
) -> None:
    """Draw charts of ``metrics``, with up to ``lines`` single ranks, below them ``spent``, and then ``timelines``.

    ``marks``: steps at which a line goes through all charts.
    """
    columns = 2 if timelines else max(1, min(2, len(metrics)))
    rows = math.ceil(len(metrics) / columns)
    lanes = [_fitting(one, _BOXES // len(timelines)) for one in timelines]
    below = [0.3 * len(few) + 0.9 for few in lanes]
    bars = 0.0 if spent is None else 0.24 * len(packed(spent).rows) + 1.4
    width, height = 4.6 * columns + 0.8, 2.5 * rows + 0.2 + sum(below) + bars
    figure.set_size_inches(width, height)
    if rows:
        # Room for labels, in inches; matplotlib's own layouts would draw everything twice to find it.
        figure.subplots_adjust(
            left=0.7 / width,
            right=1 - 0.15 / width,
            bottom=(0.5 + sum(below) + bars) / height,
            top=1 - 0.35 / height,
            wspace=0.18,
            hspace=0.45,
        )
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for (name, series), ax in zip(metrics.items(), axes, strict=False):
            _chart(ax, name, series, lines)
            for step in marks:
                ax.axvline(step, color="#D55E00", linewidth=1, linestyle="--")
        for ax in axes[len(metrics) :]:
            ax.remove()
    foot = sum(below)
    if spent is not None:
        ax = figure.add_axes((1.1 / width, (foot + 1) / height, 1 - 1.25 / width, (bars - 1.3) / height))
        _step_time(ax, spent)
    for timeline, few, part in zip(timelines, lanes, below, strict=True):
        foot -= part
        ax = figure.add_axes((0.7 / width, (foot + 0.5) / height, 1 - 0.85 / width, (part - 0.8) / height))
        _lanes(ax, timeline, few)


def _step_time(ax: Any, spent: StepSummary) -> None:
    """Draw a bar for each rank, or for ranks that are alike: its parts are those of a step, in milliseconds."""
    found = packed(spent)
    labels = [row.ranks if len(row.ranks) <= _LABEL else f"{row.count} ranks" for row in found.rows]
    names = [
        f"\N{BLACK UP-POINTING TRIANGLE} {label}" if row.slow else label
        for row, label in zip(found.rows, labels, strict=True)
    ]
    places = range(len(found.rows))
    begins = [0.0] * len(found.rows)
    for index, part in enumerate(found.parts):
        lengths = [1e3 * row.seconds * row.shares[index] for row in found.rows]
        style = {"color": COLOURS.get(part, "#A6A6A6"), "edgecolor": "white", "linewidth": 0.4}
        if part == "communication":
            style["hatch"] = "////"
        ax.barh(places, lengths, left=begins, height=0.8, label=name_of(part), **style)
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    ax.set_ylim(len(found.rows) - 0.4, -0.6)
    ax.set_yticks(places, names)
    ax.set_xlabel("ms", fontsize=8)
    ax.tick_params(labelsize=8)
    ax.set_title("Time of a step" + (", by the host's clock" if found.on_host else ""), fontsize=10, loc="left")
    low = -0.42 / (0.24 * len(found.rows) + 0.1)  # inches below the bars: under the axis and its unit
    columns = max(3, int((ax.figure.get_figwidth() - 1.1) / 1.35))
    ax.legend(fontsize=7, frameon=False, ncols=columns, loc="upper left", bbox_to_anchor=(0, low), borderpad=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _fitting(timeline: Timeline, boxes: int) -> list[int]:
    """The first ranks, at least one, that have about ``boxes`` boxes to draw."""
    found: list[int] = []
    for rank, actions in sorted(timeline.lanes.items()):
        boxes -= sum(action.kind in _KINDS for action in actions)
        if found and (boxes < 0 or len(found) == _LANES):
            break
        found.append(rank)
    return found


def _lanes(ax: Any, timeline: Timeline, ranks: Sequence[int]) -> None:
    """Draw a lane for each of ``ranks``; empty parts are the bubble."""
    lanes = [(rank, timeline.lanes[rank]) for rank in ranks]
    drawn = {action.kind for _, actions in lanes for action in actions if action.kind in _KINDS}
    for kind, (colour, hatch) in _KINDS.items():
        if kind not in drawn:
            continue
        label: str | None = NAMES[kind]
        for place, (_, actions) in enumerate(lanes):
            spans = [(1e3 * action.start, 1e3 * action.seconds) for action in actions if action.kind == kind]
            style = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
            ax.broken_barh(spans[:_BOXES], (place - 0.4, 0.8), label=label, **style)
            label = None
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.set_xlim(0, 1e3 * timeline.seconds)
    ax.set_yticks(range(len(lanes)), [f"rank {rank}" for rank, _ in lanes])
    ax.set_xlabel("ms", fontsize=8)
    ax.tick_params(labelsize=8)
    ax.set_facecolor("#eeeeee")
    words = caption(timeline)
    if len(timeline.lanes) > len(lanes):
        words += f"; the first {len(lanes)} ranks"
    ax.set_title(words.replace("$", r"\$"), fontsize=9, loc="left")
    low = -0.25 / (0.3 * len(lanes) + 0.1)  # a quarter of an inch below the axis
    ax.legend(fontsize=7, frameon=False, ncols=len(drawn), loc="upper right", bbox_to_anchor=(1, low), borderpad=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _chart(ax: Any, name: str, series: Mapping[int, Columns], lines: int) -> None:
    few = {rank: columns.thinned(_POINTS) for rank, columns in sorted(series.items())}
    band = band_of({rank: columns.thinned(_ENOUGH) for rank, columns in series.items()}, _POINTS // 2)
    if len(few) > 1:
        ax.fill_between(band.steps, band.low, band.high, color="#0072B2", alpha=0.18, linewidth=0)
    if 1 < len(few) <= lines:
        for rank, columns in few.items():
            colour = _COLOURS[rank % len(_COLOURS)]
            ax.plot(columns.steps, columns.values, color=colour, linewidth=0.7, alpha=0.8, label=f"rank {rank}")
    ax.plot(band.steps, band.mean, color="#222222" if len(few) > 1 else "#0072B2", linewidth=1.4, label="mean")
    strange = sorted(
        {
            step
            for columns in few.values()
            for step, value in zip(columns.steps, columns.values, strict=True)
            if value - value != 0
        }
    )
    if strange:
        ax.plot(strange, [1.0] * len(strange), "v", color="#D55E00", transform=ax.get_xaxis_transform(), label="NaN/∞")
    ax.set_title(name.replace("$", r"\$"), fontsize=10, loc="left")
    ax.set_xlabel("step", fontsize=8)
    ax.tick_params(labelsize=8)
    ax.grid(visible=True, linewidth=0.4, alpha=0.5)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if (len(few) > 1 or strange) and len(few) <= max(lines, 1):
        ax.legend(fontsize=7, frameon=False, ncols=2)
