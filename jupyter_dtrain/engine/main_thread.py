"""Where the rank's main thread is: its stack, what it waits in for other ranks, for how long it has not moved.

Asked from the control thread, whatever the main thread does, and answered without running anybody's code. A main
thread in native code that keeps the interpreter lock lets nobody ask.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from typing import TYPE_CHECKING, Literal

from jupyter_dtrain.core.stacks import Stack, Wait

from .framework import called_in
from .scripts import is_script
from .tracebacks import PACKAGE, causes

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from .framework import Framework
    from .tracebacks import Tracebacks

LISTEN = 0.03
"""Seconds for which the main thread is listened to, to know whether it does anything."""
IDLE = 0.25
"""A thread that takes less of a processor than this may be waiting."""
MOVING = 0.05
"""One that takes more than this, and waits for nobody, moves."""

_PENDING_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class MainThread:
    """Of one rank's main thread."""

    def __init__(
        self, frameworks: list[Framework], tracebacks: Tracebacks, cell_name: Callable[[str], str | None]
    ) -> None:
        """``cell_name``: from a code object's file name to a cell's name; None when it is no cell's."""
        self._frameworks = frameworks
        self._tracebacks = tracebacks
        self._cell_name = cell_name
        self._main = threading.main_thread().ident or 0
        self._clock = time.pthread_getcpuclockid(self._main)
        self._place: tuple[tuple[int, int], ...] = ()
        self._looked_at = self._moved_at = 0.0
        self._used = 0.0
        self._worked = 0
        self._has_run = True
        self._probe = _PENDING_CALL(self._ran)

    def begin(self) -> None:
        """A cell begins."""
        self._looked_at = self._moved_at = time.monotonic()

    def stack(self, state: Literal["idle", "running"]) -> Stack:
        """The frames from the cell on, what they wait in, and what the frameworks know of their collectives."""
        return Stack(
            state,
            frames=self._tracebacks.stack(self._frame()),
            waits=self.waits(),
            collectives=[collective for framework in self._frameworks for collective in framework.collectives()],
        )

    def waits(self) -> Wait | None:
        """What the main thread waits in for other ranks, and in which framework; None when it does not."""
        before = time.clock_gettime(self._clock)
        time.sleep(LISTEN)
        idle = time.clock_gettime(self._clock) - before < LISTEN * IDLE
        frame = self._frame()
        return None if frame is None else self._wait_at(frame, called_in(frame), idle=idle)

    def waited_in(self, exception: BaseException | None) -> str:
        """What the call waited in that ``exception`` comes from; empty if it was no such call."""
        for one in causes(exception):
            trace = one.__traceback__
            while trace is not None and trace.tb_next is not None and not _is_native(trace.tb_next):
                trace = trace.tb_next
            if trace is not None and (found := self._wait_at(trace.tb_frame, called_in(trace), idle=True)):
                return found.call
        return ""

    def still(self) -> float:
        """Seconds for which the cell has not moved, as far as the looks since its beginning tell. One thread only.

        It moves when it comes to another line, and when it takes a processor, but for MPI, which waits with all of one.
        Where it waits for other ranks, it moves as soon as any Python code runs in the main thread; but not where it
        waits in code of ours, which looks again and again. And it moves while others do what it has given to them.
        """
        now, used, frame = time.monotonic(), time.clock_gettime(self._clock), self._frame()
        works = used - self._used > MOVING * max(now - self._looked_at, LISTEN)
        place, worked = self._lines(frame), sum(framework.worked() for framework in self._frameworks)
        if place != self._place or worked != self._worked:
            moved = True
        elif self._polls(frame):
            moved = False
        elif self._has_run:
            moved = works or self._waits_at(frame)
        else:
            moved = works and not self._waits_at(frame)
        if moved:
            self._moved_at = now
        self._place, self._used, self._worked, self._looked_at = place, used, worked, now
        if self._has_run:
            self._has_run = False
            ctypes.pythonapi.Py_AddPendingCall(self._probe, None)
        return now - self._moved_at

    def _waits_at(self, frame: FrameType | None) -> bool:
        return frame is not None and self._wait_at(frame, called_in(frame), idle=True) is not None

    def _polls(self, frame: FrameType | None) -> bool:
        """Whether the innermost frames are code of ours that waits for other ranks."""
        while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            if self._waits_at(frame):
                return True
            frame = frame.f_back
        return False

    def _ran(self, _: object) -> int:
        """Called by the interpreter in the main thread, before the next thing that this does."""
        self._has_run = True
        return 0

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._main)  # noqa: SLF001 — documented in spite of its name

    def _lines(self, frame: FrameType | None) -> tuple[tuple[int, int], ...]:
        lines = []
        while frame is not None:
            file = frame.f_code.co_filename
            if self._cell_name(file) is not None or is_script(file):
                lines.append((id(frame.f_code), frame.f_lineno))
            frame = frame.f_back
        return tuple(lines)

    def _wait_at(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> Wait | None:
        for framework in self._frameworks:
            # What one of them cannot tell must not hide what another can.
            with contextlib.suppress(Exception):
                if waits := framework.waits(frame, call, idle=idle):
                    return Wait(framework.name, waits)
        return None


def _is_native(trace: TracebackType) -> bool:
    """Whether it is a frame that Cython made up for its own code, as mpi4py's: on a living stack there is none."""
    return trace.tb_frame.f_code.co_filename.endswith(".pyx")
