"""The page on slow steps names every kind of finding, every part of a step, and the numbers of the rules."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from jupyter_dtrain.core import step_time
from jupyter_dtrain.core.step_time import PARTS
from jupyter_dtrain.rank import resources
from jupyter_dtrain.rank import step_time as looks
from tests.docs.blocks import FENCE, ROOT, pages

PAGE = " ".join((ROOT / "docs" / "reference" / "slow-steps.md").read_text(encoding="utf-8").split())
NUMBERS = {
    "RECENT": "the last {} seconds",
    "EARLY": "seconds 3 to {} of the loop",
    "STALL": "more than {:.0f} times as long as most seconds",
    "STEPS": "fewer than {} steps",
    "SECONDS": "or {} s of steps",
    "SHORT": "less than {:.0f} ms",
    "APART": "by more than {:.0%}",
    "GAP": "longer than it by {:.0%} of a step",
    "CERTAIN": "{:.0f} times the standard error",
    "OWN": "explain {:.0%} of the gap",
    "DATA_BOUND": "all ranks spend {:.0%} of a step in loading data",
    "BOUND": "all ranks spend {:.0%} of a step in communication",
    "SAVING": "any rank spends {:.0%} of the time in saving",
    "LOGGING": "all ranks spend {:.0%} of a step in logging",
    "READING": "in one line, {:.0%} of a step",
    "DELAYED": "wait for a processor, {:.0%} of a step",
    "BUBBLE": "compute nothing in {:.0%} of a step",
    "SLOWER": "{} times as long as at the beginning",
    "LONG": "after {:.0f} s",
    "HOT": "has {:.0f} °C or more",
    "OTHERS": "or {:.0f} GB more of it",
    "IDLE": "less than {:.0f} % of the time",
    "GROWS": "grows by {:.1f} MB with each step",
    "GROWN": "{:.0f} MB in all",
    "SPAN": "over {} steps",
    "POINTS": "in {} readings",
    "EVENLY": "correlation of {}",
}
"""How the page says each number of a rule."""
UNITS = {"OTHERS": 1e-9, "SHORT": 1000, "GROWS": 1e-6, "GROWN": 1e-6}
INSIDE = {"KEPT", "MANY", "WARM"}
"""Numbers that no reader needs; the page says how many seconds do not count."""


def kinds():
    """The first argument of each ``SlowStep(...)``, as far as it is a string, and those that are looked up."""
    tree = ast.parse(inspect.getsource(step_time))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call.args[0] for call in calls if getattr(call.func, "id", "") == "SlowStep"]
    looked_up = [
        pair.elts[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for pair in node.values
        if isinstance(pair, ast.Tuple)
    ]
    return sorted({one.value for one in (*named, *looked_up) if isinstance(one, ast.Constant)})


def test_the_kinds_are_found():
    assert {"slow loader", "memory", "reading", "copies", "pipeline"} <= set(kinds())


@pytest.mark.parametrize("kind", kinds())
def test_each_kind_has_a_row(kind):
    assert f"| `{kind}` |" in PAGE


def test_no_row_is_of_a_kind_that_there_is_not():
    table = PAGE.partition("| kind |")[2].partition(" * **")[0]

    assert sorted(re.findall(r"\| `([a-z ]+)` \|", table)) == kinds()


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_a_row_with_the_words_of_the_bar(part):
    assert f"| `{part}` | {PARTS[part]} |" in PAGE


def test_every_number_of_a_rule_is_known_here():
    constants = {
        name
        for name, value in vars(step_time).items()
        if name.isupper()
        and not name.startswith("_")
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    }

    assert constants == NUMBERS.keys() | INSIDE
    assert step_time.WARM == 2


@pytest.mark.parametrize("name", NUMBERS)
def test_the_page_has_the_numbers_of_the_rules(name):
    words = NUMBERS[name].format(getattr(step_time, name) * UNITS.get(name, 1))

    assert words in PAGE


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_points_of_a_list_begin_lines(page):
    """A program that wraps prose may make one paragraph of a list, as happened to the rules of this page."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))

    assert re.findall(r".*[.:;] [*-] (?:\*\*|[A-Z]).*", prose) == []


def test_the_page_has_the_numbers_of_the_looks():
    assert f"up to {1 / looks.PERIOD:.0f} times a second" in PAGE
    assert f"at most {looks.COST:.1%} of a processor" in PAGE
    assert f"within {resources.FIRST} s" in PAGE
    assert f"reads {step_time.APART:.0%} more samples" in PAGE
    assert f"at least {2000 * step_time.SHORT:.0f} ms" in PAGE
    assert f"If it is {step_time.GAP:.0%} larger" in PAGE
    assert f"only if it is {step_time.BOUND:.0%} of a step more" in PAGE
    assert f"GPUs are idle {100 - 2 * step_time.IDLE:.0f} %" in PAGE
