"""A profile of some steps of the training loop that a rank runs, while it goes on.

The control thread takes the order, :class:`~.step_work.StepWork` calls :meth:`RankProfile.step` after each step, on the
thread of the loop. There the framework's profiler starts and stops, between the same two steps on all ranks. A thread
of its own writes the trace, which stays in memory until it was read.

Under failure: the training goes on. What the profiler raises becomes the answer. A cell that ends, fails or is stopped
meanwhile keeps the steps that there were. A profile that nobody asks for any more is dropped at the next step, and one
that lasts too long is cut off.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import tempfile
import threading
import time
import zlib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.wire.messages import Done
from jupyter_dtrain.wire.profile_messages import (
    AnyProfileRequest,
    BeginProfile,
    EndProfile,
    ProfileState,
    ReadProfile,
    ReadTrace,
    TracePart,
)

from .user_text import words_of

if TYPE_CHECKING:
    from jupyter_dtrain.core.traces import GroupOf
    from jupyter_dtrain.plugins.framework import Recording

    from .plugins import Plugins

FORGOTTEN: Final = 15.0
"""Seconds without a question after which a profile is dropped."""
LONGEST: Final = 120.0
"""Seconds that a profile may last: events take memory."""
PART: Final = 1 << 20
"""Bytes of a trace in one answer."""
MOST: Final = 256 * 1024 * 1024
"""Bytes of a trace before it is compressed."""
_PACE: Final = 8
"""Steps over which the pace is taken."""
_CALLBACK: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Order:
    """One profile."""

    def __init__(self, key: str, after: int, steps: int) -> None:
        self.key, self.after, self.steps = key, after, steps
        self.state: Literal["armed", "late", "recording", "writing", "done", "failed"] = "armed"
        self.words = ""
        self.marks: list[int] = []
        self.framework = ""
        self.recording: Recording | None = None
        self.thread = 0
        self.data = b""
        self.groups: list[GroupOf] = []
        self.asked = time.monotonic()
        """When it was asked for last."""
        self.dropped = False
        self.timer: threading.Timer | None = None
        self.callback: object = None
        """Kept from being freed while the interpreter may call it."""

    @property
    def active(self) -> bool:
        return self.state in ("armed", "recording", "writing")

    @property
    def forgotten(self) -> bool:
        return self.dropped or time.monotonic() - self.asked > FORGOTTEN


class RankProfile:
    """The profile of one rank, one at a time."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._count = 0
        self._times: deque[float] = deque(maxlen=_PACE + 1)
        self._order: _Order | None = None
        self._lock = threading.Lock()
        """Held by the control thread alone, and by the end of a cell: two may come together there."""

    # The thread of the loop.

    def begin(self) -> None:
        """Begin a cell. Main thread."""
        self._count = 0
        self._times.clear()
        order = self._order
        if order is not None and not order.active and order.forgotten:
            self._order = None  # its trace takes memory

    def step(self, step: int) -> None:
        """Take note of a step."""
        self._count = step
        self._times.append(time.monotonic())
        order = self._order
        if order is not None and order.state in ("armed", "recording"):
            try:
                self._advance(order, step)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self._fail(order, words_of(error))

    def _advance(self, order: _Order, step: int) -> None:
        if order.state == "armed":
            if order.forgotten:
                self._fail(order, "nobody has asked for it any more")
            elif step == order.after:
                self._start(order)
            elif step > order.after:
                order.state = "late"
            elif step == order.after - 1:
                order.framework, order.recording = self._plugins.recording()
                if order.recording is not None:
                    order.recording.prepare()
            return
        order.marks.append(time.time_ns())
        if order.forgotten or len(order.marks) > order.steps or (order.recording and order.recording.cut):
            self._finish(order)

    def _start(self, order: _Order) -> None:
        if order.recording is None:
            order.framework, order.recording = self._plugins.recording()
        if (recording := order.recording) is None:
            self._fail(order, "no framework in use has a profiler here")
            return
        order.thread = threading.get_ident()
        order.state = "recording"  # first: an interrupt may come at any instruction, and the cell's end must know
        recording.start()
        order.timer = threading.Timer(LONGEST, self._too_long, (order,))
        order.timer.daemon = True
        order.timer.start()
        order.marks.append(time.time_ns())

    def _too_long(self, order: _Order) -> None:
        """Have the main thread cut off a profile, from within a step that does not end, such as an evaluation."""

        def cut(_: object) -> int:
            with contextlib.suppress(Exception):
                if order.state == "recording" and order.thread == threading.get_ident():
                    self._finish(order, f"a step took longer than {LONGEST:g} s")
            return 0

        order.callback = _CALLBACK(cut)
        ctypes.pythonapi.Py_AddPendingCall(order.callback, None)

    def _finish(self, order: _Order, why: str = "") -> None:
        """Stop the profiler, and have what it has recorded written. On the thread of the loop."""
        recording = order.recording
        assert recording is not None
        if order.timer is not None:
            order.timer.cancel()
        order.state = "writing"
        recording.stop()
        made = len(order.marks) - 1
        why = why or recording.cut
        if made < 1:
            self._fail(order, f"{why or 'it was dropped'}, before a step was over")
            return
        if made < order.steps:
            order.words = f"{made} of {quantity(order.steps, 'step')}: {why or 'it was dropped'}"
        threading.Thread(target=self._write, args=(order, recording), name="dtrain-profile", daemon=True).start()

    def _fail(self, order: _Order, words: str) -> None:
        if order.timer is not None:
            order.timer.cancel()
        order.words, order.recording = words, None
        order.state = "failed"

    def end(self, *, failed: bool = False) -> None:
        """End the cell: a profile that is not over keeps the steps that there were. Main thread."""
        self._count = 0
        order = self._order
        if order is None or order.state not in ("armed", "recording"):
            return
        why = "the cell was interrupted or failed" if failed else "the cell has ended"
        try:
            if order.state == "armed":
                prepared, order.recording = order.recording, None
                self._fail(order, f"{why} before step {order.after + 1}")
                if prepared is not None:
                    prepared.stop()
            elif order.thread != threading.get_ident():
                self._fail(order, f"{why}, and another thread than the main thread has made the steps")
            else:
                self._finish(order, why)
        except Exception as error:  # noqa: BLE001 — the cell ends all the same
            self._fail(order, words_of(error))

    # A thread of its own.

    def _write(self, order: _Order, recording: Recording) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="dtrain-profile-") as folder:
                file = Path(folder) / "trace.json"
                order.groups = recording.write(file)
                order.data = _compressed(file)
        except Exception as error:  # noqa: BLE001 — a thread of ours has nobody above it
            order.words = words_of(error)
            order.state = "failed"
        else:
            order.state = "done"
        finally:
            order.recording = None

    # The control thread.

    def answer(self, request: AnyProfileRequest, run: int | None) -> msgspec.Struct:
        """Answer a request; ``run``: the one whose cell runs now. Raises :class:`Refused`."""
        order = self._order
        with self._lock:
            match request:
                case ReadProfile(key=key):
                    return self._state(key, run)
                case BeginProfile():
                    words = self._take(request, run)
                    found = self._state(request.key, run)
                    return msgspec.structs.replace(found, state="failed", words=words) if words else found
                case EndProfile(key=key):
                    if order is not None and order.key == key:
                        order.dropped = True
                        if order.state == "armed":
                            self._fail(order, "it was dropped")
                        if not order.active:
                            self._order = None
                    return Done()
                case ReadTrace(key=key, start=start):
                    if order is None or order.key != key or order.state != "done":
                        raise Refused("There is no such trace.")
                    order.asked = time.monotonic()
                    return TracePart(order.data[start : start + PART])

    def _take(self, request: BeginProfile, run: int | None) -> str:
        """Take an order; why not, if not."""
        order = self._order
        if order is not None and order.active and not (order.forgotten and order.state == "armed"):
            return "another profile is being made"
        if run is None:
            return "the rank runs no cell"
        # Its state is looked at after each step: one that comes meanwhile makes it late.
        self._order = _Order(request.key, request.after, request.steps)
        if request.after <= self._count:
            self._order.state = "late"
        return ""

    def _state(self, key: str, run: int | None) -> ProfileState:
        count, times, order = self._count, list(self._times), self._order
        pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
        usable = self._plugins.profilers()
        found = ProfileState(run, count, pace, usable, self._plugins.in_use())
        if order is None or order.key != key:
            return found
        order.asked = time.monotonic()
        return msgspec.structs.replace(
            found,
            state=order.state,
            words=order.words,
            marks=order.marks,
            framework=order.framework,
            size=len(order.data),
            groups=order.groups if order.state == "done" else [],
        )


def _compressed(file: Path) -> bytes:
    """A trace, compressed by gzip. Raises :class:`OSError` for one that was not written whole."""
    size = file.stat().st_size
    if size > MOST:
        raise OSError(errno.EFBIG, f"its trace has {size // 1_000_000} MB: profile fewer steps")
    packer, parts = zlib.compressobj(1, wbits=31), []
    with file.open("rb") as source:
        source.seek(max(0, size - 16))
        if not source.read().rstrip().endswith(b"}"):
            free = os.statvfs(file.parent)
            full = free.f_bavail * free.f_frsize < PART
            raise OSError(
                errno.ENOSPC if full else errno.EIO, f"its trace could not be written to {file.parent.parent}"
            )
        source.seek(0)
        while part := source.read(PART):
            parts.append(packer.compress(part))
    return b"".join([*parts, packer.flush()])
