"""Keeps what a training loop logs beside numbers: copies it, encodes it on a thread of its own, and records it.

The loop waits for a copy alone, and that is bounded: by the memory that copies may take (:data:`PENDING`), and by the
time that the loop may spend on them (:data:`SHARE`). The record of a run is bounded, too: of a name, more than
:data:`~jupyter_dtrain.core.media.KEPT` calls become every 2nd, then every 4th, and so on; and of all names together a
rank keeps :data:`MOST` bytes, of which each half that is used up halves what is kept once more. A line in the cell says
so once, and the record how many there were.

Under failure: a value that cannot be kept gets a line on the rank's stderr, and the others are kept. A thread that does
not end within the deadline at the end of a run, in a wait for a device say, is left behind, with a line; the next run
has one of its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import msgspec

from jupyter_dtrain.core.events import Body, MediaKind, MediaLogged, MimeBundle
from jupyter_dtrain.core.media import KEPT
from jupyter_dtrain.core.secrets import environment_secrets, redact
from jupyter_dtrain.core.structs import readable

from .interrupts import Shield
from .media_copies import CopiedMedium, Copies, NoRoom, PartsOf, copies
from .media_encoding import drawn
from .user_text import words_of

PENDING: Final = 64 << 20
"""Bytes of copies that may wait."""
WAITING: Final = 512
"""Copies that may wait."""
MOST: Final = 64 << 20
"""Bytes that one rank keeps of one run."""
FREE: Final = 5.0
"""Seconds of copies in a run that are free; then they take at most :data:`SHARE` of its time."""
SHARE: Final = 0.1
NAMES: Final = 1000
"""Names of one rank in one run."""
FIGURES: Final = 50
"""Displayed figures of a run from which every 2nd is kept, and so on."""
FIGURE: Final = "displayed figure"
"""The name of figures that the cell displays."""
_PICTURES: Final = ("image/png", "image/jpeg")


class _Name:
    """What a run has logged under one name."""

    def __init__(self, kind: MediaKind, most: int) -> None:
        self.kind = kind
        self._most = most
        self._calls = 0
        self._every = 1
        self.together = 1
        """How many things the last call had."""
        self.missed = 0
        """Those that were left out since the last one that was kept."""
        self.waiting = 0

    def due(self, pressure: int) -> bool:
        """Count a call; return whether to keep what it logs. ``pressure``: how often to halve what is kept."""
        call, self._calls = self._calls, self._calls + 1
        if call >= self._most * self._every:
            self._every *= 2
        return call % (self._every << pressure) == 0

    @property
    def is_thinned(self) -> bool:
        return self._every > 1


class _Waiting(NamedTuple):
    name: str
    step: int
    number: int
    copied: CopiedMedium


class _OfRun:
    """What waits in one run, and what it has kept."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[_Waiting | threading.Event] = SimpleQueue()
        self.names: dict[str, _Name] = {}
        self.began = time.monotonic()
        self.spent = 0.0
        self.size = 0
        """Bytes that were kept."""
        self.pending = 0
        self.count = 0
        self.working = False
        """Whether a thread encodes."""


