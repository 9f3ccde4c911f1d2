"""The report about a cell's scaling, in each form in which a notebook may show it."""

from __future__ import annotations

import nbformat
import pytest

from jupyter_dtrain.core.events import Spent
from jupyter_dtrain.core.scaling import Repeat, Scaling, Size
from jupyter_dtrain.view.scaling import MIME, bundle


@pytest.fixture
def report():
    """Three sizes, of which the last one failed."""
    one = Size(1, [Repeat(time, {0: Spent(time, 0.0, 1.0, 0.0)}) for time in (10.0, 11.0, 12.0)], batch=64, steps=5)
    spent = {rank: Spent(6.0, 1.5, 0.5, 0.0) for rank in (0, 1)}
    two = Size(2, [Repeat(time, spent) for time in (6.0, 6.0, 6.5)], batch=32, steps=5)
    return Scaling(
        [1, 2, 4], 3, global_batch=64, sizes=[one, two, Size(4, failure="the cell failed: ValueError: <no> & (rank 3)")]
    )


def test_the_text_has_a_row_for_each_size_and_the_conclusions(report):
    lines = bundle(report)["text/plain"].splitlines()

    assert lines[0] == "Scaling of a cell: batch 64 in all, measured 3 times, median and range"
    assert lines[1].split()[:4] == ["ranks", "time", "speed-up", "linear"]
    assert lines[2].split() == [
        "1",
        "11.00",
        "s",
        "(10.00",
        "to",
        "12.00)",
        "1.00",
        "1",
        "100%",
        "64",
        "0%",
        "0%",
        "9%",
        "0%",
    ]
    assert lines[3].split()[:8] == ["2", "6.00", "s", "(6.00", "to", "6.50)", "1.83", "(1.54"]
    assert lines[4].split() == ["4", "failed"]
    assert lines[5] == "4 ranks: the cell failed: ValueError: <no> & (rank 3)"
    assert lines[6].startswith("2 ranks: 1.83 times as fast as 1 rank, 92% of linear.")


def test_the_page_has_table_chart_and_conclusions_without_markup_of_the_cell(report):
    data = bundle(report)

    assert data["text/html"].startswith("<svg")
    assert "<table>" in data["text/html"]
    assert "<p>4 ranks: the cell failed: ValueError: &lt;no&gt; &amp; (rank 3)</p>" in data["text/html"]
    assert "speed-up over 1 rank" in data["image/svg+xml"]
    assert "communication" in data["image/svg+xml"]


def test_the_document_has_the_numbers_for_the_front_end(report):
    document = bundle(report)[MIME]

    assert document["version"] == 1
    first, second, third = document["sizes"]
    assert (first["ranks"], first["seconds"], first["low"], first["high"]) == (1, 11.0, 10.0, 12.0)
    assert second["speedup"] == pytest.approx(11 / 6)
    assert dict(second["shares"])["communication"] == pytest.approx(0.25)
    assert third["seconds"] is None
    nbformat.validate(
        nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", bundle(report))])]
        )
    )


def test_a_measurement_that_goes_on_has_no_picture_and_says_where_it_is(report):
    report.now = "4 ranks: run 1 of 3"
    data = bundle(report)

    assert "image/svg+xml" not in data
    assert "<svg" not in data["text/html"]
    assert data["text/plain"].splitlines()[0].endswith("; now 4 ranks: run 1 of 3")
    assert len(data["text/plain"].splitlines()) == 5


def test_one_size_has_no_chart():
    assert "image/svg+xml" not in bundle(Scaling([1], 1, sizes=[Size(1, [Repeat(1.0)])]))
    assert "<table>" in bundle(Scaling([1], 1))["text/html"]
