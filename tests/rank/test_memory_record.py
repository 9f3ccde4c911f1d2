"""The course of memory on a device, as a real thread sees it by a framework's counters, and how it stays small."""

from __future__ import annotations

import time

import pytest

from jupyter_dtrain.core.memory import HOST, DeviceMemory
from jupyter_dtrain.core.memory_record import Place
from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.rank import memory_record
from jupyter_dtrain.rank.holdings import Holdings
from jupyter_dtrain.rank.inventory import RankInventory
from jupyter_dtrain.rank.memory_record import MemoryRecorder
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.tracebacks import Tracebacks

MEGA = 1_000_000
LONG = 0.2
"""Seconds in which a busy machine looks at least once."""


class Counts(Framework):
    """A framework whose device has what the test says."""

    name = "counts"

    def __init__(self):
        self.allocated = self.peak = self.asked = 0
        self.broken = self.gone = False

    def take(self, size):
        """Allocate, or free."""
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def devices(self):
        self.asked += 1
        if self.broken:
            raise RuntimeError("no device")
        return (
            [DeviceMemory("made:0", self.allocated, self.allocated + 7 * MEGA, self.peak)]
            if self.peak and not self.gone
            else []
        )


@pytest.fixture
def counts():
    return Counts()


@pytest.fixture
def recorder(counts, tmp_path):
    """A recorder for which this file is a cell's code."""
    plugins = Plugins([("counts", counts)], print)
    holdings = Holdings({}, (), plugins, RankInventory({}, (), plugins), lambda: True)
    made = MemoryRecorder(
        plugins, holdings, {__file__}.__contains__, Tracebacks({__file__: "cell [1]"}.get, tmp_path).line
    )
    yield made
    made.end()


def device(recorder):
    """The course of the device."""
    found = recorder.read()
    assert [one.device for one in found.courses] == [HOST, "made:0"]
    assert all(len(one.points) == len(found.times) for one in found.courses)
    return found.courses[1]


def line_of(words):
    """The number of a line of this file."""
    with open(__file__, encoding="utf-8") as file:
        return next(at for at, text in enumerate(file, 1) if words in text)


def test_a_device_that_comes_into_use_in_the_cell_has_a_course(recorder, counts):
    """What it had allocated at most, with the line that ran then."""
    recorder.begin(3)
    time.sleep(LONG)
    counts.take(50 * MEGA), time.sleep(LONG)  # first
    counts.take(-20 * MEGA)
    time.sleep(LONG)
    recorder.end()
    course = device(recorder)

    assert (course.begin, course.end, course.peak) == (0, 30 * MEGA, 50 * MEGA)
    assert course.place.line.line == line_of("# first")
    assert course.place.line.file == "cell [1]"
    assert course.points[0] == 0
    assert max(course.reserved) == 57 * MEGA
    assert LONG / 2 < course.at < recorder.read().seconds - LONG / 2


def test_a_peak_between_two_looks_counts(recorder, counts):
    """The counter of the framework says that there was one."""
    counts.take(MEGA)
    recorder.begin(3)
    time.sleep(LONG)
    counts.take(80 * MEGA)
    counts.take(-80 * MEGA)
    time.sleep(LONG)
    recorder.end()
    course = device(recorder)

    assert (course.begin, course.end, course.peak) == (MEGA, MEGA, 81 * MEGA)
    assert max(course.points) == 81 * MEGA
    assert [grown.rise for grown in course.grown] == [80 * MEGA]


def test_a_counter_that_user_code_resets_says_nothing_of_what_was_before(recorder, counts):
    """As ``torch.cuda.reset_peak_memory_stats`` does."""
    counts.take(500 * MEGA)
    counts.take(-490 * MEGA)
    recorder.begin(3)
    time.sleep(LONG)
    counts.peak = counts.allocated
    time.sleep(LONG)
    counts.take(5 * MEGA)
    time.sleep(LONG)
    recorder.end()

    assert device(recorder).peak == 15 * MEGA


def test_memory_that_does_not_rise_has_no_place(recorder, counts):
    """There is no line to name."""
    counts.take(MEGA)
    recorder.begin(3)
    time.sleep(LONG)
    recorder.end()
    course = device(recorder)

    assert (course.place, course.grown, course.peak) == (Place(), [], MEGA)


def test_a_device_that_is_not_seen_for_a_while_has_had_nothing_then(recorder, counts):
    """Its counts of an earlier cell are no rise of this one, as when all of its memory was given back."""
    counts.take(900 * MEGA)
    counts.take(-890 * MEGA)
    recorder.begin(3)
    for gone in (True, False):
        counts.gone = gone
        looks = recorder.read().looks
        deadline = time.monotonic() + 30
        while recorder.read().looks < looks + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    recorder.end()
    course = device(recorder)

    assert (course.peak, course.end) == (10 * MEGA, 10 * MEGA)


def test_a_long_cell_keeps_its_peak_in_few_points(recorder, counts, monkeypatch):
    """Points are put together; nothing is lost of what was highest."""
    monkeypatch.setattr(memory_record, "POINTS", 9)
    monkeypatch.setattr(memory_record, "PLACES", 4)
    monkeypatch.setattr(memory_record, "KINDS_MOST", 4)
    recorder.begin(3)
    time.sleep(LONG)
    counts.take(90 * MEGA)
    counts.take(-70 * MEGA)
    deadline = time.monotonic() + 30
    while recorder.read().looks < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
        time.sleep(0.01)
        time.sleep(0.01)
        time.sleep(0.01)
    recorder.end()
    course, found = device(recorder), recorder.read()

    assert found.looks >= 60
    assert len(found.times) < 10
    assert len(found.kinds) < 5
    assert found.times == sorted(found.times)
    assert max(course.points) == course.peak == 90 * MEGA
    assert course.points[-1] == 20 * MEGA


def test_a_framework_that_fails_leaves_the_record_of_the_host(recorder, counts):
    """Its device had nothing since, as far as is known."""
    counts.take(30 * MEGA)
    recorder.begin(3)
    time.sleep(LONG)
    counts.broken = True
    time.sleep(LONG)
    recorder.end()
    course = device(recorder)

    assert course.peak == 30 * MEGA
    assert recorder.read().courses[0].peak > MEGA


def test_nothing_is_looked_at_once_the_cell_has_ended(recorder, counts):
    """A second end changes nothing."""
    recorder.begin(3)
    time.sleep(LONG)
    recorder.end()
    asked, found = counts.asked, recorder.read()
    time.sleep(LONG)
    recorder.end()

    assert counts.asked == asked
    assert recorder.read() == found
    assert found.over
