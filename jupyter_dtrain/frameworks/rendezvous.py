"""Waiting in Python for the ranks of a set-up: torch would wait in native code, which nothing could end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from types import CodeType, FrameType
from typing import Any, TypeVar

from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.plugins.framework import locals_of
from jupyter_dtrain.plugins.patches import meant, raises_on_purpose

ARRIVAL_POLL = 0.02
"""Seconds between two looks at which ranks have arrived."""


_Function = TypeVar("_Function", bound=Callable[..., Any])

_WAITS: set[CodeType] = set()


def awaits_ranks(function: _Function) -> _Function:
    """Mark a function that waits for other ranks in Python; its argument ``call`` names the user's call."""
    _WAITS.add(function.__code__)
    return function


@raises_on_purpose
def arrive(
    call: str, store: Any, rank: int, ranks: Collection[int], timeout: timedelta, released: Callable[[], bool]
) -> None:
    """Announce in ``store`` that ``rank`` is here, and wait until all ``ranks`` are.

    If the wait ends in any other way, such as by an interrupt, the rank takes its announcement back: one that came
    later would think it present, and wait for it in native code.

    ``call``: the function that the user called, for the errors. Raises :class:`RuntimeError` once ``released()``, and
    :class:`TimeoutError` after ``timeout``; both name the missing ranks.
    """
    try:
        store.set(f"here/{rank}", "1")
        _await(call, store, ranks, timeout, released)
    except BaseException:
        with contextlib.suppress(Exception):  # a store of the user's own may not be able to
            store.delete_key(f"here/{rank}")
        raise


@awaits_ranks
def _await(call: str, store: Any, ranks: Collection[int], timeout: timedelta, released: Callable[[], bool]) -> None:
    def absent(among: Iterable[int]) -> list[int]:
        return [other for other in among if not store.check([f"here/{other}"])]

    deadline = time.monotonic() + timeout.total_seconds()
    missing = list(ranks)
    while not store.check([f"here/{other}" for other in ranks]):
        # Only those that were missing, unless one has left again.
        missing = absent(missing) or absent(ranks)
        if not missing:  # the last one came just now
            continue
        # Raise and sleep here: the hang detector recognises the wait by this function's frame.
        if end := end_of_wait(call, missing, deadline, timeout.total_seconds(), released):
            raise end
        time.sleep(ARRIVAL_POLL)


def end_of_wait(
    call: str, missing: list[int], deadline: float, timeout: float, released: Callable[[], bool]
) -> Exception | None:
    """Return the error that a wait for ``missing`` ranks must raise now, see :func:`arrive`; None while it goes on.

    ``deadline`` is in ``time.monotonic``; ``timeout`` is its length in seconds.
    """
    if released():
        return meant(RuntimeError(f"{call}: {count_ranks(missing)} did not arrive."))
    if time.monotonic() > deadline:
        return meant(
            TimeoutError(
                f"{call}: {count_ranks(missing)} did not arrive within {timeout:g} s. Every rank of the world must "
                f"call it."
            )
        )
    return None


def arriving_in(frame: FrameType) -> str:
    """The user's call that waits for ranks to come, if ``frame`` is in such a wait; else empty.

    The wait polls, and so uses some CPU.
    """
    return str(locals_of(frame)["call"]) if frame.f_code in _WAITS else ""
