"""Texts of the user's objects, such as an exception's message, made within a deadline.

An object's ``__str__`` is user code. It may raise anything, wait for a device or for other ranks, or never return. So
a thread makes each text, and the main thread goes on without it.

Under failure: a placeholder stands for a text that could not be made, or was not ready in time. A late thread gets an
exception at its next step in Python; native code keeps its thread, and nothing waits for it.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 3.0
"""Seconds for all texts of one error together."""

MAX_WORDS = 500
"""Characters of an exception's text in a sentence of ours."""

T = TypeVar("T")


class Words:
    """Makes the texts of one error; all of them share one deadline."""

    def __init__(
        self,
        patience: float = PATIENCE,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """``wait`` waits for an event at most so many seconds; False gives up all texts that are not ready."""
        self._wait = wait
        self._began = time.monotonic()
        self._end = self._began + patience

    def text(self, make: Callable[[], object], limit: int) -> str:
        """``make()`` as plain text of at most ``limit`` characters and a mark; else a placeholder that says why not."""
        return self.ask(lambda: shortened(str(make()), limit), "<its text {}>".format)

    def ask(self, make: Callable[[], T], otherwise: Callable[[str], T]) -> T:
        """Return what ``make()`` returns on another thread, else ``otherwise`` of the reason: ``was not ready …``."""
        done: list[T] = []
        raised: list[str] = []
        over = threading.Event()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                done.append(context.run(make))
            except BaseException as error:  # noqa: BLE001 — user code may raise anything, SystemExit too
                raised.append(type_name(error))
            finally:
                over.set()

        left = self._end - time.monotonic()
        if left > 0:
            thread = threading.Thread(target=work, name="dtrain-words", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, which may be the very error
                work()
            if not self._wait(over, left):
                self._end = 0.0
                _stop(thread)
        if done:
            return done[0]
        if raised:
            return otherwise(f"could not be made: {raised[0]}")
        return otherwise(f"was not ready after {time.monotonic() - self._began:.1f} s")


def shortened(text: str, limit: int) -> str:
    """``text`` as a plain string, cut with a mark."""
    plain = str.__str__(text)  # a subclass may do anything
    return plain if len(plain) <= limit else f"{plain[:limit]} …"


def words_of(error: BaseException, words: Words | None = None) -> str:
    """Type and text of any exception, also of one whose text cannot be made."""
    text = (words or Words()).ask(lambda: str.__str__(str(error))[:MAX_WORDS], lambda _: "")
    text = text.encode("utf-8", "replace").decode().rstrip(".")
    return f"{type_name(error)}: {text}" if text else type_name(error)


def type_name(error: BaseException) -> str:
    """The name of the error's class, read without running code of the class."""
    name: str = vars(type)["__name__"].__get__(type(error))
    return shortened(name, 200)


def _stop(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
