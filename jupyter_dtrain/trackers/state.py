"""How far a tracker has what the store has of a run: the column ``state`` of the table ``tracked``.

One process at a time sends a run to a target: it claims the row first, with its own identity. A claim ends with its
process, so that a killed one is succeeded at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import time
from typing import Final, NamedTuple

import msgspec

from jupyter_dtrain.core.processes import own_process, still_runs
from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.store.stored_run import world_is_over

FOREIGN: Final = 3600.0
"""Seconds after which the claim of a process on another host, which cannot be looked for, ends."""
AGE: Final = 30 * 86400.0
"""Seconds after its start at which a run that no tracker has taken by then is given up."""

Key = tuple[int, int, int]
"""The place of a point in the order of its metric, see :mod:`.merging`."""


class Claim(msgspec.Struct, frozen=True):
    """The process that sends."""

    host: str
    pid: int
    created: float
    when: float

    @property
    def holds(self) -> bool:
        """Whether that process may still send."""
        if self.host == socket.gethostname():
            return still_runs(self.pid, self.created)
        return time.time() - self.when < FOREIGN


class TrackedState(msgspec.Struct, omit_defaults=True):
    """The position."""

    claim: Claim | None = None
    place: dict[str, str] = {}
    """The tracker's own: the id of the run in it, the folder of its files."""
    sent: dict[str, Key] = {}
    """The last point of each metric that the tracker has."""
    medium: int = 0
    """The row of the last medium that the tracker has."""
    again: bool = False
    """Whether the last sender was cut off: more than the position says may have arrived."""


class Row(NamedTuple):
    """A row of the table."""

    run: int
    tracker: str
    target: str
    """Beside the tracker's name, as :attr:`.target.TrackerTarget.rest` has it."""


def read_state(text: str) -> TrackedState:
    """The state of a column; a fresh one for what cannot be read."""
    with contextlib.suppress(*UNREADABLE):
        found: TrackedState = msgspec.json.decode(text, type=readable(TrackedState))
        return found
    return TrackedState(again=True)


def own_claim() -> Claim:
    """The claim of this process."""
    return Claim(socket.gethostname(), *own_process(), time.time())


def claim(db: sqlite3.Connection, row: Row) -> tuple[TrackedState, int] | None:
    """The state of a row that is this process's from now on, and the process that had it before (0: none).

    None where another process sends it, and where it is done. Call it in a transaction.
    """
    found = db.execute(
        "SELECT state FROM tracked WHERE run = ? AND tracker = ? AND target = ? AND NOT done", row
    ).fetchone()
    if found is None:
        return None
    state = read_state(found[0])
    before = state.claim
    if before is not None and before.pid != os.getpid() and before.holds:
        return None
    state.again |= before is not None
    state.claim = own_claim()
    save(db, row, state)
    return state, 0 if before is None else before.pid


def save(db: sqlite3.Connection, row: Row, state: TrackedState, words: str = "", *, done: bool = False) -> None:
    """Write the position, why it does not go on, and whether the tracker has all. Raises :class:`sqlite3.Error`."""
    db.execute(
        "UPDATE tracked SET state = ?, words = ?, done = ? WHERE run = ? AND tracker = ? AND target = ?",
        (msgspec.json.encode(state).decode(), words, done, *row),
    )


def add_row(db: sqlite3.Connection, row: Row) -> None:
    """Have the run sent; again where the tracker has it already, so that it gets what changed."""
    db.execute(
        "INSERT INTO tracked (run, tracker, target) VALUES (?, ?, ?) "
        "ON CONFLICT (run, tracker, target) DO UPDATE SET done = 0, words = ''",
        row,
    )


def pending(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """The trackers and targets of runs that are not done, of worlds that are over. Raises :class:`sqlite3.Error`."""
    rows = db.execute(
        "SELECT tracker, target, worlds.ended, host, steward, steward_created FROM tracked "
        "JOIN runs ON runs.id = tracked.run JOIN worlds ON worlds.id = runs.world "
        "WHERE NOT done AND NOT deleted AND runs.started > ?",
        (time.time() - AGE,),
    ).fetchall()
    return sorted({(tracker, target) for tracker, target, *world in rows if world_is_over(*world)})
