"""A look at where the threads are changes nothing for them."""

from __future__ import annotations

import ast
import gc
import sys
import threading
import weakref

from jupyter_dtrain.plugins.framework import value_of
from jupyter_dtrain.rank.main_thread import MainThread
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.tracebacks import Tracebacks


class Big:
    """A value that shows whether it is still there."""


def test_a_look_at_the_threads_keeps_none_of_their_variables(tmp_path):
    """The control thread looks, often when ranks have failed, and nobody knows when Python collects garbage."""
    tracebacks = Tracebacks(lambda _: None, tmp_path)
    main_thread = MainThread(Plugins.load(lambda _: None), tracebacks, lambda _: None)
    begun, over, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        big = Big()
        seen.append(weakref.ref(big))
        begun.set()
        over.wait()

    thread = threading.Thread(target=work)
    gc.disable()
    try:
        thread.start()
        begun.wait()
        looking = threading.Thread(target=main_thread.waits)
        looking.start()
        looking.join()
        over.set()
        thread.join()

        assert [None] == [ref() for ref in seen]
    finally:
        gc.enable()


def test_a_look_at_a_variable_does_not_keep_its_value():
    """A training function would hold a tensor that it has let go, until it ends."""

    def train():
        big = Big()
        seen.append(weakref.ref(big))
        assert value_of(sys._getframe(), ast.Name("big")) is big
        del big
        return seen[0]()

    seen = []
    assert train() is None


def test_a_look_at_a_variable_leaves_what_locals_gave_alone():
    """Python gives the function's own code the same dictionary."""

    def train():
        rate = 0.1
        options = locals()
        assert value_of(sys._getframe(), ast.Name("rate")) == rate
        return dict(options)

    assert train()["rate"] == 0.1
