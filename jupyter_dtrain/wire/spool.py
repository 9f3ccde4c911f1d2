"""Keeps one rank's events of one run in a file before it announces them.

A file holds one JSON event per line, numbered from 0 without holes but for text beyond the cap. The writer
uses plain ``write`` calls of whole lines: appended events survive the death of the process, but not of the machine.

Under failure: a full or failing disk turns the rest of the file into a ring in memory of the last
:data:`RING_BYTES`, and a line of text tells the reader; past the cap the spool counts text instead of keeping it,
and one ``Dropped`` event gives the amount. Nothing here ever raises into the user's code.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from jupyter_dtrain.core.events import Event, MediaLogged, Output, Sample, Started, StepParts, decode, encode
from jupyter_dtrain.core.structs import UNREADABLE
from jupyter_dtrain.core.world import parse_ranks

RING_BYTES = 4 << 20
READ_BYTES = 1 << 20
"""About how many bytes one :meth:`Spool.read` returns."""
CHUNK_BYTES = 1 << 16
ENDING = 2 << 20
"""Bytes; more than the text that a rank can have spooled without its watch's knowledge."""
_INDEX_EVERY = 128


def spool_path(folder: str | Path, run: int, rank: int) -> Path:
    """Where the events of ``rank`` in ``run`` are kept."""
    return Path(folder) / f"run-{run}" / f"rank-{rank}.jsonl"


def run_numbers(folder: str | Path) -> list[int]:
    """The numbers of the runs in a world's spool, in order; none where it cannot be read."""
    try:
        names = [path.name for path in Path(folder).iterdir()]
    except OSError:
        return []
    return sorted(int(name[4:]) for name in names if name.startswith("run-") and name[4:].isdecimal())


class Begun(NamedTuple):
    """The beginning of a run."""

    number: int
    source: str
    """The cell; empty where the lowest of the ranks has not begun it."""
    ranks: list[int]
    seconds: float
    """Seconds since it began."""


def last_run(folder: str | Path) -> Begun | None:
    """The newest run in a world's spool; None if there is none."""
    for number in reversed(run_numbers(folder)):
        if (found := read_beginning(folder, number)) is not None:
            return found
    return None


def read_beginning(folder: str | Path, run: int) -> Begun | None:
    """The beginning of a run in a world's spool; None where no rank has begun it.

    The source is empty where the lowest of its ranks has not begun it.
    """
    found = None
    for path in (Path(folder) / f"run-{run}").glob("rank-*.jsonl"):
        with contextlib.suppress(OSError, StopIteration):
            first = next(read_file(path))
            if isinstance(first.body, Started) and first.body.together:
                found = Begun(run, first.body.source, members(first.body), time.time() - first.time)
                if first.body.ranks:
                    break
    return found


def members(begun: Started) -> list[int]:
    """The ranks of the run that one of them begins so."""
    return parse_ranks(begun.together, sys.maxsize)


