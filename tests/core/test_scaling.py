"""How a cell scales, from measurements: speed-up, its range, and the causes of what is lost."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.events import Spent
from jupyter_dtrain.core.scaling import Repeat, Scaling, Size


def size(ranks, *times, waits=None, data=0.0, processor=0.0, **known):
    """A size whose runs took ``times``; ``waits``: the share of time in which each rank waits for others."""
    shares = waits if waits is not None else [0.0] * ranks
    return Size(
        ranks,
        [
            Repeat(
                time, {r: Spent(time, time * share, time * data, time * processor) for r, share in enumerate(shares)}
            )
            for time in times
        ],
        **known,
    )


def scaling(*sizes, repeats=3):
    return Scaling([one.ranks for one in sizes], repeats, sizes=list(sizes))


def test_halved_times_are_linear():
    found = scaling(size(1, 100.0, 100.0), size(2, 50.0, 50.0), size(4, 25.0, 25.0))

    assert [found.speedup(one) for one in found.sizes] == [1, 2, 4]
    assert [found.efficiency(one) for one in found.sizes] == [1, 1, 1]
    assert found.conclusions() == [
        "2 ranks: 2.00 times as fast as 1 rank, 100% of linear.",
        "4 ranks: 4.00 times as fast as 1 rank, 100% of linear.",
    ]


def test_the_range_of_a_speedup_is_that_of_both_times():
    found = scaling(size(1, 10.0, 12.0, 11.0), size(2, 6.0, 5.0, 8.0))

    base, two = found.sizes
    assert (base.seconds, base.span) == (11.0, (10.0, 12.0))
    assert found.speedup(two) == pytest.approx(11 / 6)
    assert found.speedup_span(two) == pytest.approx((10 / 8, 12 / 5))
    assert found.speedup_span(base) is None


def test_one_run_has_no_range_and_says_so():
    found = scaling(size(1, 10.0), size(2, 5.0), repeats=1)

    assert found.speedup_span(found.sizes[1]) is None
    assert (
        found.conclusions()[-1] == "A time that was measured once has no range: --repeats 3 shows how much times vary."
    )


def test_the_smallest_size_that_was_measured_is_the_base():
    """Sizes come in any order, and the smallest one may have failed."""
    found = scaling(
        size(4, 30.0, 30.0), Size(1, failure="the cell failed: OutOfMemoryError (rank 0)"), size(2, 50.0, 50.0)
    )

    assert found.base is found.sizes[2]
    assert found.linear(found.sizes[0]) == 2
    assert found.speedup(found.sizes[0]) == pytest.approx(5 / 3)
    assert found.conclusions()[0] == "1 rank: the cell failed: OutOfMemoryError (rank 0)"
    assert "4 ranks: 1.67 times as fast as 2 ranks, 83% of linear." in found.conclusions()[1]


def test_a_fixed_batch_of_a_rank_with_as_many_steps_is_more_work():
    """Then samples per second are compared: the same time on twice as many ranks is linear."""
    grown = scaling(size(1, 10.0, 10.0, batch=32, steps=100), size(2, 10.0, 10.0, batch=32, steps=100))
    same = scaling(size(1, 10.0, 10.0, batch=32, steps=100), size(2, 5.0, 5.0, batch=32, steps=50))
    unknown = scaling(size(1, 10.0, 10.0), size(2, 10.0, 10.0, batch=32, steps=100))

    assert grown.grows
    assert grown.speedup(grown.sizes[1]) == 2
    assert grown.speedup_span(grown.sizes[1]) == (2, 2)
    assert (
        grown.conclusions()[-1] == "Sizes did different amounts of work, so the speed-up compares samples per second."
    )
    assert not same.grows
    assert same.speedup(same.sizes[1]) == 2
    assert unknown.speedup(unknown.sizes[1]) == 1


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"waits": [0.4, 0.5]}, "It is held back by communication (40% of the time)."),
        (
            {"waits": [0.01, 0.41, 0.41, 0.41]},
            "It is held back by rank 0, which is slow: ranks 1-3 wait 30% of the time for it.",
        ),
        ({"waits": [0.0, 0.0], "data": 0.5}, "It is held back by data loading (50% of the time)."),
        (
            {"waits": [0.2, 0.2], "processor": 0.3},
            "It is held back by processors, which ranks share with each other and other programs (30% of the time)",
        ),
        (
            {"waits": [0.02, 0.03]},
            "Most of the rest is work that more ranks do not shorten, such as set-up or small batches.",
        ),
    ],
)
def test_the_cause_of_what_is_lost_is_named_largest_first(shares, words):
    ranks = len(shares["waits"])
    found = scaling(size(1, 10.0, 10.0), size(ranks, 8.0, 8.0, **shares))

    assert words in found.conclusions()[0]


def test_a_second_cause_follows_the_first():
    found = scaling(size(1, 10.0, 10.0), size(2, 8.0, 8.0, waits=[0.2, 0.2], processor=0.3))

    assert found.conclusions()[0].endswith("(30% of the time), then by communication (20% of the time).")


def test_without_clocks_no_cause_is_named():
    found = scaling(Size(1, [Repeat(10.0), Repeat(10.0)]), Size(2, [Repeat(9.0), Repeat(9.0)]))

    assert found.conclusions() == ["2 ranks: 1.11 times as fast as 1 rank, 56% of linear."]
    assert found.sizes[1].share("communication") is None


def test_nothing_measured_concludes_nothing():
    found = Scaling([1, 2], 3)

    assert found.base is None
    assert found.conclusions() == []
    assert not found.grows
