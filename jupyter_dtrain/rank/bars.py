"""tqdm in a rank: its bars become progress of the run, one bar in the cell for all ranks.

tqdm draws by moving a terminal's cursor, many times a second and on every rank. A bar that would draw on the rank's own
streams reports its progress instead, and draws nothing. The plain bar replaces tqdm's notebook bar, which would make a
widget on every rank. A bar with a ``file`` of its own stays as it is.

Under failure a bar is silent; nothing of ours is raised into the user's loop. What the user has got wrong, such as the
format of a bar, tqdm itself says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.plugins.patches import Patch

from .rank_context import ProgressBar, rank_home

if TYPE_CHECKING:
    from .step_work import StepWork

BARS = Patch(
    "tqdm.std",
    replaces=("tqdm.__init__", "tqdm.__iter__", "tqdm.update", "tqdm.display", "tqdm.close"),
    calls=("tqdm.__init__(self, iterable, desc, total, leave, file)",),
    reads=("_dtrain_bar", "_dtrain_counted"),
    why="tqdm draws by moving a terminal's cursor, many times a second and on every rank.",
    lost="bars of tqdm are lines of the ranks' output",
)
NOTEBOOK_BARS = Patch(
    "tqdm.notebook",
    replaces=("tqdm", "tqdm_notebook", "trange", "tnrange"),
    why="tqdm's bar for notebooks is a widget, and each rank would make one.",
    lost="bars of tqdm.notebook are widgets of each rank",
)


class _Nowhere:
    """The file of a bar that draws nothing: it drops what tqdm writes."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def install_bars() -> None:
    """Wait for tqdm to be imported. Once, before user code."""
    BARS.when_imported(_hook)
    NOTEBOOK_BARS.when_imported(_replace)


def _hook(module: ModuleType) -> None:
    tqdm, rank = module.tqdm, os.getpid()

    def make(original: Any, bar: Any, *args: Any, file: Any = None, **kwargs: Any) -> None:
        # A worker process of the rank can only write to its streams.
        if os.getpid() == rank and len(args) <= _FILE and file in (None, sys.stdout, sys.stderr):
            file = _Nowhere()
            bar._dtrain_bar = ProgressBar("", None)  # noqa: SLF001 — ours
        if file is not None:
            kwargs["file"] = file
        original(bar, *args, **kwargs)

    # tqdm makes it of its defaults and those of the environment, as a partial method.
    BARS.replace(tqdm, "__init__", make, tqdm.__init__)
    BARS.replace(tqdm, "__iter__", _iterate)
    BARS.replace(tqdm, "update", _update)
    BARS.replace(tqdm, "display", _display)
    BARS.replace(tqdm, "close", _close)


_FILE = 4
"""How many positional arguments stand before tqdm's ``file``."""


def _iterate(original: Any, bar: Any) -> Any:
    items = original(bar)
    home = rank_home() if hasattr(bar, "_dtrain_bar") else None
    bar._dtrain_counted = True  # noqa: SLF001 — ours; its items are, so its own calls of update() are not
    return items if home is None else _counted(items, home.step_work)


def _update(original: Any, bar: Any, n: float | None = 1) -> Any:
    """Count a call by hand as a step."""
    shown = original(bar, n)
    if hasattr(bar, "_dtrain_bar") and not hasattr(bar, "_dtrain_counted") and (home := rank_home()) is not None:
        home.step_work.count("loop")
    return shown


def _counted(items: Iterator[Any], work: StepWork) -> Iterator[Any]:
    """Count the items of a bar as steps of its loop. An item with a bar inside is none: the items of that bar are."""
    for item in items:
        before = work.items
        yield item
        if work.items == before:
            work.count("loop")


def _display(original: Any, bar: Any, msg: str | None = None, *args: Any, **kwargs: Any) -> Any:
    if not hasattr(bar, "_dtrain_bar"):
        return original(bar, msg, *args, **kwargs)
    if msg is None:
        name = str(bar.desc or "").rstrip(": ")
        bar._dtrain_bar.report(bar.n, bar.total, bar.format_dict.get("rate"), str(bar), name)  # noqa: SLF001 — ours
    return True


def _close(original: Any, bar: Any) -> None:
    if hasattr(bar, "_dtrain_bar") and not getattr(bar, "disable", True):
        leave = bar.pos == 0 if bar.leave is None else bar.leave
        bar._dtrain_bar.end(bar.n, bar.total, str(bar) if leave else "")  # noqa: SLF001 — ours
    original(bar)


def _replace(module: ModuleType) -> None:
    import tqdm.std as plain

    for name, value in (
        ("tqdm", plain.tqdm),
        ("tqdm_notebook", plain.tqdm),
        ("trange", plain.trange),
        ("tnrange", plain.trange),
    ):
        NOTEBOOK_BARS.put(module, name, value)
