"""Questions that a rank answers beside its cell, each kind on a thread of its own.

Under failure: what an answer needs may raise, which is told, or wait, which holds up nobody else; while one question
is at work, no other of its kind is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from jupyter_dtrain.wire.messages import accepted, refused


class Background:
    """Answers questions of one kind. Whoever asks never waits."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread."""
        self._name = name
        self._free = threading.Semaphore(1)

    def ask(self, find: Callable[[], msgspec.Struct], answer: Callable[[dict[str, Any]], object]) -> bool:
        """``answer`` is called, on another thread, with the content of a reply; False while an earlier one is at work.

        It carries what ``find`` returned, or the error.
        """
        if not self._free.acquire(blocking=False):
            return False

        def work() -> None:
            try:
                found = accepted(find())
            except BaseException as error:  # noqa: BLE001 — what is the user's may raise anything, SystemExit too
                found = refused(error)
            finally:
                self._free.release()
            answer(found)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return True
