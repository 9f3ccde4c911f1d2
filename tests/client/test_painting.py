"""A run's view has its own thread; a view that blocks or fails delays no other part."""

from __future__ import annotations

import threading
import time

import pytest

from jupyter_dtrain.client import painting as module
from jupyter_dtrain.client.painting import PRESSED, SHOWING, STUCK, Painting

SOON = 10.0
"""Seconds that a thread may take on a busy machine."""


class View:
    """Keeps what it is called with; blocks in ``feed`` while its gate is closed."""

    def __init__(self):
        self.calls, self.threads, self.times = [], set(), []
        self.gate, self.inside = threading.Event(), threading.Event()
        self.gate.set()
        self.wanted = None
        self.ticked = threading.Event()

    def _keep(self, *call, now=0.0):
        self.times.append(now)
        self.threads.add(threading.current_thread())
        self.calls.append(call)

    def feed(self, batch, now):
        self.inside.set()
        assert self.gate.wait(SOON)
        self._keep("feed", batch, now=now)

    def idle(self, rank, now):  # noqa: ARG002 — the protocol's shape
        self._keep("idle", rank)

    def note(self, words, now):  # noqa: ARG002 — the protocol's shape
        self._keep("note", words)

    def stand(self, topic, words, now, over=""):  # noqa: ARG002 — the protocol's shape
        self._keep("stand", topic, words)

    def tick(self, now):
        self.ticked.set()
        return None if self.wanted is None else now + self.wanted

    def close(self, run, now):  # noqa: ARG002 — the protocol's shape
        self._keep("close", run.number)


@pytest.fixture
def view():
    """A view that does not block."""
    return View()


@pytest.fixture
def shown():
    """Set when the end of the run was shown."""
    return threading.Event()


def test_the_view_gets_everything_in_order_from_one_thread(view, shown, make_run, said, totals):
    """The thread that posts is not that thread."""
    painting = Painting(view, 1)
    painting.feed(said("a"), totals)
    painting.idle(0)
    painting.note("words")
    painting.close(make_run(), 0.0, shown.set)

    assert shown.wait(SOON)
    assert [call[0] for call in view.calls] == ["feed", "idle", "note", "close"]
    assert len(view.threads) == 1
    assert threading.current_thread() not in view.threads


def test_nothing_is_shown_after_the_end(view, shown, make_run, said, totals):
    """A rank that was left behind may go on."""
    painting = Painting(view, 1)
    painting.close(make_run(), 0.0, shown.set)
    painting.feed(said("late"), totals)

    assert shown.wait(SOON)
    assert view.calls == [("close", 1)]


def test_a_run_without_a_view_has_no_thread(shown, make_run, said, totals):
    """Its end is shown at once."""
    painting = Painting(None, 1)
    painting.begin()
    painting.feed(said("a"), totals)
    painting.close(make_run(), 0.0, shown.set)

    assert shown.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "dtrain-view"]


def test_ticks_begin_with_the_cell_and_come_when_they_are_wanted(view, shown, make_run):
    """A queued cell has a view, which need not tick."""
    painting = Painting(view, 1)
    painting.note("Waits.")
    assert not view.ticked.wait(0.05)

    view.wanted = 0.01
    painting.begin()
    for _ in range(3):
        assert view.ticked.wait(SOON)
        view.ticked.clear()
    painting.close(make_run(), 0.0, shown.set)
    assert shown.wait(SOON)


@pytest.mark.parametrize("method", ["feed", "idle", "note", "tick", "close"])
def test_a_view_that_raises_is_left_out_and_the_run_ends(view, shown, make_run, said, totals, method, caplog):
    """Any of its methods may fail; the log has the traceback."""

    def failing(*_):
        raise ValueError("no more paper")

    setattr(view, method, failing)
    painting = Painting(view, 7)
    painting.begin()
    painting.feed(said("a"), totals)
    painting.idle(0)
    painting.note("words")
    painting.close(make_run(), 0.0, shown.set)

    assert shown.wait(SOON)
    assert "The view of run 7 failed" in caplog.text
    assert "no more paper" in caplog.text


