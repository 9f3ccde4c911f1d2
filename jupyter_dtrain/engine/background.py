"""Questions that a rank answers beside its cell, each kind on a thread of its own.

Under failure: what an answer needs may raise, which is told, or wait, which holds up nobody else; while one question
is at work, no other of its kind is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Background:
    """Answers questions of one kind. Whoever asks never waits."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread."""
        self._name = name
        self._free = threading.Semaphore(1)

    def ask(self, find: Callable[[], dict[str, Any]], answer: Callable[[dict[str, Any]], object]) -> bool:
        """``answer`` is called, on another thread, with what ``find`` found; False while an earlier one is at work."""
        if not self._free.acquire(blocking=False):
            return False

        def work() -> None:
            try:
                found = find()
            except BaseException as error:  # noqa: BLE001 — what is the user's may raise anything, SystemExit too
                found = {"status": "error", "words": f"{type(error).__name__}: {error}"}
            finally:
                self._free.release()
            answer(found)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return True
