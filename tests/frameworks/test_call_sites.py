"""Names of values at calls, without torch: what is known of code that nobody holds any more."""

from __future__ import annotations

import gc
import linecache
import sys
import weakref

from jupyter_dtrain.frameworks.torch.call_sites import Call, CallSites
from jupyter_dtrain.plugins.sources import FILES

CELL = "def step(loss): return ask(sys._getframe())\nname = step(one)\n"


def run(sites, number):
    """A cell: the namespace that it leaves. Each call that names a value is one that a method of the value makes."""
    file = f"<ipython-input-{number}-abc>"
    code = CELL.replace("ask(", "loss.backward(") if number % 2 else CELL
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)

    class Loss:
        def backward(self, frame):
            return sites.names(frame, Call.METHOD)

    space = {"ask": lambda frame: sites.names(frame, Call.FUNCTION), "sys": sys, "one": Loss()}
    exec(compile(code, file, "exec"), space)  # noqa: S102 — as a cell is run
    return space


def test_nothing_is_kept_of_code_that_is_gone():
    """Neither the code of reruns, nor what was known of it; what lives keeps its names.

    A little of the code is kept by what finds calls in sources.
    """
    sites = CallSites()
    spaces = [run(sites, number) for number in range(100)]
    codes = [weakref.ref(space["step"].__code__) for space in spaces]
    known = len(sites.known)
    del spaces[:-1]
    gc.collect()

    assert spaces[-1]["name"] == ("loss",)
    assert known == 50
    assert sum(code() is not None for code in codes) <= FILES + 3
    alive = {id(code()) for code in codes if code() is not None}
    assert set(sites._codes) == {number for number, _ in sites.known} | {number for number, *_ in sites._sites} == alive
