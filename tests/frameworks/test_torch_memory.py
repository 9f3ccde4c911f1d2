"""A cell in which torch ran out of memory frees all its values; the user's own names stay."""

from __future__ import annotations

import importlib.util

import pytest

from tests.session.cells import fail, gigabytes, run, same, texts, values

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

RSS = "import psutil; psutil.Process().memory_info().rss"
IN_TORCH = """
def train():
    x = torch.ones(75_000_000)
    return torch.ones(1 << 50)
train()
"""


@pytest.fixture(scope="module")
def filled(torch_three):
    """Ranks with a tensor of theirs."""
    run(torch_three, "import torch\nkeep = torch.ones(25_000_000)")
    yield torch_three
    run(torch_three, "del keep")


def test_values_in_the_frames_are_freed(filled):
    """A message says so."""
    before = values(run(filled, RSS))
    cell = fail(filled, IN_TORCH)
    after = values(run(filled, RSS))

    assert {"RuntimeError"} == {error.ename for error in cell.errors.values()}
    for text in texts(cell).values():
        assert 0.2 < gigabytes(text) < 0.6, text
    assert all(after[rank] < before[rank] + 150_000_000 for rank in after), (before, after)
    assert same(25_000_000.0) == values(run(filled, "float(keep.sum())"))


def test_variables_that_hold_the_memory_are_mentioned(filled):
    """Nothing of the user's own is taken away."""
    cell = fail(filled, "x = torch.ones(1 << 50)")

    for text in texts(cell).values():
        assert "Out of memory. Nothing could be freed: the rank keeps " in text
        assert text.endswith("GB of the host's memory (del NAME frees a variable).\n")
