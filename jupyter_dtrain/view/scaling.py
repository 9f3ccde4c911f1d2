"""The scaling of a cell as people see it: a document for our JupyterLab extension, a page, a picture, and text.

The document is drawn by ``labextension/src/scaling.ts``. Where matplotlib is missing or fails there is no picture, and
the page has the table alone.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.world import quantity

from . import drawing
from .tables import table

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import MimeBundle
    from jupyter_dtrain.core.scaling import Cause, Scaling, Size

MIME: Final = "application/vnd.jupyter-dtrain.scaling+json"
VERSION: Final = 1
"""The document's version."""

CAUSES: Final[tuple[Cause, ...]] = ("communication", "slow rank", "data", "processors")
COLOURS: Final = {
    "work": "#0072B2",
    "communication": "#D55E00",
    "slow rank": "#CC79A7",
    "data": "#E69F00",
    "processors": "#7F7F7F",
}
"""Distinct with any colour vision, and the same as in the extension."""


class ShareOfTime(msgspec.Struct, frozen=True, array_like=True):
    """A cause, and the share of time that it takes."""

    cause: str
    share: float


class SizeRow(msgspec.Struct, frozen=True):
    """The measurements at one size."""

    ranks: int
    seconds: float | None
    """The median; None where the cell failed or was not run."""
    low: float | None
    """The shortest and longest time; None for less than two runs."""
    high: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    linear: float
    efficiency: float | None
    batch: int | None
    shares: list[ShareOfTime]


class ScalingDocument(msgspec.Struct, frozen=True):
    """A scaling report as the front end draws it."""

    version: int
    summary: str
    sizes: list[SizeRow]
    conclusions: list[str]


def document(scaling: Scaling) -> ScalingDocument:
    """The report as the front end draws it."""
    return ScalingDocument(
        VERSION, caption(scaling), [_row(scaling, size) for size in _in_order(scaling)], scaling.conclusions()
    )


def caption(scaling: Scaling) -> str:
    """One line that says what was measured, and what is under way."""
    what = "fixed by the cell"
    if scaling.global_batch is not None:
        what = f"{scaling.global_batch} in all"
    elif scaling.per_rank_batch is not None:
        what = f"{scaling.per_rank_batch} a rank"
    times = "once" if scaling.repeats == 1 else f"{scaling.repeats} times, median and range"
    state = f"; now {scaling.now}" if scaling.now else "; interrupted" if scaling.interrupted else ""
    return f"Scaling of a cell: batch {what}, measured {times}{state}"


def bundle(scaling: Scaling) -> MimeBundle:
    """All representations, by MIME type. A measurement that goes on has no picture yet."""
    rows = table(caption(scaling), _HEADERS, [_cells(scaling, size) for size in _in_order(scaling)])
    words = scaling.conclusions() if not scaling.now else []
    text = "\n".join([rows["text/plain"], *words])
    data: MimeBundle = {MIME: json.loads(msgspec.json.encode(document(scaling))), "text/plain": text}
    said = "".join(f"<p>{escape(line)}</p>" for line in words)
    drawn = svg(scaling) if not scaling.now and len(scaling.measured) > 1 else None
    if drawn is not None:
        data["image/svg+xml"] = drawn
    data["text/html"] = f"{(drawn or '')[(drawn or '<svg').index('<svg') :] if drawn else ''}{rows['text/html']}{said}"
    return data


_HEADERS = ("ranks", "time", "speed-up", "linear", "efficiency", "batch a rank", *(f"{cause}" for cause in CAUSES))


def _in_order(scaling: Scaling) -> list[Size]:
    return sorted(scaling.sizes, key=lambda size: size.ranks)


