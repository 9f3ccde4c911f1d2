"""What happened to a run beside its training: who interrupted it, ranks that were lost or replaced, acts on its loop.

Each is a sentence with a time. The writer keeps it once, however often it is told, and at most :data:`MOST` of a run.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from jupyter_dtrain.core.steering import RecordedAct

MOST: Final = 1000
"""Of one run."""
WIDTH: Final = 500
"""Characters of a sentence."""
_WRITE: Final = """INSERT INTO happenings (run, time, words) SELECT :run, :time, :words
    WHERE EXISTS (SELECT 1 FROM runs WHERE id = :run AND NOT deleted)
    AND NOT EXISTS (SELECT 1 FROM happenings WHERE run = :run AND words = :words)
    AND (SELECT count(*) FROM happenings WHERE run = :run) < :most"""


class RunHappening(msgspec.Struct, frozen=True):
    """Something that happened to a run."""

    time: float
    """Seconds since the epoch."""
    words: str
    """A sentence or several, such as ``Interrupted by the notebook train.ipynb (pid 7).``"""


def write(db: sqlite3.Connection, run: int, when: float, words: str) -> None:
    """Keep what happened to the run in row ``run``. Raises :class:`sqlite3.Error`."""
    words = " ".join(words.split())
    words = words if len(words) <= WIDTH else f"{words[: WIDTH - 1]}…"
    if words:
        words = words[0].upper() + words[1:]
        words += "" if words[-1] in ".!?…" else "."
        db.execute(_WRITE, {"run": run, "time": when, "words": words, "most": MOST})


def write_act(db: sqlite3.Connection, run: int, act: RecordedAct) -> None:
    """Keep what a person has asked of the loop, once all ranks have done it. Raises :class:`sqlite3.Error`."""
    if act.words and act.said:
        by = f", by {act.by}" if act.by else ""
        write(db, run, act.time, f"{' '.join(act.words.split())[: WIDTH // 2]}{by}: {act.said}")
