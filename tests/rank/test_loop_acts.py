"""Acts between two steps of a loop: they see the loop's names, and change what they say they change."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dtrain.plugins.framework import CellEnds
from jupyter_dtrain.rank.interrupts import CellStopped
from tests.rank.acting import UNDO, ActingRank, between, setting


@pytest.fixture
def rank(tmp_path):
    yield ActingRank(tmp_path)
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


FUNCTIONS = """
import gc, types, weakref
class Big: ...
g, count = 1, 0
def train():
    global g
    hooks, rate, big = [], 10, Big()
    watched, found = weakref.ref(big), []
    for step in range(1, 6):
        hook(step)
        g += 1
        if hooks: found.append(hooks[0](step))
    del big
    gc.collect()
    return found, watched() is None
found = train()
"""


def test_a_function_of_an_act_sees_the_modules_variables_as_they_are(rank):
    """It may bind them, too; and it keeps no variable of the loop alive but those that it uses."""
    act = (
        "seen: int = 3\ndef called(step):\n    global count\n    count += 1\n"
        "    return g, rate, [rate for _ in 'a'], seen\nhooks.append(called)"
    )

    rank.run(FUNCTIONS, at_3=between(act))

    assert rank.shell.user_ns["found"] == ([(4, 10, [10], 3), (5, 10, [10], 3), (6, 10, [10], 3)], True)
    assert rank.shell.user_ns["count"] == 3
    assert rank.shell.user_ns["called"].__qualname__ == "called"


@pytest.mark.parametrize(
    ("act", "found"),
    [
        ("seen.append(sorted(eval('rate') for _ in 'a')) if False else seen.append(eval('rate'))", [1]),
        ("seen.append({'rate', 'seen', 'fresh'} - {*dir()})\nfresh = 1", [{"fresh"}]),
        ("from __future__ import annotations\ndef f(x: nothing): return x + rate\nseen.append(f(1))", [2]),
        ("global rate\nrate = 5", ["global rate"]),
        ("[rate := one for one in (7,)]\nseen.append(rate)", [7, "rate"]),
        ("class A:\n    more = rate + 1\nseen.append(A.more)", [2]),
        ("import os as rate", ["rate"]),
        ("try: 1 / 0\nexcept ZeroDivisionError as error: seen.append(str(error))", ["division by zero"]),
        ("del rate", []),
        ("'some words'", []),
        ("", []),
    ],
)
def test_code_in_a_function_means_what_it_means_in_a_cell(rank, act, found):
    """Whatever it uses, it sees and binds the loop's names."""
    code = (
        "def train():\n    rate, seen = 1, []\n    for step in range(1, 4):\n        hook(step)\n"
        "    if rate != 1: seen.append('rate')\n    if 'rate' in globals(): seen.append('global rate')\n"
        "    return seen\nfound = train()\n"
    )

    acted = rank.run(code, at_2=between(act))

    assert acted.ok, acted.error
    assert rank.shell.user_ns["found"] == found


@pytest.mark.parametrize("code", [FUNCTIONS, LOOP])
@pytest.mark.parametrize("act", ["return 3", "yield 3", "x = 1\nbreak"])
def test_what_no_cell_could_have_is_an_error(rank, code, act):
    """In a function, too, as its code does not run in one of its own."""
    assert rank.run(code, at_2=between(act)).error.ename == "SyntaxError"


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


def test_a_set_says_what_it_replaces_and_an_undo_puts_it_back(rank):
    """Attributes, items, variables of a function: each where it lives. Undone newest first."""
    code = (
        "import types\n"
        "def train():\n"
        "    opt, rate, config = types.SimpleNamespace(lr=0.1), 3, {'lr': [1, 2], 'name': 'a'}\n"
        "    seen = []\n"
        "    for step in range(1, 7):\n"
        "        hook(step)\n"
        "        seen.append((opt.lr, rate, config['lr'][1], config['name']))\n"
        "    return seen\n"
        "found = train()\n"
    )

    rank.run(
        code,
        at_2=setting("opt.lr=1 config['lr'][1]=7"),
        at_3=setting("rate=0.5 config['name']='b'"),
        at_4=UNDO,
        at_5=UNDO,
        at_6=UNDO,
    )

    assert [one.text for one in rank.done] == [
        "opt.lr: 0.1 -> 1.0; config['lr'][1]: 2 -> 7",
        "rate: 3 -> 0.5; config['name']: 'a' -> 'b'",
        "config['name']: 'b' -> 'a'; rate: 0.5 -> 3",
        "config['lr'][1]: 7 -> 2; opt.lr: 1.0 -> 0.1",
        "there is nothing to undo: no set of this cell is left",
    ]
    assert [one.ok for one in rank.done] == [True, True, True, True, False]
    assert rank.shell.user_ns["found"] == [
        (0.1, 3, 2, "a"),
        (1.0, 3, 7, "a"),
        (1.0, 0.5, 7, "b"),
        (1.0, 3, 7, "a"),
        (0.1, 3, 2, "a"),
        (0.1, 3, 2, "a"),
    ]


