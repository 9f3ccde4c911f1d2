"""Numbers a rank's events, spools them, and announces them.

The captured streams, the display hooks and the agent call the recorder. It gathers text for a few milliseconds; any
other event is made at once. One lock guards numbers and spool. One thread writes and announces; when text comes faster
than that thread can write, the caller itself writes to the spool: back-pressure goes to the disk, never into memory.

Announcements are bounded: the first :data:`WIRE_TEXT` bytes of a run's text go on the wire as they are, after that only
totals and the last lines, :data:`TOTALS_PERIOD` apart. Every event keeps its number and its place in the spool, up to
the cap.

Under failure: :mod:`jupyter_dtrain.wire.spool` says what happens when the disk is full.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, TextIO

import msgspec

from jupyter_dtrain.core.events import (
    VERSION,
    Batch,
    Body,
    Display,
    Dropped,
    Event,
    Finished,
    MediaLogged,
    Metrics,
    Outcome,
    Output,
    Result,
    RunContext,
    Spent,
    Started,
    Totals,
    decode,
    encodable,
    encode,
)
from jupyter_dtrain.core.metrics import pack, unpack
from jupyter_dtrain.core.structs import UNREADABLE
from jupyter_dtrain.core.world import format_ranks
from jupyter_dtrain.wire.messages import Cell
from jupyter_dtrain.wire.spool import Spool, spool_path

from .interrupts import Shield

WIRE_TEXT = 2 << 20
"""Bytes of text of one run that a rank announces in full."""
WIRE_POINTS = 30_000
"""Points of metrics, about 1 MB, that a rank announces in a second; of more, only the lowest and highest."""
TOTALS_PERIOD = 0.25
"""Seconds between two announcements past that."""
BEGINNING = 0.02
"""Seconds for which the beginning of a run waits for more: most cells are over by then, and one batch tells it all."""
GATHER = 0.004
"""Seconds that text waits for more of it."""
PENDING_LIMIT = 256 << 10
"""Characters of text that wait before the writer of the text has to spool them itself."""
CHUNK = 64 << 10
"""Characters in one output event."""
BETWEEN_LIMIT = 1 << 20
"""Characters printed between two runs (by threads) that are kept for the next run."""
LAST_EVENTS = 4096
"""Bytes of memory that the events at the end of a run take at most."""
COPIED = 64_000
"""Characters that :meth:`Recorder.copied` copies."""
TAIL_LINES = 20
TAIL_WIDTH = 400
KEEP_RUNS = 8
"""Finished runs whose spools stay open for ``read``."""

Announce = Callable[[Batch], None]

_SURE: Final = (Output, Metrics, MediaLogged)
"""Events that come often or are large, and hold nothing but text, bytes and packed numbers: readers take them."""

_Said = tuple[str, str, int, bool]
"""Stream, text, and the other arguments of :meth:`Recorder.write`."""


class _Tail:
    """Totals of the text of one run, and its last lines."""

    def __init__(self) -> None:
        self.bytes = 0
        self.lines = 0
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self._open = ""

    def add(self, text: str) -> None:
        self.bytes += len(text.encode("utf-8", "replace"))
        newlines = text.count("\n")
        self.lines += newlines
        if newlines > TAIL_LINES:
            text = "\n".join(text.rsplit("\n", TAIL_LINES + 1)[1:])
            self._open = ""
        *complete, rest = (self._open + text).split("\n")
        self._last.extend(line.rpartition("\r")[2][:TAIL_WIDTH] for line in complete)
        self._open = rest.rpartition("\r")[2][:TAIL_WIDTH] if rest else ""

    @property
    def last(self) -> str:
        """The last line, with its end where it has one."""
        return self._open or (f"{self._last[-1]}\n" if self._last else "")

    def totals(self) -> Totals:
        tail = [*self._last, self._open] if self._open else list(self._last)
        return Totals(self.bytes, self.lines, tail[-TAIL_LINES:])


class _Open:
    """A run that was begun here, finished or not: its numbers, its spool, and what of it is to be announced.

    Not locked: the recorder holds its lock around each call.
    """

    def __init__(self, run: int, rank: int, spool: Spool, cap: int) -> None:
        """``cap``: bytes of text that the spool may get."""
        self._cap = cap
        self.run = run
        self.rank = rank
        """The rank's number in this run."""
        self.spool = spool
        self.seq = 0
        self.announced = 0
        self.started = time.monotonic()
        self._began = time.time()
        self.finished = False
        self.tail = _Tail()
        self._wire_text = 0
        self._spooled = 0
        self._dropped_events = 0
        self._dropped_bytes = 0
        self._failure_reported = False
        self.batch: list[Event] = []
        self._next_totals = 0.0
        self._wire_room = float(WIRE_POINTS)
        self._wire_time = self.started

    @property
    def has_just_begun(self) -> bool:
        """Whether its beginning is all that there is to announce."""
        return self.announced == 0 and self.seq == 1

    def append_text(self, stream: str, text: str, descriptor: int, *, log: bool) -> None:
        """Append printed text, as :meth:`Recorder.write` got it; past the cap it is only counted."""
        kind: Literal["stdout", "stderr"] = "stderr" if stream == "stderr" else "stdout"
        text = text.encode("utf-8", "replace").decode()
        if not log:
            self.tail.add(text)
        for start in range(0, len(text), CHUNK):
            chunk = text[start : start + CHUNK]
            if self._spooled >= self._cap:
                self._dropped_events += 1
                self._dropped_bytes += len(chunk.encode())
            else:
                self.append(Output(kind, chunk, descriptor if start + CHUNK >= len(text) else 0, log))

    def append(self, body: Body) -> None:
        """Give an event its number, spool it, and keep the part of it that is to be announced.

        Of an event that readers cannot read, the log gets the beginning, and readers the end of a run without counts.
        """
        # A clock that is set while the run goes on must neither stretch it nor turn it back.
        now = self._began + time.monotonic() - self.started
        event = Event(self.run, self.rank, self.seq, now, body)
        if not (isinstance(body, _SURE) or _can_be_read(event)):
            self.append(Output("stderr", f"[jupyter-dtrain] no reader could read this: {body!r:.500}\n", log=True))
            if not isinstance(body, Finished):
                return
            body = msgspec.structs.replace(body, steps={}, spent=None)
            event = msgspec.structs.replace(event, seq=self.seq, body=body)
        try:
            size = self.spool.append(event)
        except UnicodeEncodeError:
            body = encodable(body)
            event = msgspec.structs.replace(event, body=body)
            size = self.spool.append(event)
        if not isinstance(body, MediaLogged):  # they have a bound of their own
            self._spooled += size
        # Only now: an event that cannot be encoded must leave no hole.
        self.seq += 1
        if isinstance(body, Metrics):
            self.batch.append(msgspec.structs.replace(event, body=self._thin(body)))
        elif isinstance(body, MediaLogged):
            self.batch.append(_without_data(event))
        elif isinstance(body, Output):
            self._wire_text += len(body.text)
            if self._wire_text <= WIRE_TEXT:
                self.batch.append(event)
        else:
            self.batch.append(event)
        if self.spool.failure is not None and not self._failure_reported:
            self._failure_reported = True
            note = f"[jupyter-dtrain] rank {self.rank}: the log cannot be written ({self.spool.failure}); "
            self.append(Output("stderr", note + "its last 4 MB are kept in memory.\n"))

    def _thin(self, metrics: Metrics) -> Metrics:
        """The part of ``metrics`` that goes on the wire: all of it, while there is room. The spool has all."""
        now = time.monotonic()
        self._wire_room = min(WIRE_POINTS, self._wire_room + (now - self._wire_time) * WIRE_POINTS)
        self._wire_time = now
        points = sum(len(series.values) // 8 for series in metrics.series)
        if points <= self._wire_room:
            self._wire_room -= points
            return metrics
        each = max(4, int(self._wire_room / 2 / len(metrics.series)))
        thinned = []
        for series in metrics.series:
            columns = unpack(series).thinned(each)
            left_out = len(series.values) // 8 - len(columns.values)
            self._wire_room -= len(columns.values)
            thinned.append(pack(series.name, columns, left_out))
        return Metrics(thinned)

    def take_batch(self, *, force: bool = False) -> Batch | None:
        """Take what is to be announced now; None for nothing yet. ``force``: also before its time."""
        if self.announced == self.seq:
            return None
        # Past the limit text is in no batch, only its number: a batch of totals says how far the run has come. The last
        # batch of a run is always sent, or readers would wait for the numbers up to it.
        over = self._wire_text > WIRE_TEXT
        now = time.monotonic()
        if over and not force and not self.batch and now < self._next_totals:
            return None
        self._next_totals = now + TOTALS_PERIOD
        events, self.batch = self.batch, []
        first, self.announced = self.announced, self.seq
        return Batch(self.run, self.rank, first, self.seq - 1, events, self.tail.totals() if over else None)

    def append_dropped(self) -> None:
        """Append how much was dropped, if anything was, and keep room for the last events behind it."""
        # The last events must not push out text after it was counted.
        self.spool.make_room(LAST_EVENTS)
        if events := self._dropped_events + self.spool.dropped_events:
            size = self._dropped_bytes + self.spool.dropped_bytes
            reason = self.spool.failure or f"the rank keeps only {self._cap} bytes for each run"
            self.append(Dropped(events, size, reason))


def _without_data(event: Event) -> Event:
    """``event`` as it goes on the wire: the bytes of media stay in the spool, where the store takes them."""
    if not isinstance(event.body, MediaLogged):
        return event
    return msgspec.structs.replace(event, body=msgspec.structs.replace(event.body, data=b""))


def _can_be_read(event: Event) -> bool:
    """Whether readers take ``event``: the type checker cannot know what other libraries and the interpreter gave.

    One that they do not take would take all later ones with it, also the end of the run.
    """
    try:
        line = encode(event)
    except Exception:  # noqa: BLE001 — whoever writes it meets it again
        return True
    try:
        decode(line)
    except UNREADABLE:
        return False
    return True


def _open_log(path: Path) -> TextIO:
    path.touch(mode=0o600)
    return open(path, "a", encoding="utf-8", errors="replace", buffering=1)


class Recorder:
    """Numbers, spools and announces the events of one rank. All methods may be called from any thread."""

    def __init__(
        self, rank: int, folder: str | Path, announce: Announce, *, cap: int, log: Path, mirror: str | Path = ""
    ) -> None:
        """``cap``: bytes of spool per run. ``log``: file for text that was printed before the first run.

        ``mirror``: the folder of the steward that has a copy of ``folder``, where that is on another host.
        """
        self.rank = rank
        self._folder = Path(folder)
        self._mirror = Path(mirror or folder)
        self._announce = announce
        self._cap = cap
        self.shield = Shield()
        """Entered while something is half written, so that an interrupt waits until it is whole."""
        # Reentrant: a signal handler of the user's may print while its thread is inside.
        self._lock = threading.RLock()
        # A thread that announces takes it before the lock, so that batches leave in the order of their numbers.
        self._announcing = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._runs: dict[int, _Open] = {}
        self._current: _Open | None = None
        self._last_run: int | None = None
        self._pending: list[_Said] = []
        self._pending_size = 0
        self._between: list[_Said] = []
        self._between_size = 0
        self._log_file = log
        self._log = _open_log(log)
        self._copies: list[str] | None = None
        """What :meth:`copied` has copied so far."""
        self._copy_room = 0
        """Characters that it still copies."""
        self._closing = False
        self._thread = threading.Thread(target=self._announce_loop, name="dtrain-recorder", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Record nothing in a forked process: its events would have the numbers of the rank's own."""
        self._lock = threading.RLock()
        self._wake, self._announcing = threading.Condition(self._lock), threading.Lock()
        self._current, self._pending, self._pending_size = None, [], 0

    def renumber(self, rank: int) -> None:
        """Record later runs under the number ``rank``, with a log file of that number. No run goes on.

        Earlier runs keep the number that the rank had in them. Where the file cannot be opened, the old one goes on.
        """
        with self._lock:
            self._write_log(f"[jupyter-dtrain] rank {self.rank} is rank {rank} from here on\n")
            before, self.rank = self.rank, rank
            with contextlib.suppress(Exception):
                log = _open_log(self._log_file.with_name(f"rank-{rank}.log"))
                self._log.close()
                self._log = log
                self._write_log(f"[jupyter-dtrain] rank {before} is rank {rank} from here on\n")

    def begin(
        self,
        run: int,
        ranks: list[int] | None = None,
        source: str = "",
        cell: Cell | None = None,
        *,
        elastic: bool = False,
        joins: int | None = None,
    ) -> None:
        """Count all events from now on to ``run``, the cell ``source`` on ``ranks``.

        ``cell``: the notebook's cell that it comes from; ``elastic`` and ``joins`` as in :class:`Started`.
        """
        opened = _Open(run, self.rank, Spool(spool_path(self._folder, run, self.rank)), self._cap)
        with self._lock:
            self._current = self._runs[run] = opened
            self._last_run = run
            for number in sorted(self._runs)[:-KEEP_RUNS]:
                with contextlib.suppress(OSError):
                    self._runs.pop(number).spool.close()
            pid, host = os.getpid(), socket.gethostname()
            named = (ranks or []) if source else []
            cell = cell or Cell()
            at = str(spool_path(self._mirror, run, self.rank))
            together = format_ranks(ranks or [])
            identity = (cell.number, cell.id, cell.run_name, cell.above)
            context = cell.context if source else RunContext(first_step=cell.context.first_step)
            opened.append(Started(pid, host, at, VERSION, source, named, *identity, elastic, joins, together, context))
            # What threads printed between the runs comes before what this run has printed, as it was written.
            between, self._between, self._between_size = self._between, [], 0
            self._pending = between + self._pending
            self._wake.notify()

    def write(self, stream: str, text: str, descriptor: int = 0, *, log: bool = False) -> None:
        """Record printed text. Text between two runs belongs to the next; before the first run it goes to the log.

        ``descriptor``: for text that was written to the stream's descriptor, how many bytes of that it ends with.
        ``log``: it is a library's log, which the cell does not show.
        """
        if not text:
            return
        with self.shield, self._lock:
            self._copy(text)
            if self._current is None:
                self._write_between((stream, text, descriptor, log))
                return
            if not self._pending:
                self._wake.notify()
            self._pending.append((stream, text, descriptor, log))
            self._pending_size += len(text)
            if self._pending_size > PENDING_LIMIT:
                self._spool_pending(self._current)

    @contextlib.contextmanager
    def copied(self) -> Iterator[list[str]]:
        """Copy the text that is recorded inside, also that of displays and results, into the list that this gives.

        At most :data:`COPIED` characters of it.
        """
        with self._lock:
            copy = self._copies = []
            self._copy_room = COPIED
        try:
            yield copy
        finally:
            with self._lock:
                self._copies = None

    def _copy(self, text: str) -> None:
        if self._copies is not None and self._copy_room > 0:
            self._copies.append(text[: self._copy_room])
            self._copy_room -= len(text)

    def _write_between(self, said: _Said) -> None:
        text = said[1]
        if self._last_run is None:
            self._write_log(text)
            return
        if self._between_size < BETWEEN_LIMIT:
            self._between.append(said)
            self._between_size += len(text)
        else:
            self._write_log(text)

    def log(self, text: str) -> None:
        """Keep ``text``, whole lines, in the rank's log file and show it in no cell."""
        self._write_log(text if text.endswith("\n") else f"{text}\n")

    def _write_log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._log.write(text)
            self._log.flush()  # the end of a line that is not whole; Python 3.14 would keep up to 128 kB of it

    def flush(self) -> None:
        """Spool the text printed so far, so that it survives the death of this process."""
        with self.shield, self._lock:
            if self._current is not None and self._pending:
                self._spool_pending(self._current)
                self._wake.notify()

    def printed(self) -> tuple[int, str]:
        """The bytes of text that the cell has printed so far, and the last line, with its end where it has one."""
        with self.shield, self._lock:
            if self._current is None:
                return 0, ""
            self._spool_pending(self._current)
            return self._current.tail.bytes, self._current.tail.last

    def append(self, body: Body) -> bool:
        """Record an event other than text, in its order with the text. Outside a run this drops it: False."""
        with self.shield, self._lock:
            if self._current is None:
                return False
            # Text that was printed before the event must have a lower number, or readers show it after the event.
            self._spool_pending(self._current)
            if isinstance(body, (Display, Result)) and (text := str(body.data.get("text/plain", ""))):
                self._copy(f"{text}\n")
            self._current.append(body)
            self._wake.notify()
            return True

    def send(self, body: Body) -> bool:
        """Record an event like :meth:`append`, and announce it on the calling thread, which saves waking another.

        For events that gather much, such as the points of a quarter of a second.
        """
        with self.shield, self._announcing:
            with self._lock:
                opened = self._current
                if opened is None:
                    return False
                self._spool_pending(opened)
                opened.append(body)
                batch = opened.take_batch()
            if batch is not None:
                self._announce(batch)
            return True

    def finish(
        self,
        outcome: Outcome,
        words: str = "",
        *,
        regroup: bool = False,
        steps: dict[str, int] | None = None,
        spent: Spent | None = None,
        threads: Literal["", "alive", "waiting"] = "",
    ) -> None:
        """End the current run. Later events belong to the next."""
        with self._announcing:
            with self._lock:
                opened = self._current
                if opened is None:
                    return
                self._spool_pending(opened)
                opened.append_dropped()
                elapsed = time.monotonic() - opened.started
                opened.append(Finished(outcome, elapsed, words, regroup, steps or {}, spent, threads))
                opened.finished = True
                # Before the announcement, which takes its time: what is printed meanwhile belongs to the next run.
                self._current = None
                batch = opened.take_batch(force=True)
            if batch is not None:
                self._announce(batch)

    def withdraw(self, run: int) -> None:
        """Record that ``run`` was interrupted before this rank began it. Another run may be going on."""
        opened = _Open(run, self.rank, Spool(spool_path(self._folder, run, self.rank)), self._cap)
        with self._announcing:
            with self._lock:
                self._runs[run] = opened
                if self._current is None:
                    self._last_run = run
                at = str(spool_path(self._mirror, run, self.rank))
                opened.append(Started(os.getpid(), socket.gethostname(), at, VERSION))
                opened.append(Finished("interrupted", 0.0))
                opened.finished = True
                batch = opened.take_batch(force=True)
            if batch is not None:
                self._announce(batch)

    def position(self) -> tuple[int | None, int, bool]:
        """The newest run, the next number in it, and whether it has finished."""
        with self._lock:
            opened = self._runs.get(self._last_run) if self._last_run is not None else None
            if opened is None:
                return None, 0, True
            return opened.run, opened.seq, opened.finished

    def read(self, run: int, from_seq: int) -> Batch | None:
        """Events of ``run`` from ``from_seq`` on, about 1 MB of them; None when there are none (yet)."""
        with self._lock:
            opened = self._runs.get(run)
            if opened is None:
                return None
            if opened is self._current:
                # The reader asks for what it lacks, and pending text is no event yet.
                self._spool_pending(opened)
            events = opened.spool.read(from_seq)
            if not events:
                return None
            last = events[-1].seq
            return Batch(run, opened.rank, from_seq, last, [*map(_without_data, events)], opened.tail.totals())

    def _spool_pending(self, opened: _Open) -> None:
        pending, self._pending, self._pending_size = self._pending, [], 0
        for (stream, log), group in itertools.groupby(pending, key=lambda one: (one[0], one[3])):
            texts, descriptors = zip(*((text, descriptor) for _, text, descriptor, _ in group), strict=True)
            opened.append_text(stream, "".join(texts), max(descriptors), log=log)

    def _announce_loop(self) -> None:
        while True:
            with self._lock:
                opened = self._current
                if not self._closing and not self._pending and (opened is None or not opened.batch):
                    # Totals that were held back leave when their time has come, though nobody prints any more.
                    late = opened is not None and opened.announced < opened.seq
                    self._wake.wait(TOTALS_PERIOD if late else None)
                opened = self._current
                if opened is not None and opened.has_just_begun and not self._pending and not self._closing:
                    self._wake.wait(BEGINNING)
                if self._closing:
                    return
            # Text of one burst shares an event; the lock is free meanwhile.
            time.sleep(GATHER)
            with self._announcing:
                with self._lock:
                    opened = self._current
                    if opened is None:
                        continue
                    self._spool_pending(opened)
                    batch = opened.take_batch()
                # Without the lock: a socket may take its time, and whoever prints must not wait for it.
                if batch is not None:
                    self._announce(batch)

    def close(self) -> None:
        """Stop announcing; the spools stay on disk."""
        with self._lock:
            self._closing = True
            self._wake.notify()
