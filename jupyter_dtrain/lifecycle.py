"""When this process ends for good, its worlds end; when it restarts or crashes, they are left to their lease.

A Jupyter kernel is told which by ``shutdown_request``: its ``restart`` flag is the only difference. Any other Python
process (a terminal IPython, a script) that reaches its exit handlers ends for good. A process that is killed reaches
nothing, and the lease decides.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from typing import Any

_watching = False
_restarting = False


def watch_this_process(stop: Callable[[], None]) -> None:
    """Call ``stop`` when this process ends for good. Further calls do nothing."""
    global _watching  # noqa: PLW0603 — one process, one end
    if _watching:
        return
    _watching = True
    atexit.register(lambda: None if _restarting else stop())
    with contextlib.suppress(Exception):
        from IPython.core.getipython import get_ipython

        kernel = getattr(get_ipython(), "kernel", None)
        if kernel is not None:
            _wrap_shutdown(kernel, stop)


def _wrap_shutdown(kernel: Any, stop: Callable[[], None]) -> None:
    original = kernel.do_shutdown

    def do_shutdown(restart: bool) -> Any:
        global _restarting  # noqa: PLW0603
        _restarting = bool(restart)
        if not restart:
            stop()
        return original(restart)

    kernel.do_shutdown = do_shutdown
