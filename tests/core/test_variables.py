"""The book of the variables that a rank was given."""

from __future__ import annotations

import os

import pytest

from jupyter_dtrain.core.variables import HIDDEN, Given, Variable, where_unset

WANTED = {"DTRAIN_A": Variable("1", "first"), "DTRAIN_B": Variable("2", "second")}


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for name in WANTED:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def seen(given):
    """The reported variables, by name."""
    return {one.name: (one.value, one.why) for one in given.seen()}


def test_the_users_own_variables_stay_and_are_marked_as_theirs(monkeypatch):
    """``offer`` keeps a value that is there; ``put`` replaces it. The reason of a value is not said of another one."""
    monkeypatch.setenv("DTRAIN_A", "mine")
    given = Given()
    given.offer(WANTED, "some")

    assert (os.environ["DTRAIN_A"], os.environ["DTRAIN_B"]) == ("mine", "2")
    assert seen(given) == {
        "DTRAIN_A": ("mine", "your own value, kept; the default is 1 (first)"),
        "DTRAIN_B": ("2", "second"),
    }
    assert {one.framework for one in given.seen()} == {"some"}

    given.put(WANTED)
    assert os.environ["DTRAIN_A"] == "1"
    assert seen(given)["DTRAIN_A"] == ("1", "first")


def test_later_changes_are_reported(monkeypatch):
    """A cell may have set or removed a variable."""
    given = Given()
    given.put(WANTED)
    monkeypatch.setenv("DTRAIN_A", "9")
    monkeypatch.delenv("DTRAIN_B")

    assert seen(given) == {
        "DTRAIN_A": ("9", "changed by your code, was 1 (first)"),
        "DTRAIN_B": (None, "removed by your code, was 2 (second)"),
    }


def test_secret_values_are_never_shown(monkeypatch):
    """The value stays hidden whether or not the package would set the variable, also after a cell sets it."""
    monkeypatch.setenv("DTRAIN_A", "hunter2")
    given = Given()
    given.hide(["DTRAIN_A", "DTRAIN_C"])
    given.offer(WANTED)
    before = repr(given.seen())
    monkeypatch.setenv("DTRAIN_A", "hunter3")

    assert seen(given)["DTRAIN_A"] == (None, f"{HIDDEN}; the default is 1 (first)")
    assert seen(given)["DTRAIN_C"] == (None, HIDDEN)
    assert "hunter" not in before + repr(given.seen())


def test_values_of_env_that_are_not_used_are_reported(monkeypatch):
    """The rank's number is such a value: the report shows no secret, since the value is another."""
    monkeypatch.setenv("DTRAIN_A", "hunter2")
    monkeypatch.setenv("DTRAIN_B", "2")
    given = Given()
    given.hide(WANTED)
    given.put(WANTED)

    assert seen(given) == {"DTRAIN_A": ("1", "first; differs from --env"), "DTRAIN_B": (None, f"{HIDDEN}; second")}


def test_variables_left_unset_are_set():
    """The process that starts the ranks has an environment that is not its own."""
    assert where_unset(WANTED, {"DTRAIN_B": "x"}) == {
        "DTRAIN_A": Variable("1", "first"),
        "DTRAIN_B": Variable("x", "the default is 2 (second)", by_user=True),
    }
