"""Small tables, for a notebook and for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Final

_NUMBER: Final = re.compile(r"[\d.,]*(?: (?:[kMGT]B|bytes))?")
"""It also matches an empty cell."""


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, str]:
    """A MIME bundle with the table as text and as HTML. Colours are the front end's own."""
    cells = [[str(value) for value in row] for row in rows]
    widths = [max(len(row[index]) for row in [list(headers), *cells]) for index in range(len(headers))]
    numeric = [all(_NUMBER.fullmatch(row[index]) for row in cells) for index in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        texts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(texts).rstrip()

    plain = "\n".join([caption, line(list(headers)), *(line(row) for row in cells)])
    # JupyterLab aligns everything to the right, even text.
    sides = [f"style='text-align:{'right' if right else 'left'}'" for right in numeric]
    heads = zip(headers, sides, strict=True)
    head = "".join(f"<th scope='col' {side}>{escape(header)}</th>" for header, side in heads)
    marked = (
        "".join(f"<td {side}>{escape(text)}</td>" for text, side in zip(row, sides, strict=True)) for row in cells
    )
    body = "".join(f"<tr>{row}</tr>" for row in marked)
    html = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return {"text/plain": plain, "text/html": html}
