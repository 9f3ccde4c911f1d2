"""The stop button, while this package must not be torn apart.

Python raises ``KeyboardInterrupt`` in the main thread between any two of its instructions: half way through booking a
run, or inside a ``threading.Condition`` whose lock was taken and whose ``with`` block was not entered yet, so that the
thread which reports the end of the run waits for that lock for ever. Python also loses it where it can only print an
exception: in a finaliser that happens to run. So a press is held back here, and passed on where it does no harm.

Under failure: outside the main thread, and where other code handles SIGINT, nothing is held back.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from typing_extensions import Self

SLICE = 0.5
"""Seconds after which a thread that waits for a :class:`Latch` looks at it by itself."""
LOOK = 0.1
"""Seconds between two looks whether a question still needs an answer."""
SHUTDOWN = 0.3
"""Seconds in which a kernel's ``shutdown_request`` follows the SIGINT that Jupyter sends before each."""


class Shutdown:
    """Whether this process, a Jupyter kernel, has been asked to restart or to end.

    ``KernelManager.shutdown_kernel`` (jupyter_client) sends SIGINT, which ends the kernel's own cell, and then the
    request. So a kernel does not know yet what a SIGINT means.
    """

    def __init__(self) -> None:
        self.comes_by_request = False
        """Whether this process is a Jupyter kernel, which hears of its own end by a request."""
        self.asked = False

    @property
    def patience(self) -> float:
        """Seconds for which a press of Stop is held back, as Jupyter's request to shut down may follow it."""
        return SHUTDOWN if self.comes_by_request else 0.0


shutdown = Shutdown()


WITHDRAW = signal.SIGRTMIN + 10
"""Ends a question to the person at this process that needs no answer any more; see :meth:`StopButton.asking`."""


class Withdrawn(BaseException):
    """Ends such a question. No :class:`Exception`: a kernel catches those, and asks on."""


class StopButton:
    """Within its ``with`` block SIGINT raises nothing: it is counted, and passed on to :meth:`pass_to`'s function."""

    def __init__(self) -> None:
        self.fell = False
        """Whether SIGINT came within the block."""
        self._pending: deque[None] = deque()
        self._heard: Callable[[], None] | None = None
        self._holds = False
        self._asks = False

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._press)
            self._holds = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._heard = None  # the handler of WITHDRAW keeps this object

    def pass_to(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` for each press, including earlier ones; it must neither wait nor raise."""
        self._heard = heard
        self._pass_on()

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if there was a press; call it where that does no harm."""
        if self.fell:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def asking(self, needless: Callable[[], bool]) -> Iterator[None]:
        """Within this block the process asks a person. A press raises :class:`Withdrawn` in it, after it was counted.

        So does this block itself once ``needless()``, which another thread calls, says that no answer is needed. Main
        thread only.
        """
        over = threading.Event()
        main = threading.get_ident()

        def look() -> None:
            while not over.wait(LOOK):
                if needless():
                    # Again and again: one that comes before the question has begun finds nothing to end.
                    signal.pthread_kill(main, WITHDRAW)

        # The handler stays: without one, a signal that comes late would end the process.
        signal.signal(WITHDRAW, self._withdraw)
        thread = threading.Thread(target=look, name="dtrain-question", daemon=True)
        thread.start()
        try:
            self._asks = True
            if self.fell:
                raise Withdrawn
            yield
        finally:
            self._asks = False
            over.set()

    def _withdraw(self, _number: int, _frame: FrameType | None) -> None:
        if self._asks:
            self._asks = False
            raise Withdrawn

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.fell = True
        self._pending.append(None)
        self._pass_on()
        self._withdraw(number, frame)

    def _pass_on(self) -> None:
        # A press may call it amid itself: the call that takes a press passes it on.
        while self._heard is not None and self._pending:
            try:
                self._pending.popleft()
            except IndexError:
                return
            self._heard()


class Latch:
    """Opens once. Unlike in ``threading.Event``, a press amid :meth:`wait` cannot leave it locked."""

    def __init__(self) -> None:
        self.is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """Let all waiting threads pass. To be called once."""
        self.is_open = True
        self._closed.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is open, at most ``timeout`` seconds (None: without a limit); whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.is_open:
            # In slices: a press between these two lines leaves the lock taken, and others must pass all the same.
            patience = SLICE if until is None else min(SLICE, until - time.monotonic())
            if patience <= 0:
                break
            if self._closed.acquire(timeout=patience):
                self._closed.release()
        return self.is_open
