"""Records the memory of a rank over a cell that asks for it, with the line of the cell that ran at each moment.

A thread looks at the process' resident memory and at the counters of devices every :data:`PERIOD`, or less often where
a look is dear, and at the line in which the main thread is. Peaks between two looks count, too: Linux and the
frameworks count the most memory that there was, so a rise of that count is one since the last look. Another thread
asks now and then what the user's names hold (:class:`.Holdings`). A cell that is not recorded costs nothing.

Native code that keeps the interpreter lock keeps the thread from looking. So a rise between two looks belongs to both
of their lines, and nothing claims to know better.

Under failure: what a look cannot read is left out of it, and the cell goes on. The record of the newest such cell stays
until the next one begins, however its cell has ended; it is bounded, and ends with the process.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import threading
import time
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.core.memory import HOST
from jupyter_dtrain.core.memory_record import (
    LINES,
    LITTLE,
    POINTS,
    Growth,
    KindsSeen,
    MemoryCourse,
    Place,
    RecordedMemory,
)

from .main_thread import DEEP
from .step_time import PAGE, SPREAD

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from jupyter_dtrain.core.events import Frame
    from jupyter_dtrain.core.memory import DeviceMemory

    from .holdings import Holdings
    from .plugins import Plugins

    LineOf = Callable[[CodeType, int], Frame]

PERIOD: Final = 0.01
"""Seconds between two looks, on average."""
RAREST: Final = 1.0
"""The same where looks are dear."""
COST: Final = 0.01
"""The share of a processor that looks may use."""
PLACES: Final = 512
"""Places of one course that are told apart; the others count as none."""
NEAR: Final = 0.05
"""The share of its rise by which memory may be below its peak, and count as being there."""
KINDS_FIRST: Final = 0.05
"""Seconds before the first look at what names hold."""
KINDS_SECONDS: Final = 0.3
"""Seconds that such a look may take."""
KINDS_COST: Final = 0.04
"""The share of the time that such looks may take."""
KINDS_MOST: Final = 64
"""Such looks that are kept; they become rarer as the cell goes on."""


class MemoryRecorder:
    """Keeps the record of the newest recorded cell of one rank."""

    def __init__(self, plugins: Plugins, holdings: Holdings, is_users: Callable[[str], bool], line_of: LineOf) -> None:
        """``is_users``: whether code with this file name is a cell's or a script's; ``line_of`` describes its line."""
        self._plugins = plugins
        self._holdings = holdings
        self._is_users = is_users
        self._line_of = line_of
        self._newest: _Recording | None = None

    def begin(self, run: int) -> None:
        """Begin to record the cell of ``run``. Main thread."""
        self._newest = None
        with contextlib.suppress(Exception):
            self._newest = _Recording(run, self._plugins, self._holdings, self._is_users, self._line_of)
            self._newest.start()

    def end(self) -> None:
        """The cell has ended. Main thread; it changes nothing where none is recorded."""
        if self._newest is not None:
            with contextlib.suppress(Exception):
                self._newest.end()

    def read(self) -> RecordedMemory | None:
        """The record of the newest recorded cell, so far where it still runs; None before the first. Any thread."""
        newest = self._newest
        return None if newest is None else newest.read()


class _Course:
    """The memory of one device so far."""

    def __init__(self, device: str, size: int, high: int, before: int = 0) -> None:
        """``high``: the most that there has been; ``before``: points that have gone by without it."""
        self.device = device
        self.begin = self.size = self.peak = self._near = self._entered = size
        self.high = high
        self._at = 0.0
        self._place = Place()
        self._visited: Place | None = None
        self._places: dict[Place, list[int]] = {}
        self.points, self.reserved = [0] * before, [0] * before
        self.most = self.most_reserved = 0

    def take(self, at: float, place: Place | None, size: int, high: int, reserved: int = 0) -> None:
        """What a look has seen. ``place``: where the cell was since the look before; None: the next look will tell."""
        self.most, self.most_reserved = max(self.most, size), max(self.most_reserved, reserved)
        if place is None:
            return
        highest = max(size, high) if high > self.high else size
        if place != self._visited or place.before != place.line:
            self._visited, self._entered = place, self.size
        self.high, self.size = high, size
        self.peak = max(self.peak, highest)
        if highest - self._near > max(LITTLE, NEAR * (self._near - self.begin)):
            self._near, self._at, self._place = highest, at, place
        if (known := self._places.get(place)) is not None:
            known[0], known[1] = max(known[0], highest - self._entered), max(known[1], highest)
        elif len(self._places) < PLACES:
            self._places[place] = [highest - self._entered, highest]
        self.most = max(self.most, highest)

    def next_point(self) -> None:
        """The time of a point is over."""
        self.points.append(self.most)
        self.reserved.append(self.most_reserved)
        self.most = self.most_reserved = 0

    def halve(self) -> None:
        """Put each two points together."""
        self.points = [max(self.points[at : at + 2]) for at in range(0, len(self.points), 2)]
        self.reserved = [max(self.reserved[at : at + 2]) for at in range(0, len(self.reserved), 2)]

    def described(self, *, pending: bool) -> MemoryCourse:
        """``pending``: whether the time of a point is not over."""
        rises = sorted(self._places.items(), key=lambda pair: -pair[1][0])
        reserved = [*self.reserved, *([self.most_reserved] if pending else [])]
        grown = [Growth(place, rise, most) for place, (rise, most) in rises[:LINES] if rise >= LITTLE]
        return MemoryCourse(
            self.device,
            self.begin,
            self.size,
            self.peak,
            round(self._at, 3),
            self._place,
            grown,
            [*self.points, *([self.most] if pending else [])],
            reserved if any(reserved) else [],  # a framework may not say it
        )


class _Recording:
    """The record of one cell."""

    def __init__(
        self,
        run: int,
        plugins: Plugins,
        holdings: Holdings,
        is_users: Callable[[str], bool],
        line_of: LineOf,
    ) -> None:
        self._run = run
        self._plugins = plugins
        self._holdings = holdings
        self._is_users = is_users
        self._line_of = line_of
        self._main = threading.main_thread().ident or 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._lines: dict[tuple[str, str, int], Frame] = {}
        self._line: Frame | None = None
        self._looks = 0
        self._times: list[float] = []
        self._filled, self._stride = 0, 1
        self._since = 0.0
        self._kinds: list[KindsSeen] = []
        self._cut = False
        self._courses = {HOST: _Course(HOST, _resident(), _most_resident())}
        for one in plugins.devices():
            self._courses[one.device] = _Course(one.device, one.allocated, one.peak)

    def start(self) -> None:
        for work in (self._look_again, self._name_again):
            threading.Thread(target=work, name="dtrain-memory-record", daemon=True).start()

    def end(self) -> None:
        """Look once more, as memory may have grown since the last look. A second call changes nothing."""
        if self._over.is_set():
            return
        self._over.set()
        self._look(last=True)
        self._ended = time.monotonic()

    def read(self) -> RecordedMemory:
        with self._lock:
            pending = self._filled > 0
            times = [*self._times, *([self._since] if pending else [])]
            courses = [one.described(pending=pending) for one in self._courses.values()]
            kinds, looks = list(self._kinds), self._looks
        ended = self._ended
        seconds = (time.monotonic() if ended is None else ended) - self._began
        return RecordedMemory(self._run, round(seconds, 3), ended is not None, looks, times, courses, kinds, self._cut)

    # The thread that looks.

    def _look_again(self) -> None:
        pause = random.Random(os.getpid())  # noqa: S311 — for no secret, and not the user's own
        period, cost = PERIOD, 0.0
        while not self._over.wait(period * (1 + SPREAD * (2 * pause.random() - 1))):
            spent = time.thread_time()
            with contextlib.suppress(Exception):
                self._look()
            cost += (time.thread_time() - spent - cost) / 10
            period = min(RAREST, max(PERIOD, cost / COST))

    def _look(self, *, last: bool = False) -> None:
        line = None if last else self._users_line()
        size, high, devices = _resident(), _most_resident(), self._plugins.devices()
        with self._lock:
            if self._over.is_set() and not last:
                return
            at = time.monotonic() - self._began
            place = None
            if line is not None or last:  # else IPython is between two statements of the cell
                place, self._line = Place(self._line, line), line
            self._take(at, place, size, high, devices)

    def _take(self, at: float, place: Place | None, size: int, high: int, devices: list[DeviceMemory]) -> None:
        self._looks += 1
        if not self._filled:
            self._since = round(at, 3)
        if size:
            self._courses[HOST].take(at, place, size, high)
        seen = {one.device: one for one in devices}
        for device in seen.keys() - self._courses.keys():
            self._courses[device] = _Course(device, 0, 0, before=len(self._times))
        for device, course in self._courses.items():
            if device != HOST:
                one = seen.get(device)
                # One that is not seen has no memory, and the most that it has had stays the same.
                course.take(at, place, *((one.allocated, one.peak, one.reserved) if one else (0, course.high)))
        self._filled += 1
        if self._filled >= self._stride:
            self._times.append(self._since)
            self._filled = 0
            for course in self._courses.values():
                course.next_point()
        if len(self._times) >= POINTS - 1:
            self._times = self._times[::2]
            self._stride *= 2
            for course in self._courses.values():
                course.halve()

    def _users_line(self) -> Frame | None:
        """The innermost line of a cell, or of a script, in which the main thread is."""
        frame = frame_of(self._main)
        for _ in range(DEEP):
            if frame is None:
                break
            code = frame.f_code
            if self._is_users(code.co_filename):
                line = frame.f_lineno or 0
                key = (code.co_filename, code.co_name, line)
                known = self._lines.get(key)
                if known is None:
                    if len(self._lines) >= PLACES:  # code that is made at each step
                        self._lines.clear()
                    known = self._lines[key] = self._line_of(code, line)
                return known
            frame = frame.f_back
        return None

    # The thread that asks what names hold.

    def _name_again(self) -> None:
        pause = KINDS_FIRST
        while not self._over.wait(pause):
            began = time.monotonic()
            with contextlib.suppress(Exception):
                host, devices, cut = self._holdings.kinds(KINDS_SECONDS)
                with self._lock:
                    self._cut = cut
                    self._kinds.append(KindsSeen(round(began - self._began, 3), host, devices))
                    if len(self._kinds) >= KINDS_MOST:
                        self._kinds = self._kinds[::2]
            now = time.monotonic()
            pause = max(KINDS_FIRST, (now - began) / KINDS_COST, (now - self._began) / KINDS_MOST)


def _resident() -> int:
    """Bytes of memory that this process has, as :attr:`.Footprint.rss`; 0 where Linux does not say it."""
    with contextlib.suppress(Exception), open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) * PAGE
    return 0


def _most_resident() -> int:
    """The most bytes that it has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
