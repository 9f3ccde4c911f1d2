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

A cell may leave handlers of signals, and functions for ``sys.settrace`` and ``sys.setprofile``. What they raise is the
cell's while a cell runs; :class:`LeftBehind` keeps it out of the engine's own code between two cells.

A cell with top-level ``await`` runs as a task of the engine's loop, see :class:`AwaitedCell`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
import traceback

# Without a conversion to enumerations, which for all signals takes as long as the rest of a cell's end.
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import FrameType, FunctionType, MethodType
from typing import Any, TypeVar, cast

from .tracebacks import causes, trace_of

STOP_SIGNAL = signal.SIGRTMIN + 9
"""Raises :class:`CellStopped`. No library takes this signal over, as some do with SIGINT."""
LOOK = 0.1
"""Seconds between two looks whether a call at the end of a cell takes too long."""
BRIEF = 2.0
"""Seconds for which an interrupt waits at most for code of others."""

_HANDLED = tuple(map(int, sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})))

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
        """Make an interrupt wait while code of others runs inside, but never longer than :data:`BRIEF`."""
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
        """Let interrupts come as usual inside, for a part of the code within :meth:`briefly`."""
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
            # By a signal and not by an exception: the handler decides anew whether code of a cell still runs.
            signal.raise_signal(signal.SIGINT)

    def holds(self) -> bool:
        """Whether an interrupt must wait; if so, it is raised later. For the handler, on the main thread."""
        self._waiting = self._depth > 0 or (self._brief > 0 and time.monotonic() < self._until)
        return self._waiting


