"""Cells that do not wait: in order on each rank, at the same time on different ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_dtrain import DistributedInterrupt, RanksBusy
from tests.session.cells import begin, run, same, until


def wait_for(path) -> str:
    return f"import pathlib, time\nwhile not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)"


def later(session, code, ranks=None, **options):
    return session.run(code, ranks, wait=False, view=None, **options)


def test_queued_cells_run_in_the_order_in_which_they_came(world):
    """Ten of them, and one that waits behind all."""
    run(world, "order = []")
    cells = [later(world, f"order.append({k})") for k in range(10)]
    run(world, "order.append('last')")

    assert ["ok"] * 10 == [cell.outcome for cell in cells]
    assert same([*range(10), "last"]) == world["order"]


def test_a_queued_cell_is_running_until_its_turn_has_come(world, meeting):
    """It has printed nothing, and its rank counts as busy."""
    first = begin(world, wait_for(meeting / "go"), ranks=0)
    second = later(world, "print('second')", ranks="0-1")
    before = (second.outcome, second.done, second.text(1), world.world.ranks[1].state)
    (meeting / "go").touch()

    assert first.wait(20)
    assert second.wait(20)
    assert ("running", False, "", "running") == before
    assert {0: "second\n", 1: "second\n"} == {rank: second.text(rank) for rank in (0, 1)}


def test_cells_on_different_ranks_run_at_the_same_time(world, meeting):
    """Each waits for what the other makes."""
    one, two = meeting / "one", meeting / "two"
    first = later(world, f"{wait_for(two)}\npathlib.Path({str(one)!r}).touch()", ranks=0)
    second = later(world, f"import pathlib\npathlib.Path({str(two)!r}).touch()\n{wait_for(one)}", ranks="1-2")

    assert first.wait(20)
    assert second.wait(20)
    assert ("ok", "ok") == (first.outcome, second.outcome)


def test_a_cell_does_not_overtake_one_that_waits_for_its_rank(world, meeting):
    """Rank 1 is free, but an earlier cell for ranks 0 and 1 has not run yet."""
    run(world, "order = []")
    first = begin(world, wait_for(meeting / "go"), ranks=0)
    second = later(world, "order.append('second')", ranks="0-1")
    third = later(world, "order.append('third')", ranks=1)
    free = later(world, "order.append('free')", ranks=2)

    assert free.wait(20)
    assert (False, False) == (second.done, third.done)
    (meeting / "go").touch()
    assert first.wait(20)
    assert third.wait(20)
    assert {0: ["second"], 1: ["second", "third"], 2: ["free"]} == world["order"]


def test_a_cell_queued_behind_a_failure_is_not_sent(world, meeting):
    """It ends with the reason; a cell on other ranks is not concerned."""
    run(world, "ran = 0")
    first = begin(world, f"{wait_for(meeting / 'go')}\n1 / 0", ranks=0)
    second = later(world, "ran = 1", ranks="0-1")
    third = later(world, "ran = 2", ranks=1)
    free = later(world, "ran = 3", ranks=2)
    (meeting / "go").touch()

    for cell in (first, second, third, free):
        assert cell.wait(20)
    assert ("error", "interrupted", "interrupted", "ok") == tuple(c.outcome for c in (first, second, third, free))
    assert f"run {first.number}, which it was queued behind, ended with: error" in second.not_sent
    assert {0: 0, 1: 0, 2: 3} == world["ran"]


def test_a_queued_cell_makes_its_ranks_busy_at_once(world):
    """They are busy once run() has returned: no cell may be sent behind it."""
    for _ in range(50):
        cell = later(world, "import time; time.sleep(0.01)")
        with pytest.raises(RanksBusy, match=f"ranks 0-2 are still working on run {cell.number}"):
            world.push({"behind": 1})
        assert cell.wait(20)


def test_the_ranks_take_the_next_cell_after_a_failure(world):
    """Only queued cells are dropped."""
    cell = later(world, "1 / 0")

    assert cell.wait(20)
    assert run(world, "1").outcome == "ok"


def test_a_cell_that_waits_raises_what_the_queue_before_it_did(world, meeting):
    """A blocking cell behind a failed one fails, too: it was not sent."""
    first = begin(world, f"{wait_for(meeting / 'go')}\nraise ValueError('first')")

    def let_go() -> None:
        until(lambda: len(world.running) == 2)
        (meeting / "go").touch()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(let_go)
        with pytest.raises(DistributedInterrupt, match="queued behind"):
            run(world, "never = 1")
    assert first.wait(20)

    with pytest.raises(Exception, match="'never' is not defined"):
        world.pull("never")
