"""Where the cell that runs stands: the file of its notebook, and the heading above it in that file.

JupyterLab and Notebook tell a kernel the file by a variable of its environment, VS Code by one of its namespace. The
file is read again once it has changed. A cell is found by its id, else by its text, where only one has that.

Under failure: where there is no file, or it cannot be read, is no notebook, or does not have the cell, its heading is
empty. Nothing here raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.structs import UNREADABLE, readable

LARGEST: Final = 32 << 20
"""Bytes of a notebook file up to which it is read."""
WIDTH: Final = 200
"""Characters of a heading that are kept."""
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_FENCE: Final = re.compile(r" {0,3}(```+|~~~+)")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_TAG: Final = re.compile(r"<[^<>]*>")


class _NotebookCell(msgspec.Struct, frozen=True):
    cell_type: str = ""
    id: str = ""
    source: str | list[str] = ""

    @property
    def text(self) -> str:
        return self.source if isinstance(self.source, str) else "".join(self.source)


class _NotebookFile(msgspec.Struct, frozen=True):
    cells: list[_NotebookCell] = []


class _Headings:
    """The heading above each code cell of one file, as it was when it was read."""

    def __init__(self, stamp: tuple[str, int, int], cells: list[_NotebookCell]) -> None:
        self.stamp = stamp
        self._by_id: dict[str, str] = {}
        self._by_text: dict[str, str | None] = {}
        """None: several cells have this text."""
        heading = ""
        for cell in cells:
            if cell.cell_type == "markdown":
                heading = next(reversed(list(headings(cell.text))), heading)
            elif cell.cell_type == "code":
                if cell.id:
                    self._by_id[cell.id] = heading
                text = cell.text.strip()
                self._by_text[text] = None if text in self._by_text else heading

    def above(self, cell_id: str, text: str) -> str:
        found = self._by_id.get(cell_id) if cell_id else None
        return (self._by_text.get(text.strip()) if found is None else found) or ""


_read: _Headings | None = None
"""Those of the file that was read last: a kernel has one notebook."""


def notebook_file(shell: Any) -> str:
    """The file of the notebook whose kernel ``shell`` is; empty where that is not known."""
    told = shell.user_ns.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME", "")
    if not isinstance(told, str) or not told:
        return ""
    path = Path(told)
    if not path.is_absolute():
        # Older servers give the path below their own folder, and start the kernel in that of the notebook.
        visited = shell.user_ns.get("_dh") or ["."]
        start = Path(str(visited[0]))
        path = next((found for folder in (start, *start.parents) if (found := folder / told).is_file()), path)
    return str(path) if path.suffix == ".ipynb" else ""


def heading_above(file: str, cell_id: str, text: str) -> str:
    """The heading above the cell with the id ``cell_id``, or else with the ``text``, in ``file``; empty for none."""
    global _read  # noqa: PLW0603 — a process has one notebook
    try:
        status = Path(file).stat()
        stamp = (file, status.st_mtime_ns, status.st_size)
        found = _read
        if found is None or found.stamp != stamp:
            cells: list[_NotebookCell] = []
            if status.st_size <= LARGEST:
                data = Path(file).read_bytes()
                cells = msgspec.json.decode(data, type=readable(_NotebookFile)).cells
            found = _read = _Headings(stamp, cells)
    except (OSError, *UNREADABLE):
        return ""
    return found.above(cell_id, text)


def headings(text: str) -> Iterator[str]:
    """The headings of a Markdown text, each as one line of plain text."""
    fence = ""
    for line in text.splitlines():
        if (mark := _FENCE.match(line)) is not None:
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence):
                fence = ""
        elif not fence and (found := _HEADING.match(line)) is not None:
            plain = _TAG.sub("", _LINK.sub(r"\1", found[1])).replace("`", "").replace("**", "")
            words = " ".join("".join(one if one.isprintable() else " " for one in plain).split())
            if words:
                yield words if len(words) <= WIDTH else f"{words[: WIDTH - 1]}…"
