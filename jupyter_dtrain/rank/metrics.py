"""Points that a rank logs, on their way from the training loop to the recorder.

The loop appends a tuple and goes on. A thread turns the tuples into columns every :data:`PERIOD`, those of a fast loop
every :data:`CALM_PERIOD`, or sooner when there are many. The same thread reads values that a device has yet to compute,
so that the loop never waits for a device.

All points of a run lie on one axis. What a framework counts is a step of the optimizer; what the user logs without a
step takes the optimizer's, where one has stepped. In a run that goes on with another one, both go on from its steps. A
step that the user names is taken as it is.

Under failure: a line on the rank's stderr stands for a point that cannot be recorded, and for one name too many; the
other points are recorded. Points wait for a slow thread; from :data:`LIMIT` waiting points on, the loop itself writes
them to the spool. A run's end waits for a device no longer than its caller allows. Later points are dropped, and
the next run gets a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from jupyter_dtrain.core.events import Body, Metrics
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.plugins.framework import Read

from .interrupts import Shield
from .user_text import words_of

PERIOD = 0.25
"""Seconds between two events."""
MANY = 500
"""Points a second from which a loop is so fast that an event, which wakes five processes, is dear to it."""
CALM_PERIOD = 0.5
"""Seconds between two events then, as between two messages of the panel."""
SOON = 2048
"""Points that make an event before that: 64 kB of spool."""
LIMIT = 1 << 18
"""Points that may wait for the thread."""
MAX_NAMES = 1000
"""Metrics of one rank in one run."""
BESIDE = " (backward)"
"""The words that a framework's series gets behind its name where the user logs one of the same name."""
MAX_COMPLAINTS = 100
MAX_NAME = 200
"""Characters of a metric's name."""
HANDOVER = 1.0
"""Seconds in which a flush between two runs may finish."""

_NUMBERS = frozenset((float, int, bool, Columns))

_Point = tuple[str, int, float, Any, "Read | None"]


