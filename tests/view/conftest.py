"""A painter that records, and runs made of events, for the tests of the view."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_dtrain.core.events import Batch, Display, Event, Output, Totals
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.view import CellView, Pace


def png(data: str) -> Display:
    """A picture."""
    return Display({"image/png": data, "text/plain": "<Figure>"})


class Recorder:
    """A painter that keeps what it is given, and what is on display now."""

    def __init__(self, *, live: bool = True, paced: bool = True, erases: bool = True) -> None:
        self.live = live
        self.erases = erases
        self.paced = paced
        self.calls: list[tuple[Any, ...]] = []
        self.shown: dict[str, dict[str, Any]] = {}
        self.captions: dict[str, str] = {}
        self.metadata: list[dict[str, Any]] = []
        self.settled: list[str] = []
        self.fails = False

    def stream(self, name, text):
        self._check()
        self.calls.append((name, text))

    def display(self, data, metadata, display_id=None, *, moving=False):  # noqa: ARG002 - as the protocol has it
        self._check()
        self.calls.append(("display", data.get("text/plain"), display_id))
        self.metadata.append(metadata)
        if display_id is not None and display_id.endswith("-ranks"):
            self.captions[display_id] = data["text/plain"]
        elif display_id is not None:
            self.shown[display_id] = data

    def update(self, data, metadata, display_id):  # noqa: ARG002 - as the protocol has it
        self._check()
        self.calls.append(("update", data.get("text/plain"), display_id))
        if display_id in self.captions:
            self.captions[display_id] = data["text/plain"]
            return
        assert display_id in self.shown or not self.erases
        self.shown[display_id] = data

    def settle(self, display_id):
        self._check()
        self.settled.append(display_id)

    def _check(self):
        if self.fails:
            raise BrokenPipeError("the terminal is closed")

    def text(self, *streams: str) -> str:
        """All text of ``streams`` (default: both), in order."""
        return "".join(call[1] for call in self.calls if call[0] in (streams or ("stdout", "stderr")))

    def text_of_shown(self) -> list[str]:
        """The displays as text, as they look now, without captions."""
        return [data.get("text/plain", "") for data in self.shown.values()]

    def kinds(self) -> list[str]:
        """The kinds of the painter's calls, in order."""
        return [call[0] for call in self.calls]


class Scene:
    """A view under test with a clock that moves only when the test says so."""

    def __init__(self, size: int = 2, *, painter: Recorder | None = None, ranks: list[int] | None = None, **options):
        self.ranks = list(range(size)) if ranks is None else ranks
        self.painter = painter or Recorder()
        self.now = 100.0
        self.slept = 0.0
        options.setdefault("pace", Pace(rate=1e12, burst=1e12))
        self.run = Run(1, "x = 1\n", self.ranks, size, lambda *_: [])
        self.view = CellView(self.painter, self.ranks, size, run=self.run, sleep=self._sleep, **options)
        self._seq = {rank: itertools.count() for rank in self.ranks}

    def _sleep(self, seconds: float) -> None:
        assert seconds <= 0.05
        self.slept += seconds

    def say(self, rank: int, *bodies: Any, totals: Totals | None = None, omitted: int = 0) -> None:
        """Feed a batch of ``rank`` with ``bodies``; text stands for output on stdout."""
        events = []
        for body in bodies:
            said = Output("stdout", body) if isinstance(body, str) else body
            events.append(Event(1, rank, next(self._seq[rank]), 0.0, said))
        for _ in range(omitted):
            last = next(self._seq[rank])
        first = events[0].seq if events else last - omitted + 1
        batch = Batch(1, rank, first, last if omitted else events[-1].seq, events, totals)
        self.run.apply(batch)
        self.view.feed(batch, self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass as the view's thread does: a tick whenever one is wanted."""
        end = self.now + seconds
        for _ in range(10_000):
            wanted = self.view.tick(self.now)
            if wanted is None or wanted > end:
                break
            assert wanted >= self.now
            self.now = max(wanted, self.now + 1e-6)
        else:
            raise AssertionError("the view wants ticks without end")
        self.now = end
        self.view.tick(self.now)

    def close(self) -> None:
        """End the run on all ranks, and the view with it."""
        for rank in self.ranks:
            if rank in self.run.unfinished:
                self.view.idle(rank, self.now)
        self.run.end()
        self.view.close(self.run, self.now)


@pytest.fixture
def scene() -> Callable[..., Scene]:
    """Makes a view of ``size`` ranks that paints to a recorder."""
    return Scene


@pytest.fixture
def recorder() -> Callable[..., Recorder]:
    """Makes a recording painter."""
    return Recorder
