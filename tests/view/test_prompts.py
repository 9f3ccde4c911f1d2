"""What a cell says while its ranks ask a person, and what rests meanwhile."""

from __future__ import annotations

import itertools
import time
from array import array

import pytest

from jupyter_dtrain.core.events import (
    Event,
    Finished,
    Metrics,
    Output,
    Progress,
    PromptClosed,
    PromptOpened,
    Sample,
    Started,
)
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.view.document import status
from jupyter_dtrain.view.points import News
from jupyter_dtrain.view.prompts import prompt_words
from jupyter_dtrain.view.run_state import RunState

ASKED = PromptOpened(1, "input", "name? ", place="cell [3], line 12 in train")
STILL, MOVES = Sample(1.0, 5, still=60.0), Sample(1.0, 5, still=0.2)


@pytest.mark.parametrize(
    ("prompts", "samples", "words"),
    [
        ({}, {0: STILL}, ""),
        ({1: ASKED}, {}, "Rank 1 is at a prompt (cell [3], line 12 in train)."),
        (
            {1: ASKED},
            {0: STILL, 2: STILL, 3: STILL},
            "Rank 1 is at a prompt (cell [3], line 12 in train); ranks 0,2-3 wait for it.",
        ),
        (
            {0: ASKED, 1: ASKED},
            {0: STILL, 2: STILL, 3: MOVES},
            "Ranks 0-1 are at a prompt (cell [3], line 12 in train); rank 2 waits for it.",
        ),
        ({0: ASKED, 3: PromptOpened(1, "input", "")}, {}, "Ranks 0,3 are at a prompt."),
    ],
)
def test_one_sentence_says_who_asks_and_who_waits(prompts, samples, words):
    """A rank that moves does not wait; where the places differ, none is named."""
    assert prompt_words(prompts, samples, [0, 1, 2, 3]) == words


def test_it_stands_below_the_cell_where_no_panel_says_it(scene):
    """It is taken back with the answer; a debugger that asks on at once does not make it flicker."""
    s = scene(2)
    s.say(0, Started(1, "host", ""), STILL)
    s.say(1, Started(2, "host", ""), ASKED)
    assert s.painter.shown == {}
    s.wait(0.2)
    sentence = "Rank 1 is at a prompt (cell [3], line 12 in train); rank 0 waits for it."
    assert s.painter.text_of_shown() == [sentence]
    calls = len(s.painter.calls)
    s.say(1, PromptClosed(1), PromptOpened(2, "input", "name? ", 2, ASKED.place))
    s.wait(5)
    assert len(s.painter.calls) == calls
    s.say(1, PromptClosed(2))
    s.wait(0.2)
    assert s.painter.text_of_shown() == [""]


def test_a_panel_says_it_in_place_of_the_cell(scene):
    """Not both."""
    s = scene(1)
    s.view.shows_bars = False
    s.say(0, ASKED)
    s.wait(5)
    assert s.painter.calls == []


def test_a_terminal_is_told_once_and_its_redrawn_lines_rest(scene, recorder):
    """They would overwrite what a person types; finished lines are shown all the same, and the bar goes on later."""

    def bar(done: int) -> Progress:
        return Progress(1, "train", float(done), 9.0, 1.0, f"train {done}/9")

    s = scene(2, painter=recorder(erases=False), line=lambda: "Run 1: going on")
    s.say(0, bar(1))
    s.wait(1)
    s.say(1, ASKED)
    s.wait(0.2)
    shown = list(s.painter.calls)
    for done in (2, 3, 4):
        s.say(0, bar(done))
        s.say(1, Output("stdout", "half a line"))
        s.wait(10)
    s.say(1, PromptClosed(1), PromptOpened(2, "input", "more? "))
    s.wait(10)
    assert s.painter.calls == shown
    assert s.painter.text("stderr") == "Rank 1 is at a prompt (cell [3], line 12 in train).\n"
    s.say(0, "whole\n")
    s.wait(1)
    assert s.painter.text("stdout") == "[0] whole\n"
    s.say(1, PromptClosed(2))
    s.say(0, bar(5))
    s.wait(1)
    assert "[0] train 5/9" in [call[1] for call in s.painter.calls[len(shown) :]]


def test_nothing_is_said_on_slow_steps_for_the_time_of_a_prompt():
    """Neither while a rank asks, nor while its steps are recent, nor at the end of a run that has mostly waited."""

    def run(closed: float) -> list[bool]:
        """Whether a slow rank is named before a prompt, while it is open, after it and at the end."""
        began, state = time.time() - 100, RunState(1, [0, 1, 2, 3], 4)
        numbers = {rank: itertools.count() for rank in range(4)}

        def said(rank: int, when: float, body: object, outcome: str = "running") -> bool:
            state.take(Event(1, rank, next(numbers[rank]), began + when, body))
            return state.picture(outcome).slow is not None

        for rank in range(4):
            said(rank, 0.0, Started(rank + 1, "host", ""))
            pace = 2.0 if rank == 3 else 1.0
            for first in range(0, 40, 5):
                steps = range(first, first + 5)
                times = array("d", [began + pace * step for step in steps])
                points = pack("loss", Columns(array("q", steps), times, array("d", [1.0] * 5)))
                named = said(rank, pace * first, Metrics([points]))
        found = [named, said(0, 81.0, ASKED), said(0, closed, PromptClosed(1))]
        for rank in range(4):
            said(rank, 100.0, Finished("ok", 100.0))
        return [*found, state.picture("ok").slow is not None]

    assert run(closed=95.0) == [True, False, False, False]
    assert run(closed=81.5) == [True, False, False, True]


def test_a_message_has_the_end_of_what_debuggers_have_printed():
    """It is sent again and again while they wait; the pace of messages counts it."""
    state, sizes = RunState(1, [0, 1], 2), []
    numbers = {rank: itertools.count() for rank in (0, 1)}
    for rank, said in enumerate(["short\n", f"{'x' * 64_000}the end\n"]):
        for body in (Started(1, "host", ""), PromptOpened(1, "debugger", "(Pdb) ", said=said)):
            state.take(Event(1, rank, next(numbers[rank]), time.time(), body))
        sizes.append(News(seq=1, status=status(state.picture("running"))).size)
    short, long = [one.said for one in status(state.picture("running")).prompts]

    assert short == "short\n"
    assert long.startswith("…x")
    assert long.endswith("xthe end\n")
    assert len(long) < 10_000
    assert sizes[1] - sizes[0] >= len(long)


def test_a_run_that_has_ended_asks_no_one():
    """The status of a run that goes on says who is at a prompt."""
    state = RunState(1, [0], 1)
    for number, body in enumerate([Started(1, "host", ""), ASKED]):
        state.take(Event(1, 0, number, time.time(), body))
    assert status(state.picture("running")).asked == "Rank 0 is at a prompt (cell [3], line 12 in train)."
    state.take(Event(1, 0, 2, time.time(), Finished("interrupted", 1.0)))
    assert status(state.picture("interrupted")).asked == ""
