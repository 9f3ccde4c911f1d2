"""A cell reaches its end whatever plug-ins and values do: with a rank's own parts, in this process."""

from __future__ import annotations

import contextlib
import linecache
import math
import re
import signal
import sys
import threading
import time
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jupyter_dtrain.core.events import Error, Finished, Metrics, Output
from jupyter_dtrain.core.world import placements
from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.rank.cell_end import CellEnd
from jupyter_dtrain.rank.descriptors import DescriptorReader
from jupyter_dtrain.rank.interrupts import STOP_SIGNAL, Interrupts
from jupyter_dtrain.rank.main_thread import MainThread
from jupyter_dtrain.rank.metrics import MetricBuffer
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.process_tree import CellProcesses
from jupyter_dtrain.rank.recorder import Recorder
from jupyter_dtrain.rank.resources import Sampler
from jupyter_dtrain.rank.tracebacks import Tracebacks
from jupyter_dtrain.wire.reports import Ended
from jupyter_dtrain.wire.spool import read_file, spool_path
from tests import hostile
from tests.rank.test_descriptors import Line

LONG = 20.0
"""Seconds; the end of a cell takes about one here."""


PATIENCE = 0.1
"""Seconds; a real rank has more of it."""


class Rank:
    """The parts that end a cell, as a rank has them; they live on from cell to cell."""

    def __init__(self, folder, line: Line) -> None:
        self.folder = folder
        self.recorder = Recorder(0, folder, lambda _: None, cap=1 << 30, log=folder / "log")
        self.interrupts = Interrupts(lambda file: file == "<1>", self.recorder.shield)
        self.interrupts.install()
        complain = partial(self.recorder.write, "stderr")
        self.metrics = MetricBuffer(self.recorder.send, complain, self.recorder.shield)
        self.descriptors = DescriptorReader(line.theirs, self.recorder)
        self.descriptors.start()
        self.sampler = Sampler(self.recorder.send, lambda: None, lambda: None, None)
        self.reported: list[tuple[Ended, list]] = []
        self.run = 0

    def play(self, plugin: Framework | None = None, points=(), source: str = "", *, stop: float = LONG) -> list:
        """Run a cell to its end: the bodies of its events. Stop is pressed after ``stop`` seconds of the end."""
        self.run += 1
        plugins = Plugins([("hostile", plugin)] if plugin else [], lambda _: None)
        plugins.bounded, plugins.is_interrupt = self.interrupts.bounded, self.interrupts.has_raised
        plugins.patience = PATIENCE
        tracebacks = Tracebacks(lambda file: "cell [1]" if file == "<1>" else None, self.folder)
        main_thread = MainThread(plugins, tracebacks, lambda _: None)
        parts = (
            self.descriptors,
            plugins,
            self.metrics,
            self.sampler,
            tracebacks,
            main_thread,
            self.interrupts,
            CellProcesses(plugins.services()),
        )
        cell_end = CellEnd(placements(["here"])[0], self.recorder, *parts, self.report)
        cell_end.words_patience = cell_end.metrics_patience = PATIENCE
        self.recorder.begin(self.run, [0])
        self.metrics.begin()
        for name, value, step, read in points:
            self.metrics.add(name, value, step, read=read)
        exception = None
        linecache.cache["<1>"] = (len(source), None, source.splitlines(keepends=True), "<1>")
        try:
            exec(compile(source, "<1>", "exec"), {"gate": hostile.gate})  # noqa: S102 — code of this test
        except BaseException as error:  # noqa: BLE001 — it is what this is about
            exception = error
        ended = threading.Event()
        presses = hostile.pressing(ended, self.press, stop)
        try:
            cell_end.end(self.run, exception)
        finally:
            ended.set()
            presses.join()
        return self.bodies()

    def press(self) -> None:
        self.interrupts.send()
        self.interrupts.send(force=True)

    def report(self, report: Ended) -> None:
        self.reported.append((report, self.bodies()))

    def bodies(self) -> list:
        return [event.body for event in read_file(spool_path(self.folder, self.run, 0))]


