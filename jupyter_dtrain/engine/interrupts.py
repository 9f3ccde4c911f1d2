"""Signals in a rank: SIGINT ends the cell that runs, and nothing else; SIGTERM ends the cell, then the rank.

A cell that catches KeyboardInterrupt and goes on is ended by a signal of its own, which raises :class:`CellStopped`.

Python hands a signal to the main thread some bytecodes later, so a signal that was meant for a cell may arrive after
its end. The handler here lives as long as the rank and raises only while user code runs: it ignores an interrupt that
comes too late, which would break the engine. It also ignores :data:`STOP_SIGNAL` in code that began after Stop or a
deadline asked for the signal. An interrupt that comes while the main thread is inside :class:`Shield`, with a write
half done, is raised after that.

The end of a cell also calls other people's code: plug-ins, and objects that user code left behind. It makes these calls
through :meth:`Interrupts.bounded`: :class:`Overdue` ends one that takes too long, and :class:`CellStopped` one that
Stop ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar, cast

STOP_SIGNAL = signal.SIGRTMIN + 9
"""Raises :class:`CellStopped`. No library takes this signal over, as some do with SIGINT."""
LOOK = 0.1
"""Seconds between two looks whether a call at the end of a cell takes too long."""
BRIEF = 2.0
"""Seconds for which an interrupt waits at most for code of others."""

T = TypeVar("T")


class CellStopped(BaseException):
    """Ends a cell that caught its interrupt and went on."""


class Overdue(BaseException):
    """Ends a call at the end of a cell that takes too long."""


class Shield:
    """``with shield:`` an interrupt waits until the main thread has left; other threads pass through."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = self._brief = 0
        self._until = 0.0
        """When an interrupt no longer waits for the main thread to leave :meth:`briefly`."""
        self._waiting = False

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == self._main:
            self._depth -= 1
            self._let_in()

    @contextlib.contextmanager
    def briefly(self) -> Iterator[None]:
        """An interrupt waits, for code of others that may wait in turn: but never longer than :data:`BRIEF`."""
        if threading.get_ident() != self._main:
            yield
            return
        self._until = time.monotonic() + BRIEF
        self._brief += 1
        try:
            yield
        finally:
            self._brief -= 1
            self._let_in()

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Within :meth:`briefly`: interrupts come in here as ever."""
        brief = self._brief if threading.get_ident() == self._main else 0
        if not brief:
            yield
            return
        try:
            self._brief = 0
            self._let_in()
            yield
        finally:
            self._until = time.monotonic() + BRIEF
            self._brief = brief

    def _let_in(self) -> None:
        if self._waiting and not self._depth and not self._brief:
            self._waiting = False
            signal.raise_signal(signal.SIGINT)

    def holds(self) -> bool:
        """Whether an interrupt must wait; if so, it is raised later. For the handler, on the main thread."""
        self._waiting = self._depth > 0 or (self._brief > 0 and time.monotonic() < self._until)
        return self._waiting


class Interrupts:
    """The rank's SIGINT handler."""

    def __init__(self, in_cell: Callable[[str], bool], shield: Shield) -> None:
        """``in_cell``: whether a code object's file name is a cell's."""
        self._in_cell = in_cell
        self._shield = shield
        self._on = False
        self._awaited: asyncio.Future[Any] | None = None
        self.requested = False
        """Whether the cell that runs (or ran last) was interrupted."""
        self._arrived = False
        self.ending = False
        """Whether this rank has received SIGTERM."""
        self._telling = False
        """Whether a handler is telling the engine to end: another signal must not interrupt it."""
        self._closing = threading.Event()
        self._bound: tuple[float, float] | None = None
        """The seconds of the bounded call that runs, and when they are over."""
        self._turn = 0
        """Counts the stretches of code that an interrupt may end."""
        self._stopping: int | None = None
        """The stretch that Stop asks to end by force, until the signal arrives: it may arrive after that stretch."""

    def install(self) -> None:
        """Take over SIGINT, and SIGTERM, which ends the engine. Main thread only."""
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(STOP_SIGNAL, self._handle_stop)
        self._end_engine = cast("Callable[[int, FrameType | None], None]", signal.getsignal(signal.SIGTERM))
        signal.signal(signal.SIGTERM, self._handle_end)
        threading.Thread(target=self._look, name="dtrain-deadlines", daemon=True).start()

    @contextlib.contextmanager
    def enabled(self) -> Iterator[None]:
        """User code runs inside: SIGINT raises KeyboardInterrupt."""
        self.requested = self._arrived = False
        self._turn += 1
        self._on = True
        try:
            if self.ending:
                raise KeyboardInterrupt
            yield
        finally:
            self._on = False

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """The end of a cell runs inside: SIGINT does nothing, but calls may be :meth:`bounded`."""
        self._closing.set()
        try:
            yield
        finally:
            self._closing.clear()

    def bounded(self, call: Callable[[], T], seconds: float) -> T:
        """Return what ``call()`` returns, on the main thread, while :meth:`closing`.

        After ``seconds`` this raises :class:`Overdue` in it, and :class:`CellStopped` when Stop asks by force: both
        again and again until it has returned. Native code that does not come back to Python stays where it is.
        """
        self._turn += 1
        self._bound = seconds, time.monotonic() + seconds
        try:
            return call()
        finally:
            self._bound = None

    @contextlib.contextmanager
    def cancelling(self, awaited: asyncio.Future[Any]) -> Iterator[None]:
        """A cell with top-level ``await`` runs as ``awaited``: while it waits, SIGINT cancels it."""
        self._awaited = awaited
        try:
            yield
        finally:
            self._awaited = None

    def has_raised(self, error: BaseException) -> bool:
        """Whether ``error`` is an interrupt that the user has sent to the code that runs now."""
        return self._on and self.requested and isinstance(error, (KeyboardInterrupt, CellStopped))

    def restored(self, error: BaseException | None) -> BaseException | None:
        """``error``, or the interrupt that native code has made it of.

        pybind11 raises an error of its own where a signal arrives while it makes a Python exception.
        """
        if not self.requested or type(error) is not RuntimeError:
            return error
        words = error.args[0] if error.args and type(error.args[0]) is str else ""
        for kind in (KeyboardInterrupt, CellStopped):
            if words.startswith("pybind11::error_already_set: ") and f" REPLACED BY {kind.__name__}:" in words:
                return kind().with_traceback(error.__traceback__)
        return error

    def send(self, *, force: bool = False) -> bool:
        """Interrupt the cell that runs, from any thread; whether an interrupt has arrived there.

        ``force``: even if one has, and by :class:`CellStopped`.

        Call it again until it has: a cell that runs no user code yet is not interrupted, and a signal that falls just
        before a blocking call begins is noticed when the next one breaks that call.
        """
        turn, in_cell = self._turn, self._on
        if not in_cell and not (force and self._closing.is_set()):
            return False
        if in_cell:
            if self._arrived and not force:
                return True
            self.requested = True
        if force:
            self._stopping = turn
        self._raise_in_main(STOP_SIGNAL if force else signal.SIGINT)
        return False

    def _raise_in_main(self, number: int) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, number)

    def _look(self) -> None:
        """Find bounded calls that take too long. Runs on a thread, which rests while no cell ends."""
        while self._closing.wait():
            bound = self._bound
            if bound is not None and time.monotonic() > bound[1]:
                self._raise_in_main(STOP_SIGNAL)
            time.sleep(LOOK)

    def _handle(self, _signum: int, frame: FrameType | None) -> None:
        if not self._on or self._telling or self._shield.holds():
            return
        self.requested = self._arrived = True
        if self._cancel(frame):
            return
        raise KeyboardInterrupt

    def _handle_stop(self, _signum: int, frame: FrameType | None) -> None:
        bound, wanted = self._bound, self._stopping == self._turn
        self._stopping = None
        overdue = bound is not None and time.monotonic() > bound[1]
        # Else it was meant for code that has ended meanwhile.
        if not (overdue or wanted) or self._telling or self._shield.holds():
            return
        if bound is not None and overdue:
            raise Overdue(f"it did not return within {bound[0]:g} s")
        if bound is not None:
            raise CellStopped("an interrupt ended it")
        # Nothing between the engine's loop and the cell expects it.
        if not self._on or not self._runs_cell(frame):
            return
        if not self._cancel(frame):
            raise CellStopped("it was interrupted, and went on")

    def _cancel(self, frame: FrameType | None) -> bool:
        """Whether the cell waits in an ``await``, and was cancelled."""
        awaited = self._awaited
        if awaited is None:
            return False
        loop = awaited.get_loop()
        # An exception raised outside the cell's own code would leave the task and end the engine's loop.
        if asyncio.current_task(loop) is awaited and self._runs_cell(frame):
            return False
        loop.call_soon_threadsafe(awaited.cancel)
        return True

    def _handle_end(self, signum: int, frame: FrameType | None) -> None:
        """End the cell that runs, then the engine; a second signal does not disturb that.

        On a crowded machine the second one arrives while this handles the first.
        """
        if not self.ending:
            self._telling = True  # before the other: a signal may arrive between the two
            self.ending = True
            try:
                self._end_engine(signum, frame)
            finally:
                self._telling = False
        if not self._arrived:
            self._handle(signum, frame)

    def _runs_cell(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if self._in_cell(frame.f_code.co_filename):
                return True
            frame = frame.f_back
        return False
