"""The memory of a CUDA device over a cell: its peak, with the line that allocated it."""

from __future__ import annotations

import pytest

from tests.gpu.cells import PATIENCE
from tests.session.cells import run

pytestmark = pytest.mark.gpu

MEGA = 1_000_000
CELL = """
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
kept = torch.ones(10_000_000, device=device)
time.sleep(0.2)
def work():
    large = torch.ones(100_000_000, device=device)
    time.sleep(0.3)  # with it
work()
time.sleep(0.2)
spike = torch.ones(150_000_000, device=device); del spike
time.sleep(0.2)
del kept
"""
"""400 MB for a moment, then 600 MB in one line that no look meets."""


def test_the_peak_of_a_device_is_told_with_the_lines_around_it(single):
    """What was reserved stays reserved; a peak between two looks counts, by PyTorch's own counter."""
    cell = run(single, CELL, timeout=PATIENCE, record_memory=True)
    shown = single.memory_record(run=cell.number)
    print(shown)
    _, course = shown.ranks[0].courses
    source = CELL.splitlines()

    assert course.device.startswith("cuda:")
    assert 635 * MEGA < course.peak - course.begin < 700 * MEGA
    assert course.end - course.begin < 50 * MEGA
    assert source[course.place.before.line - 1] == source[course.place.line.line - 1] == "time.sleep(0.2)"
    assert course.place.before.line < course.place.line.line
    assert any(
        grown.rise > 350 * MEGA and "with it" in (grown.place.line or grown.place.before).source
        for grown in course.grown
    )
    assert max(course.reserved) >= max(course.points)
    assert str(shown).startswith("The GPU memory of rank 0 was highest at ")
