"""Sends the ranks' spools, as they grow, to a steward that cannot read this host's files.

The steward keeps a mirror of each file, so store, sidebar and attaching clients read the spools of all hosts in the
same way. A cursor per file says how much the steward has; nothing is sent twice, and a file that was cut (the watch
does that where a dead rank's last line is unfinished) is sent again from there.

Under failure: a file that cannot be read now is tried again at the next look.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jupyter_dtrain.wire.reports import Spooled

PERIOD: Final = 0.25
"""Seconds between two looks."""
PIECE: Final = 1 << 18
"""Bytes of one report."""
NEWEST: Final = 8
"""Runs that are always looked at; of the earlier ones, only the files that are not finished."""


class SpoolCopier:
    """The cursors of one world's spools on this host."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sent: dict[tuple[int, int], int] = {}
        """Bytes of each file that were sent, by run and rank."""
        self._finished: set[tuple[int, int]] = set()

    def pieces(self) -> Iterator[Spooled]:
        """The pieces that the steward has not; each counts as sent once the next one is asked for."""
        runs = sorted((int(name[4:]) for name in _names(self._folder) if name[4:].isdecimal()), reverse=True)
        for index, run in enumerate(runs):
            place = f"{self._folder}/run-{run}"
            for name in _names(place):
                rank = name.removeprefix("rank-").removesuffix(".jsonl")
                if rank.isdecimal() and (index < NEWEST or (run, int(rank)) not in self._finished):
                    yield from self._new(Path(place, name), run, int(rank))

    def _new(self, path: Path, run: int, rank: int) -> Iterator[Spooled]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = min(self._sent.get((run, rank), 0), size)
            file.seek(at)
            while at < size and (data := file.read(min(PIECE, size - at))):
                yield Spooled(run, rank, at, data)
                at += len(data)
                self._sent[run, rank] = at
                if b'"finished"' in data:
                    self._finished.add((run, rank))


def _names(folder: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []
