"""A profile as tables."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jupyter_dtrain.core.traces import Analysis, CollectiveKind, Operator, RankShare
from jupyter_dtrain.core.world import percent
from jupyter_dtrain.view.profiles import duration, profile_tables


def analysis(step=2000.0, mm=900.0):
    """Two ranks, of which the second comes late."""
    ranks = [
        RankShare(0, "a", step, 0.5, 0.25, 0.2, 0.2, 0.0, 0.0),
        RankShare(1, "a", step, 0.6, 0.1, 0.1, 0.0, 350.0, 1.0),
    ]
    kinds = [
        CollectiveKind("all_reduce", 2, 10, 4_000_000, 1500.0, 2.5e9),
        CollectiveKind("barrier", 2, 5, None, 80.0, None),
    ]
    operators = [Operator("aten::mm", 30, 10 * mm, 0.0, 0.45)]
    return Analysis(5, ranks, operators, kinds, 30, 0, 12.0, on_device=False)


def shown(found, notes=(), last=None, kind="text/plain"):
    """The tables."""
    return profile_tables(Path("/home/me/profile-3-120.json.gz"), 3, 120, found, notes, last)[kind]


def test_tables():
    """By rank, collectives, operators, and how to open the file."""
    assert shown(analysis(), ["Rank 2: missing: died while it was profiled."]) == (
        "Run 3, 5 steps from step 121 on, ranks 0-1: 2.0 ms a step\n"
        "rank  step    computing  communicating  exposed  hidden  comes late by  comes last\n"
        "   0  2.0 ms  50 %       25 %           20 %     20 %    0 µs           0 %\n"
        "   1  2.0 ms  60 %       10 %           10 %     0 %     350 µs         100 %\n"
        "\n"
        "Collectives, timed from the last rank's arrival\n"
        "collective  ranks  a step  size  time    bus bandwidth\n"
        "all_reduce      2       2  4 MB  1.5 ms  2.5 GB/s\n"
        "barrier         2       1        80 µs\n"
        "\n"
        "Operators, by their share of the ranks' time\n"
        "operator  share  own time a step  calls a step\n"
        "aten::mm  45 %   900 µs                      3\n"
        "\n"
        "Rank 2: missing: died while it was profiled.\n"
        "100% of the ranks' collectives are matched with those of the others; the ranks of one end within 12 µs.\n"
        "Open /home/me/profile-3-120.json.gz on https://ui.perfetto.dev (Open trace file)."
    )


def test_beside_the_last_profile():
    """What changed, in words."""
    text = shown(analysis(), last=(2, 40, analysis(step=1000.0, mm=1000.0)))

    assert "Beside the last profile (run 2, from step 41 on), and what changed most" in text
    assert "a step    1.0 ms  2.0 ms  +100%" in text
    assert "aten::mm  1.0 ms  900 µs  -10%" in text


def test_html_links_perfetto_and_escapes():
    """A path may have any characters."""
    html = profile_tables(Path("/tmp/<b>.json"), 1, 0, analysis(), [], None)["text/html"]

    assert "<a href='https://ui.perfetto.dev' target='_blank' rel='noopener'>" in html
    assert "/tmp/&lt;b&gt;.json" in html
    assert html.count("<table>") == 3


@pytest.mark.parametrize(
    ("microseconds", "words"),
    [(0.4, "0 µs"), (999, "999 µs"), (1500, "1.5 ms"), (2.5e6, "2.50 s"), (7.2e9, "7200.00 s"), (math.nan, "")],
)
def test_durations(microseconds, words):
    """In the unit that fits."""
    assert duration(microseconds) == words
    assert percent(math.nan) == ""