@pytest.fixture(scope="module")
def rank(tmp_path_factory):
    """One for all draws: what one leaves behind must not disturb the next."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, STOP_SIGNAL)}
    line = Line().start()
    made = Rank(tmp_path_factory.mktemp("rank"), line)
    yield made
    line.close()
    made.recorder.close()
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def gate():
    """Calls that block do so inside; their threads go on afterwards."""
    hostile.gate.clear()
    try:
        yield
    finally:
        hostile.gate.set()


MEMBERS = st.sampled_from(["after_cell", "needs_regroup", "is_apart", "steps", "is_out_of_memory"])


@st.composite
def plugins(draw):
    """A plug-in whose members at the end of a cell raise, block, or return rubbish."""
    scope: dict = {"gate": hostile.gate}
    exec(hostile.PRELUDE, scope)  # noqa: S102 — code of this test
    chosen = draw(
        st.dictionaries(MEMBERS, hostile.actions(blocks=True).filter(lambda one: one != "stay()"), max_size=3)
    )
    members = {name: eval(f"lambda self, *a, **k: {what}", scope) for name, what in chosen.items()}
    return type("Hostile", (Framework,), {"name": "hostile", **members})()


READS = st.sampled_from(
    [
        None,
        lambda values: [1.0] * len(values),
        lambda _: [1.0],
        lambda _: None,
        lambda values: ["x"] * len(values),
        lambda _: [math.nan, 10**400],
        lambda _: hostile.gate.wait(),
        lambda _: sys.exit(3),
    ]
)
POINTS = st.lists(st.tuples(hostile.NAMES, hostile.VALUES, hostile.STEPS, READS), max_size=3)


# A draw takes up to a second, so a failure is told as it was found; and Hypothesis explains a failure with a trace
# function, in which Python 3.11 never ends the handler of a signal that comes every 0.05 s.
@settings(max_examples=30, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(st.one_of(hostile.exceptions(), st.just("x = 1")), plugins(), POINTS)
def test_a_cell_ends_whatever_is_thrown_at_its_end(rank, source, plugin, points):
    """It ends in time, with its cause, which the steward hears first; and the next cell works."""
    failed = "Hostile" in source
    began = time.monotonic()
    with gate():
        bodies = rank.play(plugin, points, source, stop=0.5)
    hostile.in_time(began, LONG)

    assert isinstance(bodies[-1], Finished)
    assert [type(body) for body in bodies].count(Finished) == 1
    if failed:
        assert [body.ename for body in bodies if isinstance(body, Error)] == ["Hostile"]
        assert bodies[-1].outcome == "error"
        report, then = rank.reported[-1]
        assert report.run == rank.run
        assert not any(isinstance(body, Error) for body in then)
    else:
        assert bodies[-1].outcome in ("ok", "interrupted")

    after = rank.play(None, [("loss", 1.0, None, None)])
    assert (after[-1].outcome, after[-1].words) == ("ok", "")
    assert [series.name for body in after if isinstance(body, Metrics) for series in body.series] == ["loss"]


class Late(Framework):
    name = "late"

    def after_cell(self) -> None:
        while True:
            time.sleep(1000)


def test_a_plugin_that_never_returns_is_left_out_by_a_deadline(rank):
    """The deadline is that of a failed cell; a cell that is ok may compute for longer."""
    bodies = rank.play(Late(), source="1 / 0")
    text = "".join(body.text for body in bodies if isinstance(body, Output))

    assert f"The plug-in 'hostile' failed in after_cell: Overdue: it did not return within {PATIENCE:g} s" in text
    assert (bodies[-1].outcome, bodies[-1].regroup) == ("error", True)


def test_stop_ends_what_an_ok_cell_still_waits_for(rank):
    """A plug-in, and then a device that never gives a value."""
    with gate():
        by_plugin = rank.play(Late(), stop=0.2)
        by_device = rank.play(None, [("loss", 0, None, lambda _: hostile.gate.wait())], stop=0.2)

    assert (by_plugin[-1].outcome, by_plugin[-1].regroup) == ("interrupted", True)
    assert by_device[-1].outcome == "interrupted"
    text = "".join(body.text for body in by_device if isinstance(body, Output))
    assert "The last points of this cell's metrics are missing: an interrupt ended the wait." in text


def test_a_text_that_never_comes_is_replaced_and_the_rest_is_shown(rank):
    """Frames and notes do not wait for the message; the steward has heard before."""
    source = "class Mute(Exception):\n    def __str__(self): gate.wait()\ne = Mute()\ne.__notes__ = ['a note']\nraise e"
    with gate():
        error = next(body for body in rank.play(source=source) if isinstance(body, Error))

    assert re.fullmatch(r"<its text was not ready after \d+\.\d s>", error.evalue)
    assert (error.notes, [frame.line for frame in error.frames]) == (["a note"], [5])
    assert not any(isinstance(body, Error) for body in rank.reported[-1][1])
