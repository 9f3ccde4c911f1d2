"""What a page about one run shows beside its curves: its commit, media, trackers, and lines that run it again.

Under failure: :class:`StoreFailed`. What is damaged is left out.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.core.world import format_ranks

from .file import StoreFile
from .provenance import RunCommit
from .stored_run import StoredRun

MOST_MEDIA: Final = 5000
"""Things that one answer names."""

_NAMES: Final = """SELECT name, min(kind), rank, count(*) FROM media WHERE run = ? GROUP BY name, rank
    ORDER BY min(id)"""
_STEPS: Final = "SELECT DISTINCT name, step FROM media WHERE run = ? ORDER BY name, step"
_LOGGED: Final = "SELECT name, rank, logged FROM media_counts WHERE run = ?"
_HEADS: Final = """SELECT id, name, kind, rank, step, number, time - ?, mime, caption, note, length(data) FROM media
    WHERE run = ? AND name = ? AND (? IS NULL OR rank = ?) ORDER BY step, rank, number LIMIT ?"""
_COUNT: Final = "SELECT count(*) FROM media WHERE run = ? AND name = ? AND (? IS NULL OR rank = ?)"


class MediaName(msgspec.Struct, frozen=True):
    """What a run has logged under one name beside numbers."""

    name: str
    kind: str
    """`image`, `figure`, `histogram`, `text`, `table` or `audio`; empty where nothing was kept."""
    ranks: list[int]
    steps: list[int]
    """Those that the store keeps, in order."""
    kept: int
    logged: int
    """More than `kept` where some were left out."""


class MediumHead(msgspec.Struct, frozen=True):
    """One thing that a run has logged; its data is at `/dtrain/media/ID`."""

    id: int
    name: str
    kind: str
    rank: int
    step: int
    number: int
    """Counts what was logged together."""
    seconds: float
    """Since the run's start."""
    mime: str
    caption: str
    note: str
    """How the data is less than what was logged; mostly empty."""
    bytes: int


class PageTracker(msgspec.Struct, frozen=True):
    """A tracker that gets the run."""

    tracker: str
    target: str
    done: bool
    words: str
    """Why it does not go on; mostly empty."""


def commit_of(store: StoreFile, run: int) -> RunCommit | None:
    """The commit of the run in row ``run``; None where it has none. Raises :class:`StoreFailed`."""
    row = store.ask(lambda db: db.execute("SELECT told FROM commits WHERE run = ?", (run,)).fetchone())
    with contextlib.suppress(ValueError, *UNREADABLE):
        return None if row is None else msgspec.json.decode(row[0], type=readable(RunCommit))
    return None


def happenings_of(store: StoreFile, run: int) -> list[tuple[float, str]]:
    """When what happened to the run in row ``run``, oldest first. Raises :class:`StoreFailed`."""
    query = "SELECT time, words FROM happenings WHERE run = ? ORDER BY time, id"
    return store.ask(lambda db: db.execute(query, (run,)).fetchall()) or []


def trackers_of(store: StoreFile, run: int) -> list[PageTracker]:
    """The trackers that get the run in row ``run``. Raises :class:`StoreFailed`."""
    query = "SELECT tracker, target, done, words FROM tracked WHERE run = ? ORDER BY tracker, target"
    rows = store.ask(lambda db: db.execute(query, (run,)).fetchall()) or []
    return [PageTracker(tracker, target, bool(done), words) for tracker, target, done, words in rows]


def media_names(store: StoreFile, run: int) -> list[MediaName]:
    """What the run in row ``run`` has logged beside numbers, name by name. Raises :class:`StoreFailed`."""

    def look(db: sqlite3.Connection) -> list[list[tuple[Any, ...]]]:
        return [db.execute(query, (run,)).fetchall() for query in (_NAMES, _STEPS, _LOGGED)]

    kept, steps, logged = store.ask(look) or ([], [], [])
    kinds = {name: kind for name, kind, _, _ in kept}
    names = dict.fromkeys([*kinds, *(name for name, _, _ in logged)])
    return [
        MediaName(
            name,
            kinds.get(name, ""),
            sorted(_of(name, kept, 2)),
            [step for known, step in steps if known == name],
            sum(_of(name, kept, 3)),
            max(sum(_of(name, logged, 2)), sum(_of(name, kept, 3))),
        )
        for name in names
    ]


def _of(name: str, rows: Iterable[tuple[Any, ...]], column: int) -> list[int]:
    return [row[column] for row in rows if row[0] == name]


def media_heads(store: StoreFile, run: StoredRun, name: str, rank: int | None) -> tuple[list[MediumHead], int]:
    """What ``run`` has logged under ``name``, on all ranks or one; and how many more there are.

    Raises :class:`StoreFailed`.
    """
    where = (run.id, name, rank, rank)

    def look(db: sqlite3.Connection) -> tuple[list[MediumHead], int]:
        rows = db.execute(_HEADS, (run.started, *where, MOST_MEDIA)).fetchall()
        return [MediumHead(*row) for row in rows], db.execute(_COUNT, where).fetchone()[0]

    found, every = store.ask(look) or ([], 0)
    return found, every - len(found)


def medium(store: StoreFile, number: int) -> tuple[str, bytes] | None:
    """The MIME type and the data of what was logged; None where it is no longer kept. Raises :class:`StoreFailed`."""
    query = "SELECT mime, data FROM media JOIN runs ON runs.id = media.run WHERE media.id = ? AND NOT runs.deleted"
    row = store.ask(lambda db: db.execute(query, (number,)).fetchone())
    return None if row is None else (row[0], bytes(row[1]))


def about(run: StoredRun) -> dict[str, str] | None:
    """What made ``run``, as text and as HTML: its configuration, group, notebook, commit, and the runs before it."""
    from jupyter_dtrain.view.made import made_by

    lines = [f"Group: {run.group}"] if run.group else []
    if run.notebook:
        lines.append(f"Notebook: {run.notebook}" + (f", below {run.heading!r}" if run.heading else ""))
    if (commit := commit_of(run.file, run.id)) is not None:
        on = f" on {commit.branch}" if commit.branch else ""
        dirty = ", with uncommitted changes" if commit.dirty else ""
        lines.append(f"Commit: {commit.hash[:12]}{on}{dirty}: {commit.message}")
    if run.resumes is not None:
        before = ", ".join(one.label for one in run.lineage[:-1]) or "a run that was deleted"
        lines.append(f"It goes on with the training of {before}, from step {run.first_step} on.")
    return made_by(run.config, run.origins, lines)


def lines_again(run: StoredRun, command: Sequence[str]) -> tuple[str, str]:
    """A cell that runs ``run`` again, and the line that makes a job of its notebook; empty where there is none.

    ``command``: the program and its arguments, where the run is a script's.
    """
    size = max(run.size, 1)
    some = "" if len(run.ranks) in (0, size) else f" -r {format_ranks(set(run.ranks))}"
    group = f" --group {shlex.quote(run.group)}" if run.group else ""
    if run.resumes is not None and (before := run.lineage[-2:-1]):
        group += f" --resume {shlex.quote(before[0].label)}"
    job = ""
    if run.notebook:
        job = f"jupyter dtrain export {shlex.quote(run.notebook)} --to torchrun -n {size}"
    if command:
        return f"%distributed run {shlex.join(command)}", job
    sent = [name for name, origin in run.origins.items() if origin == "sent" and name.isidentifier()]
    values = [f"{name} = {run.config[name]!r}  # the notebook had sent it\n" for name in sent if name in run.config]
    return f"%%distributed -n {size}{some}{group}\n{''.join(values)}{run.source}", job
