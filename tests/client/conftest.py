"""Runs that no session sends, and the batches that their ranks would send."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.events import Batch, Event, Finished, Output, Totals
from jupyter_dtrain.core.run import Run


@pytest.fixture
def make_run():
    """``make_run(number, ranks)``: a run in a world of four ranks."""
    return lambda number=1, ranks=(0, 1): Run(number, "1", list(ranks), 4, lambda *_: iter(()))


@pytest.fixture
def said():
    """``said(text, seq, rank)``: a batch with one line of output."""

    def make(text, seq=0, rank=0, run=1):
        return Batch(run, rank, seq, seq, [Event(run, rank, seq, 0.0, Output("stdout", text))])

    return make


@pytest.fixture
def finished():
    """``finished(seq, rank)``: the batch with which a rank ends a run."""

    def make(seq=0, rank=0, run=1, outcome="ok"):
        return Batch(run, rank, seq, seq, [Event(run, rank, seq, 0.0, Finished(outcome, 0.1))])

    return make


@pytest.fixture
def totals():
    """The totals of a rank that has printed much."""
    return Totals(1000, 10, ["the end"])
