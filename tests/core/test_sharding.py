"""Shares of data: every item is somewhere, none where it should not be, and all ranks agree without a word."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.sharding import MODES, Share, share_of

counts = st.integers(0, 200)
sizes = st.integers(1, 17)
seeds = st.integers(-5, 2**64)


def flat(parts):
    return [item for part in parts for item in part]


def shares(count, size, mode, *, shuffle=False, seed=0):
    """The items of each rank."""
    return [list(Share(rank, size, mode, shuffle, seed).of(count)) for rank in range(size)]


@given(counts, sizes, st.booleans(), seeds)
def test_uneven_shares_have_every_item_once(count, size, shuffle, seed):
    """No rank has more than one item more than another, and the first ranks have them."""
    found = shares(count, size, "uneven", shuffle=shuffle, seed=seed)

    assert sorted(flat(found)) == list(range(count))
    lengths = [len(own) for own in found]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(counts, sizes, st.booleans(), seeds)
def test_even_shares_are_disjoint_and_leave_out_less_than_one_each(count, size, shuffle, seed):
    if 0 < count < size:
        with pytest.raises(BadRequest, match=f"{count} items are too few for equal shares on {size} ranks"):
            shares(count, size, "even", shuffle=shuffle, seed=seed)
        return
    found = shares(count, size, "even", shuffle=shuffle, seed=seed)

    assert {len(own) for own in found} == {count // size}
    assert len(set(flat(found))) == count // size * size
    if not shuffle:
        assert sorted(flat(found)) == list(range(count // size * size))


@given(counts, sizes, st.booleans(), seeds)
def test_padded_shares_have_every_item_and_the_first_ones_again(count, size, shuffle, seed):
    found = shares(count, size, "pad", shuffle=shuffle, seed=seed)
    each = -(-count // size)

    assert {len(own) for own in found} == {each}
    times = Counter(flat(found))
    assert set(times) == set(range(count))
    assert sum(times.values()) == each * size
    if count >= size:
        assert set(times.values()) <= {1, 2}
    if not shuffle:
        assert times == Counter(place % count for place in range(each * size))


@given(counts, sizes, st.sampled_from(MODES), seeds)
def test_ranks_shuffle_alike_and_nothing_else_is_shuffled(count, size, mode, seed):
    """All ranks together read one order. The process' own random numbers go on as they were."""
    count = max(count, size)
    state = random.getstate()
    found = shares(count, size, mode, shuffle=True, seed=seed)
    (order,) = shares(count, 1, mode, shuffle=True, seed=seed)

    assert random.getstate() == state
    assert sorted(order) == list(range(count))
    together = [found[place % size][place // size] for place in range(sum(map(len, found)))]
    assert together == (order + order)[: len(together)]


def test_another_seed_is_another_order_and_the_same_seed_the_same_for_good():
    """Ranks of another machine or another Python draw the same numbers: these are written down."""
    assert shares(10, 1, "even", shuffle=True) == [[7, 8, 1, 5, 3, 4, 2, 0, 9, 6]]
    assert shares(10, 1, "even", shuffle=True, seed=1) != shares(10, 1, "even", shuffle=True)


@given(counts, sizes, st.sampled_from(MODES))
def test_a_stream_is_divided_as_a_list_is(count, size, mode):
    for rank in range(size):
        share = Share(rank, size, mode)
        if mode == "even" and 0 < count < size:
            with pytest.raises(BadRequest, match="too few"):
                list(share.through(iter(range(count))))
        else:
            assert list(share.through(iter(range(count)))) == list(share.of(count))


@given(counts, sizes, st.sampled_from(MODES))
def test_lengths_are_known_before_the_items(count, size, mode):
    count = max(count, size)
    for rank in range(size):
        share = Share(rank, size, mode)
        assert share.length(count) == len(share.of(count))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_all_kinds_match(mode, shuffle):
    """Data and labels that different libraries hold are shuffled alike."""
    count, size = 23, 4
    table = np.arange(2 * count).reshape(count, 2)
    for rank in range(size):
        share = Share(rank, size, mode, shuffle, seed=3)
        rows = list(share.of(count))

        array = share_of(table, share)
        assert array.shape == (len(rows), 2)
        assert array.tolist() == table[rows].tolist()
        frame = share_of(pd.DataFrame({"x": range(count)}, index=[f"row {row}" for row in range(count)]), share)
        assert frame["x"].tolist() == rows
        assert frame.index[0] == f"row {rows[0]}"
        assert share_of(pd.Series(range(100, 100 + count)), share).tolist() == [100 + row for row in rows]
        assert share_of(list(range(count)), share) == rows
        assert share_of(tuple(range(count)), share) == tuple(rows)
        assert list(share_of(range(count), share)) == rows
        columns = share_of({"x": table, "name": [str(row) for row in range(count)]}, share)
        assert columns["x"][:, 0].tolist() == [2 * int(name) for name in columns["name"]] == [2 * row for row in rows]


def test_an_array_that_is_not_shuffled_is_not_copied():
    table = np.zeros((8, 3))
    own = share_of(table, Share(1, 2))

    own[:] = 1
    assert table[:, 0].tolist() == [0, 1] * 4
    assert isinstance(share_of(range(10), Share(1, 2)), range)


def test_an_empty_share_is_empty():
    assert share_of(np.zeros((2, 3)), Share(3, 4, "uneven")).shape == (0, 3)
    assert share_of([], Share(3, 4, "pad")) == []
    assert list(share_of(range(2), Share(3, 4, "uneven"))) == []


class Squares:
    """Has a length and items, and no more."""

    def __len__(self):
        return 10

    def __getitem__(self, place):
        return place * place


class Countdown:
    """Can be iterated over, again and again."""

    def __iter__(self):
        return iter(range(5, 0, -1))


def test_sequences_and_streams_of_any_kind_are_divided():
    squares = share_of(Squares(), Share(1, 3))

    assert len(squares) == 3
    assert list(squares) == [1, 16, 49]
    assert list(squares[1:]) == [16, 49]
    assert squares[-1] == 49
    stream = share_of(Countdown(), Share(1, 2))
    assert [list(stream), list(stream)] == [[4, 2], [4, 2]]
    assert list(share_of((n for n in range(5)), Share(0, 2, "uneven"))) == [0, 2, 4]


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("text", {}, "not str: 'text'"),
        ({1, 2}, {}, r"sorted\(data\)"),
        (3, {}, "cannot divide int"),
        (np.float64(3), {}, "this array has none"),
        ({"x": [1, 2], "y": [1]}, {}, "'x' 2, 'y' 1"),
        ({"x": 3}, {}, "as columns, not int"),
        (iter([1, 2]), {"shuffle": True}, r"shard\(list\(data\), shuffle=True\)"),
        ([1], {}, "mode='pad' repeats some"),
    ],
)
def test_data_that_cannot_be_divided_is_refused_with_the_fix(data, options, words):
    with pytest.raises(BadRequest, match=words):
        share_of(data, Share(0, 2, **options))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, 2), "There is no rank 2 among 2"),
        ((-1, 2), "There is no rank -1"),
        ((0, 0), "There is no rank 0 among 0"),
        ((0, 2, "odd"), "modes 'even', 'pad', 'uneven', not 'odd'"),
        ((0, 2.0), "a whole number as size, not 2.0"),
        ((0, 2, "even", True, "x"), "a whole number as seed, not 'x'"),
    ],
)
def test_a_share_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(BadRequest, match=words):
        Share(*arguments)