def _row(scaling: Scaling, size: Size) -> SizeRow:
    low, high = size.span or (None, None)
    speedup_low, speedup_high = scaling.speedup_span(size) or (None, None)
    return SizeRow(
        size.ranks,
        size.seconds,
        low,
        high,
        scaling.speedup(size),
        speedup_low,
        speedup_high,
        scaling.linear(size),
        scaling.efficiency(size),
        size.batch,
        [ShareOfTime(cause, share) for cause in CAUSES if (share := size.share(cause)) is not None],
    )


def _cells(scaling: Scaling, size: Size) -> list[str]:
    """A row of the table, of text."""
    row = _row(scaling, size)
    if row.seconds is None:
        return [str(size.ranks), "failed" if size.failure else "", *[""] * (len(_HEADERS) - 2)]
    time, times = f"{row.seconds:.2f} s", f"{row.speedup:.2f}"
    if row.low is not None and row.high is not None:
        time += f" ({row.low:.2f} to {row.high:.2f})"
    if row.speedup_low is not None and row.speedup_high is not None:
        times += f" ({row.speedup_low:.2f} to {row.speedup_high:.2f})"
    shares = {one.cause: f"{one.share:.0%}" for one in row.shares}
    return [
        str(size.ranks),
        time,
        times,
        f"{row.linear:g}",
        f"{row.efficiency:.0%}",
        "" if size.batch is None else str(size.batch),
        *(shares.get(cause, "") for cause in CAUSES),
    ]


def svg(scaling: Scaling) -> str | None:
    """Speed-up against ranks, with error bars and the linear one, and the shares of time; None where drawing fails."""
    return drawing.draw(lambda figure: _fill(figure, scaling))


def _fill(figure: Any, scaling: Scaling) -> None:
    sizes = scaling.measured
    ranks = [size.ranks for size in sizes]
    figure.set_size_inches(9.2, 3.4)
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.24, top=0.89, wspace=0.2)
    left, right = figure.subplots(1, 2)
    speedups = [scaling.speedup(size) or 0.0 for size in sizes]
    spans = [scaling.speedup_span(size) or (speed, speed) for size, speed in zip(sizes, speedups, strict=True)]
    errors = [
        [speed - low for speed, (low, _) in zip(speedups, spans, strict=True)],
        [high - speed for speed, (_, high) in zip(speedups, spans, strict=True)],
    ]
    linear = [scaling.linear(size) for size in sizes]
    left.plot(ranks, linear, "--", color="#7F7F7F", linewidth=1, label="linear")
    left.errorbar(
        ranks, speedups, yerr=errors, fmt="o-", color=COLOURS["work"], capsize=3, linewidth=1.4, label="measured"
    )
    left.set_ylim(0, 1.08 * max(*linear, *(high for _, high in spans)))
    base = scaling.base
    left.set_title(f"speed-up over {quantity(base.ranks if base is not None else 1, 'rank')}", fontsize=10, loc="left")
    left.set_xticks(ranks)
    places = range(len(sizes))
    foot = [0.0] * len(sizes)
    for kind in ("work", *CAUSES):
        if kind == "work":
            lost = [sum(size.share(cause) or 0.0 for cause in CAUSES) for size in sizes]
            shares = [max(0.0, 1 - one) for one in lost]
        else:
            shares = [size.share(kind) or 0.0 for size in sizes]  # type: ignore[arg-type]  # one of CAUSES
        right.bar(places, [100 * share for share in shares], bottom=foot, width=0.6, color=COLOURS[kind], label=kind)
        foot = [one + 100 * share for one, share in zip(foot, shares, strict=True)]
    right.set_xticks(places, [str(one) for one in ranks])
    right.set_title("share of time, %", fontsize=10, loc="left")
    right.legend(fontsize=7, frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.47, -0.2), columnspacing=1)
    left.legend(fontsize=7, frameon=False, loc="upper left")
    for ax in (left, right):
        ax.set_xlabel("ranks", fontsize=8)
        ax.tick_params(labelsize=8)
        ax.grid(visible=True, axis="y", linewidth=0.4, alpha=0.5)
        ax.set_axisbelow(True)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
