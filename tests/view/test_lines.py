"""Lines of several ranks are merged, in order, and never held for long."""

from __future__ import annotations

import random
import time
from collections import Counter, deque

import pytest

from jupyter_dtrain.view.lines import HOLD, LOOK, REMEMBERED, LineMerger, Merged


def push(merger: LineMerger, rank: int, *lines: str, now: float = 0.0, stream: str = "stdout") -> None:
    for line in lines:
        merger.push(rank, stream, line, now)


def brief(merged: list[Merged]) -> list[tuple[tuple[int, ...], str]]:
    return [(line.ranks, "same" if line.same else line.text) for line in merged]


def test_a_line_that_all_ranks_print_comes_once_and_at_once():
    """The last rank to print a line releases it."""
    merger = LineMerger([0, 1, 2])
    push(merger, 0, "a")
    push(merger, 2, "a")
    assert merger.ready(0.0) == []
    push(merger, 1, "a", now=0.01)
    assert merger.ready(0.01) == [Merged((0, 1, 2), "stdout", "a", same=False)]
    assert merger.deadline() is None


def test_a_line_waits_no_longer_than_the_hold():
    """A silent rank delays a line by HOLD seconds and no more."""
    merger = LineMerger([0, 1])
    push(merger, 0, "a", now=5.0)
    assert merger.deadline() == 5.0 + HOLD
    assert merger.ready(5.0 + HOLD / 2) == []
    assert brief(merger.ready(5.0 + HOLD)) == [((0,), "a")]


def test_the_hold_can_be_longer():
    """The ranks are far from each other."""
    merger = LineMerger([0, 1], hold=3.0)
    push(merger, 0, "a", now=5.0)
    assert merger.deadline() == 8.0
    assert merger.ready(7.9) == []
    push(merger, 1, "a", now=7.9)
    assert brief(merger.ready(7.9)) == [((0, 1), "a")]


def test_one_rank_alone_is_never_held():
    """With no rank to wait for, a line comes out when it goes in."""
    merger = LineMerger([3])
    push(merger, 3, "a", "b")
    assert brief(merger.ready(0.0)) == [((3,), "a"), ((3,), "b")]


def test_idle_ranks_are_not_waited_for():
    """A rank that has ended cannot join."""
    merger = LineMerger([0, 1, 2])
    push(merger, 0, "a")
    push(merger, 1, "a")
    merger.idle(2)
    assert brief(merger.ready(0.0)) == [((0, 1), "a")]


def test_a_rank_that_has_other_lines_waiting_is_not_waited_for():
    """Each rank's own line goes out at once when the others printed something else."""
    merger = LineMerger([0, 1])
    push(merger, 0, "I am 0")
    push(merger, 1, "I am 1")
    assert brief(merger.ready(0.0))[0] == ((0,), "I am 0")
    assert brief(merger.ready(HOLD)) == [((1,), "I am 1")]


def test_lines_before_a_common_line_go_first():
    """Lines of one rank alone do not tear a common line apart."""
    merger = LineMerger([0, 1, 2])
    push(merger, 0, "common")
    push(merger, 1, "warning of 1", "common")
    push(merger, 2, "x of 2", "y of 2", "common")
    assert brief(merger.ready(0.0)) == [
        ((1,), "warning of 1"),
        ((2,), "x of 2"),
        ((2,), "y of 2"),
        ((0, 1, 2), "common"),
    ]


def test_ranks_that_print_the_same_lines_in_opposite_order_make_progress():
    """A cycle of lines that wait for each other is broken."""
    merger = LineMerger([0, 1, 2])
    push(merger, 0, "a", "b", "c")
    push(merger, 1, "b", "c", "a")
    push(merger, 2, "c", "a", "b")
    out = merger.ready(HOLD)
    for rank, order in enumerate(("abc", "bca", "cab")):
        assert "".join(line.text for line in out if rank in line.ranks) == order


