"""Steps of pipelines are put together from reports of ranks, and compared with the theory of schedules."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.events import PipelineStep
from jupyter_dtrain.core.pipelines import MOST_PIPELINES, Action, Pipelines, ideal_bubble, pack, unpack


def gpipe(ranks, microbatches):
    """All forwards, then all backwards."""
    return {rank: [(kind, rank, number) for kind in "FB" for number in range(microbatches)] for rank in range(ranks)}


def one_forward_one_backward(ranks, microbatches):
    """A stage is as many forwards ahead as there are later stages."""
    order = {}
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, microbatches)
        actions = [("F", rank, number) for number in range(ahead)]
        for number in range(microbatches):
            if number + ahead < microbatches:
                actions.append(("F", rank, number + ahead))
            actions.append(("B", rank, number))
        order[rank] = actions
    return order


def told(place, actions, *, step=0, ranks=(0, 1), number=0, began=100.0, **more):
    """A step as the rank at ``place`` reports it."""
    return PipelineStep(number, "1F1B", step, list(ranks), place, 2, 1, began, pack(actions), **more)


def forward(stage, start, seconds, microbatch=0):
    """One forward."""
    return Action("F", stage, microbatch, start, seconds)


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 4), (2, 2), (4, 8), (8, 32)])
def test_known_schedules_idle_as_theory_says(order, ranks, microbatches):
    """(p - 1) / (m + p - 1)."""
    found = ideal_bubble(order(ranks, microbatches))
    assert found == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


def test_a_backward_in_halves_fills_the_bubble():
    """The gradients of weights can wait: with two stages and two micro-batches, only the last stage's wait is left."""
    order = {
        0: [("F", 0, 0), ("F", 0, 1), ("I", 0, 0), ("W", 0, 0), ("I", 0, 1), ("W", 0, 1)],
        1: [("F", 1, 0), ("I", 1, 0), ("F", 1, 1), ("I", 1, 1), ("W", 1, 0), ("W", 1, 1)],
    }
    assert ideal_bubble(order) == pytest.approx(1 - 12 / (2 * 7))


def test_an_order_that_cannot_be_done_has_no_bubble():
    """A backward before its forward, and no order at all."""
    assert ideal_bubble({0: [("B", 0, 0), ("F", 0, 0)]}) is None
    assert ideal_bubble({}) is None


def test_actions_go_through_an_event():
    """All their facts survive; times are as exact as a float32."""
    (found,) = unpack(pack([Action("W", 300, 65_535, 0.125, 2.5)]))
    assert found == Action("W", 300, 65_535, 0.125, 2.5)


def test_ranks_are_put_together_by_their_clocks():
    """Rank 1 began its step half a second later; of the two seconds that the step took, each rank idled one."""
    pipelines = Pipelines()
    pipelines.take(4, told(0, [Action("R", 0, 0, 0.0, 0.25), forward(0, 0.25, 1.0)], ranks=(0, 1), theory=0.5))
    assert not pipelines
    assert pipelines.timelines() == []
    pipelines.take(7, told(1, [forward(1, 0.75, 1.0)], began=100.5, left_out=3))
    (timeline,) = pipelines.timelines()

    assert pipelines
    assert timeline.seconds == pytest.approx(2.0)
    assert timeline.bubble == pytest.approx(0.5)
    assert timeline.theory == 0.5
    assert timeline.left_out == 3
    assert {rank: [(one.kind, one.start) for one in lane] for rank, lane in timeline.lanes.items()} == {
        4: [("R", -0.25), ("F", 0.0)],
        7: [("F", 1.0)],
    }


def test_the_newest_step_that_all_ranks_have_reported_counts():
    """One rank is ahead, and has reported steps that the other will never report."""
    pipelines = Pipelines()
    for step in (0, 4, 8, 12):
        pipelines.take(0, told(0, [forward(0, 0, 1)], step=step))
    for step in (0, 8):
        pipelines.take(1, told(1, [forward(1, 1, 1)], step=step))
    assert [timeline.step for timeline in pipelines.timelines()] == [8]


def test_the_usual_bubble_is_the_median_of_the_newest_steps_of_all_ranks():
    """Whoever looked meanwhile; of older ones nothing is kept."""
    for looks in (1, 5, 20):
        pipelines = Pipelines()
        for step in range(20):
            # Of twice this time, each rank computes in one second; one step is delayed by far.
            end = 9.0 if step == 19 else 1.0 if step < 12 else 1.5
            pipelines.take(0, told(0, [forward(0, 0, 1)], step=step))
            if step % looks == 0:
                assert len(pipelines.timelines()) == min(1, step)
            pipelines.take(1, told(1, [forward(1, end, 1)], step=step))
        (found,) = pipelines.timelines()

        assert found.step == 19
        assert found.bubble == pytest.approx(0.9)
        assert found.usual == pytest.approx(1 - 1 / 2.5)
        assert all(len(steps) <= 8 for kept in pipelines._told.values() for steps in kept.values())
        assert all(len(steps) <= 8 for steps in pipelines._bubbles.values())


def test_steps_without_computation_have_no_part_in_the_usual_bubble():
    pipelines = Pipelines()
    for step in range(5):
        for place in (0, 1):
            actions = [Action("R", place, 0, 0, 1)] if step < 3 else [forward(place, place, 1)]
            pipelines.take(place, told(place, actions, step=step))
    assert [one.usual for one in pipelines.timelines()] == [pytest.approx(0.5)]


def test_pipelines_side_by_side_and_one_after_the_other():
    """Each has its own; beyond a number none is followed."""
    pipelines = Pipelines()
    for number in range(MOST_PIPELINES):
        for ranks in ((0, 1), (2, 3)):
            for place, rank in enumerate(ranks):
                pipelines.take(rank, told(place, [forward(place, place, 1)], ranks=ranks, number=number))
    found = pipelines.timelines()
    assert len(found) == MOST_PIPELINES
    assert [list(timeline.lanes) for timeline in found[:3]] == [[0, 1], [2, 3], [0, 1]]


def test_a_step_without_computation_is_none():
    """Ranks that only waited."""
    pipelines = Pipelines()
    for place in (0, 1):
        pipelines.take(place, told(place, [Action("R", place, 0, 0, 1)]))
    assert pipelines.timelines() == []
