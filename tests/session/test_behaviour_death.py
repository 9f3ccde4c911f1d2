"""A rank that dies is named; the others keep what they have."""

from __future__ import annotations

import pytest

from jupyter_dtrain import DistributedError, RanksDead
from tests.session.cells import pids, run, same, until, values

DIE = """
import os, signal, ctypes
print('last words', flush=True)
os.write(2, b'native words\\n')
if int(os.environ['RANK']) == {victim}:
    {how}
"""

DEATHS = {
    "SIGKILL of rank 0": (0, "os.kill(os.getpid(), signal.SIGKILL)", "was killed (SIGKILL), often out of memory"),
    "SIGABRT": (2, "os.abort()", "crashed (SIGABRT), native code aborted"),
}


@pytest.mark.parametrize(("victim", "how", "words"), DEATHS.values(), ids=DEATHS)
def test_a_rank_that_dies_is_named_and_the_others_live(launch, victim, how, words):
    """The words name it, with its last output; the living ranks keep pid and variables, and take cells."""
    session = launch(n=3)
    others = [rank for rank in range(3) if rank != victim]
    run(session, "import os\nmine = [os.environ['RANK']]")
    before = pids(session)

    with pytest.raises(DistributedError) as caught:
        run(session, DIE.format(victim=victim, how=how))
    cell = caught.value.run

    assert f"rank {victim} {words}" in str(caught.value)
    assert [victim] == caught.value.ranks
    assert cell.outcome == "lost"
    assert dict.fromkeys(others, "ok") | {victim: "lost"} == cell.outcomes
    assert cell.text(victim, "stdout") == "last words\n"
    assert "native words\n" in cell.text(victim, "stderr")

    with pytest.raises(RanksDead) as refused:
        run(session, "touched = 1")
    assert f"ank {victim} {words}" in str(refused.value)
    assert "%distributed restart" in str(refused.value)
    assert f"-r {','.join(map(str, others))}" in str(refused.value)
    with pytest.raises(RanksDead):
        session.push({"touched": 1})

    assert {rank: [str(rank)] for rank in others} == session.pull("mine", ranks=others)
    assert {rank: before[rank] for rank in others} == values(run(session, "os.getpid()", ranks=others))
    dead = session.world.ranks[victim]
    assert ("dead", True) == (dead.state, words in dead.words)
    assert [victim] == [rank.rank for rank in session.world.dead]
    session.stop()


@pytest.mark.parametrize(
    "alone",
    [pytest.param(False, id="of three"), pytest.param(True, id="the only one", marks=pytest.mark.slow)],
)
def test_restart_makes_a_broken_world_whole(launch, alone):
    """All processes are new, variables are gone, run numbers go on."""
    session = launch(n=1 if alone else 3)
    size = session.world.size
    run(session, "gone = 1")
    before = pids(session)
    with pytest.raises(DistributedError, match="SIGKILL"):
        run(session, "import os; os.kill(os.getpid(), 9)", ranks=-1)
    number = session.last_run.number
    session.restart()

    assert not before.items() & pids(session).items()
    assert same(False, size) == values(run(session, "'gone' in globals()"))
    assert session.last_run.number == number + 1
    assert ["idle"] * size == [rank.state for rank in session.world.ranks]
    session.stop()


def test_a_rank_that_dies_between_cells_is_noticed(launch):
    """Its watch notices; the next cell on all ranks is refused, with the reason."""
    session = launch(n=2)
    run(session, "import os, threading\nthreading.Timer(0.1, os.kill, (os.getpid(), 9)).start()", ranks=1)
    until(lambda: session.world.dead)

    with pytest.raises(RanksDead, match=r"Rank 1 was killed \(SIGKILL\)"):
        run(session, "1")
    assert {0: 1} == values(run(session, "1", ranks=0))
    session.stop()


@pytest.mark.slow
def test_a_restart_ends_what_runs(launch):
    """The cell is lost, with the reason, and the fresh ranks take the next."""
    session = launch(n=2)
    cell = session.run("import time; time.sleep(1000)", wait=False, view=None)
    queued = session.run("1", wait=False, view=None)
    session.restart()

    assert cell.wait(20)
    assert queued.wait(20)
    assert cell.outcome == "lost"
    assert "its world was restarted" in cell.lost[0]
    assert queued.outcome != "ok"
    assert same(2, 2) == values(run(session, "1 + 1"))
    session.stop()


def test_a_cell_goes_on_elsewhere_when_one_rank_dies(launch, meeting):
    """The run ends when the living have ended, not before."""
    session = launch(n=2)
    go = meeting / "go"
    cell = session.run(
        f"import os, pathlib, time\nif os.environ['RANK'] == '0': os.kill(os.getpid(), 9)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n'through'",
        wait=False,
        view=None,
    )
    until(lambda: cell.lost)
    running = cell.outcome
    go.touch()

    assert cell.wait(20)
    assert ("running", "lost") == (running, cell.outcome)
    assert {1: "through"} == values(cell)
    session.stop()


FLOOD = """
import ctypes, os
libc = ctypes.PyDLL(None)
piece = b'x' * ((1 << 20) - 1) + b'\\n'
for _ in range(4):
    libc.write(2, piece, len(piece))
"""


def test_native_code_may_print_while_it_holds_the_interpreter_lock(launch):
    """The text is more than the pipe takes: no rank hangs, no text is lost, and a rank's death is reported."""
    with launch(n=2) as session:
        assert 4 << 20 == len(run(session, FLOOD).text(1, "stderr"))

        die = "libc.write(2, b'the reason', 10)\nif int(os.environ['RANK']): libc.abort()"
        with pytest.raises(DistributedError) as caught:
            run(session, f"{FLOOD}{die}")
        text = caught.value.run.text(1, "stderr")
        assert "the reason" in text
        assert ("are missing" in text) or text.count("x") == 4 * ((1 << 20) - 1)
