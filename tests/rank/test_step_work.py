"""What a rank knows of the prompts of its run, while it meets the other ranks."""

from __future__ import annotations

import pytest

from jupyter_dtrain.rank.interrupts import Shield
from jupyter_dtrain.rank.metrics import MetricBuffer
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.step_work import StepWork
from jupyter_dtrain.wire.messages import Watching
from jupyter_dtrain.wire.prompt_messages import NotePrompts


@pytest.fixture
def work():
    metrics = MetricBuffer(lambda _: True, print, Shield())
    return StepWork({}, Plugins([]), metrics, lambda _: True, print)


def test_a_prompt_of_a_faster_rank_counts_before_the_cell_has_begun_here(work):
    """The rank hears of it once."""
    work.answer(NotePrompts(2, open=True), None)
    work.begin(2, Watching(), whole=True)
    assert work.prompts_open
    work.answer(NotePrompts(2, open=False), 2)
    assert not work.prompts_open


def test_prompts_of_other_runs_do_not_count(work):
    """Nor does the end of one that comes late."""
    work.answer(NotePrompts(1, open=True), 1)
    work.begin(2, Watching(), whole=True)
    assert not work.prompts_open
    work.answer(NotePrompts(2, open=True), 2)
    work.answer(NotePrompts(1, open=False), 2)
    assert work.prompts_open
