"""A cell that ran out of memory leaves nothing of what it had; names of the user's own stay."""

from __future__ import annotations

import re
import sys

import pytest

from tests.session.cells import fail, gigabytes, run, same, texts, values

FRESH_WORLD = True
"""Its memory is measured."""
RSS = "import psutil; psutil.Process().memory_info().rss"


@pytest.fixture(scope="module")
def filled(world):
    """Ranks with large variables of their own."""
    run(world, "keep = bytearray(100_000_000)")
    return world


STEPS = """
import resource

def step():
    return sum(len(part) for part in [bytes(100_000) for _ in range(40)])

def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

step()
faults(50) / 50
"""
"""How many pages a step has to fetch that takes 4 MB, in blocks as small activations are, and gives it back."""


def test_a_step_finds_the_memory_of_the_one_before(world) -> None:
    """A rank keeps freed memory: to get it from Linux again would take longer than a small model's use of it."""
    found = run(world, STEPS)

    assert all(pages < 100 for pages in values(found).values())


IN_PYTHON = """
def load():
    x = bytearray(300_000_000)
    raise MemoryError
load()
"""
WRAPPED = """
def load():
    x = bytearray(300_000_000)
    raise MemoryError
try:
    load()
except MemoryError as error:
    raise ValueError("no data") from error
"""


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        pytest.param(IN_PYTHON, "MemoryError", id="python"),
        pytest.param(WRAPPED, "ValueError", id="wrapped"),
    ],
)
def test_values_in_the_frames_are_freed(filled, code, raised):
    """A message says so."""
    before = values(run(filled, RSS))
    cell = fail(filled, code)
    after = values(run(filled, RSS))

    assert {raised} == {error.ename for error in cell.errors.values()}
    for text in texts(cell).values():
        assert 0.2 < gigabytes(text) < 0.6, text
    assert all(after[rank] < before[rank] + 150_000_000 for rank in after), (before, after)
    assert same(100_000_000) == values(run(filled, "len(keep)"))


def test_variables_that_hold_the_memory_are_mentioned(filled):
    """Nothing of the user's own is taken away."""
    cell = fail(filled, "x = bytearray(1 << 50)")
    for text in texts(cell).values():
        assert re.fullmatch(
            r"\[jupyter-dtrain\] Out of memory. Nothing could be freed: "
            r"the rank keeps \d+\.\d\d GB of the host's memory \(del NAME frees a variable\)\.\n",
            text,
        )


def test_other_errors_are_none_of_it(filled):
    """Their tracebacks stay as they are."""
    assert set(texts(fail(filled, "1 / 0")).values()) == {""}
    assert same("ZeroDivisionError") == values(run(filled, "import sys; sys.last_type.__name__"))


FAILURES = {
    "raised": "load()",
    "chained": "try: load()\nexcept ValueError as error: raise KeyError from error",
    "held": "try: load()\nexcept ValueError as error:\n    held = error\n    raise",
    "awaited": "import asyncio\nasync def wait():\n    await asyncio.sleep(0)\n    load()\nawait wait()",
    "grouped": "try: load()\nexcept ValueError as error: raise ExceptionGroup('several', [error])",
}


@pytest.mark.parametrize("kind", [kind for kind in FAILURES if kind != "grouped" or sys.version_info >= (3, 11)])
def test_only_the_last_failed_cell_keeps_what_its_frames_hold(world, kind):
    """Without a collection of garbage, whose time nobody knows; ``sys.last_value`` is there as under a plain kernel."""
    run(
        world,
        "import gc, sys, weakref; gc.disable(); seen = []\nclass Big: pass\n"
        "def load():\n    big = Big()\n    seen.append(weakref.ref(big))\n    raise ValueError",
    )
    for _ in range(3):
        fail(world, FAILURES[kind])
    found = run(world, "gc.enable(); [ref() is not None for ref in seen], type(sys.last_value).__name__")

    name = {"chained": "KeyError", "grouped": "ExceptionGroup"}.get(kind, "ValueError")
    assert same(([False, False, True], name)) == values(found)
