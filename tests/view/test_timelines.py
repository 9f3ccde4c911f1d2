"""A step of a pipeline in words, as letters, as a picture and as data for the front end: bounded, and all the same."""

from __future__ import annotations

import base64
import json
from array import array

import msgspec
import pytest

from jupyter_dtrain.core.events import Event, PipelineStep
from jupyter_dtrain.core.pipelines import Action, Pipelines, Timeline, pack
from jupyter_dtrain.view.document import MIME, Picture, document
from jupyter_dtrain.view.run_state import RunState
from jupyter_dtrain.view.saved import bundle
from jupyter_dtrain.view.timelines import LIVE_BYTES, caption, letters, packed


def gpipe(ranks, microbatches, **options):
    """A step of GPipe in which all takes as long as theory has it, with a backward of two units of 1 ms."""
    lanes = {}
    half = (ranks - 1 + microbatches) * 1e-3
    for rank in range(ranks):
        lane = lanes[rank] = []
        for number in range(microbatches):
            lane.append(Action("R", rank, number, number * 1e-3, 0.0))
            lane.append(Action("F", rank, number, (rank + number) * 1e-3, 1e-3))
            lane.append(Action("B", rank, number, half + 2e-3 * (ranks - 1 - rank + number), 2e-3))
    share = (ranks - 1) / (microbatches + ranks - 1)
    options = {"theory": share, "on_host": False, **options}
    return Timeline("GPipe", 1200, ranks, microbatches, 3 * half, share, share, lanes=lanes, **options)


def picture(*timelines):
    """A run that has them, and nothing else."""
    ranks = list(timelines[0].lanes)
    return Picture(2, len(ranks), ranks, "ok", 1.0, {}, dict.fromkeys(ranks, "ok"), timelines=timelines)


def rows(lane):
    """Kind, stage, micro-batch, beginning and length of each action in a lane of a document."""
    found = array("H")
    found.frombytes(base64.b64decode(lane[2]))
    return [(chr(found[at]), *found[at + 1 : at + 5]) for at in range(0, len(found), 5)]


def test_the_caption_says_what_the_bubble_is_and_should_be():
    """It also says where the picture may mislead."""
    assert caption(gpipe(4, 8)) == (
        "GPipe, 4 ranks × 8 micro-batches: bubble 27 % (in theory 27 %), step 1,200 in 33 ms"  # noqa: RUF001
    )
    other = gpipe(2, 2, theory=None, on_host=True, left_out=1234)
    assert "in theory" not in caption(other)
    assert "when the host launched work" in caption(other)
    assert "1,234 actions are left out" in caption(other)


def test_letters_show_where_each_rank_computed():
    """A quarter of the first half is idle on each rank; the legend names what is there."""
    chart = letters(gpipe(2, 3))
    assert chart == [
        "rank 0  " + "F" * 18 + "·" * 18 + "B" * 36,
        "rank 1  " + "·" * 6 + "F" * 18 + "B" * 36 + "·" * 12,
        "        F forward, B backward, · bubble",
    ]


def test_a_notebook_keeps_the_step_in_every_form():
    """A run with a pipeline alone: our document, a picture, text."""
    data = bundle(picture(gpipe(2, 3)))
    (kept,) = data[MIME]["pipelines"]
    words = caption(gpipe(2, 3))
    assert kept["words"] == words
    assert words in data["text/plain"]
    assert "FFFF" in data["text/plain"]
    assert words in data["image/svg+xml"]
    assert [(rank, stages) for rank, stages, _ in kept["lanes"]] == [(0, [0]), (1, [1])]
    forwards = [row for row in rows(kept["lanes"][1]) if row[0] == "F"]
    assert [row[:3] for row in forwards] == [("F", 1, number) for number in range(3)]
    assert [row[3] / 65_535 for row in forwards] == pytest.approx([1 / 12, 2 / 12, 3 / 12], abs=1e-4)
    assert [row[4] / 65_535 for row in forwards] == pytest.approx([1 / 12] * 3, abs=1e-4)


def test_large_pipelines_stay_within_their_share():
    """Sends and waits go first, then ranks."""
    for ranks, microbatches in ((16, 32), (16, 64), (256, 64)):
        timeline = gpipe(ranks, microbatches)
        (found,) = msgspec.to_builtins(packed([timeline], LIVE_BYTES))
        assert len(json.dumps(found)) < LIVE_BYTES * 1.1
        assert found["ranks"] == ranks
        assert 0 < len(found["lanes"]) <= ranks
        assert "transfers" in found
        assert len(rows(found["lanes"][0])) == 2 * microbatches
    assert len(json.dumps(document(picture(gpipe(256, 64))))) < 190_000
    assert len(bundle(picture(*[gpipe(64, 64)] * 5))["image/svg+xml"]) < 190_000
    several = msgspec.to_builtins(packed([gpipe(8, 32)] * 8, LIVE_BYTES))
    assert [part["words"] for part in several] == [caption(gpipe(8, 32))] * 8
    assert len(json.dumps(several)) < LIVE_BYTES * 1.1


def test_an_action_that_sticks_out_of_the_step_is_cut():
    """A wait that began before the first computation, a send that ended after the last one, and one that is outside."""
    lane = [Action("R", 0, 0, -1.0, 1.5), Action("F", 0, 0, 0.5, 0.5), Action("S", 0, 0, 0.9, 5.0)]
    late = Action("S", 0, 1, 1.5, 1.0)
    timeline = Timeline("1F1B", 0, 1, 1, 1.0, 0.5, 0.5, None, on_host=False, lanes={0: [*lane, late]})
    (found,) = msgspec.to_builtins(packed([timeline], LIVE_BYTES))
    assert [(row[0], row[3], row[3] + row[4]) for row in rows(found["lanes"][0])] == [
        ("R", 0, 32_768),
        ("F", 32_768, 65_535),
        ("S", 58_982, 65_535),
    ]


def test_a_panel_gathers_steps_and_is_worth_being_shown():
    """The steps that ranks report become a timeline of the picture."""
    gathered = RunState(1, [0, 1], 2)
    for rank in (0, 1):
        assert not gathered.has_something
        actions = pack([Action("F", rank, 0, rank * 1.0, 1.0)])
        gathered.take(Event(1, rank, 1, 0.0, PipelineStep(0, "1F1B", 3, [0, 1], rank, 2, 1, 10.0, actions)))
    assert gathered.has_something
    assert gathered.picture("running").timelines == Pipelines.timelines(gathered.fold.pipelines)
    assert [timeline.step for timeline in gathered.picture("running").timelines] == [3]
    assert gathered.picture("running", with_metrics=False).timelines == []
