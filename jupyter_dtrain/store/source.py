"""Where the events of a world's runs are found: apart from what becomes of them.

On this machine they are read from the ranks' spools, from where the last reading ended. A place whose spools are out
of reach is another :class:`Source`.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from jupyter_dtrain.core.events import Event, decode
from jupyter_dtrain.wire.spool import spool_path

LIMIT = 4 << 20
"""Bytes of one rank's events that are read at once."""
SETTLED = 2_000_000_000
"""Nanoseconds after which a folder's time of change, which may be coarse, tells whether it has changed."""
PREFIX = 200
"""Bytes of a spool line in which its event's type stands."""


class Read(NamedTuple):
    """What was read of one rank's events."""

    events: list[Event]
    position: int
    """Where to read on."""
    more: bool
    """Whether there is more already."""


class Source(Protocol):
    """Finds events. ``position`` is the source's own affair; 0 is the beginning."""

    def runs(self) -> frozenset[int]:
        """The numbers of all runs that have begun."""

    def ranks(self, run: int) -> list[int]:
        """The ranks that have begun ``run``."""

    def read(self, run: int, rank: int, position: int) -> Read:
        """Events of ``rank`` in ``run`` from ``position`` on, in order. Raises :class:`OSError`."""


class SpoolFolder:
    """The spools of one world in a folder of this machine."""

    def __init__(self, folder: str | Path, skip: tuple[str, ...] = ()) -> None:
        """``skip``: types of events that are not wanted, as their tags; they are not even parsed."""
        self._folder = Path(folder)
        self._skip = tuple(f'"body":{{"type":"{tag}"'.encode() for tag in skip)
        self._runs: frozenset[int] = frozenset()
        self._changed = -1

    def runs(self) -> frozenset[int]:
        """As :meth:`Source.runs`; the folder is listed only when it has changed."""
        with contextlib.suppress(OSError):
            changed = self._folder.stat().st_mtime_ns
            if changed != self._changed:
                found = (path.name[4:] for path in self._folder.iterdir() if path.name.startswith("run-"))
                self._runs = frozenset(int(number) for number in found if number.isdecimal())
                self._changed = changed if time.time_ns() - changed > SETTLED else -1
        return self._runs

    def ranks(self, run: int) -> list[int]:
        """As :meth:`Source.ranks`."""
        with contextlib.suppress(OSError):
            ranks = [path.stem[5:] for path in (self._folder / f"run-{run}").glob("rank-*.jsonl")]
            return sorted(int(rank) for rank in ranks if rank.isdecimal())
        return []

    def read(self, run: int, rank: int, position: int) -> Read:
        """As :meth:`Source.read`. A line that is not finished yet is left for the next time."""
        path = spool_path(self._folder, run, rank)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return Read([], position, more=False)
        if size <= position:
            return Read([], position, more=False)
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read(LIMIT)
            if b"\n" not in data:
                data += file.readline()
        end = data.rfind(b"\n") + 1
        position += end
        events = [event for line in data[:end].split(b"\n") if (event := self._parse(line)) is not None]
        return Read(events, position, more=end > 0 and size > position)

    def _parse(self, line: bytes) -> Event | None:
        head = line[:PREFIX]
        if not line or any(tag in head for tag in self._skip):
            return None
        try:
            return decode(line)
        except msgspec.MsgspecError:
            # Of a newer vocabulary, or damaged: what follows it is still worth having.
            return None
