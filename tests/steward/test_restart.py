"""Fresh ranks for the same world."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from jupyter_dtrain import NoWorld, RanksDead, Refused
from jupyter_dtrain.wire.steward_messages import Restart
from tests.processes import wait_until_gone
from tests.steward.until import child_named, runs, state_of, until


def pids(session) -> list[int]:
    """The ranks' processes."""
    return [rank.pid for rank in session.world.ranks]


@pytest.mark.slow
def test_a_restart_brings_fresh_ranks_every_time(launch, mark) -> None:
    """Twice in a row, the first time under a running cell, the second time after a rank has died."""
    session = launch(n=2)
    session.run("x = 1", view=None)
    first, generation = pids(session), session._link.world.generation
    run = session.run("import time; time.sleep(60)", wait=False, view=None)
    until(lambda: sorted(run.logs) == run.ranks)
    session.restart()
    lost = run.wait(0)
    second = pids(session)
    advanced = session._link.world.generation
    after = session.run("'x' in globals()", view=None)
    os.kill(second[1], signal.SIGKILL)
    until(lambda: session.world.dead)
    with pytest.raises(RanksDead, match="%distributed restart"):
        session.run("1", view=None)
    session.restart()
    third = pids(session)
    again = session.run("1", view=None)
    session.stop()

    assert lost
    assert run.outcomes == {0: "lost", 1: "lost"}
    assert len({*first, *second, *third}) == 6
    assert not any(map(runs, [*first, *second]))
    assert advanced > generation
    assert again.number > after.number > run.number
    assert after.results[0].data["text/plain"] == "False"
    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.slow
def test_a_restart_right_after_another_and_after_mpiexec_was_killed(launch, mark) -> None:
    """No cell between; and a world that could not be healed is whole again."""
    session = launch(n=2)
    child_named(session, "prterun").kill()
    until(lambda: not state_of(session).healable)
    session.restart()
    session.restart()
    state = state_of(session)
    outcome = session.run("1", view=None).outcome
    session.stop()

    assert (state.healable, state.incarnation) == (True, 2)
    assert outcome == "ok"
    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.slow
def test_a_restart_keeps_the_address_at_which_ranks_meet(launch, mark) -> None:
    """A MASTER_PORT that the user named, and on which a process group was set up, can be listened on again."""
    pytest.importorskip("torch", reason="torch, which listens there, is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    setup = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()"
    session = launch(n=2, env={"MASTER_PORT": str(port)})
    session.run(setup, view=None)
    session.restart()
    outcome = session.run(f"import os; assert os.environ['MASTER_PORT'] == '{port}'; {setup}", view=None).outcome
    session.stop()

    assert outcome == "ok"
    assert wait_until_gone(mark, patience=0) == []


def test_a_world_that_was_stopped_cannot_be_restarted(launch) -> None:
    """It is neither restarted nor stopped again."""
    session = launch(n=1)
    session.stop()

    with pytest.raises(NoWorld, match="was stopped"):
        session.restart()
    with pytest.raises(NoWorld, match="was stopped before"):
        session.stop()


def test_a_restart_is_refused_while_another_is_under_way(launch) -> None:
    """A second client may request one at that moment."""
    session = launch(n=1)
    before = state_of(session).incarnation
    me = session._link.me
    first = session._link.ask(Restart(me.id, me.words)).incarnation
    with pytest.raises(Refused, match="The world is starting"):
        session._link.ask(Restart(me.id, me.words))
    until(lambda: state_of(session).phase == "running")
    session.stop()

    assert first == before + 1
