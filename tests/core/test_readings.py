"""How the ranks of a run read their data: the batch of one step, and data that all ranks read alike."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.events import Reading
from jupyter_dtrain.core.readings import Readings

SAME = "read the same data and repeat each other's work"


def lines(*by_rank, microbatches=0, loader=0, into=None):
    """The words about one loader, of which each rank reports so much."""
    readings = Readings() if into is None else into
    for rank, known in enumerate(by_rank):
        if known is not None:
            readings.take(rank, Reading(**{"loader": loader, "batch": 16, **known}))
    return [line.words for line in readings.lines(microbatches)]


@pytest.mark.parametrize(
    ("by_rank", "words"),
    [
        (
            [{"replicas": [0, 1], "iterations": 24}] * 2,
            "Global batch 32 = 2 replicas x 16 samples; 24 iterations an epoch",
        ),
        (
            [{"replicas": [0, 1], "iterations": 25, "accumulation": 4}] * 2,
            "Global batch 128 = 2 replicas x 16 samples x 4 accumulated; 25 iterations (7 steps) an epoch",
        ),
        (
            [{"replicas": [0, 1], "iterations": 1}, {"replicas": [0, 1], "iterations": 1, "batch": 14}],
            "Global batch 30 = 30 samples of 2 replicas (14 to 16 each); 1 iteration an epoch",
        ),
        (
            [{"replicas": [0, 1], "iterations": 24}, {"replicas": [0, 1], "iterations": 25}],
            "Global batch 32 = 2 replicas x 16 samples; 24 to 25 iterations an epoch, by rank",
        ),
        ([{"replicas": [0, 1]}] * 2, "Global batch 32 = 2 replicas x 16 samples"),
        ([{"iterations": 3}] * 2, "Batch 16 a rank; 3 iterations an epoch"),
        (
            [{"accumulation": 2, "iterations": 4}],
            "Batch 32 a rank = 16 samples x 2 accumulated; 4 iterations (2 steps) an epoch",
        ),
        ([{"replicas": [0, 1], "iterations": 3}, None], "Batch 16 a rank; 3 iterations an epoch"),
        ([{"replicas": [0, 2]}, {"replicas": [1, 3]}] * 2, "Global batch 32 = 2 replicas x 16 samples"),
    ],
)
def test_the_global_batch_is_the_product_of_its_factors(by_rank, words):
    assert lines(*by_rank) == [words]


def test_micro_batches_of_a_pipeline_are_parts_of_the_batch():
    assert lines({"batch": 64}, microbatches=8) == ["Batch 64 a rank, in 8 micro-batches"]


def test_several_loaders_are_told_apart():
    readings = Readings()
    lines({}, into=readings)

    assert lines({"batch": 8}, loader=1, into=readings) == ["Loader 1: Batch 16 a rank", "Loader 2: Batch 8 a rank"]


def both(first, second, replicas=(0, 1)):
    """The warnings about two ranks with these digests."""
    said = lines({"digests": first, "replicas": list(replicas)}, {"digests": second, "replicas": list(replicas)})
    return [words for words in said if SAME in words]


def test_replicas_that_read_the_same_are_named_with_the_fix():
    (words,) = both([7, 8, 9], [7, 8, 9])

    assert words.startswith("Ranks 0-1 read the same data and repeat each other's work. Give each rank its own: ")
    assert "jupyter_dtrain.shard(loader)" in words


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([7, 8, 9], [1, 2, 3]),
        ([7, 8, 9], [7, 8, 1]),
        ([7, 7, 7], [7, 7, 7]),  # all batches are alike: made of ones, say
        ([7], [7]),  # an epoch of one batch
        ([], []),
        ([7, 8, 9], []),
    ],
)
def test_data_that_differs_or_says_nothing_is_no_fault(first, second):
    assert both(first, second) == []


def test_a_rank_that_is_ahead_has_read_the_same_so_far():
    assert both([7, 8, 9], [7, 8])


def test_only_replicas_are_compared():
    """Ranks that hold parts of one model must read the same: here 0 with 1, and 2 with 3."""
    parts = [{"digests": [7, 8]}] * 2
    assert lines(*parts) == ["Batch 16 a rank"]
    tensor_parallel = [
        {"digests": [7, 8], "replicas": [0, 2]},
        {"digests": [7, 8], "replicas": [1, 3]},
        {"digests": [5, 6], "replicas": [0, 2]},
        {"digests": [5, 6], "replicas": [1, 3]},
    ]
    assert lines(*tensor_parallel) == ["Global batch 32 = 2 replicas x 16 samples"]
    assert lines({"digests": [7, 8], "replicas": [0]}) == ["Batch 16 a rank"]
