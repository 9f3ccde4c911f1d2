"""A report on chosen runs, in one file for others: a page, Markdown for a text, or a table as CSV.

The page needs no server and nothing from elsewhere: its charts are SVG in the page, its pictures are in it, and its
own rules forbid every script. What runs, persons and files have said is text in it and nothing else. The Markdown is
for issues, papers and chats; the CSV has a row for each run.

Everything is bounded, so that a report of many runs can still be sent, and what is left out is said. Secrets of known
forms are left out as well.

Under failure: a file that is there and is no report stays as it is, and no file is half written.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.run import Run

from .comparison import Comparison
from .report_data import GENERATOR, RunsReport
from .report_page import page
from .report_text import COLUMNS, markdown, table_text
from .runs import Store
from .stored_run import StoredRun

Format = Literal["html", "md", "csv"]
"""The form of a report."""
SUFFIXES: Final[Mapping[str, Format]] = {
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".markdown": "md",
    ".csv": "csv",
}
"""What a file's name says about the form of its report."""


def report(
    runs: Iterable[StoredRun | Run | str | int] | StoredRun | Run | str | int | Comparison,
    file: str | os.PathLike[str],
    *,
    notes: str = "",
) -> Path:
    """Write a report on ``runs`` into ``file``, and return its path: ``.html``, ``.md`` or ``.csv``.

    ``runs``: one run or several, each a :class:`StoredRun`, a :class:`Run` of a session or a name as in
    :meth:`Store.run`; a list of runs or a comparison, too. ``notes``: words that stand at the beginning; a first line
    that begins with ``#`` is the title.

    The page has charts that lie over each other in the runs' own colours, configuration, outcome with its cause,
    notes, tags, images and the like, what differs between the runs, versions and commit. It is one file without any
    script, of 20 MB at most, and says what it leaves out.

    Raises :class:`BadRequest` for a run that is not there, for a file of another kind, and for a file that is there
    and is no report.
    """
    store = Store.open()
    place = Path(file).expanduser()
    kind = SUFFIXES.get(place.suffix.lower())
    if kind is None:
        raise BadRequest(f"A report is a .html, .md or .csv file, and {str(file)!r} is none: name it report.html, say.")
    found = RunsReport(_chosen(store, runs), notes)
    _check_place(place)
    _write(place, written(found, kind))
    return place.absolute()


def written(report: RunsReport, kind: Format) -> str:
    """The report in one of its forms."""
    forms = {"html": page, "md": markdown, "csv": table_text}
    return forms[kind](report)


def _chosen(store: Store, runs: Any) -> list[StoredRun]:
    """The stored runs that a person names. Raises :class:`BadRequest`."""
    if isinstance(runs, Comparison):
        return list(runs.runs)
    if isinstance(runs, (StoredRun, Run, str, int)):
        runs = [runs]
    if not isinstance(runs, Iterable):
        raise BadRequest(f"{runs!r} names no run.")
    return [
        one if isinstance(one, StoredRun) else store.run_of(one) if isinstance(one, Run) else store.run(one)
        for one in runs
    ]


def _check_place(place: Path) -> None:
    """Raise :class:`BadRequest` where a report cannot be written, or would replace what is none."""
    if place.is_dir():
        raise BadRequest(f"{place} is a folder: name a file in it, such as {place / 'report.html'}.")
    if not place.parent.is_dir():
        raise BadRequest(f"The folder {place.parent} does not exist: make it first, or name another file.")
    with _failing(place):
        if not place.exists() or not place.stat().st_size:
            return
        with open(place, encoding="utf-8", errors="replace") as file:
            head = file.read(4096)
    if GENERATOR not in head and not head.startswith(",".join(COLUMNS)):
        raise BadRequest(
            f"{place} exists and is no report, so it stays as it is: name another file, or delete it first."
        )


def _write(place: Path, text: str) -> None:
    """Write a file: beside its place first, so that none is half written. Raises :class:`BadRequest`."""
    with _failing(place):
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:80]}-")
        written = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            written.chmod(0o666 & ~mask)
            written.replace(place)
        finally:
            with contextlib.suppress(OSError):
                written.unlink(missing_ok=True)


@contextlib.contextmanager
def _failing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        words = error.strerror or str(error)
        raise BadRequest(f"The report cannot be written to {place} ({words}): name a file in another folder.") from None
