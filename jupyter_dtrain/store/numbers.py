"""Where the numbers of a new world's runs begin: after those of earlier worlds with its name.

So ``world/17`` names one run, and the number in a cell is the one in lists. Both the store and the spools are asked:
one may be unreadable, and a steward that was killed has left runs that only its spool has. Never raises.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

from jupyter_dtrain.core.errors import StoreFailed

from .schema import open_for_reading


def last_number(store: Path, spool: Path, name: str) -> int:
    """The highest number of a run of the worlds called ``name``; 0 if they have none.

    ``spool``: the spool folder of a world, which lies beside those of other worlds.
    """
    return max(_stored(store, name), _spooled(spool, name))


def _stored(store: Path, name: str) -> int:
    with contextlib.suppress(StoreFailed, sqlite3.Error):
        db = open_for_reading(store)
        if db is not None:
            with contextlib.closing(db):
                # Deleted runs count: their numbers are not given again.
                query = "SELECT max(number) FROM runs JOIN worlds ON worlds.id = runs.world WHERE worlds.name = ?"
                return db.execute(query, (name,)).fetchone()[0] or 0
    return 0


def _spooled(spool: Path, name: str) -> int:
    # Ids end with the time at which their world started, and numbers grow: the newest spool with a run has the highest.
    named = re.compile(re.escape(name) + r"-\d{8}-\d{6}-[0-9a-f]+\Z")
    with contextlib.suppress(OSError):
        worlds = sorted((path for path in spool.parent.iterdir() if named.match(path.name)), reverse=True)
        for world in worlds:
            with contextlib.suppress(OSError):
                found = [int(path.name[4:]) for path in world.glob("run-*") if path.name[4:].isdecimal()]
                if found and world != spool:
                    return max(found)
    return 0
