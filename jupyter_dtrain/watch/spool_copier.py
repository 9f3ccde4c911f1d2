"""Sends the ranks' spools, as they grow, to a steward that cannot read this host's files.

The steward keeps a mirror of each file, so store, sidebar and attaching clients read the spools of all hosts in the
same way. A cursor per file says how much the steward has; nothing is sent twice. Only whole lines are sent: the watch
cuts off the line that a rank was writing when it died.

Under failure: a file that cannot be read now is tried again at the next look.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from jupyter_dtrain.wire.reports import Spooled
from jupyter_dtrain.wire.spool import spool_path

PERIOD: Final = 0.25
"""Seconds between two looks."""
PIECE: Final = 1 << 18
"""Bytes of one report."""
NEWEST: Final = 8
"""Runs that are always looked at; of the earlier ones, only the files that are not finished."""


class SpoolCopier:
    """Reads one world's spools on this host, with a cursor for each file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sent: dict[tuple[int, int], int] = {}
        """Bytes of each file that were sent, by run and rank."""
        self._finished: set[tuple[int, int]] = set()

    def backlog(self, rank: int) -> int:
        """Bytes in the spools of ``rank`` that the steward does not have yet."""
        left = 0
        for run in self._runs():
            with contextlib.suppress(OSError):
                left += spool_path(self._folder, run, rank).stat().st_size - self._sent.get((run, rank), 0)
        return left

    def pieces(self, rank: int | None = None) -> Iterator[Spooled]:
        """Yield the pieces that the steward lacks, of all ranks or of one. A piece that was yielded counts as sent."""
        for index, run in enumerate(self._runs()):
            place = f"{self._folder}/run-{run}"
            for name in _names(place):
                number = name.removeprefix("rank-").removesuffix(".jsonl")
                if not number.isdecimal() or rank not in (None, int(number)):
                    continue
                if index < NEWEST or (run, int(number)) not in self._finished:
                    yield from self._new(Path(place, name), run, int(number))

    def _runs(self) -> list[int]:
        """The numbers of all runs, the newest first."""
        return sorted((int(name[4:]) for name in _names(self._folder) if name[4:].isdecimal()), reverse=True)

    def _new(self, path: Path, run: int, rank: int) -> Iterator[Spooled]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(at := self._sent.get((run, rank), 0))
            while data := _lines(file):
                # Before it is given: a reader may ask for no more.
                self._sent[run, rank] = at + len(data)
                # Printed text cannot look like this: JSON escapes its quotes. The data of a display can, which matters
                # only to a run that goes on while NEWEST later ones begin.
                if b'"finished"' in data:
                    self._finished.add((run, rank))
                yield Spooled(run, rank, at, data)
                at += len(data)


def _lines(file: BinaryIO) -> bytes:
    """The next whole lines: at least one where there is one, and no more than :data:`PIECE` bytes beyond it.

    The end of a line that a rank was writing when it died is cut off, so half a line is never sent.
    """
    data = file.read(PIECE)
    while data and b"\n" not in data and (more := file.read(PIECE)):
        data += more
    whole = data[: data.rfind(b"\n") + 1]
    file.seek(len(whole) - len(data), os.SEEK_CUR)
    return whole


def _names(folder: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []
