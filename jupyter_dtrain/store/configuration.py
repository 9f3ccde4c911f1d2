"""The configuration of a run: hyper-parameters by name, each with where it comes from.

Several sources know values; :data:`~jupyter_dtrain.core.events.ConfigOrigin` says which one counts. What is too large
is left out, and a value ``…`` stands for it: a run never fails for its configuration.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final, get_args

import msgspec

from jupyter_dtrain.core.events import ConfigOrigin, Configured
from jupyter_dtrain.core.structs import readable

MOST: Final = 500
"""Values of one run."""
LONGEST: Final = 8 << 10
"""Bytes of one value, as JSON."""
LEFT_OUT: Final = "…"
"""Stands for a value that is longer."""

_RANKING: Final[tuple[str, ...]] = get_args(ConfigOrigin)


def write(db: sqlite3.Connection, run: int, configured: Configured) -> None:
    """Add what a rank has said to the run in row ``run``. Raises :class:`sqlite3.Error`."""
    row = db.execute("SELECT config, origins FROM runs WHERE id = ?", (run,)).fetchone()
    if row is None:
        return
    values, origins = read(row[0]), read(row[1])
    for name, value in configured.values.items():
        known = origins.get(name)
        if known in _RANKING and _RANKING.index(known) > _RANKING.index(configured.origin):
            continue
        if name in values or len(values) < MOST:
            values[name] = value if len(msgspec.json.encode(value)) <= LONGEST else LEFT_OUT
            origins[name] = configured.origin
    encoded = [msgspec.json.encode(one).decode() for one in (values, origins)]
    db.execute("UPDATE runs SET config = ?, origins = ? WHERE id = ?", (*encoded, run))


def read(text: str) -> dict[str, Any]:
    """The values of a column. Raises :class:`msgspec.DecodeError` for a damaged one."""
    found: dict[str, Any] = msgspec.json.decode(text, type=readable(dict[str, Any]))
    return found
