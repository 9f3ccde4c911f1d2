"""A rank's IPython without a rank, in which acts are done between the steps of a cell's loop."""

from __future__ import annotations

import sys

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_dtrain.core.steering import LoopAct, parse_settings
from jupyter_dtrain.rank.cell_sources import CellSources
from jupyter_dtrain.rank.loop_acts import LoopActs
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.tracebacks import Tracebacks
from jupyter_dtrain.wire.messages import Cell


class ActingRank:
    """A rank's IPython, whose cells call ``hook(step)`` after each of their steps."""

    def __init__(self, home, *plugins) -> None:
        # A history would be the person's own, in a file.
        self.shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
        self.sources = CellSources(self.shell)
        self.sources.install()
        self.said = []
        self.plugins = Plugins([(one.name, one) for one in plugins])
        self.acts = LoopActs(
            self.shell,
            self.plugins,
            self.sources,
            Tracebacks(self.sources.name_of, home),
            self.said.append,
            lambda *_: None,
            lambda: False,
        )
        self.shell.user_ns["hook"] = self.step
        self.planned = {}
        self.done = []
        self.kept = []
        """The states that each rewind has found."""
        self.begun = lambda: None
        """Called when a cell begins."""
        self._runs = 0

    def run(self, code, ring=(0, 0), **planned):
        """Run a cell; ``at_3=LoopAct(…)`` is done after its third step. Raises what the cell raises."""
        self.planned = {int(at.removeprefix("at_")): act for at, act in planned.items()}
        self.done = []
        self._runs += 1
        self.begun()
        self.acts.begin(*ring)
        self.sources.begin(self._runs, code, Cell(number=self._runs))
        try:
            self.shell.run_cell(code).raise_error()
        finally:
            self.acts.end()
        return self.done[0] if self.done else None

    def step(self, step) -> None:
        """Where the gate holds a loop."""
        self.acts.stepped(step, sys._getframe(1))
        if (act := self.planned.get(step)) is not None:
            frame = sys._getframe(1)
            found = self.acts.check(act, frame)
            if act.kind == "rewind":
                self.kept.append(found.text)
            self.done.append(self.acts.apply(act, 7, frame) if found.ok else found)
            self.acts.go_on()


def between(code):
    return LoopAct("between", code=code)


def setting(line):
    return LoopAct("set", settings=parse_settings(line))


UNDO, STOP = LoopAct("undo"), LoopAct("stop-after")
