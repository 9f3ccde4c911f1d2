"""The numbers of ranks when some leave a world."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.world import describe_moves, moves, numbers_without, placements, renamed


@pytest.mark.parametrize(
    ("leaving", "numbers"),
    [
        ([], {0: 0, 1: 1, 2: 2, 3: 3}),
        ([1], {0: 0, 2: 1, 3: 2}),
        ([0, 2], {1: 0, 3: 1}),
        ([3], {0: 0, 1: 1, 2: 2}),
    ],
)
def test_ranks_that_stay_are_numbered_in_their_order(leaving, numbers):
    assert numbers_without(leaving, 4) == numbers


@pytest.mark.parametrize(
    ("size", "leaving", "words"),
    [
        (4, [3], ""),
        (4, [1], "rank 2 is rank 1 now, rank 3 is rank 2"),
        (9, [1, 4], "ranks 2-3 are ranks 1-2 now, ranks 5-8 are ranks 3-6"),
        (9, [0, 2, 3], "rank 1 is rank 0 now, ranks 4-8 are ranks 1-5"),
    ],
)
def test_the_message_names_each_rank_or_each_row_of_them(size, leaving, words):
    assert describe_moves(moves(numbers_without(leaving, size))) == words


def test_words_on_a_rank_follow_its_number():
    """Only those that begin with it."""
    assert renamed("rank 2 was killed (SIGKILL)", 2, 1) == "rank 1 was killed (SIGKILL)"
    assert renamed("rank 21 crashed", 2, 1) == "rank 21 crashed"
    assert renamed("", 2, 1) == ""


def test_new_ranks_get_the_local_ranks_that_are_free():
    """On each host; the others keep theirs."""
    places = placements(["a", "a", "b", "a", "b"], [0, 2, 1, None, None])

    assert [place.local_rank for place in places] == [0, 2, 1, 1, 0]
    assert [(place.rank, place.local_size, place.node) for place in places] == [
        (0, 3, 0),
        (1, 3, 0),
        (2, 2, 1),
        (3, 3, 0),
        (4, 2, 1),
    ]
