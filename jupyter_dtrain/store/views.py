"""Saved views: how a person wants to see the list of runs, under a name.

Under failure: :class:`BadRequest` for what cannot be saved, :class:`StoreFailed`; nothing changes then. A view that is
damaged is left out.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.run_names import WIDTH
from jupyter_dtrain.core.structs import UNREADABLE, readable

from . import filters
from .file import StoreFile

MOST: Final = 200
_LARGEST: Final = 32 << 10  # bytes of one


class TableView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a person wants to see the list of runs, saved under a name."""

    name: str = ""
    where: str = ""
    sort: list[str] = []
    columns: list[str] = []
    group: str = ""
    everything: bool = False


def read(store: StoreFile) -> list[TableView]:
    """All views, by name. Raises :class:`StoreFailed`."""
    rows = store.ask(lambda db: db.execute("SELECT name, told FROM views ORDER BY name").fetchall()) or []
    found = []
    for name, told in rows:
        with contextlib.suppress(ValueError, *UNREADABLE):
            view: TableView = msgspec.json.decode(told, type=readable(TableView))
            found.append(msgspec.structs.replace(view, name=name))
    return found


def save(store: StoreFile, view: TableView) -> TableView:
    """Keep ``view`` in the place of one of its name. Raises :class:`BadRequest` and :class:`StoreFailed`."""
    name = view.name.encode("utf-8", "replace").decode().strip()
    if not 0 < len(name) <= WIDTH or not name.isprintable():
        raise BadRequest(f"The name of a view must be one line of 1 to {WIDTH} characters.", option="name")
    filters.parse(view.where)
    kept = msgspec.structs.replace(view, name=name)
    told = msgspec.json.encode(kept)
    if len(told) > _LARGEST:
        raise BadRequest(f"A view may have {_LARGEST:,} bytes, and this one has {len(told):,}.", option="columns")

    def write(db: sqlite3.Connection) -> None:
        known = {found for (found,) in db.execute("SELECT name FROM views")}
        if name not in known and len(known) >= MOST:
            raise BadRequest(f"The store keeps {MOST} views: delete one first.")
        query = "INSERT INTO views (name, told) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET told = excluded.told"
        db.execute(query, (name, told.decode()))

    with store.writing() as db:
        write(db)
    return kept


def delete(store: StoreFile, name: str) -> None:
    """Remove a view. Raises :class:`BadRequest` where there is none."""
    with store.writing() as db:
        if not db.execute("DELETE FROM views WHERE name = ?", (name,)).rowcount:
            raise BadRequest(f"There is no view {name[:80]!r}.", option="name")
