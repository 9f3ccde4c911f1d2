"""Small tables, for a notebook and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, str]:
    """A MIME bundle with the table as text and as HTML. Colours are the front end's own."""
    cells = [[str(value) for value in row] for row in rows]
    widths = [max(len(row[index]) for row in [list(headers), *cells]) for index in range(len(headers))]
    numeric = [all(row[index].isdigit() for row in cells) for index in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        texts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(texts).rstrip()

    plain = "\n".join([caption, line(list(headers)), *(line(row) for row in cells)])
    head = "".join(f"<th scope='col'>{escape(header)}</th>" for header in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in cells)
    html = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return {"text/plain": plain, "text/html": html}
