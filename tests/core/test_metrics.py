"""Columns of points: packed, thinned, and as a data frame."""

from __future__ import annotations

import math
from array import array

import pytest

from jupyter_dtrain.core.events import Series
from jupyter_dtrain.core.metrics import (
    Columns,
    RankSteps,
    RunMetrics,
    Slow,
    Speed,
    StepTime,
    current,
    newest_points,
    newest_value,
    pack,
    slowest,
    speed,
    unpack,
)


def columns(values: list[float], first: int = 0) -> Columns:
    """Points with steps from ``first`` on."""
    return Columns(
        array("q", range(first, first + len(values))),
        array("d", [100.0 + v for v in range(len(values))]),
        array("d", values),
    )


def test_points_survive_the_way_through_an_event():
    """Bit for bit: NaN, infinities, the largest step, the smallest number."""
    there = Columns(
        array("q", [0, -1, 2**63 - 1, 7]),
        array("d", [0.0, 1.5, 2e9, 3.0]),
        array("d", [math.nan, -math.inf, 5e-324, 0.1]),
    )
    back = unpack(pack("loss", there))

    assert [column.tobytes() for column in there] == [column.tobytes() for column in back]


def test_columns_of_different_lengths_are_refused():
    """Rather than shifted against each other."""
    series = pack("loss", columns([1.0, 2.0]))

    with pytest.raises(ValueError, match="'loss' have different lengths"):
        unpack(Series("loss", series.steps, series.times, series.values[:8]))


def test_thinned_points_keep_ends_extremes_and_what_is_not_finite():
    """Few are left, in order, and a spike is among them."""
    values = [math.sin(k / 50) for k in range(10_000)]
    values[1234], values[5678], values[8000] = 99.0, -99.0, math.nan
    thin = columns(values).thinned(100)

    assert len(thin.values) <= 200
    assert list(thin.steps) == sorted(thin.steps)
    assert {0, 1234, 5678, 8000, 9999} <= set(thin.steps)
    assert all(values[step] == value or math.isnan(value) for step, value in zip(thin.steps, thin.values, strict=True))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_points_are_not_thinned(count):
    """They are all there."""
    there = columns([float(k) for k in range(count)])

    assert list(there.thinned(5).values) == list(there.values)


def test_points_that_are_all_not_finite_are_thinned_as_well():
    """Nothing to compare with."""
    assert 2 <= len(columns([math.nan] * 1000).thinned(10).values) <= 20


def test_metrics_of_a_run_are_found_by_name_and_rank():
    """A mapping of mappings; what comes later is appended."""
    metrics = RunMetrics([0, 1])
    metrics.add(0, pack("loss", columns([1.0, 2.0])))
    metrics.add(1, pack("loss", columns([5.0])))
    count = metrics.add(0, pack("loss", columns([3.0], first=2)))

    assert count == 3
    assert list(metrics) == ["loss"]
    assert list(metrics["loss"][0].values) == [1.0, 2.0, 3.0]
    assert list(metrics["loss"][1].steps) == [0]
    assert repr(metrics) == "<metrics loss: 4 points>"
    with pytest.raises(KeyError):
        metrics["acc"]


def test_a_data_frame_has_a_row_for_every_point():
    """Times are in UTC."""
    pd = pytest.importorskip("pandas")
    metrics = RunMetrics([0, 1])
    metrics.add(1, pack("loss", columns([1.0, math.nan])))
    metrics.add(0, pack("acc", columns([0.5])))
    frame = metrics.to_pandas()

    assert list(frame.columns) == ["name", "rank", "step", "time", "value"]
    assert frame.to_dict("list")["name"] == ["loss", "loss", "acc"]
    assert frame["time"][0] == pd.Timestamp(100, unit="s", tz="UTC")
    assert len(RunMetrics([0]).to_pandas()) == 0


def rated(every: int, seconds: list[float], batch: int = 0) -> dict[str, Columns]:
    """What a framework tells of an optimizer that made ``every`` steps in each of ``seconds``, and a loss of each."""
    found = {name: Columns.empty() for name in ("loss", "steps/s", "samples/s")}
    now = 100.0
    for index, took in enumerate(seconds, 1):
        now += took
        for name, value in (("steps/s", every / took), ("samples/s", batch * every / took)):
            found[name].steps.append(index * every)
            found[name].times.append(now)
            found[name].values.append(value)
    found["loss"].extend(pack("loss", columns([1.0] * (every * len(seconds) + 1))))
    return found if batch else {name: found[name] for name in ("loss", "steps/s")}