def test_a_view_that_blocks_delays_no_other_and_shows_the_rest_later(view, shown, make_run, said, totals):
    """It is late once one call has lasted too long, or the end has."""
    view.gate.clear()
    painting = Painting(view, 1)
    painting.feed(said("a"), totals)
    assert view.inside.wait(SOON)
    now = time.monotonic()
    painting.idle(0)
    painting.close(make_run(), now, shown.set)

    assert not painting.is_late(now)
    assert painting.is_late(now + STUCK + 0.1)
    assert not shown.is_set()
    view.gate.set()
    assert shown.wait(SOON)
    assert [call[0] for call in view.calls] == ["feed", "idle", "close"]
    assert not painting.is_late(now + SHOWING - 0.1)
    assert painting.is_late(now + SHOWING + 0.1)


def test_the_end_of_a_run_has_more_time_than_a_batch(view, shown, make_run):
    """A picture may take a busy machine long, and a program that saves the notebook waits for the cell alone."""
    view.gate.clear()
    painting = Painting(view, 1)
    view.close = lambda *_: (view.inside.set(), view.gate.wait(SOON))
    now = time.monotonic()
    painting.close(make_run(), now, shown.set)
    assert view.inside.wait(SOON)

    assert not painting.is_late(now + SHOWING - 0.1)
    assert painting.is_late(now + SHOWING + 0.1)
    view.gate.set()
    assert shown.wait(SOON)


def test_a_view_that_is_behind_learns_when_batches_came(view, shown, make_run, said, totals):
    """Lines that ranks have printed together are shown together however late that is."""
    view.gate.clear()
    painting = Painting(view, 1)
    for rank in (0, 1):
        painting.feed(said("a", 0, rank), totals)
    assert view.inside.wait(SOON)
    time.sleep(0.02)
    opened = time.monotonic()
    view.gate.set()
    painting.close(make_run(), opened, shown.set)

    assert shown.wait(SOON)
    assert 0 < view.times[0] <= view.times[1] < opened - 0.02


def test_stop_leaves_a_view_little_time(view, shown, make_run):
    """Stop ends the wait for the end of a run that has ended; before it, Stop is the run's affair."""
    painting = Painting(view, 1)
    painting.hurry(100.0)
    painting.close(make_run(), 100.0, shown.set)
    assert shown.wait(SOON)
    assert not painting.is_late(100.0 + SHOWING - 0.1)
    painting.hurry(101.0)
    painting.hurry(105.0)

    assert not painting.is_late(101.0 + PRESSED)
    assert painting.is_late(101.1 + PRESSED)


def test_the_queue_of_a_view_is_bounded(view, shown, make_run, said, finished, totals, monkeypatch):
    """Past the bound a rank's batches become one: its end, the numbers that it covers, and the totals."""
    monkeypatch.setattr(module, "BACKLOG", 2000)
    view.gate.clear()
    painting = Painting(view, 1)
    painting.feed(said("held", 0), totals)
    assert view.inside.wait(SOON)
    for seq in range(1, 100):
        painting.feed(said("x" * 700, seq), totals)
    painting.feed(said("other", 0, rank=1), totals)
    painting.feed(finished(100), totals)
    waiting = len(painting._waiting)
    painting.close(make_run(), 0.0, shown.set)
    view.gate.set()

    assert waiting == 4
    assert shown.wait(SOON)
    batches = [call[1] for call in view.calls if call[0] == "feed"]
    whole = [batch for batch in batches if batch.totals is None]
    cut = next(batch for batch in batches if batch.totals is not None)
    assert [(batch.rank, batch.first) for batch in whole] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert (cut.first, cut.last, cut.totals) == (3, 100, totals)
    assert [event.seq for event in cut.events] == [100]


def test_a_view_that_has_caught_up_gets_whole_batches_again(view, shown, make_run, said, totals, monkeypatch):
    """The bound is on what waits."""
    monkeypatch.setattr(module, "BACKLOG", 0)
    view.gate.clear()
    painting = Painting(view, 1)
    painting.feed(said("a", 0), totals)
    assert view.inside.wait(SOON)
    painting.feed(said("b", 1), totals)
    monkeypatch.setattr(module, "BACKLOG", 2000)
    view.inside.clear()
    view.gate.set()
    assert view.inside.wait(SOON)
    painting.feed(said("c", 2), totals)
    painting.close(make_run(), 0.0, shown.set)

    assert shown.wait(SOON)
    batches = [call[1] for call in view.calls if call[0] == "feed"]
    assert [(batch.last, batch.totals) for batch in batches] == [(0, totals), (1, totals), (2, None)]
