"""Where the time of steps goes, as a panel, a saved notebook and text show it: bounded, the odd ranks apart."""

from __future__ import annotations

import base64
import json
import struct

import msgspec
import pytest

from jupyter_dtrain.core.events import Event, Finished, Reading, StepParts
from jupyter_dtrain.core.step_summary import POINTS, Course, summarise
from jupyter_dtrain.view import drawing, saved, step_time
from jupyter_dtrain.view.document import MIME, SAVED_BYTES, document, status
from jupyter_dtrain.view.run_state import RunState
from tests.view.test_saved import columns

EACH = 10
"""Steps of a report of one second."""
USUAL = {"data": 0.05, "forward": 0.3, "backward": 0.3, "communication": 0.3, "other": 0.05}
SLOW = {"data": 0.35, "forward": 0.3, "backward": 0.3, "other": 0.05}


def reports(rank, parts, count):
    """Events of a rank: set-up, and ``count`` reports of a second."""
    bodies = [StepParts(5.0, {"other": 5.0}, step=0, looks=100)]
    for number in range(count):
        waits = {"all_reduce": parts.get("communication", 0.0)}
        bodies.append(StepParts(1.0, parts, waits, step=EACH * (number + 1), looks=50))
    return [Event(1, rank, seq, 100.0 + seq, body) for seq, body in enumerate(bodies)]


def run(size, slow=(), count=12, *, ended=False):
    """A run on ``size`` ranks of which ``slow`` ones have a slow loader."""
    state = RunState(1, range(size), size)
    for rank in range(size):
        events = reports(rank, SLOW if rank in slow else USUAL, count)
        if ended:
            events.append(Event(1, rank, len(events), 200.0, Finished("ok", float(count))))
        for event in events:
            state.take(event)
    return state


def part_of(state, outcome="running"):
    """What the document has."""
    return status(state.picture(outcome)).step_time


def test_a_rank_has_a_row_and_the_slow_one_is_marked():
    part = part_of(run(4, slow=[2]))
    assert part.parts == ["data", "forward", "backward", "communication", "other"]
    assert [(row.ranks, row.slow) for row in part.rows] == [(f"rank {rank}", int(rank == 2)) for rank in range(4)]
    assert part.rows[2].shares == [0.35, 0.3, 0.3, 0.0, 0.05]
    assert part.rows[0].seconds == pytest.approx(1 / EACH)
    assert part.slow[0].kind == "slow loader"
    assert part.slow[0].ranks == [2]
    assert part.mean.shares[0] == pytest.approx((3 * 0.05 + 0.35) / 4)


def test_nothing_is_shown_before_the_first_step():
    state = run(2, count=0)
    assert state.picture("running").step_time is None
    assert "step_time" not in document(state.picture("running"))
    assert "Time of a step" not in saved.text(state.picture("ok"))


def test_ranks_that_are_alike_share_a_row_and_odd_ones_have_their_own():
    part = part_of(run(64, slow=[5, 17]))
    assert [(row.ranks, row.count, row.slow) for row in part.rows] == [
        ("ranks 0-4,6-16,18-63", 62, 0),
        ("rank 5", 1, 1),
        ("rank 17", 1, 1),
    ]
    assert [course.ranks for course in part.courses] == [[], [5], [17]]


def test_rows_are_few_however_unlike_the_ranks_are():
    state = RunState(1, range(64), 64)
    for rank in range(64):
        parts = {"forward": 0.2 + rank / 100, "other": 0.8 - rank / 100}
        for event in reports(rank, parts, 3):
            state.take(event)
    part = part_of(state)
    assert 4 <= len(part.rows) <= step_time.ROWS
    assert sum(row.count for row in part.rows) == 64


def test_a_document_of_1024_ranks_keeps_its_limit():
    state = run(1024, slow=range(0, 512, 3), count=4)
    part = part_of(state)
    assert len(msgspec.json.encode(part)) < 12_000
    kept = saved.bundle(state.picture("ok"), with_svg=False)[MIME]
    assert len(json.dumps(kept)) <= SAVED_BYTES
    assert kept["step_time"]["rows"]


def decoded(course: Course):
    """The seconds of a step in each stretch, and the shares of each part."""
    seconds = base64.b64decode(course.seconds)
    took = struct.unpack(f"<{len(seconds) // 4}f", seconds)
    shares = base64.b64decode(course.shares)
    count = len(took)
    return took, [[one / 255 for one in shares[at : at + count]] for at in range(0, len(shares), count)]


def test_the_course_tells_when_it_became_slow_and_is_bounded():
    state = RunState(1, [0], 1)
    events = reports(0, USUAL, 300)
    late = {**USUAL, "data": 0.65, "communication": 0.1}
    late = {part: 2 * share / sum(late.values()) for part, share in late.items()}
    events += [
        Event(1, 0, 301 + n, 500.0 + n, StepParts(2.0, late, step=EACH * (301 + n), looks=50)) for n in range(300)
    ]
    for event in events:
        state.take(event)
    found = summarise(state.fold)
    (course,) = found.courses
    took, shares = decoded(course)
    assert len(took) == POINTS
    assert course.first + POINTS * course.width == pytest.approx(6000, rel=1e-3)
    assert took[0] == pytest.approx(1 / EACH, rel=0.01)
    assert took[-1] == pytest.approx(2 / EACH, rel=0.01)
    data = shares[found.parts.index("data")]
    assert data[0] < 0.1
    assert data[-1] > 0.4


def test_a_loop_that_begins_again_goes_on_in_the_course():
    state = RunState(1, [0], 1)
    for event in reports(0, USUAL, 5) + reports(0, USUAL, 3):
        state.take(event)
    took, _ = decoded(summarise(state.fold).courses[0])
    assert all(one == pytest.approx(1 / EACH, rel=0.01) for one in took)