def test_a_late_copy_of_the_last_line_is_called_the_same():
    """The text is not repeated when nothing came between."""
    merger = LineMerger([0, 1])
    push(merger, 0, "a")
    merger.ready(HOLD)
    push(merger, 1, "a", now=1.0)
    assert merger.ready(1.0) == [Merged((1,), "stdout", "a", same=True)]


def test_a_late_copy_is_shown_in_full_when_other_lines_came_between():
    """ "Same" must not refer to something further up."""
    merger = LineMerger([0, 1])
    push(merger, 0, "a", "b")
    merger.ready(HOLD)
    push(merger, 1, "a", now=1.0)
    assert brief(merger.ready(1.0)) == [((1,), "a")]


def test_a_rank_that_repeats_its_line_is_not_called_the_same():
    """Two equal lines of one rank are two lines."""
    merger = LineMerger([0, 1])
    push(merger, 0, "a", "a")
    assert brief(merger.ready(HOLD)) == [((0,), "a"), ((0,), "a")]


def test_equal_text_on_different_streams_is_not_merged():
    """Standard error stays apart from standard output."""
    merger = LineMerger([0, 1])
    push(merger, 0, "a")
    push(merger, 1, "a", stream="stderr")
    merger.idle(0)
    merger.idle(1)
    assert [(line.ranks, line.stream) for line in merger.ready(0.0)] == [((0,), "stdout"), ((1,), "stderr")]


def test_a_rank_that_runs_behind_is_not_held():
    """Lines that all others have printed long ago go out at once, every one of them."""
    merger = LineMerger([0, 1, 2])
    for line in "abcdef":
        push(merger, 0, line)
        push(merger, 1, line)
    merger.ready(HOLD)
    for step, line in enumerate("abcdef"):
        now = 10.0 + step
        push(merger, 2, line, now=now)
        assert [merged.ranks for merged in merger.ready(now)] == [(2,)]


def test_ranks_that_are_level_again_wait_for_each_other_again():
    """A rank that printed a line once is not ahead when the line comes the second time."""
    merger = LineMerger([0, 1])
    push(merger, 0, "a")
    merger.ready(HOLD)
    push(merger, 1, "a", now=1.0)
    merger.ready(1.0)
    assert not merger._shown, "nothing needs to be remembered of ranks that are level"
    push(merger, 0, "a", now=2.0)
    assert merger.ready(2.0) == []
    push(merger, 1, "a", now=2.01)
    assert brief(merger.ready(2.01)) == [((0, 1), "a")]


def test_an_output_for_one_rank_alone_is_neither_held_nor_joined():
    """An output that cannot be merged does not wait, but keeps its place."""
    merger = LineMerger([0, 1])
    merger.push(0, "display", "token", 0.0, alone=True)
    assert brief(merger.ready(0.0)) == [((0,), "token")]
    push(merger, 0, "a", now=1.0)
    merger.push(0, "display", "token", 1.0, alone=True)
    assert merger.ready(1.0) == []
    assert [text for _, text in brief(merger.ready(1.0 + HOLD))] == ["a", "token"]


def test_a_common_line_far_down_in_a_queue_is_not_looked_for():
    """Looking ahead is bounded."""
    merger = LineMerger([0, 1])
    push(merger, 0, "common")
    push(merger, 1, *(f"line {n}" for n in range(LOOK)), "common")
    assert brief(merger.ready(0.0))[0] == ((0,), "common")


def test_the_memory_of_lines_is_bounded():
    """A rank that prints a million lines of its own leaves no trace of most of them."""
    merger = LineMerger([0, 1])
    for n in range(3 * REMEMBERED):
        push(merger, 0, f"line {n}")
    merger.ready(HOLD)
    assert len(merger._shown) == REMEMBERED
    assert not merger._near


def test_flush_gives_everything():
    """Nothing stays behind at the end, and what can be joined is."""
    merger = LineMerger([0, 1, 2])
    push(merger, 0, "a", "b")
    push(merger, 1, "a")
    assert brief(merger.flush()) == [((0, 1), "a"), ((0,), "b")]
    assert merger.flush() == []


