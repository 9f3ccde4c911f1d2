"""tqdm in a rank: its bars become progress of the run, one bar in the cell for all ranks.

tqdm draws by moving a terminal's cursor, many times a second and on every rank. A bar that would draw on the rank's own
streams reports its progress instead, and draws nothing. The plain bar replaces tqdm's notebook bar, which would make a
widget on every rank. A bar with a ``file`` of its own stays as it is.

Under failure a bar is silent; nothing here raises into the user's loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType
from typing import Any

import wrapt

from .home import Bar


class _Nowhere:
    """The file that such a bar writes to."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def install_bars() -> None:
    """Wait for tqdm to be imported. Once, before user code."""
    wrapt.when_imported("tqdm.std")(_hook)
    wrapt.when_imported("tqdm.notebook")(_replace)


def _hook(module: ModuleType) -> None:
    tqdm, rank = module.tqdm, os.getpid()
    make, draw, close = tqdm.__init__, tqdm.display, tqdm.close

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 — it replaces tqdm's
        # A worker process of the rank can only write to its streams.
        if os.getpid() == rank and len(args) <= _FILE and kwargs.get("file") in (None, sys.stdout, sys.stderr):
            kwargs["file"] = _Nowhere()
            self._dtrain_bar = Bar("", None)
        make(self, *args, **kwargs)

    def display(self: Any, msg: str | None = None, pos: int | None = None) -> Any:
        if not hasattr(self, "_dtrain_bar"):
            return draw(self, msg, pos)
        with contextlib.suppress(Exception):
            if msg is None:
                name = str(self.desc or "").rstrip(": ")
                self._dtrain_bar.report(self.n, self.total, self.format_dict.get("rate"), str(self), name)
        return True

    def closing(self: Any) -> None:
        ends = not getattr(self, "disable", True)
        with contextlib.suppress(Exception):
            if ends and hasattr(self, "_dtrain_bar"):
                leave = self.pos == 0 if self.leave is None else self.leave
                self._dtrain_bar.end(self.n, self.total, str(self) if leave else "")
        close(self)

    tqdm.__init__, tqdm.display, tqdm.close = __init__, display, closing


_FILE = 4
"""How many positional arguments stand before tqdm's ``file``."""


def _replace(module: ModuleType) -> None:
    import tqdm.std as plain

    module.tqdm = module.tqdm_notebook = plain.tqdm  # type: ignore[attr-defined]
    module.trange = module.tnrange = plain.trange  # type: ignore[attr-defined]
