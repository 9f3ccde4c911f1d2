"""Where the rank's main thread is: its stack, the call in which it waits for other ranks, since when it has not moved.

A cell may also wait for other ranks in a thread that it has started, or in one of an earlier cell whose work it waits
for; such a thread counts as the main thread does.

The control thread asks, whatever the main thread does, and no user code runs for the answer.

Under failure: while native code on the main thread holds the interpreter lock, no thread of the rank can answer. The
watch then reads the stack from outside (:mod:`jupyter_dtrain.watch.native_stack`).
"""

from __future__ import annotations

import asyncio.base_events
import contextlib
import ctypes
import queue
import selectors
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal

import psutil

from jupyter_dtrain.core.declarations import is_collective
from jupyter_dtrain.core.frames import frame_of, frames_of_threads
from jupyter_dtrain.core.processes import work_beneath
from jupyter_dtrain.core.stacks import Stack, Wait
from jupyter_dtrain.plugins.libraries import is_library
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.plugins.sources import called_in, prepare

from .scripts import is_script
from .tracebacks import PACKAGE, causes, trace_of

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from .plugins import Plugins
    from .tracebacks import Tracebacks

LISTEN = 0.03
"""Seconds of observation that show whether the main thread does anything."""
IDLE = 0.25
"""A thread that uses less of a processor than this may be waiting."""
MOVING = 0.05
"""A thread that uses more than this, and does not wait, moves. Child processes work if they use more together."""
MOMENT = 0.3
"""Seconds that a collective which a thread is in at the end of its cell may take to finish."""
OURS = "dtrain-"
"""How the names of our own threads begin."""
_QUEUES = (threading.__file__, queue.__file__)
TASKS = Patch(
    "asyncio.tasks",
    reads=("_fut_waiter", "_children"),
    why="A cell that waits in an await is on no thread's stack, and asyncio does not say for what a task waits.",
    lost="the stack of a cell that waits in an await ends at its first task",
)
POOL_THREADS = Patch(
    "concurrent.futures.thread",
    calls=("_worker",),
    why="A thread of a pool that waits for work has nothing to do with the cell that runs.",
    lost="a rank with idle threads of pools may count as one whose cell has left threads",
)

_WORKERS = (("concurrent.futures.thread", "_worker"), ("multiprocessing.pool", "worker"))
"""Functions in which threads of pools wait for work."""
DEEP = 1000
"""How many frames are read, from the innermost on: endless recursion makes a million."""

_NAMELESS = frozenset({"wrapper", "wrapped", "wrapped_fn", "inner", "decorated", "thread_fn", "new_func"})
"""Functions of libraries whose names do not describe the call, nor do those that begin with ``_`` or ``<``."""

_OF_THREAD = 6
"""How Linux marks the processor clock of a thread (``CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED``)."""

