"""A bar for what a rank compiles itself with ``torch.utils.cpp_extension``, so that no build looks like a hang.

For half a minute or more no rank may reach another line: one compiles, the others wait for it at a lock or in a
collective. Each building rank reports once a second, from a thread of its own, and the hang detector sees progress.
After :data:`NOTIFY_AFTER` seconds the cell's text says so, too. Loading an extension that is already compiled takes
less than a second and shows nothing.

Under failure: the bar ends when the build ends, whether it succeeds or not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank.rank_context import ProgressBar, rank_home

PERIOD = 1.0
"""Seconds between two reports of a build."""
NOTIFY_AFTER = 3
"""Seconds after which a build is no load of what was compiled before."""

BUILDS = Patch(
    "torch.utils.cpp_extension",
    replaces=("load", "load_inline"),
    why="A build lasts half a minute or more, in which no rank reaches another line and nothing says why.",
    lost="a build of an extension may look like a hang",
)

_within: ContextVar[bool] = ContextVar("within", default=False)
"""Whether an outer build, which includes this one, already has a bar."""


def hook_builds(module: Any) -> None:
    """Patch ``torch.utils.cpp_extension``, which user code has just imported."""
    for name in ("load", "load_inline"):
        BUILDS.replace(module, name, _load)


@contextlib.contextmanager
def building(what: str) -> Iterator[None]:
    """Show how many seconds ``what`` has been building, as long as this context lasts."""
    if _within.get():
        yield
        return
    # The bar takes its number when the build begins, so all ranks give it the same one.
    bar, done, began = ProgressBar(f"Building {what} (seconds)", None), threading.Event(), time.monotonic()
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
        # A build that ends before its first report was only loaded.
        bar.end(round(seconds), None, f"Building {what}: {ended} after {seconds:.0f} s" if seconds >= PERIOD else "")


def _count(bar: ProgressBar, what: str, done: threading.Event, began: float) -> None:
    home, notified = rank_home(), False
    while not done.wait(PERIOD):
        seconds = round(time.monotonic() - began)
        if home is not None and seconds >= NOTIFY_AFTER and not notified:
            notified = True
            home.metrics.complain(f"{what} is being compiled: this takes up to some minutes, once on this machine.")
        bar.report(seconds, None, None, f"Building {what} … {seconds} s", f"Building {what} (seconds)")


def _load(original: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
    with building(str(name)):
        return original(name, *args, **kwargs)
