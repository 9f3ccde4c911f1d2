"""When a rank says what made a run, and that nobody waits for it."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from jupyter_dtrain.core.events import Configured, Environment, RunContext
from jupyter_dtrain.core.world import Placement
from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.rank import configuration
from jupyter_dtrain.rank.configuration import Configuration
from jupyter_dtrain.rank.interrupts import Shield
from jupyter_dtrain.rank.metrics import MetricBuffer
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.wire.agent_messages import RunCell
from jupyter_dtrain.wire.messages import Cell, Watching
from tests.steward.until import until


class Library(Framework):
    """It knows an optimizer."""

    name = "library"

    def __init__(self) -> None:
        self.holds = threading.Event()
        self.holds.set()
        self.known = {"optimizer": {"optimizer": "Mine", "lr": 0.5}}

    def configuration(self):
        """As the contract has it."""
        assert self.holds.wait(60)
        return self.known


class Rank:
    """The part of a rank that says configurations."""

    def __init__(self, rank: int = 0) -> None:
        self.events = []
        self.namespace = {"__name__": "__main__"}
        self.library = Library()
        self.metrics = MetricBuffer(lambda _: None, lambda _: None, Shield())
        place = Placement(rank, 2, rank, 2, 0, 1)
        plugins = Plugins([("library", self.library)])
        self.configuration = Configuration(
            place, self.events.append, plugins, self.metrics, self.namespace, lambda: ["A device"]
        )

    def begin(self, code: str, **context) -> None:
        """Begin a cell, and run its code."""
        self.events.clear()
        self.metrics.begin()
        cell = Cell(context=RunContext(**context))
        self.configuration.begin(RunCell(1, code, [0, 1], 1, Watching(), cell))
        exec(code, self.namespace)  # noqa: S102 — of this test

    def log(self) -> None:
        """The first point of a cell."""
        self.metrics.add("loss", 1.0)

    def end(self) -> None:
        """End the cell."""
        self.configuration.end()
        self.metrics.end()

    @property
    def values(self):
        """All that was said."""
        return {name: value for one in self.events if type(one) is Configured for name, value in one.values.items()}

    @property
    def kinds(self):
        """How many events of each kind there were."""
        return Counter(map(type, self.events))


@pytest.fixture
def rank():
    return Rank()


def test_a_run_says_it_at_its_first_point(rank):
    """While it goes on; and at its end what is new, the last values of loops over settings among it."""
    rank.begin("lr = 0.1\nfor width in (8, 16): pass")
    rank.log()
    until(lambda: rank.kinds[Environment])
    assert rank.values == {"lr": 0.1, "width": 16, "world_size": 2, "optimizer": "Mine", "optimizer.lr": 0.5}

    rank.namespace.update(lr=0.2, width=32)
    rank.library.known["optimizer"]["momentum"] = 0.9
    before = len(rank.events)
    rank.end()
    assert {name for one in rank.events[before:] for name in one.values} == {"width", "momentum"}
    assert rank.values["lr"] == 0.1
    assert rank.kinds[Environment] == 1


def test_a_run_that_ends_at_once_says_it_at_its_end(rank):
    """Where it has points."""
    rank.begin("lr = 0.1")
    rank.log()
    rank.end()

    assert rank.values["lr"] == 0.1
    assert rank.kinds[Environment] == 1


def test_a_long_run_without_points_says_it_as_well(rank):
    """After a second."""
    rank.begin("lr = 0.1")
    until(lambda: rank.kinds[Environment])

    assert rank.values["lr"] == 0.1
    rank.end()


def test_short_runs_and_verbs_say_nothing(rank):
    """They make nothing that is compared."""
    rank.begin("lr = 0.1")
    rank.end()
    assert rank.events == []
    rank.begin("lr = 0.1", aside=True)
    rank.log()
    rank.end()
    assert rank.events == []


def test_other_ranks_say_their_environment_alone():
    """The lowest one says the hyper-parameters of all."""
    rank = Rank(1)
    rank.begin("lr = 0.1")
    rank.log()
    rank.end()

    assert rank.kinds == {Environment: 1}


def test_settings_of_earlier_cells(rank):
    """Where the cell reads them."""
    rank.begin("DEPTH = 3; OTHER = 4")
    rank.end()
    rank.begin("def train(depth): pass\ntrain(DEPTH)")
    rank.log()
    rank.end()

    assert rank.values["depth"] == 3
    assert "OTHER" not in rank.values


def test_a_library_that_never_answers_holds_nobody_up(rank, monkeypatch):
    """Its run ends without, no later run gets what it says, and the next run has its own."""
    monkeypatch.setattr(configuration, "PATIENCE", 0.05)
    rank.library.holds.clear()
    rank.begin("lr = 0.1")
    rank.log()
    stuck = rank.configuration._thread
    rank.end()
    assert rank.values == {}

    monkeypatch.undo()
    held, rank.library.holds = rank.library.holds, threading.Event()
    rank.library.holds.set()
    rank.begin("lr = 0.3")
    held.set()
    stuck.join(30)
    assert not stuck.is_alive()
    rank.log()
    rank.end()
    assert rank.values["lr"] == 0.3
    assert rank.kinds[Environment] == 1
