"""Points go from a loop to the recorder in columns, in order, and no code waits for them."""

from __future__ import annotations

import math
import threading
import time

import pytest

from jupyter_dtrain.core.events import Metrics
from jupyter_dtrain.core.metrics import RunMetrics, pack, unpack
from jupyter_dtrain.rank import metrics
from jupyter_dtrain.rank.interrupts import Shield
from jupyter_dtrain.rank.metrics import BESIDE, LIMIT, MetricBuffer
from jupyter_dtrain.rank.recorder import WIRE_POINTS
from jupyter_dtrain.wire.spool import read_file
from tests.core.test_metrics import columns


class Said:
    """The events that a buffer has recorded, and its complaints."""

    def __init__(self) -> None:
        self.events: list[Metrics] = []
        self.words: list[str] = []

    def points(self, name: str) -> list[tuple[int, float]]:
        """Steps and values of a series."""
        metrics = RunMetrics([0])
        for event in self.events:
            for series in event.series:
                metrics.add(0, series)
        found = metrics[name][0]
        return list(zip(found.steps, found.values, strict=True))


@pytest.fixture
def said():
    return Said()


@pytest.fixture
def buffer(said):
    """A buffer in a run."""
    made = MetricBuffer(said.events.append, said.words.append, Shield())
    made.begin()
    return made


def test_points_come_in_their_order_with_steps_that_are_counted_or_named(buffer, said):
    """Each name has its own count."""
    for value in (1.0, 2.0):
        buffer.add("loss", value)
    buffer.add("acc", 0.5, 10)
    buffer.add("acc", 0.6)
    buffer.end()

    assert said.points("loss") == [(0, 1.0), (1, 2.0)]
    assert said.points("acc") == [(10, 0.5), (11, 0.6)]
    assert buffer.step == 11


def test_points_that_a_framework_adds_at_once_keep_their_place_and_their_name(buffer, said):
    """Also where the user logs that name later, and where others of the name come one by one."""
    buffer.add_all("loss", columns([2.0, 1.0]))
    buffer.add("loss", 0.5)
    buffer.add("loss", 9.0, logged=True)
    buffer.add_all("loss", columns([0.25], first=3))
    buffer.end()

    assert said.points("loss" + BESIDE) == [(0, 2.0), (1, 1.0), (2, 0.5), (3, 0.25)]
    assert said.points("loss") == [(0, 9.0)]
    assert buffer.step == 3


def test_what_the_user_logs_without_a_step_takes_the_step_that_an_optimizer_has_made(buffer, said):
    """After the step it is that step's; a name that comes before the first step stands before each."""
    made = 0
    buffer.count_by(lambda: made)
    for turn in range(3):
        buffer.add("before", turn, logged=True)
        made += 1
        buffer.add("loss", turn, turn)
        buffer.add("after", turn, logged=True)
    buffer.add("val_accuracy", 0.5, logged=True)
    buffer.add("mine", 0.5, 70, logged=True)
    buffer.end()

    assert [step for step, _ in said.points("before")] == [0, 1, 2]
    assert [step for step, _ in said.points("after")] == [0, 1, 2]
    assert said.points("val_accuracy") == [(2, 0.5)]
    assert said.points("mine") == [(70, 0.5)]


def test_a_run_that_goes_on_counts_from_its_first_step_and_says_so_once_with_its_first_point(buffer, said):
    """A framework's steps and the user's count; a step that the user names stays, and so does a library's own."""
    buffer.end()
    buffer.begin(500, "It goes on.\n")
    assert said.words == []
    buffer.add("loss", 1.0, 0)
    buffer.add("loss", 1.0)
    buffer.add_all("lr", columns([0.1, 0.1], first=2))
    buffer.add("acc", 0.5, logged=True)
    buffer.add("acc", 0.5, logged=True)
    buffer.add("mine", 0.5, 7, logged=True)
    buffer.add("library", 0.5, 10, logged=True, counted=True)
    buffer.flush()
    buffer.begin(500)
    buffer.add("checkpoint", 0.5, 480, logged=True, counted=True)
    buffer.end()

    assert said.points("loss") == [(500, 1.0), (501, 1.0)]
    assert said.points("lr") == [(502, 0.1), (503, 0.1)]
    assert said.points("acc") == [(500, 0.5), (501, 0.5)]
    assert said.points("mine") == [(7, 0.5)]
    assert said.points("library") == [(510, 0.5)]
    assert said.points("checkpoint") == [(480, 0.5)]
    assert said.words == ["It goes on.\n"]


def test_points_are_recorded_without_an_end(buffer, said):
    """The buffer's own thread records them."""
    buffer.add("loss", 1.0)
    deadline = time.monotonic() + 10
    while not said.events:
        assert time.monotonic() < deadline
        time.sleep(0.005)

    assert said.points("loss") == [(0, 1.0)]


def test_a_fast_loop_makes_fewer_events(buffer, said, monkeypatch):
    """Each event wakes threads in five processes, and such a loop pays for that."""
    monkeypatch.setattr(metrics, "MANY", 1)
    until = time.monotonic() + 2.2
    while time.monotonic() < until:
        buffer.add("loss", 1.0)
        time.sleep(0.01)
    found = len(said.events)
    buffer.end()

    assert 1 <= found <= 6  # the first, and one for each half second; every quarter makes 8


