"""The steps of an interrupt that is not enough, and what ends a rank in the end."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

from jupyter_dtrain import BadRequest, DistributedInterrupt, RanksBusy, RanksDead, Settings
from tests.pace import slack
from tests.session.cells import Notes, begin, fail, pids, run, same, until, values

SWALLOWS = """
import time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    try:
        time.sleep(0.05)
    except {what}:
        pass
"""
STUBBORN = SWALLOWS.format(seconds=60, what="KeyboardInterrupt")
DEAF = SWALLOWS.format(seconds=60, what="BaseException")


@pytest.fixture(scope="module")
def quick_world(launch):
    """Three ranks on which the steps follow each other fast."""
    with launch(n=3, settings=Settings(interrupt_release=0.3, interrupt_raise=0.6, interrupt_timeout=2)) as session:
        yield session


@pytest.fixture
def quick(quick_world):
    """The same, whole again for each test."""
    if quick_world.world.dead or quick_world._scheduler.left_behind():
        quick_world.restart()
    return quick_world


def begun(session, code, ranks=None):
    """A run that has begun on every rank, and its notes."""
    notes = Notes()
    cell = session.run(f"print('begun', flush=True)\n{code}", ranks, wait=False, view=notes)
    until(lambda: all(totals.bytes for totals in cell.totals.values()))
    return cell, notes


def test_a_cell_that_swallows_the_interrupt_is_ended(world):
    """The exception comes after 5 s; notes report each step as it happens. Variables stay."""
    before = pids(world)
    run(world, "kept = 7")
    cell, notes = begun(world, STUBBORN)
    world.interrupt()

    until(lambda: notes.words)
    assert not cell.done
    assert (
        "Ranks 0-2 are still running 1 s after the interrupt. The world now releases ranks that wait for others."
        == notes.words[0]
    )
    assert cell.wait(20)
    assert ("interrupted", []) == (cell.outcome, cell.busy)
    assert {"CellStopped"} == {error.ename for error in cell.errors.values()}
    assert cell.elapsed < world.settings.interrupt_timeout + slack()
    said = notes.words[1]
    # On a full machine the ranks may not say within half a second where they are.
    if not re.fullmatch(r"Ranks 0-2 are .* \d+ s after the interrupt\. An exception is raised in the cell\.", said):
        assert 2 == len(notes.words)
        assert said.startswith(
            "Ranks 0-2 are still running 5 s after the interrupt. An exception is raised in the cell"
        )
        assert "time.sleep(0.05)" in said
    assert before == pids(world)
    assert same(7) == world["kept"]


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nwhile True:\n    try: await asyncio.sleep(1000)\n    except KeyboardInterrupt: pass",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import subprocess\nwhile True:\n    try: subprocess.run(['sleep', '60'])\n    except KeyboardInterrupt: pass",
    ],
)
def test_whatever_swallows_it(quick, code):
    """An await, a handler of the cell's own, a child."""
    cell, _ = begun(quick, code)
    quick.interrupt()
    assert cell.wait(20)
    assert ("interrupted", []) == (cell.outcome, cell.busy)
    assert same(2) == values(run(quick, "1 + 1"))


def test_nothing_is_noted_of_a_cell_that_ends_at_once(world):
    """It was interrupted, and that is all."""
    cell, notes = begun(world, "import time; time.sleep(1000)")
    world.interrupt()
    assert cell.wait(20)
    assert [] == notes.words


def test_a_rank_that_nothing_ends_is_named_and_killed(quick):
    """The cell ends without it; %distributed kill ends it, and the others keep everything."""
    before = pids(quick)
    run(quick, "kept = object(); kept_id = id(kept)")
    cell, notes = begun(quick, f"if __import__('os').environ['RANK'] == '1':{DEAF.replace(chr(10), chr(10) + '    ')}")
    quick.interrupt()
    assert cell.wait(20)
    assert ("interrupted", [1]) == (cell.outcome, cell.busy)
    assert any("Rank 1 is still running" in words and "An exception is raised" in words for words in notes.words)
    with pytest.raises(RanksBusy, match=r"%distributed kill 1\."):
        run(quick, "1")

    with pytest.raises(BadRequest):
        quick.kill(None)
    quick.kill(1)
    assert [1] == [rank.rank for rank in quick.world.dead]
    assert "rank 1 was killed (SIGKILL), by %distributed kill" == quick.world.ranks[1].words
    with pytest.raises(RanksDead, match="by %distributed kill"):
        run(quick, "1")
    assert {0: True, 2: True} == values(run(quick, "id(kept) == kept_id", ranks="0,2"))
    after = pids(quick)
    assert [before[0], before[2]] == [after[0], after[2]]


