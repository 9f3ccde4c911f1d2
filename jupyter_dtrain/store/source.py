"""Where the events of a world's runs come from; :mod:`.writer` decides what becomes of them.

They are read from the ranks' spools on this machine, from the end of the last reading on. The spools of other hosts
have copies here.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

from jupyter_dtrain.core.events import Event, Started, decode
from jupyter_dtrain.core.structs import UNREADABLE
from jupyter_dtrain.wire.spool import read_file, run_numbers, spool_path

LIMIT = 4 << 20
"""Bytes of one rank's events to read at once."""
SETTLED = 2_000_000_000
"""Nanoseconds after which a folder's change time, which may be coarse, shows reliably whether it has changed."""
PREFIX = 200
"""Bytes at the start of a spool line that include its event's type."""


class Read(NamedTuple):
    """The events of one reading of a rank."""

    events: list[Event]
    position: int
    """The position at which the next reading begins."""
    more: bool
    """Whether the rank has more events already."""


class SpoolFolder:
    """Finds the events of one world in the folder of its spools.

    A ``position`` is opaque to callers; 0 is the beginning.
    """

    def __init__(self, folder: str | Path, skip: tuple[str, ...] = ()) -> None:
        """``skip``: types of events to ignore, as their tags; they are not even parsed."""
        self._folder = Path(folder)
        self._skip = tuple(f'"body":{{"type":"{tag}"'.encode() for tag in skip)
        self._runs: frozenset[int] = frozenset()
        self._changed = -1

    def runs(self) -> frozenset[int]:
        """The numbers of all runs that have begun. It lists the folder only when that has changed."""
        with contextlib.suppress(OSError):
            changed = self._folder.stat().st_mtime_ns
            if changed != self._changed and (found := run_numbers(self._folder)):
                self._runs = frozenset(found)
                self._changed = changed if time.time_ns() - changed > SETTLED else -1
        return self._runs

    def ranks(self, run: int) -> list[int]:
        """The ranks that have begun ``run``."""
        with contextlib.suppress(OSError):
            ranks = [path.stem[5:] for path in (self._folder / f"run-{run}").glob("rank-*.jsonl")]
            return sorted(int(rank) for rank in ranks if rank.isdecimal())
        return []

    def beginning(self, run: int) -> tuple[float, Started] | None:
        """The time and the content of the first event of the lowest rank of ``run``; None before that has begun it."""
        for rank in self.ranks(run):
            with contextlib.suppress(OSError):
                first = next(read_file(spool_path(self._folder, run, rank)), None)
                if first is not None and isinstance(first.body, Started) and first.body.ranks:
                    return first.time, first.body
        return None

    def read(self, run: int, rank: int, position: int) -> Read:
        """Events of ``rank`` in ``run`` from ``position`` on, in order; an unfinished line stays for the next time.

        Raises :class:`OSError`.
        """
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
        except UNREADABLE:
            # It is damaged, or from a newer version: the events after it are still useful.
            return None