_PENDING_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class MainThread:
    """Observes the main thread of this rank, and the threads that work for its cell."""

    def __init__(
        self,
        plugins: Plugins,
        tracebacks: Tracebacks,
        cell_name: Callable[[str], str | None],
        awaited: Callable[[], asyncio.Task[Any] | None] = lambda: None,
    ) -> None:
        """``cell_name``: from a code object's file name to a cell's name; None when it is no cell's.

        ``awaited`` returns the task of a cell with top-level ``await``, while one runs.
        """
        self._awaited = awaited
        self._plugins = plugins
        self._tracebacks = tracebacks
        self._cell_name = cell_name
        self._main = threading.main_thread().ident or 0
        self._clock = time.pthread_getcpuclockid(self._main)
        self._older: frozenset[int] = frozenset()
        """The threads that ran before the cell began."""
        self._engines: weakref.WeakSet[threading.Thread] | None = None
        """The threads that are no user code's: those that ran before the first cell."""
        self._busy: frozenset[int] = frozenset()
        """The threads of earlier cells that had work of these when the cell began."""
        self._left: list[threading.Thread] = []
        """The threads that the last cell has left in a collective."""
        self._place: tuple[tuple[int, int], ...] = ()
        self._looked_at = self._moved_at = 0.0
        self._used = 0.0
        self._worked = 0
        self._has_run = True
        self._process = psutil.Process()
        self._children_at, self._children_used = 0.0, 0.0
        """When child processes were last looked at, and the processor seconds that they had used."""
        self._probe = _PENDING_CALL(self._ran)
        prepare()

    def begin(self) -> None:
        """Note that a cell begins, and which threads were there before it."""
        frames = frames_of_threads()
        self._older = frozenset({*frames, threading.get_ident()})
        if self._engines is None:
            self._engines = weakref.WeakSet(threading.enumerate())
        self._busy = frozenset(ident for _, ident, _ in self._users() if not _waits_for_work(frames.get(ident)))
        self._looked_at = self._moved_at = time.monotonic()

    def stack(self, state: Literal["idle", "running"]) -> Stack:
        """The frames from the cell on, the call that they wait in, and the collectives that the frameworks record."""
        frame = self._frame()
        return Stack(
            state,
            frames=self._tracebacks.stack(frame) or self._tracebacks.suspended(self._suspended()),
            waits=self.waits(),
            collectives=self._plugins.collectives(),
            call=self._tracebacks.call(frame),
        )

    def end(self) -> Literal["", "alive", "waiting"]:
        """A cell has ended: what becomes of its threads, see :class:`~jupyter_dtrain.core.events.Finished`.

        A thread that is to be called waiting gets :data:`MOMENT` seconds to go on.
        """
        frames = frames_of_threads()
        own = [(one, frames.get(ident)) for one, ident, _ in self._users() if ident not in self._busy]
        self._left = [one for one, frame in own if not _waits_for_work(frame)]
        until = time.monotonic() + MOMENT
        while self.left() and time.monotonic() < until:
            pass  # each look takes LISTEN seconds, so this does not spin
        return "waiting" if self._left else "alive" if any(_is_users(frame) for _, frame in own) else ""

    def left(self) -> list[Wait]:
        """The collectives in which threads of the last cell still are, since its end."""
        if not self._left:
            return []
        natives = {ident: native for one, ident, native in self._users() if one in self._left}
        found = self._waits_of(lambda: natives)
        self._left = [one for one in self._left if (wait := found.get(one.ident or 0)) and is_collective(wait.call)]
        return [found[one.ident or 0] for one in self._left]

    def _users(self) -> list[tuple[threading.Thread, int, int]]:
        """The threads that user code has started and that live, each with its identifier and the system's."""
        found = [one for one in threading.enumerate() if one not in (self._engines or ())]
        return [
            (one, one.ident, one.native_id)
            for one in found
            if one.ident is not None and one.native_id is not None and not one.name.startswith(OURS)
        ]

    def is_alone(self) -> bool:
        """Whether no thread of a cell is in code of the user's, so that between cells nothing of theirs runs."""
        frames = frames_of_threads()
        return not any(_is_users(frames.get(ident)) for _, ident, _ in self._users())

    def waits(self) -> Wait | None:
        """The call in which the cell waits for other ranks, and its framework; None when it does not wait."""
        return next(iter(self._waits_of(self._threads).values()), None)

    def waits_itself(self) -> Wait | None:
        """The call in which the main thread waits for other ranks; None while only other threads of the cell do."""
        return self._waits_of(self._threads).get(self._main)

    def _waits_of(self, threads: Callable[[], dict[int, int]]) -> dict[int, Wait]:
        """The calls in which ``threads`` wait for other ranks, in their order."""
        before = {thread: _used(native) for thread, native in threads().items()}
        time.sleep(LISTEN)
        frames = frames_of_threads()
        found = {}
        # Asked anew: a thread may have ended meanwhile, and another have begun under its number.
        for thread, native in threads().items():
            if thread not in before or thread not in frames:
                continue
            idle = _used(native) - before[thread] < LISTEN * IDLE
            if wait := self._wait_at(frames[thread], called_in(frames[thread]), idle=idle):
                found[thread] = wait
        return found

    def _threads(self) -> dict[int, int]:
        """The main thread, then the other threads that work for the cell, each with the system's number for it.

        A thread of an earlier cell, such as one of a pool, works for this one while the main thread waits for threads.
        """
        main = self._frame()
        every = main is not None and _waits_for_threads(main)
        mine, me = threading.main_thread(), threading.get_ident()
        others = [one for one in threading.enumerate() if one is not mine and one.ident != me]
        wanted = [mine, *(one for one in others if every or one.ident not in self._older)]
        return {one.ident: one.native_id for one in wanted if one.ident is not None and one.native_id is not None}

    def waited_in(self, exception: BaseException | None) -> str:
        """The waiting call that raised ``exception``; empty if no waiting call did."""
        for one in causes(exception):
            trace = trace_of(one)
            # Up to the innermost frame that a living stack has as well: plug-ins know calls by such frames.
            while trace is not None and trace.tb_next is not None and not _is_native(trace.tb_next):
                trace = trace.tb_next
            if trace is not None and (found := self._wait_at(trace.tb_frame, called_in(trace), idle=True)):
                return found.call
        return ""

    def still(self) -> float:
        """Seconds for which the cell has not moved, judged from the calls of this method. For one thread only.

        A cell moves when it comes to another line, and when it uses a processor; MPI, which waits with a whole
        processor, is the exception. A cell that waits for other ranks moves as soon as any Python code runs in the main
        thread, unless that is code of ours that polls. Any other cell moves while its child processes work: it may wait
        for them. And a cell moves while other ranks, or other threads, work for it.
        """
        now, used, frame = time.monotonic(), time.clock_gettime(self._clock), self._frame()
        works = used - self._used > MOVING * max(now - self._looked_at, LISTEN)
        place, worked = self._lines(frame), self._plugins.worked()
        # Whether the cell waits comes before whether it uses a processor: MPI waits with a whole one.
        if place != self._place or worked != self._worked:
            moved = True
        elif self._polls(frame):
            moved = False
        elif self._waits_at(frame):
            moved = self._has_run
        else:
            moved = works or self._child_works(now)
        if moved:
            self._moved_at = now
        self._place, self._used, self._worked, self._looked_at = place, used, worked, now
        # Never a second call before the first has come: while native code keeps the main thread, they would fill
        # Python's short queue, and other libraries' calls find no room there.
        if self._has_run:
            self._has_run = False
            ctypes.pythonapi.Py_AddPendingCall(self._probe, None)
        return now - self._moved_at

    def _child_works(self, now: float) -> bool:
        """Whether child processes have worked since the last look, or want to."""
        used, busy = work_beneath(self._process)
        works = busy or used - self._children_used > MOVING * (now - self._children_at)
        self._children_at, self._children_used = now, used
        return works

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
        """The interpreter calls this in the main thread, before the thread's next bytecode."""
        self._has_run = True
        return 0

    def _frame(self) -> FrameType | None:
        return frame_of(self._main)

    def _suspended(self) -> list[FrameType]:
        """The frames of a cell that waits in an ``await``, outermost first: no thread has them on its stack."""
        task: Any = self._awaited()
        frames: list[FrameType] = []
        # The loop runs on another thread, and may change each step while it is read.
        while task is not None and len(frames) < DEEP:
            step = getattr(task, "get_coro", lambda: None)()
            step = getattr(step, "coroutine", step)
            while step is not None and len(frames) < DEEP:
                # A coroutine, an asynchronous generator, or a generator that serves as a coroutine.
                kind = next((kind for kind in ("cr", "ag", "gi") if hasattr(step, f"{kind}_frame")), "")
                if kind and (frame := getattr(step, f"{kind}_frame")) is not None:
                    frames.append(frame)
                step = getattr(step, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None) if kind else None
            # A task may wait for another one, or for several.
            task = getattr(task, "_fut_waiter", None)
            several = getattr(task, "_children", ())
            task = next((one for one in several if not one.done()), task)
        return frames

    def _lines(self, frame: FrameType | None) -> tuple[tuple[int, int], ...]:
        def is_own(frame: FrameType) -> bool:
            return self._cell_name(frame.f_code.co_filename) is not None or is_script(frame.f_code.co_filename)

        lines = []
        for _ in range(DEEP):
            if frame is None:
                break
            if is_own(frame):
                lines.append((id(frame.f_code), frame.f_lineno))
            frame = frame.f_back
        return tuple(lines or [(id(one.f_code), one.f_lineno) for one in self._suspended() if is_own(one)])

    def _wait_at(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> Wait | None:
        found = self._plugins.waits(frame, call, idle=idle)
        if found is None:
            return None
        framework, name = found
        releasable = self._plugins.can_release(framework, name)
        if name in _NAMELESS or name.startswith(("_", "<")):
            name = self._tracebacks.call(frame) or name
        return Wait(framework, name, releasable)


def _waits_for_threads(frame: FrameType) -> bool:
    """Whether a thread waits for another one of this process: it joins one, or awaits one's result."""
    file, caller = frame.f_code.co_filename, frame.f_back
    if file == selectors.__file__:
        return caller is not None and caller.f_code.co_filename == asyncio.base_events.__file__
    return file == threading.__file__


def _waits_for_work(frame: FrameType | None) -> bool:
    """Whether a thread is one of a pool that has nothing to do."""
    while frame is not None and frame.f_code.co_filename in _QUEUES:
        frame = frame.f_back
    return frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) in _WORKERS


def _is_users(frame: FrameType | None) -> bool:
    """Whether code that is no library's is in a thread."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


def _used(native: int) -> float:
    """The processor time of a thread, by the system's number for it; 0 if it has ended.

    ``time.pthread_getcpuclockid`` would crash on a thread that has ended.
    """
    with contextlib.suppress(OSError):
        return time.clock_gettime(~native << 3 | _OF_THREAD)
    return 0.0


def _is_native(trace: TracebackType) -> bool:
    """Whether Cython made this frame up for its own code, as mpi4py does. A living stack has no such frame."""
    return trace.tb_frame.f_code.co_filename.endswith(".pyx")
