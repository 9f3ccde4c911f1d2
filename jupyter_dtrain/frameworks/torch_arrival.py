"""Waiting for the ranks of a set-up in Python: torch would do so in native code, which nothing could end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import FrameType
from typing import Any

from ..world import count_ranks

ARRIVAL_POLL = 0.02
"""Seconds between two looks at who has arrived."""


def arrive(
    call: str, store: Any, rank: int, ranks: Iterable[int], timeout: timedelta, released: Callable[[], bool]
) -> None:
    """Say in ``store`` that ``rank`` is here, and wait until all ``ranks`` are.

    ``call``: what the user called, for the errors. Raises :class:`RuntimeError` once ``released()``, and
    :class:`TimeoutError` after ``timeout``; both name who did not come.
    """
    store.set(f"here/{rank}", "1")
    deadline = time.monotonic() + timeout.total_seconds()
    missing = list(ranks)
    while missing := [other for other in missing if not store.check([f"here/{other}"])]:
        if released():
            raise RuntimeError(f"{call}: {count_ranks(missing)} did not come.")
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{call}: {count_ranks(missing)} did not come within {timeout.total_seconds():g} s. "
                f"Every rank of the world must call it."
            )
        time.sleep(ARRIVAL_POLL)


def arriving_in(frame: FrameType) -> str:
    """What the user called that waits in :func:`arrive`, if ``frame`` is that; else empty.

    It looks again and again, and so takes some processor.
    """
    return str(frame.f_locals["call"]) if frame.f_code is arrive.__code__ else ""