def test_a_rank_from_elsewhere_is_refused():
    """A mistake of the caller shows at once."""
    with pytest.raises(KeyError):
        LineMerger([0, 1]).push(2, "stdout", "a", 0.0)


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_arrival_loses_doubles_reorders_or_holds_a_line(seed):  # noqa: C901 - one story with its checks
    """Random programs on random ranks at random times: order, completeness, exactness, and the hold."""
    chance = random.Random(seed)  # noqa: S311 - chance, not secrets
    size = chance.randint(1, 6)
    words = [f"w{n}" for n in range(chance.choice([1, 3, 12, 200]))]
    script = [chance.choice(words) for _ in range(chance.randint(5, 150))]
    programs = []
    for _ in range(size):
        own = [line for line in script if chance.random() < 0.9]
        for _ in range(chance.randint(0, 20)):
            own.insert(chance.randint(0, len(own)), chance.choice([*words, f"own {chance.random()}"]))
        programs.append(
            [(chance.choice(["stdout", "stdout", "stderr"]) if seed % 2 else "stdout", line) for line in own]
        )
    left = [deque(program) for program in programs]
    pushed_at: list[deque[float]] = [deque() for _ in range(size)]
    came: list[list[tuple[str, str]]] = [[] for _ in range(size)]
    idle: set[int] = set()
    merger = LineMerger(range(size))
    now = 0.0
    previous: Merged | None = None

    def take(merged: list[Merged], *, due: bool) -> None:
        nonlocal previous
        for line in merged:
            assert list(line.ranks) == sorted(set(line.ranks))
            for rank in line.ranks:
                came[rank].append((line.stream, line.text))
                assert not due or now <= pushed_at[rank][0] + HOLD + 1e-9
                pushed_at[rank].popleft()
            if line.same:
                assert previous is not None
                assert (previous.stream, previous.text) == (line.stream, line.text)
            previous = line

    while any(left):
        until = now + chance.choice([0.0, 0.001, 0.02, 0.1])
        while (deadline := merger.deadline()) is not None and deadline <= until:
            assert deadline >= now
            now = deadline
            out = merger.ready(now)
            assert out, "the deadline came and nothing went out"
            take(out, due=True)
        now = until
        rank = chance.choice([rank for rank in range(size) if left[rank]])
        for _ in range(chance.choice([1, 1, 5, 100])):
            if left[rank]:
                stream, line = left[rank].popleft()
                merger.push(rank, stream, line, now)
                pushed_at[rank].append(now)
        if not left[rank] and chance.random() < 0.5:
            merger.idle(rank)
            idle.add(rank)
        take(merger.ready(now), due=True)
    if len(idle) == size:
        assert not any(pushed_at), "a line was held though every rank has ended"
    take(merger.flush(), due=False)
    assert came == programs
    assert Counter(map(len, pushed_at)) == {0: size}


@pytest.mark.parametrize("alike", [True, False])
def test_the_time_of_many_lines_grows_with_their_number_alone(alike):
    """Processor time, so that other work on the machine counts less; 8 ranks print 400 lines, then 12,500."""
    ranks = 8

    def seconds(lines):
        merger = LineMerger(range(ranks))
        begun = time.process_time()
        count = 0
        for start in range(0, lines, 100):
            for rank in range(ranks):
                for n in range(start, min(start + 100, lines)):
                    merger.push(rank, "stdout", f"line {n}" if alike else f"rank {rank} line {n}", start * 1e-3)
            count += sum(len(line.ranks) for line in merger.ready(start * 1e-3))
        count += sum(len(line.ranks) for line in merger.flush())
        assert count == ranks * lines
        return time.process_time() - begun

    few, many = seconds(400) / 400, seconds(12_500) / 12_500
    print(f"alike={alike}: {few * 1e6:.0f} and {many * 1e6:.0f} microseconds a line")
    assert many < 4 * few
