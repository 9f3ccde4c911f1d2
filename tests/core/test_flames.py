"""Flame graphs as data: what a rank sends, graphs that ranks share, the hottest places, and speedscope's file."""

from __future__ import annotations

import random

import msgspec
import pytest

from jupyter_dtrain.core import flames
from jupyter_dtrain.core.events import Frame
from jupyter_dtrain.core.flames import IDLE, Sampled, SampledStacks, groups, hottest, label, merged, shares, speedscope

LOAD = Frame("cell [3]", 12, "", "for batch in loader:", cell=True)
STEP = Frame("cell [3]", 14, "train", "loss.backward()", cell=True)
FETCH = Frame("/v/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 51, "fetch", "", cell=False)
LATER = msgspec.structs.replace(FETCH, line=52)
ENGINE = Frame("/v/lib/python3.11/site-packages/torch/autograd/graph.py", 825, "run", "", cell=False)


def sampled(*stacks, times=1) -> Sampled:
    """A rank with these stacks."""
    made = SampledStacks()
    for stack in stacks:
        made.add(stack, times)
    return made.collect()


def drawn(seed: int, loading: float, count: int = 500) -> Sampled:
    """A rank that loads for this share of the time, by chance."""
    chance = random.Random(seed)  # noqa: S311 — no secret
    return sampled(*([LOAD, FETCH] if chance.random() < loading else [STEP, ENGINE] for _ in range(count)))


def test_samples_are_a_tree_and_come_back():
    one = sampled([LOAD, FETCH], [LOAD, FETCH], [LOAD, LATER], [], [STEP, ENGINE])

    assert [(one.stack(node), times) for node, times in one.samples] == [
        ([LOAD, FETCH], 2),
        ([LOAD, LATER], 1),
        ([IDLE], 1),
        ([STEP, ENGINE], 1),
    ]
    assert one.count == 5
    assert len(one.frames) == 5
    assert msgspec.convert(msgspec.to_builtins(one), Sampled) == one


def test_what_a_rank_sends_is_bounded(monkeypatch):
    """Deep recursion, and stacks that are all different: the samples end at a call that is known."""
    monkeypatch.setattr(flames, "MAX_NODES", 50)
    monkeypatch.setattr(flames, "MAX_DEPTH", 7)
    chance = random.Random(1)  # noqa: S311 — no secret
    one = sampled(*([Frame("f.py", chance.randrange(9), "f", "", cell=False) for _ in range(30)] for _ in range(99)))

    assert one.count == 99
    assert len(one.parents) == 50
    assert max(len(one.stack(node)) for node, _ in one.samples) == 7


def test_a_shared_graph_is_the_mean_of_ranks():
    """Each rank counts alike, whatever the number of its samples; the lines of a library's function are one call."""
    root = merged([sampled([LOAD, FETCH], [LOAD, LATER], [LOAD], []), sampled([STEP, ENGINE], times=100), Sampled()])

    assert root.share == pytest.approx(1)
    assert {frame: branch.share for frame, branch in root.below.items()} == pytest.approx(
        {LOAD: 3 / 8, IDLE: 1 / 8, STEP: 1 / 2}
    )
    assert {frame: branch.share for frame, branch in root.below[LOAD].below.items()} == pytest.approx(
        {msgspec.structs.replace(FETCH, line=0): 1 / 4}
    )


def test_short_calls_are_not_told_apart():
    """Together they are as long as they were."""
    lines = [Frame("cell [1]", line, "", "", cell=True) for line in range(1000)]
    root = merged([sampled(*([line] for line in lines), *[[STEP]] * 1000)])

    assert list(root.below) == [STEP]
    assert (root.below[STEP].share, root.narrow) == pytest.approx((0.5, 0.5))


def test_a_place_is_a_line_of_a_cell_and_the_function_below():
    assert shares(sampled([LOAD, FETCH], [LOAD, LATER], [LOAD], [])) == {
        (LOAD, msgspec.structs.replace(FETCH, line=0)): 1 / 2,
        (LOAD, LOAD): 1 / 4,
        (IDLE, IDLE): 1 / 4,
    }


@pytest.mark.parametrize("count", [50, 500, 5000])
def test_ranks_that_differ_by_chance_are_one_group(count):
    assert groups({rank: drawn(rank, 0.3, count) for rank in range(64)}) == [list(range(64))]


@pytest.mark.parametrize("count", [50, 500])
def test_a_slow_rank_is_a_group_of_its_own(count):
    ranks = {rank: drawn(rank, 0.9 if rank in (3, 17) else 0.3, count) for rank in range(64)}

    assert groups(ranks) == [[rank for rank in range(64) if rank not in (3, 17)], [3, 17]]


def test_there_are_few_groups_and_each_rank_with_samples_is_in_one():
    lines = [Frame("cell [1]", line, "", "", cell=True) for line in range(40)]
    found = groups({rank: sampled([line], times=100) for rank, line in enumerate(lines)} | {40: Sampled(words="dead")})

    assert len(found) == flames.MOST_GROUPS
    assert sorted(rank for members in found for rank in members) == list(range(40))


def test_the_hottest_places_come_first():
    """By the rank that is longest there."""
    ranks = {0: sampled([STEP], [STEP], [LOAD], [LOAD]), 1: sampled([LOAD], [LOAD], [LOAD], []), 2: Sampled()}

    assert hottest(ranks, 2) == [((LOAD, LOAD), {0: 0.5, 1: 0.75}), ((STEP, STEP), {0: 0.5, 1: 0.0})]


def test_speedscopes_file():
    data = speedscope({0: sampled([LOAD, FETCH], [], times=50), 2: sampled([LOAD, FETCH]), 3: Sampled()}, "flame-7")

    names = [frame["name"] for frame in data["shared"]["frames"]]
    assert names == ["cell [3], line 12: for batch in loader:", "fetch", "idle"]
    assert [(one["name"], one["samples"], one["weights"]) for one in data["profiles"]] == [
        ("rank 0", [[0, 1], [2]], [0.5, 0.5]),
        ("rank 2", [[0, 1]], [0.01]),
    ]


def test_labels():
    assert label(STEP) == "cell [3], line 14 in train: loss.backward()"
    assert label(FETCH) == "fetch (torch/utils/data/_utils/fetch.py)"
    assert label(Frame("/home/me/model.py", 3, "", "", cell=False)) == "model.py"
    assert label(IDLE) == "idle"