def test_between_runs_points_are_left_out_and_steps_begin_anew(buffer, said):
    """There is no run that they would belong to."""
    buffer.add("loss", 1.0)
    buffer.end()
    buffer.add("loss", 2.0)
    buffer.begin()
    buffer.add("loss", 3.0)
    buffer.end()

    assert said.points("loss") == [(0, 1.0), (0, 3.0)]


def test_values_on_a_device_are_read_many_at_once_and_keep_their_place(buffer, said):
    """Numbers and values to come stand in one series as they were added."""
    asked = []

    def read(values):
        asked.append(list(values))
        return [float(value) * 10 for value in values]

    with buffer._flushing:
        buffer.add("loss", "1", read=read)
        buffer.add("loss", 2.0)
        buffer.add("loss", "3", read=read)
    buffer.end()

    assert said.points("loss") == [(0, 10.0), (1, 2.0), (2, 30.0)]
    assert asked == [["1", "3"]]


def test_a_device_that_fails_costs_its_values_and_no_others(buffer, said):
    """They are NaN, and a line says why."""

    def read(_):
        raise RuntimeError("the device is gone")

    buffer.add("loss", "1", read=read)
    buffer.add("acc", 0.5)
    buffer.end()

    assert math.isnan(said.points("loss")[0][1])
    assert said.points("acc") == [(0, 0.5)]
    assert said.words == ["[jupyter-dtrain] 'loss' could not be read: RuntimeError: the device is gone\n"]


def test_a_point_that_cannot_be_recorded_costs_no_other(buffer, said):
    """A step past 64 bits, a value that is no number, a reader that gives too few."""
    buffer.add("loss", 1.0, 2**63)
    buffer.add("loss", "no number")
    buffer.add("loss", 3.0, 7)
    buffer.add("short", None, read=lambda _: [])
    buffer.add("acc", 0.5)
    assert buffer.end(10)

    assert (said.points("loss"), said.points("acc")) == ([(7, 3.0)], [(0, 0.5)])
    assert math.isnan(said.points("short")[0][1])
    assert (
        said.words[0]
        == "[jupyter-dtrain] 'short' could not be read: ValueError: zip() argument 2 is shorter than argument 1\n"
    )
    assert said.words[1] == "[jupyter-dtrain] a point of 'loss' is left out: its step needs more than 64 bits\n"


def test_a_device_that_never_answers_costs_its_run_alone(buffer, said):
    """The end does not wait longer than it should, and later values are no points of the next run."""
    gate = threading.Event()
    buffer.add("loss", 1.0, read=lambda values: [float(gate.wait())] * len(values))
    assert not buffer.end(0.05)
    buffer.begin()
    buffer.add("acc", 0.5)
    gate.set()
    buffer.add("acc", 0.6)

    assert buffer.end(10)
    assert said.points("acc") == [(0, 0.5), (1, 0.6)]
    assert {series.name for event in said.events for series in event.series} == {"acc"}


def test_a_metric_that_the_user_logs_keeps_its_name(buffer, said):
    """Values that waited before still belong to the framework."""
    with buffer._flushing:
        buffer.add("loss", 1.0)
        buffer.add("loss", 5.0, logged=True)
        buffer.add("loss", 2.0)
    buffer.end()

    assert said.points("loss") == [(0, 5.0)]
    assert [value for _, value in said.points("loss" + BESIDE)] == [1.0, 2.0]


def test_many_threads_lose_no_point_beyond_what_may_wait(buffer, said):
    """While the buffer's thread is busy, threads that add points record them themselves once there is room."""
    each = LIMIT // 4 + 1000

    def work(name):
        for value in range(each):
            buffer.add(name, float(value))

    threads = [threading.Thread(target=work, args=(f"loss{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buffer.end()

    for index in range(4):
        assert said.points(f"loss{index}") == [(step, float(step)) for step in range(each)]


def test_more_points_than_the_wire_takes_are_spooled_whole_and_announced_thinned(make_recorder, heard, path_of):
    """The recorder counts the points that it leaves out, and keeps the extremes."""
    recorder = make_recorder()
    recorder.begin(1)
    many = columns([float(k % 1000) for k in range(4 * WIRE_POINTS)])
    many.values[77_777] = 1e6
    recorder.append(Metrics([pack("loss", many)]))
    recorder.append(Metrics([pack("loss", columns([1.0]))]))
    recorder.finish("ok")
    announced = [body.series[0] for body in heard.bodies if isinstance(body, Metrics)]
    spooled = [event.body.series[0] for event in read_file(path_of(1)) if isinstance(event.body, Metrics)]

    assert list(unpack(spooled[0]).values) == list(many.values)
    assert spooled[0].left_out == 0
    assert announced[0].left_out + len(unpack(announced[0]).values) == 4 * WIRE_POINTS
    assert len(unpack(announced[0]).values) <= WIRE_POINTS
    assert 1e6 in unpack(announced[0]).values
    assert (announced[1].left_out, list(unpack(announced[1]).values)) == (0, [1.0])


def test_points_of_the_main_thread_are_followed(buffer):
    """Not those of other threads, as of a callback that JAX calls, nor those between two runs."""
    followed = []
    buffer.follow = followed.append
    buffer.add("loss", 1.0)
    other = threading.Thread(target=buffer.add, args=("callback", 1.0))
    other.start()
    other.join()
    buffer.end()
    buffer.add("late", 1.0)

    assert followed == ["loss"]