def test_text_has_the_sentence_and_the_shares_of_those_who_are_alike():
    text = saved.text(run(4, slow=[2], ended=True).picture("ok"))
    assert "Rank 2 spends 35 % of a step in loading data" in text
    lines = text.splitlines()
    at = lines.index("  Time of a step:")
    computing = "forward pass 30 %, backward pass 30 %"
    assert lines[at + 1].split("  ")[2:] == [
        "ranks 0-1,3",
        "100 ms",
        f"loading data 5 %, {computing}, communication 30 % (all_reduce), other code 5 %",
    ]
    assert lines[at + 2].startswith("    rank 2 ")


def test_text_of_a_healthy_run_says_nothing_of_it():
    assert "Time of a step" not in saved.text(run(4, ended=True).picture("ok"))


def test_the_picture_has_the_bars():
    drawn = drawing.svg(run(4, slow=[2], ended=True).picture("ok"))
    assert "Time of a step" in drawn
    assert "\N{BLACK UP-POINTING TRIANGLE} rank 2" in drawn
    assert "backward pass" in drawn


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("names", [1, 3], ids=["one chart", "two columns"])
def test_the_names_of_the_parts_stand_below_the_unit_and_within_the_picture(count, names):
    figure_module = pytest.importorskip("matplotlib.figure")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    parts = {**USUAL, "copy": 0.1, "optimizer": 0.1}
    state = RunState(1, range(count), count)
    for rank in range(count):
        # Rows that are alike would be one.
        for event in [*reports(rank, parts, 12), Event(1, rank, 50, 200.0, Finished("ok", 12.0 + rank))]:
            state.take(event)
    found = state.picture("ok")
    figure = figure_module.Figure()
    FigureCanvasAgg(figure)
    metrics = {f"metric {number}": {0: columns([1.0, 2.0])} for number in range(names)}
    drawing._fill(figure, metrics, [], 4, [], found.step_time)
    figure.canvas.draw()
    (ax,) = [ax for ax in figure.axes if ax.get_legend() is not None and ax.get_xlabel() == "ms"]
    legend, unit = (part.get_window_extent() for part in (ax.get_legend(), ax.xaxis.label))

    assert legend.y1 <= unit.y0 + 1
    assert legend.y0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_batches_of_a_step_are_told():
    state = run(2)
    for rank in range(2):
        state.take(Event(1, rank, 100, 300.0, Reading(1, 16, iterations=10, accumulation=4)))
    part = part_of(state, "ok")
    assert part.batches == 4
    # Each step of 0.1 s has 60 % of forward and backward.
    title = step_time.lines(state.picture("ok").step_time)[0]
    assert title == "Time of a step of 4 batches, each 15 ms forward and backward:"


def test_batches_have_no_time_where_forward_and_backward_are_not_seen():
    """As in a compiled step."""
    state = RunState(1, [0], 1)
    for event in reports(0, {"compiled": 0.9, "other": 0.1}, 12):
        state.take(event)
    state.take(Event(1, 0, 100, 300.0, Reading(1, 16, iterations=10, accumulation=4)))
    assert step_time.lines(state.picture("ok").step_time)[0] == "Time of a step of 4 batches:"


def sharded(*calls):
    """Two ranks that wait in these calls: rank 0 for so many hundredths of a step, and rank 1 for half of that."""
    state = RunState(1, range(2), 2)
    for rank in range(2):
        for seq in range(12):
            waits = {call: share / 100 / (rank + 1) for call, share in calls}
            state.take(Event(1, rank, seq, 100.0 + seq, StepParts(1.0, USUAL, waits, step=EACH * seq, looks=50)))
    return state


def test_communication_is_told_apart_by_its_calls():
    state = sharded(("reduce_scatter", 10), ("all_gather", 20), ("broadcast", 1))
    part = part_of(state)
    assert part.calls == ["all_gather", "reduce_scatter", "broadcast"]
    assert part.rows[0].calls == [0.2, 0.1, 0.01]
    assert part.mean.calls == pytest.approx([0.15, 0.075, 0.0075])
    assert "communication 30 % (all_gather 15 %, reduce_scatter 8 %)" in "".join(
        step_time.lines(state.picture("running").step_time)
    )


def test_few_calls_are_told_apart_and_none_that_hardly_takes_time():
    found = part_of(sharded(*((f"call{number}", 3 + number) for number in range(6)), ("rare", 0.1)))
    assert found.calls == ["call5", "call4", "call3", "call2"]
    assert part_of(sharded(("all_reduce", 10), ("rare", 0.1))).calls == ["all_reduce"]
    assert part_of(sharded()).calls == []


def test_a_sentence_stays_for_some_seconds_and_the_end_has_none_that_does_not_hold(monkeypatch):
    """The panel would jump if it came and went with each report."""
    now = [1000.0]
    monkeypatch.setattr("jupyter_dtrain.view.run_state.time.monotonic", lambda: now[0])
    state = run(2, slow=[1])
    assert [one.kind for one in part_of(state).slow] == ["slow loader"]
    for rank in range(2):
        for second in range(12):
            report = StepParts(1.0, USUAL, {"all_reduce": 0.3}, step=EACH * (13 + second), looks=50)
            state.take(Event(1, rank, 100 + second, 300.0, report))
    now[0] += 2
    assert [one.kind for one in part_of(state).slow] == ["slow loader"]
    state.take(Event(1, 0, 120, 320.0, StepParts(1.0, USUAL, step=EACH * 25, looks=50)))
    now[0] += 10
    assert part_of(state).slow == []