class MediaLog:
    """The media of one rank, run by run. Any thread may log."""

    def __init__(
        self,
        emit: Callable[[Body], object],
        complain: Callable[[str, str], None],
        parts_of: PartsOf,
        shield: Shield | None = None,
    ) -> None:
        """``emit`` records an event; ``complain`` shows a line, and of one kind, its second argument, the first.

        ``shield`` delays interrupts of the main thread.
        """
        self._shield = shield or contextlib.nullcontext()
        self._emit = emit
        self._complain = complain
        self._parts_of = parts_of
        self._run: _OfRun | None = None
        self._lock = threading.Lock()
        self._emitting = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    @property
    def on(self) -> bool:
        """Whether a run goes on: nothing is kept without one."""
        return self._run is not None

    def begin(self) -> None:
        """Begin a run, without what the one before has logged."""
        with self._emitting:
            self._run = _OfRun()

    def log(self, name: str, value: Any, step: int) -> bool:
        """Keep ``value`` as of ``step``; return whether it is of a kind that is kept beside numbers.

        Raises :class:`ValueError` with the reason where it is, but this one cannot be kept.
        """
        if not -(2**63) <= step < 2**63:
            raise ValueError("its step needs more than 64 bits")

        def copy(room: int) -> Copies | None:
            return copies(value, self._parts_of, room)

        return self.add(name, step, copy)

    def show(self, data: MimeBundle, step: Callable[[], int]) -> None:
        """Keep a picture that the cell displays; anything else that it displays is left to the cell. Never raises."""
        mime = next((one for one in _PICTURES if isinstance(data.get(one), (str, bytes))), None)
        if mime is None or not self.on:
            return
        found: Any = data[mime]
        try:
            thing = CopiedMedium("figure", len(found), lambda: drawn(found, mime))
            self.add(FIGURE, step(), lambda _: Copies([thing]))
        except Exception as error:  # noqa: BLE001 — the display itself has succeeded
            self._say(f"a displayed figure is not kept: {words_of(error)}", FIGURE)

    def add(self, name: str, step: int, copy: Callable[[int], Copies | None]) -> bool:
        """Keep what ``copy`` gives, which may take so many bytes; see :meth:`log`."""
        run = self._run
        if run is None:
            return True
        began = time.monotonic()
        one = run.names.get(name)
        if one is not None and not self._is_due(run, name, one, began):
            one.missed += one.together
            return True
        try:
            found = copy(PENDING - run.pending if run.count < WAITING else 0)
        except NoRoom:
            self._say(f"{name!r} comes faster than it can be kept: some of it is left out", "fast")
            if (one := one or self._named(run, name, "image")) is not None:
                one.missed += one.together
            return True
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"it cannot be copied: {words_of(error)}") from error
        finally:
            run.spent += time.monotonic() - began
        if found is not None and (one := one or self._named(run, name, found.things[0].kind)) is not None:
            self._take(run, name, one, step, found)
        return found is not None

    def _take(self, run: _OfRun, name: str, one: _Name, step: int, found: Copies) -> None:
        """Give what was copied to the thread."""
        one.kind, one.together = found.things[0].kind, len(found.things) + found.more
        one.missed += found.more
        if run.size >= MOST:
            one.missed += len(found.things)
            return
        if found.more:
            self._say(f"of {name!r}, {len(found.things)} of {one.together} are kept", f"more {name}")
        with self._shield:
            with self._lock:
                one.waiting += len(found.things)
                run.pending += sum(thing.size for thing in found.things)
                run.count += len(found.things)
                begins, run.working = not run.working, True
            for number, thing in enumerate(found.things):
                run.queue.put(_Waiting(name, step, number, thing))
            if begins:
                threading.Thread(target=self._loop, args=(run,), name="dtrain-media", daemon=True).start()

    def end(self, patience: float) -> bool:
        """End the run: encode what still waits. Return whether that took at most ``patience`` seconds."""
        run = self._run
        if run is None:
            return True
        done = True
        try:
            if run.working:
                ended = threading.Event()
                run.queue.put(ended)
                done = ended.wait(patience)
        finally:
            with self._emitting:
                self._run = None
            self._leave(run, done=done)
        return done

    def _leave(self, run: _OfRun, *, done: bool) -> None:
        late = 0
        for name, one in list(run.names.items()):
            late += one.waiting
            if missed := one.missed + one.waiting:
                self._emit(MediaLogged(name, one.kind, 0, left_out=missed))
        if late and not done:
            self._say(f"{late} things that this cell has logged were not ready in time, and are left out", "late")

    def _forked(self) -> None:
        """Keep nothing in a forked process: it has no thread that would encode, and its locks may stay locked."""
        self._run = None

    def _say(self, words: str, kind: str) -> None:
        self._complain(f"log(): {words}", f"media {kind}")

    def _named(self, run: _OfRun, name: str, kind: MediaKind) -> _Name | None:
        if len(run.names) >= NAMES:
            self._say(
                f"more than {NAMES} names beside metrics in one run: {name!r} and further ones are left out", "names"
            )
            return None
        one = run.names[name] = _Name(kind, FIGURES if name == FIGURE else KEPT)
        one.due(0)
        return one

    def _is_due(self, run: _OfRun, name: str, one: _Name, now: float) -> bool:
        left = MOST - run.size
        pressure = int(math.log2(MOST / left)) if left > 0 else 0
        before = one.is_thinned
        due = one.due(pressure)
        if one.is_thinned and not before:
            self._say(
                f"{name!r} was logged so often that from now on only every 2nd time is kept, later every 4th, and so "
                "on; the same goes for other names. The run says how many there were.",
                "thinned",
            )
        if left <= 0 or pressure:
            self._say(
                f"this run has kept {run.size >> 20} MB beside its metrics on this rank, so it keeps less now", "size"
            )
        if run.spent > FREE + SHARE * (now - run.began):
            self._say(f"{name!r} takes more than a tenth of the loop's time: some of it is left out", "time")
            return False
        return due and left > 0

    # The thread.

    def _loop(self, run: _OfRun) -> None:
        while self._run is run:
            match run.queue.get():
                case threading.Event() as ended:
                    ended.set()
                    return
                case waiting:
                    self._encode(run, waiting)

    def _encode(self, run: _OfRun, waiting: _Waiting) -> None:
        name, step, number, copied = waiting
        one = run.names[name]
        body: MediaLogged | None = None
        try:
            mime, data, note = copied.encode()
            known = environment_secrets()
            caption = redact(str(copied.caption)[:1000], known, named=False)
            data = _without_secrets(copied.kind, data, known)
            body = MediaLogged(name, copied.kind, step, number, mime, data, caption, note=note)
        except BaseException as error:  # noqa: BLE001 — whatever a library raises, the other things are kept
            words = str(error) if isinstance(error, ValueError) else words_of(error)
            self._say(f"{name!r} is left out: {words}", f"left out {name}")
        with self._emitting:
            if self._run is not run:
                return
            with self._lock:
                one.waiting -= 1
                run.pending -= copied.size
                run.count -= 1
                if body is None:
                    one.missed += 1
                    return
                missed, one.missed = one.missed, 0
            run.size += len(body.data)
            try:
                self._emit(msgspec.structs.replace(body, left_out=missed))
            except Exception as error:  # noqa: BLE001 — without this thread nothing more would be kept
                self._say(f"{name!r} cannot be recorded: {words_of(error)}", f"left out {name}")


def _without_secrets(kind: MediaKind, data: bytes, known: Collection[str]) -> bytes:
    """``data`` of text, or of a table, as :func:`redact` leaves it; of anything else as it is."""
    # By form, and those of the environment: "token: cat" may be what a model has said.
    if kind == "text":
        return redact(data.decode("utf-8", "replace"), known, named=False).encode()
    if kind != "table":
        return data
    table = msgspec.json.decode(data, type=readable(dict[str, Any]))

    def clean(value: Any) -> Any:
        return redact(value, known, named=False) if isinstance(value, str) else value

    table["columns"] = [clean(one) for one in table["columns"]]
    table["rows"] = [[clean(value) for value in row] for row in table["rows"]]
    return msgspec.json.encode(table)