@pytest.mark.slow
def test_force_kills_what_has_not_ended(quick):
    """A note says so; the cell is over then."""
    cell, notes = begun(quick, f"if __import__('os').environ['RANK'] == '0':{DEAF.replace(chr(10), chr(10) + '    ')}")
    quick.interrupt(force=True)
    assert cell.wait(20)
    assert ("interrupted", []) == (cell.outcome, cell.busy)
    assert {0: "rank 0 was killed (SIGKILL), since an interrupt with --force did not end it"} == cell.lost
    assert notes.words[-1].endswith("as --force asks.")
    assert {1: 2, 2: 2} == values(run(quick, "2", ranks="1-2"))


def test_a_rank_that_dies_by_itself_does_not_count_as_killed_by_us(quick):
    """The request may have come too late."""
    cell = fail(quick, "import os\nif os.environ['RANK'] == '2': os.abort()")
    assert "rank 2 crashed (SIGABRT), native code aborted: its last message is in the output above" == cell.lost[2]
    with pytest.raises(RanksDead):
        quick.kill(2)


@pytest.mark.parametrize(
    ("presses", "code", "busy"), [(2, STUBBORN, []), pytest.param(3, DEAF, [0], marks=pytest.mark.slow)]
)
def test_more_presses_skip_ahead(world, presses, code, busy):
    """The second goes on to the exception, the third ends the waiting."""

    def press() -> None:
        until(lambda: (one := world.last_run) and one.source == code and all(t.bytes for t in one.totals.values()))
        (submitted,) = world._scheduler._runs.open
        taken = [
            lambda: submitted._interruption,
            lambda: submitted._interruption._hurried,
            lambda: submitted.run.done,
        ]
        for is_taken in taken[:presses]:  # two signals at once would be one press
            os.kill(os.getpid(), signal.SIGINT)
            until(is_taken)

    code = f"print('begun', flush=True){code.replace('60', '4')}"
    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(DistributedInterrupt) as caught:
        run(world, code, ranks=0)
    presser.join()

    assert busy == caught.value.busy
    assert caught.value.run.elapsed < world.settings.interrupt_raise + slack()
    until(lambda: world.world.ranks[0].state == "idle")
    assert same(5) == values(run(world, "5"))


@pytest.mark.slow
def test_a_rank_that_was_left_behind_does_not_disturb_the_others(quick, meeting):
    """Native code keeps the interpreter lock: the rank answers no question, and the others go on meanwhile."""
    pytest.importorskip("torch", reason="torch, in whose groups the others go on, is not installed")
    run(quick, "import ctypes, os, pathlib, socket, time\nimport torch, torch.distributed as dist")
    go = meeting / "go"
    port = values(run(quick, "s = socket.create_server(('127.0.0.1', 0)); s.getsockname()[1]", 0))[0]
    waits = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    cell = begin(quick, f"{waits}if os.environ['RANK'] == '2': ctypes.PyDLL(None).sleep(6)")
    go.touch()
    until(lambda: (stack := quick.stacks([2], timeout=0.2)[2]) and stack.state == "native")
    quick.interrupt()
    assert cell.wait(20)
    assert [2] == cell.busy
    together = f"""
if os.environ['RANK'] == '0': s.close()
rank = int(os.environ['RANK'])
store = dist.TCPStore('127.0.0.1', {port}, 2, rank == 0)
dist.init_process_group(store=store, rank=rank, world_size=2)
for _ in range(150):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01)
"""
    assert "ok" == run(quick, together, ranks="0-1").outcome
    assert quick.world.ranks[2].state == "running"
    until(lambda: quick.world.ranks[2].state == "idle")
    assert same(2) == values(run(quick, "2"))