class LeftBehind:
    """The signal handlers, trace and profile functions that cells leave behind: they go on, and raise only in cells.

    The same holds for a task factory that a cell has given to the event loop.
    """

    def __init__(
        self, runs_cell: Callable[[FrameType | None], bool], raised: Callable[[str, BaseException], None]
    ) -> None:
        """``runs_cell``: whether a frame is in a cell's code; ``raised`` gets what handlers raise elsewhere."""
        self._runs_cell = runs_cell
        self._raised = raised
        self._own: dict[int, Any] = {}
        self._set_aside: dict[int, tuple[Any, Any]] = {}
        """By signal, the handler that a cell has set, and the one that stands in its place."""
        self._trace: Any = None
        self._profile: Any = None
        self._factory: Any = None
        """The task factory that is not in use now: the user's between cells, the engine's while user code runs."""

    def begin(self) -> None:
        """Note that the handlers which are set now are the engine's own."""
        self._own = {number: _getsignal(number) for number in _HANDLED}

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """User code runs inside: whatever it has left behind works as under a plain kernel. Main thread only."""
        for number, (handler, guarded) in self._set_aside.items():
            if _getsignal(number) is guarded:
                signal.signal(number, handler)
        self._set_aside.clear()
        trace, profile, self._trace, self._profile = self._trace, self._profile, None, None
        self._exchange_factory()
        try:
            # Python drops one that raises, which it may do from here on.
            if profile is not None:
                sys.setprofile(profile)
            if trace is not None:
                sys.settrace(trace)
            yield
        finally:
            self._exchange_factory()
            # Those of debuggers and profilers in C cannot be set again from here.
            profile, trace = sys.getprofile(), sys.gettrace()
            if isinstance(profile, (FunctionType, MethodType)):
                sys.setprofile(None)
                self._profile = profile
            if isinstance(trace, (FunctionType, MethodType)):
                sys.settrace(None)
                self._trace = trace
            for number, own in self._own.items():
                handler = _getsignal(number)
                if handler is not own and callable(handler):
                    self._set_aside[number] = handler, self._guarded(handler)
                    signal.signal(number, self._set_aside[number][1])

    def _exchange_factory(self) -> None:
        """Exchange the user's task factory for the engine's, or the other way: the engine's requests are tasks, too."""
        with contextlib.suppress(RuntimeError):  # there is no loop
            loop = asyncio.get_running_loop()
            factory, self._factory = self._factory, loop.get_task_factory()
            loop.set_task_factory(factory)

    def _guarded(self, handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def guarded(number: int, frame: FrameType | None) -> None:
            if self._runs_cell(frame):  # in a task of its own, say
                handler(number, frame)
                return
            try:
                handler(number, frame)
            except BaseException as error:  # noqa: BLE001 — it would break whatever the engine does now
                self._raised(f"the handler of {signal.Signals(number).name}", error)

        return guarded


class AwaitedCell(Coroutine[Any, Any, T]):
    """The coroutine of a cell. A task can only be cancelled; here a cancellation may bring in another exception."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], left_behind: LeftBehind) -> None:
        self.coroutine = coroutine
        self._left_behind = left_behind
        self.instead: BaseException | None = None
        """The exception that the next cancellation brings."""

    def __await__(self) -> Generator[Any, Any, T]:
        return self.coroutine.__await__()

    def send(self, value: Any) -> Any:
        """Send ``value`` to the cell's coroutine."""
        with self._left_behind.in_force():
            return self.coroutine.send(value)

    def throw(self, error: Any, *details: Any) -> Any:
        """Raise ``error`` in the cell's coroutine; a cancellation raises :attr:`instead`, where there is one."""
        if self.instead is not None and issubclass(type(error), asyncio.CancelledError):
            error, details, self.instead = self.instead, (), None
        with self._left_behind.in_force():
            return self.coroutine.throw(error, *details)

    def close(self) -> None:
        """Close the cell's coroutine."""
        self.coroutine.close()


class Interrupts:
    """Handles SIGINT, SIGTERM and :data:`STOP_SIGNAL` in a rank: they end the cell that runs, or the rank."""

    def __init__(self, in_cell: Callable[[str], bool], shield: Shield) -> None:
        """``in_cell``: whether a code object's file name is a cell's."""
        self._in_cell = in_cell
        self._shield = shield
        self._on = False
        self.left_behind = LeftBehind(self._runs_cell, self.raised)
        self.complain: Callable[[str, BaseException], None] = lambda *_: None
        """Called with words for what raised while no code of a cell ran, and with the exception."""
        self.awaited: asyncio.Task[Any] | None = None
        """The task of the cell that runs, if it has top-level ``await``."""
        self._cell: AwaitedCell[Any] | None = None
        """The coroutine of that task."""
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
        self.left_behind.begin()
        threading.Thread(target=self._look, name="dtrain-deadlines", daemon=True).start()

    @contextlib.contextmanager
    def enabled(self) -> Iterator[None]:
        """Let SIGINT raise KeyboardInterrupt while user code runs inside."""
        self.requested = self._arrived = False
        # The turn rises before signals are let in: a forced stop of the stretch before must not end this one.
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
        """Let SIGINT do nothing while the end of a cell runs inside; its calls may be :meth:`bounded`."""
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

    async def wait_for(self, cell: Coroutine[Any, Any, T]) -> T:
        """Run ``cell``, the coroutine of a cell with top-level ``await``: while it waits, SIGINT cancels it."""
        self._cell = AwaitedCell(cell, self.left_behind)
        self.awaited = asyncio.ensure_future(self._cell)
        try:
            return cast("T", await self.awaited)
        finally:
            self.awaited = self._cell = None

    def raised(self, what: str, error: BaseException) -> None:
        """Deal with ``error``, which ``what``, something of the user's, raised while no code of a cell ran.

        A cell that waits in an ``await`` ends with it; between two cells there is only :attr:`complain`.
        """
        awaited = self.awaited
        if awaited is None or awaited.done():
            self.complain(what, error)
            return
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and not self._in_cell(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        self._throw(awaited, error.with_traceback(trace))

    def _throw(self, awaited: asyncio.Task[Any], error: BaseException | None) -> None:
        """Cancel ``awaited``, which waits, or have ``error`` raised where it waits."""
        if self._cell is not None and error is not None:
            self._cell.instead = error
        awaited.get_loop().call_soon_threadsafe(awaited.cancel)

    def has_raised(self, error: BaseException) -> bool:
        """Whether ``error`` is an interrupt that the user has sent to the code that runs now."""
        return self._on and self.requested and isinstance(error, (KeyboardInterrupt, CellStopped))

    def restored(self, error: BaseException | None) -> BaseException | None:
        """``error``, or the interrupt that native code has made it of, with the place where it reached the cell.

        pybind11 raises an error of its own where a signal arrives while it makes a Python exception. So does Python
        where a built-in function gives a result in spite of the interrupt that it met, as when an array is read. And a
        call may fail before Python handles the signal, as where MPI was released: then the signal falls into the code
        that deals with that failure, and the place is that of the failure.
        """
        if not self.requested or error is None:
            return error
        if type(error) in (KeyboardInterrupt, CellStopped) and not self._met_cell(error):
            failed = next(filter(self._met_cell, causes(error)), None)
            return error if failed is None else error.with_traceback(trace_of(failed))
        words = error.args[0] if error.args and type(error.args[0]) is str else ""
        if type(error) is SystemError and words.endswith("returned a result with an exception set"):
            met = next((one for one in causes(error) if type(one) in (KeyboardInterrupt, CellStopped)), None)
            return error if met is None else met.with_traceback(error.__traceback__)
        if type(error) is not RuntimeError:
            return error
        for kind in (KeyboardInterrupt, CellStopped):
            if words.startswith("pybind11::error_already_set: ") and f" REPLACED BY {kind.__name__}:" in words:
                return kind().with_traceback(error.__traceback__)
        return error

    def _met_cell(self, error: BaseException) -> bool:
        return any(self._in_cell(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace_of(error)))

    def send(self, *, force: bool = False) -> bool:
        """Interrupt the cell that runs, from any thread; return whether an interrupt has arrived there.

        ``force``: interrupt it even if one has arrived, and by :class:`CellStopped`.

        Call it again until it returns True: a cell that runs no user code yet is not interrupted, and a signal that
        falls just before a blocking call begins is noticed when the next one breaks that call.
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
                # At each look again: code that catches the exception and goes on gets the next one.
                self._raise_in_main(STOP_SIGNAL)
            time.sleep(LOOK)

    def _handle(self, _signum: int, frame: FrameType | None) -> None:
        if not self._on or self._telling or self._shield.holds():
            return
        # Before it raises: whoever catches the exception may ask at once whether it is the user's interrupt.
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
        if not self._on:
            return
        stopped = CellStopped("it was interrupted, and went on")
        # Nothing between the engine's loop and the cell expects it.
        if not self._cancel(frame, stopped) and self._runs_cell(frame):
            raise stopped

    def _cancel(self, frame: FrameType | None, error: BaseException | None = None) -> bool:
        """Cancel a cell that waits in an ``await``, or raise ``error`` there; return whether it did wait."""
        awaited = self.awaited
        # Code of the cell that does not wait may run in a task of its own: what is raised there may leave the loop.
        if awaited is None or self._runs_cell(frame):
            return False
        self._throw(awaited, error)
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
