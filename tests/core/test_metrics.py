"""Columns of points: packed, thinned, and as a data frame."""

from __future__ import annotations

import math
from array import array

import pytest

from jupyter_dtrain.core.events import Series
from jupyter_dtrain.core.metrics import Columns, RunMetrics, pack, unpack


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
