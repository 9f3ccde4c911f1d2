"""A saved notebook keeps a run in bounded form: whole at the edges, and readable everywhere."""

from __future__ import annotations

import base64
import json
import math
import re
from array import array
from xml.etree import ElementTree as ET

import pytest

from jupyter_dtrain.core.events import Gpu, Progress, Sample
from jupyter_dtrain.core.metrics import Columns, Speed
from jupyter_dtrain.view.document import MIME, SAVED_BYTES, Picture, band_of, document
from jupyter_dtrain.view.drawing import svg
from jupyter_dtrain.view.run_state import History
from jupyter_dtrain.view.saved import bundle, text


def columns(values, first=0):
    """A series with these values, a step every 10 ms."""
    count = len(values)
    return Columns(
        array("q", range(first, first + count)), array("d", [0.01 * n for n in range(count)]), array("d", values)
    )


def picture(size, metrics, **options):
    """A run of ``size`` ranks that ended well."""
    options = {"outcome": "ok", "elapsed": 12.5, "states": dict.fromkeys(range(size), "ok"), **options}
    return Picture(run=4, size=size, ranks=range(size), metrics=metrics, **options)


def numbers(text):
    """The float32 in a base64 text."""
    found = array("f")
    found.frombytes(base64.b64decode(text))
    return list(found)


def test_a_run_with_everything_stays_below_the_limit():
    """256 ranks, 20 metrics, a thousand points each, every rank with all that can be known of it."""
    metrics = {
        f"metric/{name}": {
            rank: columns([math.sin(step / 50) + rank / 2560 + (0.5 if rank == 77 else 0) for step in range(1000)])
            for rank in range(256)
        }
        for name in range(20)
    }
    metrics["metric/3"][200].values[-1] = math.nan
    whole = picture(
        256,
        metrics,
        samples={rank: Sample(99.9, 10**11, 10**6, Gpu(7, 99.9, 10**11, 10**11)) for rank in range(256)},
        progress={
            rank: [Progress(bar, "a loop", 0.123456789, 1e9, 1e6, "x" * 100) for bar in range(9)] for rank in range(256)
        },
        hosts={rank: f"node-{rank // 8}.cluster.example" for rank in range(256)},
        words=dict.fromkeys(range(20), "w" * 1000),
    )
    data = bundle(whole)

    assert len(json.dumps(data[MIME])) <= SAVED_BYTES < 200_000
    assert len(data["image/svg+xml"]) < 200_000
    assert len(data["text/plain"]) < 10_000
    kept = data[MIME]["metrics"]
    assert len(kept) + data[MIME]["left_out"] == 20
    assert len(kept) >= 10
    for part in kept:
        assert len(numbers(part["last"]["values"])) == 256
        assert 77 in [row[0] for row in part["series"]]
        assert len(numbers(part["band"]["mean"])) >= 20


def test_few_points_are_kept_as_they_are():
    """Nothing is thinned that fits."""
    kept = document(picture(2, {"loss": {0: columns([3.0, 2.0, 1.0]), 1: columns([4.0, math.nan, 2.0], first=10)}}))
    (loss,) = kept["metrics"]

    assert "band" not in loss
    assert [row[:2] for row in loss["series"]] == [[0, (0, 1, 3)], [1, (10, 1, 3)]]
    assert numbers(loss["series"][0][2]) == [3.0, 2.0, 1.0]
    assert str(numbers(loss["series"][1][2])) == "[4.0, nan, 2.0]"


def test_a_long_series_keeps_its_extremes_and_the_mean_of_all_its_points():
    """One value of a hundred thousand that is far away, and one that is no number."""
    values = [0.9 if step % 10 else 0.0 for step in range(100_000)]
    values[50_000], values[70_000] = 99.0, math.inf
    kept = document(picture(2, {"loss": {0: columns(values), 1: columns(values)}}))
    (loss,) = kept["metrics"]
    drawn = numbers(loss["series"][0][2])

    assert 100 <= len(drawn) <= 1500
    assert 99.0 in drawn
    assert math.inf in drawn
    assert numbers(loss["band"]["mean"])[3] == pytest.approx(0.81, abs=0.01)
    assert max(numbers(loss["band"]["high"])) == 99.0