THING = """
import collections
class Thing:
    def __init__(self): self.rate, self.name, self.on, self.none, self.pair = 0.5, "a", True, None, (1, 2)
    def step(self): ...
    @property
    def fixed(self): return 3
    @property
    def broken(self): raise OSError("no disk")
    def __getattr__(self, name): raise AttributeError(name)
thing, rates = Thing(), [1, 2]
"""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nothing=1", "it has no nothing"),
        ("thing.nothing=1", "thing has no nothing"),
        ("thing.rate.deep=1", "thing.rate has no deep"),
        ("rates[2]=1", "rates has no [2]"),
        ("thing[2]=1", "thing has no items"),
        ("thing.step=1", "thing.step is a method; set replaces numbers, texts, lists and the like"),
        ("thing=1", "thing is of the type Thing; set replaces numbers, texts, lists and the like"),
        ("collections=1", "collections is a module; set replaces numbers, texts, lists and the like"),
        ("thing.fixed=1", "thing.fixed is a property that cannot be set"),
        ("thing.broken=1", "thing.broken cannot be read: OSError: no disk"),
        ("thing.rate='fast'", "thing.rate is a number, and 'fast' is not"),
        ("thing.rate=True", "thing.rate is a number, and True is not"),
        ("thing.on=1", "thing.on is True or False, and 1 is not"),
        ("thing.name=1", "thing.name is a text, and 1 is not"),
        ("thing.pair[0]=4", "thing.pair[0] is in a tuple, which cannot be changed"),
        ("thing.rate=0.25 nothing=1", "it has no nothing"),
    ],
)
def test_what_cannot_be_set_is_said_and_nothing_is(rank, line, why):
    """One value that cannot be set keeps all of them from being set."""
    acted = rank.run(f"{THING}{LOOP}", at_2=setting(line))

    assert (acted.ok, acted.text, acted.error) == (False, why, None)
    assert vars(rank.shell.user_ns["thing"]) == {
        "rate": 0.5,
        "name": "a",
        "on": True,
        "none": None,
        "pair": (1, 2),
    }


def test_a_value_that_is_none_takes_any(rank):
    """Nothing says of which kind it would be."""
    rank.run(f"{THING}{LOOP}", at_2=setting("thing.none=4"))

    assert rank.shell.user_ns["thing"].none == 4


def test_a_set_that_fails_half_way_changes_nothing_and_counts_for_undo(rank):
    """The value refuses it only when it is set; the set before is still there to be undone, behind an empty one."""
    code = (
        "class Strict:\n    rate = property(lambda self: 1.0, lambda self, new: 1 / 0)\nstrict, rates = Strict(), [1]\n"
    )

    rank.run(f"{code}{LOOP}", at_1=setting("rates[0]=2"), at_2=setting("rates[0]=3 strict.rate=2"), at_3=UNDO)

    assert [(one.ok, one.text) for one in rank.done] == [
        (True, "rates[0]: 1 -> 2"),
        (False, "strict.rate takes no new value: ZeroDivisionError: division by zero"),
        (True, "there was nothing to put back"),
    ]
    assert rank.shell.user_ns["rates"] == [2]


def test_a_cells_end_forgets_what_was_replaced(rank):
    """It takes no memory any more, and an undo in the next cell would surprise."""
    rank.run(f"rates = [1]\n{LOOP}", at_2=setting("rates[0]=2"))

    assert rank.run(LOOP, at_2=UNDO).text == "there is nothing to undo: no set of this cell is left"
    assert rank.shell.user_ns["rates"] == [2]
