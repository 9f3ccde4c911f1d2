"""The runs that a person wants to see, as a condition for SQLite."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, NamedTuple

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import OUTCOMES, RUNNING

from .stored_run import world_is_over

_TEXT: Final = """(worlds.name || '/' || runs.number || char(10) || runs.name || char(10) || runs.note || char(10)
    || runs.tags || char(10) || runs.source)"""


class Wanted(NamedTuple):
    """Conditions on runs, all of which must hold; None is no condition."""

    world: str | None
    """The name of the runs' world."""
    outcome: str | None
    search: str | None
    """Words, each of which must be in the label, name, note, tags or cell of a run."""
    tag: str | None
    before: int | None
    """The id of a run: only older runs than that one."""

    def clause(self, db: sqlite3.Connection) -> tuple[str, list[Any]]:
        """The condition, and its values. Raises :class:`BadRequest` for a word that is no outcome."""
        found: list[str] = ["1"]
        values: list[Any] = []
        for condition, value in (
            ("worlds.name = ?", self.world),
            ("EXISTS (SELECT 1 FROM json_each(runs.tags) WHERE json_each.value = ?)", self.tag),
            ("runs.id < ?", self.before),
        ):
            if value is not None:
                found.append(condition)
                values.append(value)
        for word in (self.search or "").split():
            found.append(f"{_TEXT} LIKE ? ESCAPE '!'")
            values.append("%" + "".join(f"!{one}" if one in "!%_" else one for one in word) + "%")
        if self.outcome is not None:
            found.append(_ended_as(db, self.outcome))
            values += [self.outcome] if self.outcome != RUNNING else []
        return " AND ".join(found), values


def _ended_as(db: sqlite3.Connection, outcome: str) -> str:
    if outcome not in OUTCOMES:
        *words, last = OUTCOMES
        raise BadRequest(f"{outcome!r} is no outcome of a run: choose {', '.join(words)} or {last}.")
    if outcome not in ("lost", RUNNING):
        return "runs.outcome = ?"
    # The end of a run is not recorded where its steward was killed.
    rows = db.execute(
        "SELECT id, ended, host, steward, steward_created FROM worlds "
        "WHERE id IN (SELECT world FROM runs WHERE outcome IS NULL)"
    ).fetchall()
    over = ", ".join(str(world) for world, *facts in rows if world_is_over(*facts))
    if outcome == RUNNING:
        return f"(runs.outcome IS NULL AND runs.world NOT IN ({over}))"
    return f"(runs.outcome = ? OR (runs.outcome IS NULL AND runs.world IN ({over})))"