class MetricBuffer:
    """Gathers points; all methods may be called from any thread."""

    def __init__(self, emit: Callable[[Body], object], complain: Callable[[str], None], shield: Shield) -> None:
        """``emit`` records an event, ``complain`` shows the user a line, ``shield`` delays interrupts."""
        self.shield = shield
        """Encloses quick steps that an interrupt must not leave half done."""
        self._emit = emit
        self._complain = complain
        self._points: list[_Point] = []
        self._wake = threading.Event()
        self._soon = threading.Event()
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        """Held by the flush that is under way. A new lock takes its place when that flush never ends."""
        self._emitting = threading.Lock()
        self._ended: threading.Event | None = None
        """The thread sets it after the last flush of the run."""
        # The thread that collects more points before it flushes: those must not make it flush again.
        self._flusher = 0
        self._expected = False
        self._fast, self._flushed = False, time.monotonic()
        """Whether the points came faster than :data:`MANY` before the last flush, and when that was."""
        self._before_flush: list[Callable[[], None]] = []
        self._names: set[str] = set()
        self._complaints: set[str] = set()
        self._logged: set[str] = set()
        self.first_step = 0
        """The step from which the run counts."""
        self._counts: defaultdict[str, int] = defaultdict(lambda: self.first_step)
        self._counters: list[Callable[[], int]] = []
        self._own: dict[str, bool] = {}
        """Whether a name counts by itself, though an optimizer steps."""
        self._early: dict[str, bool] = {}
        """Whether what the user logs under a name comes before the step of its turn of the loop, by name."""
        self._library: int | None = None
        """What a library's own steps lack to those of the run; None until it has counted one."""
        self._opening = ""
        """What the user reads at the first point of the run."""
        self.step: int | None = None
        """The newest step of this run."""
        self.follow: Callable[[str], object] | None = None
        """Gets the name of each point that the main thread adds, right after that; it may raise interrupts alone."""
        self.on = False
        """Whether a cell runs: points are kept only then."""
        self.epoch = time.time() - time.monotonic()
        """What :func:`time.monotonic` lacks to :meth:`now`."""
        os.register_at_fork(after_in_child=self._forked)
        self._start()

    def _forked(self) -> None:
        """Keep nothing in a forked process: it has no thread that would record it, and its locks may stay locked."""
        self._lock = threading.Lock()
        self.on = False

    def _start(self) -> None:
        threading.Thread(target=self._loop, args=(self._flushing,), name="dtrain-metrics", daemon=True).start()

    def before_flush(self, call: Callable[[], None]) -> None:
        """Call ``call`` on the thread before points are recorded; it may add points of its own."""
        self._before_flush.append(call)

    def count_by(self, call: Callable[[], int]) -> None:
        """Ask ``call`` how many steps an optimizer has made in this run, where the user logs without a step."""
        self._counters.append(call)

    @property
    def has_points(self) -> bool:
        """Whether points of this run were added, or are announced."""
        return self.step is not None or self._expected

    def now(self) -> float:
        """Seconds since the epoch, by a clock that goes on evenly in a run, also where the host's clock is set."""
        return time.monotonic() + self.epoch

    def begin(self, first_step: int = 0, opening: str = "") -> None:
        """Begin a run, without the points and names of the one before.

        ``first_step``: the step from which it counts; ``opening``: a line for the user that comes with its first point.
        """
        flushing = self._flushing
        held = flushing.acquire(timeout=HANDOVER)
        if not held:
            self._leave_behind()
        with contextlib.ExitStack() as stack, self._lock:
            if held:
                stack.callback(flushing.release)
            self._points = []
            self._names.clear()
            self._complaints.clear()
            self._logged.clear()
            self._counts.clear()
            self._early.clear()
            self._own.clear()
            self._library = None
            self.first_step, self._opening = first_step, opening
            self.step = None
            self._fast, self._flushed = False, time.monotonic()
            self.epoch = time.time() - time.monotonic()
            self.on = True

    def end(self, patience: float | None = None) -> bool:
        """End the run: record the points that are left. Return whether that took at most ``patience`` seconds.

        The thread does this if a device may have to be asked; an interrupt ends the wait.
        """
        done = False
        try:
            done = self._record_numbers() or self._flush_on_thread(patience)
        finally:
            self.on = False
            if not done:
                self._leave_behind()
        return done

    def _flush_on_thread(self, patience: float | None) -> bool:
        ended = self._ended = threading.Event()
        self._wake.set()
        self._soon.set()
        return ended.wait(patience)

    def _leave_behind(self) -> None:
        """Go on without the thread that flushes, which may wait for a device for ever."""
        with self._emitting:
            self._flushing = threading.Lock()
            self._ended = None
        self._start()

    def expect(self, waiting: int) -> None:
        """Announce that a call of :meth:`before_flush` has ``waiting`` points. Cheaper for a loop than to add each."""
        if waiting == 1:
            self._expected = True
            self._wake.set()
        elif waiting == SOON:
            self._soon.set()
        elif waiting >= LIMIT >> 4:
            with self.shield:
                self.flush()

    def add(
        self,
        name: str,
        value: Any,
        step: int | None = None,
        *,
        read: Read | None = None,
        at: float | None = None,
        logged: bool = False,
        counted: bool = False,
    ) -> None:
        """Add one point. ``value``: a number or, with ``read``, a value that ``read`` turns into a number later.

        ``step``: counted from 0 in this run by a framework, or as the user says it; default for a framework one more
        than the last point of this name, for the user as :meth:`user_step`. ``at``: its time, default :meth:`now`.
        ``logged``: the user logs it; a framework's points of the same name become another series then,
        ``NAME (backward)``. ``counted``: the user logs it through a library, which counts the steps of its optimizer.
        """
        if not self.on:
            return
        with self._lock:
            if logged:
                if name not in self._logged:
                    self._claim(name)
            elif name in self._logged:
                name += BESIDE
            step = self._placed(name, step, logged=logged, counted=counted)
            self._counts[name] = step + 1
            self.step = step
            self._points.append((name, step, self.now() if at is None else at, value, read))
            waiting = len(self._points)
        if waiting == 1:
            self._wake.set()
        elif waiting == SOON:
            self._soon.set()
        elif waiting >= LIMIT and self._flusher != threading.get_ident():
            with self.shield:
                self.flush()
        if (follow := self.follow) is not None and threading.current_thread() is threading.main_thread():
            follow(name)

    def add_all(self, name: str, points: Columns) -> None:
        """Add the ``points`` that a framework has of one series, like :meth:`add`; at least one."""
        if not self.on:
            return
        with self._lock:
            if name in self._logged:
                name += BESIDE
            if self.first_step:
                steps = array("q", [step + self.first_step for step in points.steps])
                points = Columns(steps, points.times, points.values)
            self.step = points.steps[-1]
            self._counts[name] = self.step + 1
            self._points.append((name, self.step, points.times[-1], points, None))
        self._wake.set()

    def user_step(self, name: str) -> int:
        """The step of what the user logs now under ``name`` without one, which counts as logged then.

        It is the step that the optimizer has just made. Where the first value of a name came before any step, each is
        that of the step to come: a loop may log before it steps. It is one more than last time without an optimizer
        that steps in this run, and for a name that was logged several times before each of its steps.
        """
        with self._lock:
            step = self._user_step(name)
            self._counts[name] = step + 1
        return step

    @property
    def next_step(self) -> int:
        """The step that comes next: after the last that an optimizer has made, else after that of the newest point."""
        made = self._made()
        if made:
            return self.first_step + made
        return self.first_step if self.step is None else self.step + 1

    def _made(self) -> int:
        """How many steps an optimizer has made in this run."""
        made = 0
        for call in self._counters:
            with contextlib.suppress(Exception):
                made = max(made, call())
        return made

    def _placed(self, name: str, step: int | None, *, logged: bool, counted: bool) -> int:
        """The step of a point on the axis of the run, from that which :meth:`add` was given."""
        if step is None:
            return self._user_step(name) if logged else self._counts[name]
        if not logged:
            return step + self.first_step
        return step + self._lacking(step) if counted else step

    def _user_step(self, name: str) -> int:
        made = self._made()
        early = self._early.setdefault(name, not made)
        if not made:
            return self._counts[name]
        # Logged several times before the first step, as for each part of a batch: it counts by itself.
        if self._own.setdefault(name, early and self._counts[name] > self.first_step + made):
            return self._counts[name]
        return self.first_step + made - (0 if early else 1)

    def _lacking(self, step: int) -> int:
        # A library that has loaded a checkpoint of its own goes on from there by itself, if not from the newest step.
        if self._library is None:
            self._library = self.first_step if step < self.first_step // 2 else 0
        return self._library

    def _claim(self, name: str) -> None:
        """The user logs ``name`` from now on: its waiting points came from a framework."""
        self._logged.add(name)
        self._counts.pop(name, None)
        self._points = [(name + BESIDE, *rest) if own == name else (own, *rest) for own, *rest in self._points]

    def send(self, body: Body) -> None:
        """Record an event that is no point, on the calling thread."""
        if self.on:
            self._emit(body)

    def complain(self, words: str, kind: str | None = None) -> None:
        """Show the user ``words``, once in a run; of one ``kind`` only the first."""
        kind = kind or words
        if kind not in self._complaints and len(self._complaints) < MAX_COMPLAINTS:
            self._complaints.add(kind)
            self._complain(f"[jupyter-dtrain] {words}\n")

    def flush(self) -> None:
        """Record all points so far. Waits for values that are on a device."""
        flushing = self._flushing
        with flushing:
            self._flusher = threading.get_ident()
            self._expected = False
            for call in self._before_flush:
                with contextlib.suppress(Exception):
                    call()
            self._flusher = 0
            with self._lock:
                if flushing is not self._flushing:
                    # This took so long that another run has begun.
                    return
                self._soon.clear()
                self._wake.clear()
                points, self._points = self._points, []
            if self._ended is not None:
                self._soon.set()
            if self._expected or self._ended is not None:
                # More points came since the calls above, or the end of the run.
                self._wake.set()
            if points:
                self._record(flushing, self._columns(points))

    def _record_numbers(self) -> bool:
        """Record the points that wait, if all are plain numbers and no more are announced; say whether that is so."""
        flushing = self._flushing
        if not flushing.acquire(blocking=False):
            return False
        try:
            with self._lock:
                if self._expected or not all(type(point[3]) in _NUMBERS and point[4] is None for point in self._points):
                    return False
                points, self._points = self._points, []
            if points:
                self._record(flushing, self._columns(points))
        finally:
            flushing.release()
        return True

    def _record(self, flushing: threading.Lock, found: dict[str, Columns]) -> None:
        series = [pack(name, columns) for name, columns in found.items() if columns.values]
        before, self._flushed = self._flushed, time.monotonic()
        points = sum(len(columns.values) for columns in found.values())
        self._fast = points >= MANY * (self._flushed - before)
        with self._emitting:
            # Else the run of these points is over.
            if series and flushing is self._flushing:
                opening, self._opening = self._opening, ""
                if opening:
                    self._complain(opening)
                self._emit(Metrics(series))

    def _columns(self, points: list[_Point]) -> dict[str, Columns]:
        read = self._read(points)
        found: dict[str, Columns] = {}
        for index, (name, step, at, value, _) in enumerate(points):
            columns = found.get(name)
            if columns is None:
                if not self._admit(name):
                    continue
                columns = found[name] = Columns.empty()
            if type(value) is Columns:
                columns.extend(value)
                continue
            given: Any = read.get(index, value)
            try:
                number = float(given)
                columns.steps.append(step)
            except Exception as error:  # noqa: BLE001 — a plug-in's or user's value; the other points are recorded
                self.complain(f"a point of {name!r} is left out: {_why(step, error)}", kind=f"point {name}")
                continue
            columns.times.append(at)
            columns.values.append(number)
        return found

    def _read(self, points: list[_Point]) -> dict[int, float]:
        later: defaultdict[Read, list[int]] = defaultdict(list)
        for index, point in enumerate(points):
            if point[4] is not None:
                later[point[4]].append(index)
        values: dict[int, float] = {}
        for read, indices in later.items():
            try:
                values.update(zip(indices, list(read([points[index][3] for index in indices])), strict=True))
            except BaseException as error:  # noqa: BLE001 — a device may fail in any way; the cell shows it
                self.complain(f"{points[indices[0]][0]!r} could not be read: {words_of(error)}")
                values.update(dict.fromkeys(indices, float("nan")))
        return values

    def _admit(self, name: str) -> bool:
        if name in self._names:
            return True
        if len(self._names) >= MAX_NAMES:
            words = f"more than {MAX_NAMES} metrics in one run: {name!r} and further new names are left out"
            self.complain(words, kind="names")
            return False
        self._names.add(name)
        return True

    def _loop(self, flushing: threading.Lock) -> None:
        while flushing is self._flushing:
            self._wake.wait()
            # All ranks of a host flush at the same moments: a program that waits for all of them waits once.
            period = CALM_PERIOD if self._fast else PERIOD
            self._soon.wait(period - time.time() % period)
            ended = self._ended
            try:
                self.flush()
            except BaseException as error:  # noqa: BLE001 — without this thread nothing more would be recorded
                self.complain(f"metrics could not be recorded: {words_of(error)}")
            if ended is not None and flushing is self._flushing:
                self._ended = None
                ended.set()


def _why(step: int, error: Exception) -> str:
    if isinstance(error, OverflowError) and not -(2**63) <= step < 2**63:
        return "its step needs more than 64 bits"
    return words_of(error)
