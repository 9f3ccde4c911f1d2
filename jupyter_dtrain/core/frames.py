"""The frames of other threads, read so that neither the process nor its threads come to harm.

Python 3.11 makes the object of a frame when somebody asks for it, and may collect garbage meanwhile. Code that this
runs, such as a finalizer, lets other threads go on. Then the frame that was asked for may end before its object is
made, and ``f_back`` and ``f_locals`` crash the process; ``sys._current_frames()`` may hang all its threads
(https://github.com/python/cpython/issues/106883). Later versions collect garbage elsewhere. So nothing else of this
package asks for the frames of another thread, and here no other thread runs meanwhile, and nothing is collected.

Under failure: an audit hook of the user's may raise in ``sys._current_frames()``; the error is the caller's.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import threading
from collections.abc import Iterable
from functools import partial
from types import FrameType
from typing import Any, Final

DEEPEST: Final = 10_000
"""Frames of a stack whose ``f_back`` is safe to read."""
_COLLECTS: Final = sys.version_info[:2] == (3, 11)
"""Whether Python may collect garbage while it makes an object."""

_call = operator.methodcaller("__call__")
_is_frame = partial(operator.is_not, None)


def frames_of_threads() -> dict[int, FrameType]:
    """The innermost frame of each thread but this one, by the thread's identifier."""
    found = _innermost()
    for frame in found.values() if _COLLECTS else ():
        _make_outer(frame)
    return found


def frame_of(thread: int | None) -> FrameType | None:
    """The innermost frame of a thread, by its identifier: for this one, the caller's. None where it has ended."""
    if thread == threading.get_ident():
        return sys._getframe(1)  # noqa: SLF001 — documented in spite of its name
    frame = _innermost().get(thread or 0)
    if frame is not None and _COLLECTS:
        _make_outer(frame)
    return frame


def variables_of(frame: FrameType) -> dict[str, Any]:
    """``frame.f_locals`` of a frame of any thread."""
    found: dict[str, Any] = _at_once(map(getattr, (frame,), ("f_locals",)))[0]
    return found


def _innermost() -> dict[int, FrameType]:
    found: dict[int, FrameType] = _at_once(map(_call, (sys._current_frames,)))[0]  # noqa: SLF001 — documented
    # The frame of this call holds the dictionary: both would live until a collection, and with them all frames.
    found.pop(threading.get_ident(), None)
    return found


def _make_outer(frame: FrameType) -> None:
    """Have Python make the objects of all frames outside of ``frame``; they stay until their calls end."""
    frames = itertools.accumulate(itertools.repeat("f_back", DEEPEST), getattr, initial=frame)
    _at_once(itertools.takewhile(_is_frame, frames))


def _at_once(values: Iterable[Any]) -> list[Any]:
    """The items of ``values``, an iterator that runs no Python code, without a collection in between.

    Python changes threads where it calls a function and where it jumps back: the list is filled by neither.
    """
    if not _COLLECTS:
        return list(values)
    enabled: list[bool] = []
    note = map(enabled.append, map(_call, (gc.isenabled,)))
    disable = map(_call, (gc.disable,))
    enable = map(_call, itertools.compress((gc.enable,), enabled))
    try:
        found = [*note, *disable, *values, *enable]
    except BaseException:
        list(enable)
        raise
    return found[2 : len(found) - enabled[0]]
