"""Values of expressions in a frame, found without running the user's code."""

from __future__ import annotations

import ast
import sys

import pytest

import jupyter_dtrain
from jupyter_dtrain.plugins.framework import value_of


class Hostile(type):
    """Every question to it runs code."""

    def __getattribute__(cls, name):
        raise AssertionError(name)


class Holder(metaclass=Hostile):
    """One object of the user's."""

    shared = "shared"

    def __init__(self):
        object.__setattr__(self, "own", "own")

    @property
    def made(self):
        raise AssertionError

    def __getattribute__(self, name):
        raise AssertionError(name)

    def __eq__(self, other):
        raise AssertionError

    __hash__ = object.__hash__


class Slots:
    """Without a dictionary."""

    __slots__ = ("held", "unset")

    def __init__(self):
        self.held = "held"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("holder.own", "own"),
        ("holder.shared", "shared"),
        ("holder.made", None),
        ("holder.missing", None),
        ("slots.held", "held"),
        ("slots.unset", None),
        ("items[0]", "first"),
        ("items[-1]", "last"),
        ("items[9]", None),
        ("items[at]", "last"),
        ("named['a']", "of a"),
        ("named['b']", None),
        ("named[at]", "of 1"),
        ("holder[0]", None),
        ("jupyter_dtrain.Session", jupyter_dtrain.Session),
        ("jupyter_dtrain.nothing", None),
        ("calls()", None),
        ("nothing.at_all", None),
    ],
)
def test_the_value_of_an_expression(source, value):
    """None stands for what only code could tell."""
    holder, slots, items, at = Holder(), Slots(), ["first", "last"], 1
    named = {holder: "of a holder", "a": "of a", 1: "of 1"}
    found = value_of(sys._getframe(), ast.parse(source, mode="eval").body)

    assert (found, len((holder, slots, items, at, named))) == (value, 5)
