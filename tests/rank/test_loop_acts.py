"""Acts between two steps of a loop: they see the loop's names, and change what they say they change."""

from __future__ import annotations

import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dtrain.core.steering import LoopAct
from jupyter_dtrain.plugins.framework import CellEnds
from jupyter_dtrain.rank.cell_sources import CellSources
from jupyter_dtrain.rank.interrupts import CellStopped
from jupyter_dtrain.rank.loop_acts import LoopActs
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.tracebacks import Tracebacks
from jupyter_dtrain.wire.messages import Cell


class Rank:
    """A rank's IPython, whose cells call ``hook(step)`` after each of their steps."""

    def __init__(self, home) -> None:
        self.shell = InteractiveShell.instance()
        self.sources = CellSources(self.shell)
        self.sources.install()
        self.plugins = Plugins([])
        self.acts = LoopActs(self.shell, self.plugins, self.sources, Tracebacks(self.sources.name_of, home))
        self.shell.user_ns["hook"] = self._hook
        self.planned = {}
        self.done = []
        self._runs = 0

    def run(self, code, **planned):
        """Run a cell; ``at_3=LoopAct(…)`` is done after its third step. Raises what the cell raises."""
        self.planned = {int(at.removeprefix("at_")): act for at, act in planned.items()}
        self.done = []
        self._runs += 1
        self.sources.begin(self._runs, code, Cell(number=self._runs))
        self.shell.run_cell(code).raise_error()
        return self.done[0] if self.done else None

    def _hook(self, step) -> None:
        if (act := self.planned.get(step)) is not None:
            frame = sys._getframe()
            found = self.acts.check(act, frame)
            self.done.append(self.acts.apply(act, 7, frame) if found.ok else found)


def between(code):
    return LoopAct("between", code=code)


@pytest.fixture
def rank(tmp_path):
    yield Rank(tmp_path)
    InteractiveShell.clear_instance()


LOOP = "for step in range(1, 4):\n    hook(step)\n"
IN_A_FUNCTION = """
import types
def train():
    opt, rate = types.SimpleNamespace(lr=0.1), 1
    keep = lambda: (opt, rate)
    for step in range(1, 6):
        hook(step)
    return opt.lr, rate, keep()[1]
found = train()
"""


def test_names_of_a_function_are_seen_and_bound_anew(rank):
    """A loop in a function has its names there; what is new becomes the module's."""
    rank.run(IN_A_FUNCTION, at_3=between("opt.lr *= 0.5\nrate = [one * 7 for one in (rate,)][0]\nfresh = opt.lr"))

    assert rank.shell.user_ns["found"] == (0.05, 7, 7)
    assert rank.shell.user_ns["fresh"] == 0.05


def test_names_of_a_cell_are_its_own(rank):
    """A function that an act defines at the top of a cell is the cell's, and sees what the cell binds later."""
    code = "rate = 1\nfor step in range(1, 5):\n    hook(step)\n    rate += 1\nlater = of()"

    rank.run(code, at_2=between("rate = 10\ndef of(): return rate"))

    assert rank.shell.user_ns["later"] == 13


def test_the_loops_names_go_before_those_of_the_function_that_steps(rank):
    """A person means the loop, not the function in it that makes one step, nor a hook of the user's."""
    code = "def one(step):\n    rate = 'inner'\n    hook(step)\nrate = 0\nfor step in range(1, 4):\n    one(step)\n"

    rank.run(code, at_2=between("rate = rate + 5"))

    assert rank.shell.user_ns["rate"] == 5


def test_names_around_the_loop_are_seen(rank):
    """An epoch of a function that main() calls: what main() has made is there, too, and is bound there."""
    code = (
        "def epoch():\n    for step in range(1, 4):\n        hook(step)\n"
        "def main():\n    sched = [1]\n    for _ in range(1):\n        epoch()\n    return sched\n"
        "found = main()\n"
    )

    rank.run(code, at_2=between("sched.append(2)\nsched = tuple(sched)"))

    assert rank.shell.user_ns["found"] == (1, 2)


def test_the_value_of_the_last_expression_is_shown_and_is_no_result(rank, capsys):
    """Out, the history and the counter stay."""
    shell = rank.shell
    before = shell.execution_count, dict(shell.user_ns["Out"])

    acted = rank.run(LOOP, at_2=between("print('seen')\nstep * 21"))

    assert (acted.ok, acted.error) == (True, None)
    assert (shell.execution_count, dict(shell.user_ns["Out"])) == before
    assert capsys.readouterr().out == "seen\n42\n"


def test_a_semicolon_shows_nothing(rank, capsys):
    """As in a cell."""
    rank.run(LOOP, at_2=between("step;"))

    assert capsys.readouterr().out == ""


def test_ipythons_syntax_works(rank, capsys):
    """A magic is one, as in a cell."""
    rank.run(LOOP, at_2=between("%precision 3\nstep / 3"))

    assert capsys.readouterr().out == "0.667\n"


def test_an_error_has_the_codes_own_lines_and_the_loop_goes_on(rank):
    """What the code has changed before it failed stays, as in a cell."""
    code = "seen = []\nfor step in range(1, 4):\n    hook(step)\n    seen.append(step)\n"

    acted = rank.run(code, at_2=between("changed = step\n1 / 0"))

    assert not acted.ok
    assert (acted.error.ename, acted.error.evalue) == ("ZeroDivisionError", "division by zero")
    assert [(one.file, one.line, one.source) for one in acted.error.frames] == [("between 7", 2, "1 / 0")]
    assert rank.shell.user_ns["seen"] == [1, 2, 3]
    assert rank.shell.user_ns["changed"] == 2


def test_a_value_that_cannot_be_shown_is_an_error_of_the_act(rank, monkeypatch):
    """The cell itself has not failed by it."""
    cells = []

    def showtraceback(exc_tuple=None, **_):
        if not rank.acts.cannot_show(exc_tuple[1]):
            cells.append(exc_tuple[1])

    monkeypatch.setattr(rank.shell, "showtraceback", showtraceback)
    code = "class Bad:\n    def __repr__(self):\n        raise ValueError('no words')\n"

    acted = rank.run(f"{code}for step in range(1, 4):\n    hook(step)\n", at_2=between("Bad()"))

    assert (acted.ok, acted.error.evalue) == (False, "no words")
    assert not cells


def test_bad_syntax_is_found_before_anything_is_done(rank):
    """The check says where, by the act's own name."""
    acted = rank.run(LOOP, at_2=between("x = 1\ny = ("))

    assert not acted.ok
    assert acted.error.ename == "SyntaxError"
    assert "(between, line 2)" in acted.error.evalue
    assert "x" not in rank.shell.user_ns


@pytest.mark.parametrize("error", [CellStopped, CellEnds])
def test_what_ends_the_cell_goes_through(rank, error):
    """Stop is no error of the code that it interrupts."""
    rank.shell.user_ns["Ends"] = error

    with pytest.raises(error):
        rank.run(LOOP, at_2=between("raise Ends"))


def test_an_interrupt_goes_through_and_the_codes_own_is_an_error(rank):
    """Only the user's Stop ends the loop."""
    code, act = LOOP, between("raise KeyboardInterrupt")

    assert rank.run(code, at_2=act).error.ename == "KeyboardInterrupt"

    rank.plugins.is_interrupt = lambda error: isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        rank.run(code, at_2=act)
