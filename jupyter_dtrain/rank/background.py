"""Questions that a rank answers while its cell runs, each kind on a thread of its own.

Under failure: an exception becomes the answer. A question that waits holds up only its own kind: while the thread
works on one question, it takes no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from jupyter_dtrain.wire.messages import accepted, refused


class Background:
    """Answers questions of one kind. A caller never waits."""

    def __init__(self, name: str) -> None:
        """``name``: the thread's name."""
        self._name = name
        self._free = threading.Semaphore(1)

    def ask(self, find: Callable[[], msgspec.Struct], answer: Callable[[dict[str, Any]], object]) -> bool:
        """Pass a reply to ``answer``, on another thread; False while an earlier question is at work.

        The reply carries the result of ``find``, or its error.
        """
        if not self._free.acquire(blocking=False):
            return False

        def work() -> None:
            try:
                found = accepted(find())
            except BaseException as error:  # noqa: BLE001 — user code may raise anything, SystemExit too
                found = refused(error)
            finally:
                self._free.release()
            answer(found)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return True