def by_name(ranks: list[dict[str, Columns]]) -> dict[str, dict[int, Columns]]:
    """The metrics of a run, by name and rank."""
    return {name: {rank: own[name] for rank, own in enumerate(ranks) if name in own} for own in ranks for name in own}


def test_the_speed_of_a_run_is_the_mean_of_all_its_steps_and_counts_the_samples_of_all_ranks():
    """Not one rank's last moment: 40 steps in 5 s, each with 16 samples on each of two ranks."""
    ranks = RankSteps.of(by_name([rated(10, [1.0, 0.5, 0.5, 3.0], 16)] * 2))

    assert speed(ranks) == pytest.approx(Speed(8.0, 256.0))
    assert ranks[0].step == 40


def test_the_step_is_that_of_the_metric_that_is_furthest_ahead():
    """A value that is logged once an epoch, and last, does not set it back; it neither tells how fast steps are."""
    loss = columns([1.0] * 90)
    ranks = RankSteps.of({"loss": {0: loss}, "val_accuracy": {0: columns([0.1, 0.2, 0.3])}})

    assert ranks[0].step == 89
    assert speed(ranks).steps == pytest.approx(1.0)


def test_steps_are_the_same_in_whatever_pieces_the_points_come():
    """So a reader that follows a run, and one that reads all of it in the end, show the same."""
    whole, pieces = RankSteps(), RankSteps()
    points = rated(10, [1.0, 0.25, 2.0], 8)
    whole.take(points)
    for place in range(3):
        pieces.take({name: Columns(*(one[place : place + 1] for one in own)) for name, own in points.items()})
    pieces.take({"loss": Columns(*(one[3:] for one in points["loss"]))})

    assert whole.time == pytest.approx(pieces.time)
    assert whole.newest == pieces.newest


def test_a_run_that_goes_on_from_a_step_is_as_fast_as_one_that_begins_anew():
    """The 500 steps of the run before it took it no time."""
    anew = by_name([rated(10, [1.0, 0.5, 0.5, 3.0], 16)] * 2)
    later = {
        name: {rank: Columns(array("q", [step + 500 for step in one.steps]), *one[1:]) for rank, one in ranks.items()}
        for name, ranks in anew.items()
    }
    ranks = RankSteps.of(later, 500)

    assert speed(ranks) == pytest.approx(speed(RankSteps.of(anew)))
    assert (ranks[0].step, ranks[0].made) == (540, 40)


def test_a_rank_that_is_behind_has_no_current_value():
    """One that was killed early: its last loss is no part of the run's."""
    series = {0: columns([1.0 / (step + 1) for step in range(100)]), 1: columns([2.1])}

    assert current(newest_points(series)) == {0: 0.01}
    assert newest_value(newest_points(series)) == 0.01
    assert newest_value({}) is None


def test_a_killed_rank_neither_sets_the_speed_nor_stretches_the_samples():
    """It read samples for a tenth of the time."""
    ranks = RankSteps.of(by_name([rated(10, [1.0] * 10, 16), rated(10, [1.0], 16)]))

    assert speed(ranks) == pytest.approx(Speed(10.0, 176.0))


def test_a_rank_is_slow_only_after_enough_steps_and_seconds():
    """Five quick calls of log() show nothing, and neither do four long steps."""
    usual = StepTime(50, 10.0)

    assert slowest({0: usual, 1: StepTime(50, 13.0)}) == Slow(1, pytest.approx(0.3))
    assert slowest({0: StepTime(5, 1e-4), 1: StepTime(5, 5e-3)}) is None
    assert slowest({0: StepTime(1000, 1.0), 1: StepTime(1000, 4.0)}) is None
    assert slowest({0: StepTime(4, 40.0), 1: StepTime(4, 80.0)}) is None
    assert slowest({0: usual, 1: StepTime(50, 10.5)}) is None
    assert slowest({0: StepTime(10**6, 10.0), 1: StepTime(10**6, 60.0)}) is None
    assert slowest({0: usual}) is None