class Spool:
    """The file of one rank and run for its writer, and a reader in the same process.

    It has no lock of its own: the recorder that owns it calls it under its lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        """Why the spool no longer writes to the disk, or None."""
        self._index: list[tuple[int, int]] = []
        self._size = 0
        self._appended = 0
        self._ring: deque[tuple[Event, int]] = deque()
        self._ring_bytes = 0
        self.dropped_events = 0
        self.dropped_bytes = 0
        """How many bytes of text were dropped, because memory had no room for them."""
        self._fd = -1
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except BaseException as error:  # noqa: BLE001 — an audit hook of the user's may refuse, by any exception
            self.failure = str(error) or type(error).__name__

    def append(self, event: Event) -> int:
        """Write ``event`` to the file, or keep it in memory; return its size in bytes."""
        line = encode(event)
        if self.failure is None:
            try:
                self._write(line)
            except OSError as error:
                self.failure = str(error)
            else:
                if self._appended % _INDEX_EVERY == 0:
                    self._index.append((event.seq, self._size))
                self._appended += 1
                self._size += len(line)
                return len(line)
        self._remember(event, len(line))
        return len(line)

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            if written:
                os.ftruncate(self._fd, self._size)
            raise

    def _remember(self, event: Event, size: int) -> None:
        self._ring.append((event, size))
        self._ring_bytes += size
        self.make_room(0)

    def make_room(self, size: int) -> None:
        """Drop the oldest text, media and measurements in memory, to make room for ``size`` more bytes."""
        while self._ring_bytes + size > RING_BYTES and len(self._ring) > 1:
            for index, (old, old_size) in enumerate(self._ring):
                if isinstance(old.body, (Output, Sample, StepParts, MediaLogged)):
                    del self._ring[index]
                    self._ring_bytes -= old_size
                    self.dropped_events += 1
                    self.dropped_bytes += len(old.body.text.encode()) if isinstance(old.body, Output) else 0
                    break
            else:
                return

    def read(self, from_seq: int) -> list[Event]:
        """Events numbered ``from_seq`` and up, as many as fit :data:`READ_BYTES`, at least one if there is any."""
        events: list[Event] = []
        taken = 0
        if self._fd >= 0 and self._index:
            offset = next((at for seq, at in reversed(self._index) if seq <= from_seq), 0)
            for line in self._lines(offset):
                event = decode(line)
                if event.seq < from_seq:
                    continue
                events.append(event)
                taken += len(line)
                if taken >= READ_BYTES:
                    return events
        for event, size in self._ring:
            if event.seq >= from_seq:
                events.append(event)
                taken += size
                if taken >= READ_BYTES:
                    break
        return events

    def _lines(self, offset: int) -> Iterator[bytes]:
        """The lines from ``offset`` on, read without a file object: an audit hook of the user's may refuse one."""
        rest = b""
        while offset < self._size and (piece := os.pread(self._fd, min(READ_BYTES, self._size - offset), offset)):
            offset += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines

    def close(self) -> None:
        """Close the file; events in memory stay readable, through :meth:`read` only."""
        if self._fd >= 0 and self.failure is None:
            os.close(self._fd)
            self._fd = -1


def file_ends(path: str | Path) -> tuple[Event, Event, int] | None:
    """The first and the last whole event of a spool file, and the bytes up to there; None when it holds none.

    Reads the file's ends alone: it may have a gigabyte, and a death is to be reported now.
    """
    with open(path, "rb") as file:
        first = file.readline()
        position = file.seek(0, os.SEEK_END)
        text = b""
        while position > 0:
            step = min(CHUNK_BYTES, position)
            position -= step
            file.seek(position)
            text = file.read(step) + text
            end = text.rfind(b"\n")
            start = text.rfind(b"\n", 0, max(end, 0))
            if end >= 0 and (start >= 0 or position == 0):
                try:
                    return decode(first), decode(text[start + 1 : end + 1]), position + end + 1
                except UNREADABLE:
                    return None
    return None


def last_outputs(path: str | Path) -> list[Output]:
    """The output, in order, in the last :data:`ENDING` bytes of a spool file."""
    found = []
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - ENDING))
        for line in file:
            # The first may be cut, and the last may be half written.
            with contextlib.suppress(*UNREADABLE):
                body = decode(line).body
                if isinstance(body, Output):
                    found.append(body)
    return found


def descriptor_counts(outputs: Iterable[Output]) -> dict[Literal["stdout", "stderr"], int]:
    """By stream, how many bytes of its descriptor are in a spool file with these :func:`last_outputs`."""
    return {output.stream: output.descriptor for output in outputs if output.descriptor}


def read_file(path: str | Path, from_seq: int = 0) -> Iterator[Event]:
    """The events of a spool file from ``from_seq`` on, in order; a last line that is cut short is left out."""
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                event = decode(line)
            except UNREADABLE:
                return
            if event.seq >= from_seq:
                yield event
