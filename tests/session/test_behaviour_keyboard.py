"""Code that needs a keyboard, or would end a rank, fails at once with an error that names the fix."""

from __future__ import annotations

import pytest

from tests.session.cells import fail, pids, run, same, texts


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("input()", "input()"),
        ("input('name? ')", "input()"),
        ("import getpass; getpass.getpass()", "getpass()"),
        ("from getpass import getpass; getpass('secret: ')", "getpass()"),
        ("breakpoint()", "breakpoint()"),
        ("import pdb; pdb.set_trace()", "pdb.set_trace()"),
        ("%debug", "%debug"),
        ("%%debug\n1 + 1", "%debug"),
        ("%pdb on", "%pdb"),
    ],
)
def test_a_call_that_asks_a_person_fails_with_the_fix(world, code, what):
    """It fails on every rank at once."""
    cell = fail(world, code)

    assert {f"{what} needs a keyboard"} == {error.evalue[: len(what) + 17] for error in cell.errors.values()}
    assert {True} == {"%%distributed -i NAMES" in error.evalue for error in cell.errors.values()}
    assert [0, 1, 2] == sorted(cell.errors)


def test_code_that_swallows_the_error_and_asks_again_is_told_of_once(world):
    """Nothing else would say what it waits for. To ask once and have a default is no fault."""
    once = "try: input('token: ')\nexcept Exception: token = ''\n"

    for text in texts(run(world, once * 3)).values():
        assert text.startswith(
            "[jupyter-dtrain] This cell goes on after an error, and asks again: input() needs a keyboard"
        )
        assert text.endswith("The question is 'token: '.\n")
        assert text.count("[jupyter-dtrain]") == 1
    assert same("") == texts(run(world, once))


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit", "quit"])
def test_leaving_is_refused(world, code):
    """A rank that left would be a hole in the world."""
    before = pids(world)
    cell = fail(world, code)

    assert {True} == {"%distributed stop" in error.evalue for error in cell.errors.values()}
    assert before == pids(world)


def test_sys_exit_is_an_error_and_the_rank_lives(world):
    """A notebook does the same."""
    cell = fail(world, "import sys; alive = 1; sys.exit(3)")

    assert same(("SystemExit", "3")) == {rank: (e.ename, e.evalue) for rank, e in cell.errors.items()}
    assert same(1) == world["alive"]
    assert run(world, "1").outcome == "ok"
