"""The rank's side of what runs in cells: where metrics go, the user's names, a verb's answer, and one loop's bar.

The calls in :mod:`jupyter_dtrain.rank_api` begin here, and so do the cells that the client sends for a verb.

Under failure: a bar that cannot be shown changes nothing in the loop that it shows.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyter_dtrain.core.events import Body, Progress

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement

    from .media import MediaLog
    from .metrics import MetricBuffer
    from .plugins import Plugins
    from .step_work import StepWork


PROGRESS_PERIOD = 0.25
"""Seconds between two reports of a loop."""


class RankHome(NamedTuple):
    """The parts of a rank that calls of user code reach."""

    place: Placement
    metrics: MetricBuffer
    emit: Callable[[Body], object]
    plugins: Plugins
    step_work: StepWork
    media: MediaLog


_home: RankHome | None = None


def connect(home: RankHome) -> None:
    """Make this process a rank."""
    global _home  # noqa: PLW0603 — a process is a rank or is not
    _home = home


def rank_home() -> RankHome | None:
    """The home of this process, if it is a rank."""
    return _home


def user_namespace() -> dict[str, Any]:
    """The names of user code in this rank, with their values."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    assert shell is not None
    namespace: dict[str, Any] = shell.user_ns
    return namespace


def verb_cell() -> tuple[RankHome, dict[str, Any]]:
    """In a cell that the client sends for a verb: this rank's home, and :func:`user_namespace`."""
    assert _home is not None
    return _home, user_namespace()


def answer(kind: str, found: msgspec.Struct, words: str) -> None:
    """In such a cell: the first rank sends ``found`` to the client as a display of ``kind``; ``words`` is its text."""
    from IPython.core import display_functions

    if _home is not None and not _home.place.rank:
        show: Any = display_functions.publish_display_data
        show({kind: msgspec.json.encode(found).decode(), "text/plain": words})


class ProgressBar:
    """One loop's progress. :func:`jupyter_dtrain.progress` and the hook into tqdm report with it.

    Not for several threads.
    """

    _count = 0

    def __init__(self, name: str, total: float | None) -> None:
        ProgressBar._count += 1
        self._number = ProgressBar._count
        self._name = name
        self._total = total
        self._done = 0.0
        self._began = time.monotonic()
        self._next = 0.0
        self._shown = False

    def show(self, done: float) -> None:
        """Report ``done`` items, if the last report is long enough ago."""
        self._done = done
        if time.monotonic() >= self._next:
            self.report(done, self._total, self._rate(), self._text(), self._name)

    def report(self, done: float, total: float | None, rate: float | None, text: str, name: str) -> None:
        """Report like :meth:`show`, for a bar that counts by itself; a report too soon after another is dropped."""
        self._done, self._total, self._name = done, total, name
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_PERIOD
            self._send(rate, text, ended=False)

    def close(self) -> None:
        """Report that the loop has ended, with all items done or not."""
        self._send(self._rate(), self._text(), ended=True)

    def end(self, done: float, total: float | None, text: str) -> None:
        """Report the end like :meth:`close`, for a bar that counts by itself. Without ``text`` the bar disappears."""
        self._done, self._total = done, total
        if text or self._shown:
            self._send(self._rate(), text, ended=True)

    @staticmethod
    def begin_run() -> None:
        """Count bars from 1 again: those of one loop have the same number on all ranks then."""
        ProgressBar._count = 0

    def _rate(self) -> float | None:
        seconds = time.monotonic() - self._began
        return self._done / seconds if seconds > 0 and self._done else None

    def _text(self) -> str:
        return bar_text(self._name, self._done, self._total, time.monotonic() - self._began, self._rate())

    def _send(self, rate: float | None, text: str, *, ended: bool) -> None:
        self._shown = True
        if _home is not None:
            _home.emit(Progress(self._number, self._name, float(self._done), self._total, rate, text, ended))
        elif sys.stderr is not None:
            sys.stderr.write(f"\r{text}" + ("\n" if ended else ""))
            sys.stderr.flush()


def bar_text(name: str, done: float, total: float | None, seconds: float, rate: float | None) -> str:
    """A bar as one line: ``train:  40% |████      | 40/100 [0:03, 12.1/s]``."""
    head = f"{name}: " if name else ""
    speed = f"{rate:.3g}/s" if rate is not None else "?/s"
    spent = f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    if not total or not math.isfinite(total):
        return f"{head}{done:g} [{spent}, {speed}]"
    share = min(1.0, max(0.0, done / total))
    filled = "█" * int(10 * share)
    return f"{head}{share:4.0%} |{filled:<10}| {done:g}/{total:g} [{spent}, {speed}]"
