"""A run's metrics as an SVG picture, for readers of a notebook that know nothing of our own MIME type.

matplotlib draws it; it is imported when a picture is wanted, or beforehand by :func:`prepare`. Where it is missing or
fails there is no picture, which is logged and no error.
"""

from __future__ import annotations

import io
import logging
import math
import re
from typing import TYPE_CHECKING, Any, Final

from .document import band_of, in_order, is_main

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyter_dtrain.metrics import Columns

    from .document import Picture

SVG_BYTES: Final = 190_000
"""A picture that is larger is drawn again without the lines of single ranks, and then left out."""

_CHARTS: Final = 6
_LINES: Final = 8  # ranks that get a line each
_ENOUGH: Final = 20_000  # points of a rank from which its part of the mean is taken
_POINTS: Final = 240
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A000")
"""Of ranks 0, 1, …: told apart with any colour vision, and the same as in the widget."""

_NUMBER: Final = re.compile(r"(?<=[ \"ML])(-?\d+\.\d\d)\d+(?=[ \"\n])")
"""A coordinate; a hundredth of a point is as fine as anybody sees."""

_log = logging.getLogger("jupyter_dtrain")


def prepare() -> None:
    """Import what a picture needs; a thread of its own can do that while a run goes on."""
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401 — to have it
    except Exception:  # noqa: BLE001 — absent or broken, there will be no picture
        _log.debug("matplotlib cannot be imported", exc_info=True)


def svg(picture: Picture) -> str | None:
    """The main metrics, mean and spread over ranks; None where that cannot be drawn."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except Exception:  # noqa: BLE001 — as above
        return None
    names = in_order(picture.metrics)
    names = ([name for name in names if is_main(name)] or names)[:_CHARTS]
    try:
        for lines in (_LINES, 0):
            with mpl.rc_context({"svg.fonttype": "none", "path.simplify": True, "svg.hashsalt": "dtrain"}):
                columns = min(2, len(names))
                rows = math.ceil(len(names) / columns)
                width, height = 4.6 * columns + 0.8, 2.5 * rows + 0.2
                # Room for labels, in inches; matplotlib's own layouts would draw everything twice to find it.
                figure = Figure(figsize=(width, height))
                figure.subplots_adjust(
                    left=0.7 / width,
                    right=1 - 0.15 / width,
                    bottom=0.5 / height,
                    top=1 - 0.35 / height,
                    wspace=0.18,
                    hspace=0.45,
                )
                FigureCanvasSVG(figure)
                axes = figure.subplots(rows, columns, squeeze=False).ravel()
                for name, ax in zip(names, axes, strict=False):
                    _chart(ax, name, picture.metrics[name], lines)
                for ax in axes[len(names) :]:
                    ax.remove()
                file = io.StringIO()
                figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
            drawn = _NUMBER.sub(r"\1", file.getvalue())
            if len(drawn.encode()) <= SVG_BYTES:
                return drawn
    except Exception:  # noqa: BLE001 — whatever a library thinks of the data
        _log.exception("The picture of a run could not be drawn")
    return None


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
