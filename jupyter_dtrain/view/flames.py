"""A flame graph of ranks, as a notebook and a terminal show it: a static picture, and a table of the hottest places.

Ranks whose time goes to the same places share one graph. The widest calls stand on the left, and what a call calls
stands below it. All text lies in coloured boxes, so it can be read on a light and on a dark page.

Under failure: however many ranks and stacks there are, the picture has at most :data:`MOST_BOXES` boxes and
:data:`SVG_BYTES` bytes: narrow calls are put together as ``…``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from jupyter_dtrain.core.events import Frame
from jupyter_dtrain.core.flames import IDLE, NARROW, RATE, Branch, Place, Sampled, groups, hottest, label, merged
from jupyter_dtrain.core.world import count_ranks, quantity

from .tables import table

MOST_BOXES: Final = 900
SVG_BYTES: Final = 180_000
ROWS: Final = 12
"""Rows of the table."""
LEAST: Final = 0.01
"""The share of some rank's time that a row of the table has."""
COLUMNS: Final = 8
"""Ranks that have a column of the table each; of more, the mean, the least and the most are shown."""

_WIDTH: Final = 1000
_ROW: Final = 17
_GAP: Final = 8  # between two graphs
_DEEPEST: Final = 32  # rows of one graph
_CHARACTER: Final = 6.7  # the width of one in the boxes
_NARROW: Final = tuple(NARROW * 2**power for power in range(7))
"""Shares of time below which a call is put into ``…``: the first of them that makes the picture small enough counts."""
_LINE: Final = 70  # characters of a line in the table
_TITLE: Final = 180  # characters of a box's tooltip
_CELL: Final = "#8CC7EE"
_LIBRARIES: Final = ("#F5C08A", "#F0D080", "#EBAF95", "#D8C9A3", "#E8BBCB", "#C9D6A0")
_OTHER: Final = "#CFCFCF"
_ROOT: Final = "#E4E4EE"

Box = tuple[float, int, float, str, str, str]
"""Left end, row, width, colour, words and tooltip."""


def flame_bundle(ranks: Mapping[int, Sampled], seconds: float, notes: Sequence[str]) -> dict[str, str]:
    """A MIME bundle: the picture, the table, and sentences. ``notes``: those that follow the ranks' own.

    ``seconds``: how long the ranks were sampled.
    """
    told = {rank: one for rank, one in ranks.items() if one.samples}
    caption = (
        f"Where {count_ranks(list(told))} spent {seconds:g} s, in % of the time (main thread, {RATE} samples a second)"
    )
    rows = table(caption, *_table(told))
    said = [*reasons(ranks), *notes]
    html = "".join(f"<div>{escape(note)}</div>" for note in said)
    return {
        "text/plain": "\n".join([rows["text/plain"], *said]),
        "text/html": f"{flame_svg(told)}{rows['text/html']}{html}",
    }


def reasons(ranks: Mapping[int, Sampled]) -> list[str]:
    """Sentences on the ranks that have no samples, or too few, with the reasons."""
    found: dict[str, list[int]] = {}
    for rank, one in ranks.items():
        if one.words:
            early = "the samples end early, as " if one.samples else "no samples: "
            found.setdefault(early + one.words, []).append(rank)
    return [f"{count_ranks(who).capitalize()}: {words.rstrip('.')}." for words, who in found.items()]


def _table(told: Mapping[int, Sampled]) -> tuple[list[str], list[list[str]]]:
    rows = [row for row in hottest(told, ROWS) if max(row[1].values()) >= LEAST]
    if len(told) <= COLUMNS:
        headers = [f"rank {rank}" for rank in told]
        return ["line", "in", *headers], [
            [*_names(place), *(_percent(share) for share in found.values())] for place, found in rows
        ]
    cells = []
    for place, found in rows:
        least, most = min(found, key=lambda rank: found[rank]), max(found, key=lambda rank: found[rank])
        mean = sum(found.values()) / len(found)
        cells.append(
            [*_names(place), _percent(mean), _percent(found[least]), str(least), _percent(found[most]), str(most)]
        )
    return ["line", "in", "mean", "least", "on rank", "most", "on rank"], cells