def test_many_metrics_are_shown_in_order_and_the_rest_is_counted():
    """Losses first, learning rates last; what has no room is a number."""
    names = ["lr", "samples/s", "acc", "val_loss", *(f"m{n}" for n in range(300))]
    kept = document(picture(1, {name: {0: columns([1.0])} for name in names}))

    assert [part["name"] for part in kept["metrics"]][:2] == ["val_loss", "acc"]
    assert len(kept["metrics"]) + kept["left_out"] == len(names)


def test_the_text_has_the_last_values_and_the_outcome():
    """Every rank's, while they fit a line; else the mean and who is at the ends."""
    few = text(picture(2, {"loss": {0: columns([2.0, 0.5]), 1: columns([2.0, math.nan])}}, speed=Speed(10.0, 320.0)))
    assert few.splitlines() == [
        "Run 4 on ranks 0-1: ok, but NaN, 12.5 s, 10 steps/s, 320 samples/s",
        "  last value  rank 0  rank 1",
        "  loss           0.5     NaN",
    ]
    many = text(picture(9, {"loss": {rank: columns([float(rank)]) for rank in range(9)}}, outcome="error"))
    assert many.splitlines() == [
        "Run 4 on ranks 0-8: error, 12.5 s",
        "  loss  mean 4, from 0 (rank 0) to 8 (rank 8)",
    ]


def test_the_bundle_finds_steps_and_pace_by_itself():
    """A run out of the store has no count of them."""
    data = bundle(picture(1, {"loss": {0: columns([1.0] * 200)}}), with_svg=False)

    assert "image/svg+xml" not in data
    assert "step 199, 100 steps/s" in data["text/plain"]
    assert data[MIME]["ranks"][0][3] == 199


def test_the_picture_is_svg_that_parses_and_stays_small():
    """Text stays text, names may mean something to TeX, and there may be no finite value."""
    metrics = {
        "loss $x$ <&>": {rank: columns([math.exp(-step / 100) for step in range(5000)]) for rank in range(4)},
        "broken": {0: columns([math.nan, math.inf])},
        "lr": {0: columns([0.1])},
    }
    drawn = svg(picture(4, metrics))
    assert drawn is not None
    ET.fromstring(drawn)  # noqa: S314 — it was made here

    assert "loss $x$ &lt;&amp;&gt;" in drawn
    assert "broken" in drawn
    assert ">lr<" not in drawn
    assert len(drawn) < 150_000
    assert not re.search(r"\d\.\d{4,}[ \"]", drawn.split("<defs>")[-1])


def test_a_history_is_bounded_and_even_whatever_comes():
    """The points may arrive in any way; the beginning is kept as well as the end."""
    for chunk in (1, 7, 1000, 100_000):
        history = History(200)
        values = [float(step % 100) for step in range(100_000)]
        values[61_234] = -5.0
        values[91_234] = math.nan
        for first in range(0, len(values), chunk):
            part = values[first : first + chunk]
            history.add(columns(part, first))
        kept = history.columns
        assert history.count == 100_000
        assert (kept.values[-1], kept.steps[-1]) == (99.0, 99_999)
        assert len(kept.values) < 210
        assert -5.0 in kept.values
        assert any(value != value for value in kept.values)  # noqa: PLR0124 - NaN is what is not itself
        early = sum(step < 50_000 for step in kept.steps)
        assert 0.3 < early / len(kept.steps) < 0.7
        assert list(kept.steps) == sorted(kept.steps)


def test_thinning_leaves_short_series_alone():
    """It never gives more than twice the requested number."""
    few = columns([1.0, 2.0])
    assert few.thinned(10) is few
    assert len(columns([float(n % 13) for n in range(10_001)]).thinned(100).values) <= 150
    overflow = columns([1.7e308] * 100).thinned(10)
    assert set(overflow.values) == {1.7e308}


def test_a_band_is_over_all_ranks():
    """Values that are no numbers are left out, and so are steps that have no others."""
    band = band_of({0: columns([1.0, math.nan, 3.0]), 1: columns([3.0, math.nan, math.inf])})
    assert (list(band.steps), list(band.mean)) == ([0, 2], [2.0, 3.0])
    assert (list(band.low), list(band.high)) == ([1.0, 3.0], [3.0, 3.0])
    assert not band_of({}).steps


def test_a_name_that_matplotlibs_font_lacks_is_drawn_without_a_word(recwarn):
    """The picture has it as text, which the browser draws."""
    drawn = svg(picture(1, {"損失": {0: columns([1.0, 2.0])}}))

    assert drawn is not None
    assert "損失" in drawn
    assert list(recwarn) == []
