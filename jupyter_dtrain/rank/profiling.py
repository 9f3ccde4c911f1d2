"""A profile of some steps of the training loop that a rank runs, while it goes on.

The control thread takes the order, :class:`~.step_work.StepWork` calls :meth:`RankProfile.step` after each step of an
optimizer, on the thread of the loop. As long as no optimizer has stepped in the cell, a step is what the loop logs
(:meth:`RankProfile.point`). There the framework's profiler starts and stops, between the same two steps on all ranks. A
thread of its own writes the trace, which stays in memory until it was read.

Under failure: the training goes on. What the profiler raises becomes the answer. A cell that ends, fails or is stopped
meanwhile keeps the steps that there were. A profile that nobody asks for any more is dropped at the next step, and one
that lasts too long is cut off. An interrupt waits while a profiler starts or stops, and the end of a cell repeats a
stop that did not come to its end. Only the main thread is profiled: its cell ends no earlier than its loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import tempfile
import threading
import time
import zlib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.frames import frame_of
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
    from types import CodeType

    from jupyter_dtrain.core.traces import GroupOf
    from jupyter_dtrain.plugins.framework import Recording

    from .interrupts import Shield
    from .plugins import Plugins

FORGOTTEN: Final = 15.0
"""Seconds without a question after which a profile is dropped."""
LONGEST: Final = 120.0
"""Seconds that a profile may last: events take memory."""
MOMENT: Final = 0.3
"""Seconds that a loop waits until its profiler may stop; else it goes on, and tries again after its next step."""
PATIENCE: Final = 10.0
"""Seconds after which a profiler that may not stop yet stops all the same."""
_PAUSE: Final = 0.002
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
        self.until = 0.0
        """When it stops at the latest, once it is to stop; until then 0."""
        self.why = ""
        """Why it is to stop before it has all steps."""
        self.more = 0
        """Steps that were made since it was to stop."""
        self.hurried = False
        """Whether a step's work was not over in time, so that no later step waits for its own."""
        self.stopping = False
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

    def __init__(self, plugins: Plugins, shield: Shield) -> None:
        """``shield`` delays interrupts."""
        self._plugins = plugins
        self._shield = shield
        self._count = 0
        self._stepped = False
        """Whether an optimizer has stepped in this cell."""
        self._points: dict[str, int] = {}
        """The points that the loop has logged in this cell, by name, as long as none has."""
        self._times: deque[float] = deque(maxlen=_PACE + 1)
        self._order: _Order | None = None
        self._lock = threading.Lock()
        """Held by the control thread alone, and by the end of a cell: two may come together there."""
        self._starting = threading.Lock()
        """Held for a moment: an order starts, or another takes its place."""

    # The thread of the loop.

    def begin(self) -> None:
        """Begin a cell. Main thread."""
        self._count, self._stepped = 0, False
        self._points.clear()
        self._times.clear()
        order = self._order
        if order is not None and not order.active and order.forgotten:
            self._drop(order)

    def _drop(self, order: _Order) -> None:
        """Forget a profile that is over, unless another has taken its place: its trace takes memory."""
        with self._starting:
            if self._order is order:
                self._order = None

    def step(self, step: int) -> None:
        """Take note of a step of an optimizer."""
        if not self._stepped:
            self._stepped = True
            self._times.clear()  # of points
        self._take_note(step)

    def point(self, name: str) -> None:
        """Take note of a point that the loop logs. The series that has most of them counts the steps. Main thread."""
        if self._stepped:
            return
        made = self._points[name] = self._points.get(name, 0) + 1
        if made > self._count:
            self._take_note(made)

    def _take_note(self, step: int) -> None:
        self._count = step
        self._times.append(time.monotonic())
        order = self._order
        if order is None:
            return
        if order.state in ("armed", "recording"):
            try:
                self._advance(order, step)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self._fail(order, words_of(error))
        elif not order.active and order.forgotten:
            self._drop(order)

    def _advance(self, order: _Order, step: int) -> None:
        if order.state == "armed":
            self._await(order, step)
            return
        recording = order.recording
        if not order.until:
            self._complete(order)
        if order.state != "recording":
            return  # it was cut off meanwhile
        if order.until:
            order.more += 1
        else:
            order.marks.append(time.time_ns())
        if order.until or order.forgotten or len(order.marks) > order.steps or (recording and recording.cut):
            self._finish(order)

    def _await(self, order: _Order, step: int) -> None:
        """Start the profiler after its step, and prepare it after the one before."""
        if order.forgotten:
            self._fail(order, "nobody has asked for it any more")
        elif threading.current_thread() is not threading.main_thread():
            self._fail(order, "its loop runs on another thread than the main thread, which cannot be profiled")
        elif step == order.after:
            with self._shield:
                self._choose(order)
            self._complete(order)
            with self._shield:
                self._start(order)
        elif step > order.after:
            order.state = "late"
        elif step == order.after - 1:
            with self._shield:
                self._choose(order)
                if order.recording is not None:
                    order.recording.prepare()

    def _complete(self, order: _Order) -> None:
        """Have the work of a step end with it, unless one has taken too long: that may wait for a rank that is gone."""
        if order.recording is not None and not order.hurried:
            order.hurried = not order.recording.complete()

    def _choose(self, order: _Order) -> None:
        """Choose the profiler, if there is none yet."""
        if order.recording is None:
            order.framework, order.recording = self._plugins.recording(with_steps=self._stepped)

    def _start(self, order: _Order) -> None:
        if (recording := order.recording) is None:
            self._fail(order, "no framework in use has a profiler here")
            return
        with self._starting:
            # The control thread may have called it late, or put another in its place.
            if order is not self._order or order.state != "armed":
                return
            order.state = "recording"
        recording.start()
        self._limit(order, LONGEST)
        order.marks.append(time.time_ns())

    def _limit(self, order: _Order, seconds: float) -> None:
        """Have a profile cut off after ``seconds``."""
        if order.timer is not None:
            order.timer.cancel()
        order.timer = threading.Timer(seconds, self._too_long, (order,))
        order.timer.daemon = True
        order.timer.start()

    def _too_long(self, order: _Order) -> None:
        """Have the main thread cut off a profile, from within a step that does not end, such as an evaluation."""

        def cut(_: object) -> int:
            try:
                with contextlib.suppress(Exception):
                    self._finish(order, f"it was cut off after {LONGEST:g} s")
            except KeyboardInterrupt:
                # The interpreter would drop it here, and the cell would not end.
                threading.Thread(target=interrupt, name="dtrain-interrupt", daemon=True).start()
            return 0

        def interrupt() -> None:
            """Send it again once the main thread is out of here: an exception in here breaks the interpreter's call."""
            deadline = time.monotonic() + PATIENCE
            while _is_in(cut.__code__) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            signal.raise_signal(signal.SIGINT)

        order.callback = _CALLBACK(cut)
        ctypes.pythonapi.Py_AddPendingCall(order.callback, None)

    def _finish(self, order: _Order, why: str = "", last: float | None = None) -> None:
        """Stop the profiler once it may stop, and have what it has recorded written. Main thread.

        Where it may not stop yet, the next step tries again; with ``last`` it waits so many seconds at most, and stops.
        """
        # The interpreter may call it from within itself, to cut the profile off.
        if order.stopping:
            return
        order.stopping = True
        try:
            if order.state != "recording" or (recording := order.recording) is None:
                return
            seconds = 0.0 if order.until else MOMENT
            if not order.until:
                order.why = why or recording.cut or "it was dropped"
                order.until = time.monotonic() + PATIENCE
            may_stop = _may_stop(recording, min(seconds if last is None else last, order.until - time.monotonic()))
            with self._shield:
                if not may_stop and last is None and time.monotonic() < order.until:
                    if seconds:
                        self._limit(order, PATIENCE)
                    return
                recording.stop()
                # Not before: the end of the cell stops what records.
                self._keep(order, recording)
        finally:
            order.stopping = False

    def _keep(self, order: _Order, recording: Recording) -> None:
        """Have what was recorded written."""
        if order.timer is not None:
            order.timer.cancel()
        del order.marks[order.steps + 1 :]
        made = len(order.marks) - 1
        if made < 1:
            self._fail(order, f"{order.why}, before a step was over")
            return
        if made < order.steps:
            order.words = f"{made} of {quantity(order.steps, 'step')}: {order.why}"
        elif order.hurried:
            order.words = "a step's work was still under way when the next began, so its parts may be in later steps"
        elif order.more:
            order.words = f"operators of {quantity(order.more, 'more step')} are in it: communication was under way"
        order.state = "writing"
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
            else:
                # Others may wait for the word that this rank has failed.
                self._finish(order, why, MOMENT if failed else PATIENCE)
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
                        order.dropped = True  # the thread of the loop sees it, after a step or at the cell's end
                        if not order.active:
                            self._drop(order)
                    return Done()
                case ReadTrace(key=key, start=start):
                    if order is None or order.key != key or order.state != "done":
                        raise Refused("There is no such trace.")
                    order.asked = time.monotonic()
                    return TracePart(order.data[start : start + PART])

    def _take(self, request: BeginProfile, run: int | None) -> str:
        """Take an order; why not, if not."""
        with self._starting:
            order = self._order
            # One that is done waits for its client, which fetches it rank by rank.
            if order is not None and (
                order.state in ("recording", "writing") or (order.state in ("armed", "done") and not order.forgotten)
            ):
                return "another profile is being made; try again once it is there"
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


def _may_stop(recording: Recording, seconds: float) -> bool:
    """Whether a profiler may stop within ``seconds``; one that cannot say may."""
    deadline = time.monotonic() + seconds
    try:
        while not recording.may_stop():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
    except Exception:  # noqa: BLE001 — it must stop all the same
        return True
    return True


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


def _is_in(code: CodeType) -> bool:
    """Whether the main thread is in a call of ``code``."""
    frame = frame_of(threading.main_thread().ident)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