def _names(place: Place) -> list[str]:
    line, function = place
    words = label(line)
    return [
        words if len(words) <= _LINE else f"{words[: _LINE - 1]}…",
        "" if function in (line, IDLE) else label(function),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= LEAST else 1}f}" if share else ""


def flame_svg(ranks: Mapping[int, Sampled]) -> str:
    """One flame graph for each group of ``ranks`` that spend their time alike, as SVG."""
    graphs = [(who, merged(ranks[rank] for rank in who)) for who in groups(ranks)]
    drawn = ""
    for narrow in _NARROW:
        boxes, top = [], 0.0
        for who, root in graphs:
            found = _boxes(_title(who, ranks), root, narrow)
            boxes += [(top, box) for box in found]
            top += _ROW * (1 + max(row for _, row, *_ in found)) + _GAP
        drawn = _svg(boxes, top - _GAP, [count_ranks(who) for who, _ in graphs])
        if len(boxes) <= MOST_BOXES and len(drawn.encode()) <= SVG_BYTES:
            break
    return drawn


def _title(who: Sequence[int], ranks: Mapping[int, Sampled]) -> str:
    counts = sorted(ranks[rank].count for rank in who)
    samples = quantity(counts[0], "sample") if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,} samples"
    return f"{count_ranks(who)}: {samples}" if len(who) == 1 else f"{count_ranks(who)}: mean, {samples} each"


def _boxes(title: str, root: Branch, narrow: float) -> list[Box]:
    boxes: list[Box] = [(0.0, 0, 1.0, _ROOT, title, title)]
    waiting: list[tuple[Branch, float, int]] = [(root, 0.0, 1)]
    while waiting:
        branch, left, row = waiting.pop()
        rest = branch.narrow
        shares = sorted(branch.below.items(), key=lambda item: (item[0] == IDLE, -item[1].share))
        for frame, below in shares:
            if below.share < narrow or row == _DEEPEST:
                rest += below.share
                continue
            words = label(frame)
            boxes.append((left, row, below.share, _colour(frame), words, f"{words} — {100 * below.share:.1f} %"))
            waiting.append((below, left, row + 1))
            left += below.share
        if rest >= narrow:
            boxes.append((left, row, rest, _OTHER, "…", f"other calls — {100 * rest:.1f} %"))
    return boxes


def _colour(frame: Frame) -> str:
    if frame == IDLE:
        return _OTHER
    if frame.cell:
        return _CELL
    folder = frame.file.rpartition("/site-packages/")[2] if "/site-packages/" in frame.file else frame.file
    package = folder.lstrip("/").partition("/")[0] if folder != frame.file else folder.rpartition("/")[0]
    return _LIBRARIES[zlib.crc32(package.encode()) % len(_LIBRARIES)]


def _svg(boxes: Sequence[tuple[float, Box]], height: float, names: Sequence[str]) -> str:
    said = escape("; ".join(names))
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="100%" role="img"'
    font = '<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="11" fill="#1a1a1a">'
    parts = [f'{begin} style="max-width:1600px" aria-label="Flame graphs of {said}">{font}']
    for top, (left, row, share, colour, words, title) in boxes:
        x, y, width = _WIDTH * left, top + _ROW * row, _WIDTH * share - 0.6
        room = int((width - 6) / _CHARACTER)
        shown = words if len(words) <= room else f"{words[: room - 1]}…" if room > 2 else ""  # noqa: PLR2004
        text = f'<text x="{x + 3:.1f}" y="{y + 12:g}">{escape(shown)}</text>' if shown else ""
        parts.append(
            f"<g><title>{escape(title[:_TITLE])}</title>"
            f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{_ROW - 1}" rx="1.5" fill="{colour}"/>{text}</g>'
        )
    return "".join([*parts, "</g></svg>"])
