"""The watch's way to the steward: reports on its standard output, without ever waiting for the reader.

On another host the pipe is ssh's, and as slow as the network. Text that the pipe does not take now waits in memory; the
watch sends nothing that can wait while some of it is left (:attr:`ReportPipe.free`). There the pipe also carries the
ranks' spools, as they grow. The steward, which cannot read them, keeps a mirror of each file, so store, sidebar and
attaching clients read the spools of all hosts in the same way. A cursor per file says how much the steward has; nothing
is sent twice. Only whole lines are sent: the watch cuts off the line that a rank was writing when it died.

Under failure: once the reader is gone, reports go nowhere. A spool that cannot be read now is tried again at the next
look.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from jupyter_dtrain.wire.reports import Died, Fell, Report, Spooled, encode_report
from jupyter_dtrain.wire.spool import run_numbers, spool_path

CHUNK: Final = 1 << 16
"""Bytes that are written to the pipe at once."""
PERIOD: Final = 0.25
"""Seconds between two looks at the spools."""
PIECE: Final = 1 << 18
"""Bytes of a spool in one report."""
NEWEST: Final = 8
"""Runs that are always looked at; of the earlier ones, only the files that are not finished."""
PROMPT: Final = 1 << 20
"""Bytes of a dead rank's spool that are copied before its end is reported."""
TURN: Final = 0.1
"""Seconds in which spools are copied before the watch looks around."""


class ReportPipe:
    """The end of the pipe in which the watch writes. Not locked: the watch has one thread."""

    def __init__(self, fd: int, spool: str = "") -> None:
        """``spool``: the folder of the spools that the steward cannot read; empty where it can."""
        self.fd = fd
        self._waiting: deque[bytes] = deque()
        self._copier = SpoolCopier(spool) if spool else None
        self._copy_at = 0.0
        self._late: dict[int, Died] = {}
        """The last reports of dead ranks whose spools are still being copied, by rank."""
        os.set_blocking(fd, False)

    @property
    def free(self) -> bool:
        """Whether no text waits for the pipe."""
        return not self._waiting

    def send(self, report: Report) -> None:
        """Send a report after those that wait; that of a rank's end after the rank's spools.

        A client that hears of the end reads the rank's last words in the mirror. Where the spools take long, the
        steward first gets :class:`~jupyter_dtrain.wire.reports.Fell`.
        """
        if isinstance(report, Died) and self._copier is not None:
            if self._copier.backlog(report.rank) > PROMPT:
                self._late[report.rank] = report
                self._copy_at = 0.0
                self._write(Fell(report.rank, report.words, report.run, report.pid, report.watch))
                return
            for piece in self._copier.pieces(report.rank):
                self._write(piece)
        self._write(report)

    def copy_spools(self) -> None:
        """Copy what the spools have got since the last look, if it is time and nothing waits for the pipe."""
        now = time.monotonic()
        if self._copier is None or now < self._copy_at or not self.free:
            return
        for rank in [*self._late, None]:  # the dead first: people wait for their last words
            for piece in self._copier.pieces(rank):
                self._write(piece)
                if not self.free or time.monotonic() > now + TURN:
                    return  # there may be more: the loop comes back as soon as it can
            if rank is not None:
                self._write(self._late.pop(rank))
        self._copy_at = now + PERIOD

    def copies_at(self, *, living: bool) -> float | None:
        """When :meth:`copy_spools` is due next (monotonic); None while it is not. ``living``: whether a rank lives."""
        return self._copy_at if self._copier is not None and (living or self._late) and self.free else None

    def _write(self, report: Report) -> None:
        data = encode_report(report)
        self._waiting.extend(data[begin : begin + CHUNK] for begin in range(0, len(data), CHUNK))
        self.flush()

    def flush(self) -> None:
        """Send as much as the pipe takes."""
        try:
            while self._waiting:
                piece = self._waiting[0]
                sent = os.write(self.fd, piece)
                if sent < len(piece):
                    self._waiting[0] = piece[sent:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()

    def finish(self, deadline: float) -> None:
        """Wait until all is sent, the rest of the spools too, but not beyond ``deadline`` (monotonic)."""
        self._drain(deadline)
        if self._copier is None:
            return
        for piece in self._copier.pieces():
            self._write(piece)
            self._drain(deadline)
            if not self.free:
                break
        for report in self._late.values():
            self._write(report)
        self._drain(deadline)

    def _drain(self, deadline: float) -> None:
        while self._waiting and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(OSError):
                select.select([], [self.fd], [], left)
            self.flush()


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
        for run in run_numbers(self._folder):
            with contextlib.suppress(OSError):
                left += spool_path(self._folder, run, rank).stat().st_size - self._sent.get((run, rank), 0)
        return left

    def pieces(self, rank: int | None = None) -> Iterator[Spooled]:
        """Yield the pieces that the steward lacks, of all ranks or of one. A piece that was yielded counts as sent."""
        for index, run in enumerate(reversed(run_numbers(self._folder))):
            place = f"{self._folder}/run-{run}"
            for name in _names(place):
                number = name.removeprefix("rank-").removesuffix(".jsonl")
                if not number.isdecimal() or rank not in (None, int(number)):
                    continue
                if index < NEWEST or (run, int(number)) not in self._finished:
                    yield from self._new(Path(place, name), run, int(number))

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
