"""What a rank compiles for itself, ``torch.utils.cpp_extension``: a bar that counts the seconds, and so no hang.

Half a minute and more may pass in which no rank comes to another line: one compiles, the others wait for it at a lock
or in a collective. Every rank that is at it says so once a second, from a thread of its own, which is a sign of life
for whoever looks out for hangs. What was compiled before is loaded in less than a second, and nothing is shown.

Under failure: the bar ends where the build does, however that ends.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from jupyter_dtrain.engine.home import Bar

PERIOD = 1.0
"""Seconds between two words of a build."""

_within: ContextVar[bool] = ContextVar("within", default=False)
"""Whether a build is shown already that this one is a part of."""


def hook_builds(module: Any) -> None:
    """``torch.utils.cpp_extension`` has been imported."""
    for name in ("load", "load_inline"):
        if hasattr(module, name):
            setattr(module, name, _shown(getattr(module, name)))


@contextlib.contextmanager
def building(what: str) -> Iterator[None]:
    """Show for how long ``what`` has been built, while it lasts."""
    if _within.get():
        yield
        return
    # Numbered when it begins, so that it has one number on all ranks.
    bar, done, began = Bar(f"Building {what} (seconds)", None), threading.Event(), time.monotonic()
    thread = threading.Thread(target=_count, args=(bar, what, done, began), name="dtrain-build", daemon=True)
    token = _within.set(True)
    thread.start()
    ended = "failed"
    try:
        yield
        ended = "done"
    finally:
        done.set()
        thread.join()
        _within.reset(token)
        seconds = time.monotonic() - began
        # One that nothing was said of was only loaded.
        bar.end(round(seconds), None, f"Building {what}: {ended} after {seconds:.0f} s" if seconds >= PERIOD else "")


def _count(bar: Bar, what: str, done: threading.Event, began: float) -> None:
    while not done.wait(PERIOD):
        seconds = round(time.monotonic() - began)
        bar.report(seconds, None, None, f"Building {what} … {seconds} s", f"Building {what} (seconds)")


def _shown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(name: Any, *args: Any, **kwargs: Any) -> Any:
        with building(str(name)):
            return original(name, *args, **kwargs)

    return load
