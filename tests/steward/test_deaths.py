"""A part of a world is killed: some parts go on, others end, and clients hear of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import Run, Session, Settings, WorldLost
from jupyter_dtrain.core.events import Finished
from jupyter_dtrain.wire.spool import read_file, spool_path
from tests.processes import wait_until_gone
from tests.steward.until import PATIENCE, child_named, family, runs, state_of, steward_of, until, watch_of, zombies


def sleep_everywhere(session: Session) -> Run:
    """A cell that does not end by itself, once every rank is in it."""
    run = session.run("import time; time.sleep(60)", wait=False, view=None)
    until(lambda: sorted(run.logs) == run.ranks)
    return run


def ask_to_end(session: Session, run: Run, rank: int) -> None:
    """Send SIGTERM until the run knows it, as a watch does: one that falls just before a blocking call ends nothing."""
    process = psutil.Process(session.world.ranks[rank].pid)

    def known() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
        run.wait(0.2)
        return bool(run.lost)

    until(known)


def test_a_steward_that_is_killed_takes_everything_along(launch, mark) -> None:
    """SIGKILL: no process is left, the running cell ends as lost at once, and further calls say what is the case."""
    session = launch(n=2, settings=Settings(request_timeout=60))
    run = sleep_everywhere(session)
    steward_of(session).kill()
    ended = run.wait(session.settings.request_timeout / 2)

    assert ended
    assert run.outcomes == {0: "lost", 1: "lost"}
    assert wait_until_gone(mark) == []
    assert not Path(session.request.folder).exists()
    with pytest.raises(WorldLost, match=r"its main process has ended.*%distributed start"):
        session.run("1", view=None)
    with pytest.raises(WorldLost):
        session.pull("x")
    with pytest.raises(WorldLost):
        session.restart()


def test_the_first_request_to_a_killed_steward_says_that_it_has_ended(launch) -> None:
    """A request before the loss was noticed gets the same answer as a later one, and at once."""
    session = launch(n=1, settings=Settings(request_timeout=60))
    steward_of(session).kill()
    with pytest.raises(WorldLost, match=r"its main process has ended.*%distributed start"):
        session.restart()

    assert session.closed


def test_ranks_that_were_ordered_to_end_are_not_the_news(launch) -> None:
    """The steward may report the cause after the ranks have ended; the cell names it."""
    session = launch(n=2)
    run = sleep_everywhere(session)
    steward = steward_of(session)
    steward.suspend()
    ranks = [psutil.Process(rank.pid) for rank in session.world.ranks]
    for rank in ranks:
        rank.terminate()
    # The client may never get a rank's last words: the steward, which would send them again, is suspended.
    gone, _ = psutil.wait_procs(ranks, PATIENCE)
    steward.kill()
    ended = run.wait(8)

    assert len(gone) == len(ranks)
    assert ended
    assert run.lost == {rank: f"rank {rank} is lost: its main process has ended" for rank in run.ranks}


def test_the_wait_for_the_reason_of_an_end_is_short(launch) -> None:
    """A steward that hangs will not report it; and Stop does not make it last as long as a cell that goes on."""
    session = launch(n=1, settings=Settings(interrupt_timeout=60))
    run = sleep_everywhere(session)
    steward = steward_of(session)
    steward.suspend()
    try:
        ask_to_end(session, run, 0)
        session.interrupt()
        ended = run.wait(20)
    finally:
        steward.resume()

    assert ended
    assert run.lost == {0: "rank 0 received SIGTERM"}


def test_when_a_cell_ends_because_a_rank_was_told_to_end_the_rank_is_known_to_be_dead(launch) -> None:
    """A client that looks then, or sends the next cell, gets the reason."""
    session = launch(n=2)
    run = session.run("import time; time.sleep(60)", 1, wait=False, view=None)
    until(lambda: run.logs)
    ask_to_end(session, run, 1)
    ended = run.wait(8)
    dead = [rank.rank for rank in session.world.dead]

    assert ended
    assert run.lost == {1: "rank 1 received SIGTERM"}
    assert dead == [1]


def test_a_rank_that_has_lost_its_place_in_mpi_says_so_itself(launch) -> None:
    """The watch asks it to end, and leaves it the reason; the notebook and the store read the rank's own words."""
    session = launch(n=2)
    run = session.run("import time; time.sleep(60)", 1, wait=False, view=None)
    until(lambda: run.logs)
    holders = [process for process in family(session) if "slot_holder" in " ".join(process.cmdline())]
    (holder,) = [process for process in holders if process.environ().get("OMPI_COMM_WORLD_RANK") == "1"]
    holder.kill()
    ended = run.wait(8)
    events = read_file(spool_path(session.request.spool, run.number, 1))

    assert ended
    assert run.lost == {1: "rank 1 was killed (SIGTERM), mpiexec has ended its place in MPI"}
    assert [event.body.words for event in events if isinstance(event.body, Finished)] == [run.lost[1]]


def test_a_session_can_be_stopped_after_its_steward_was_killed(launch, mark) -> None:
    """stop then only tidies up; it does not wait (here a minute) for an answer that cannot come."""
    session = launch(n=1, settings=Settings(request_timeout=60))
    steward = steward_of(session)
    steward.kill()
    until(lambda: not runs(steward))
    began = time.monotonic()
    session.stop()
    took = time.monotonic() - began

    assert took < session.settings.request_timeout / 2
    assert session.closed
    assert wait_until_gone(mark) == []


def test_a_steward_that_is_asked_to_end_ends_the_world_in_order(launch, mark) -> None:
    """SIGTERM: neither process nor folder is left, and the session knows why."""
    session = launch(n=2)
    run = sleep_everywhere(session)
    steward_of(session).terminate()
    ended = run.wait(8)

    assert ended
    assert run.outcomes == {0: "lost", 1: "lost"}
    assert wait_until_gone(mark) == []
    assert not Path(session.request.folder).exists()
    with pytest.raises(WorldLost, match="its main process was asked to end"):
        session.run("1", view=None)


def test_ranks_outlive_their_mpiexec(launch, mark) -> None:
    """mpiexec is killed: cells go on and run, the ends of ranks are still reported in full, stop leaves nothing."""
    session = launch(n=3)
    run = session.run("import time; time.sleep(1); 'slept'", wait=False, view=None)
    child_named(session, "prterun").kill()
    until(lambda: not state_of(session).healable)
    run.wait(20)
    again = session.run("6 * 7", view=None)
    last = sleep_everywhere(session)
    os.kill(session.world.ranks[1].pid, signal.SIGKILL)
    until(lambda: last.outcomes.get(1) == "lost")
    until(lambda: zombies(session) == [])
    states = [rank.state for rank in session.world.ranks]
    words = session.world.ranks[1].words
    watch_of(session, 2).kill()
    until(lambda: last.outcomes.get(2) == "lost")

    assert (run.outcome, again.outcome) == ("ok", "ok")
    assert states == ["running", "dead", "running"]
    assert words.startswith("rank 1 was killed (SIGKILL)")
    assert session.world.ranks[2].words == "rank 2 ended for an unknown reason: its parent process is gone"
    session.stop()
    assert wait_until_gone(mark) == []


def test_ranks_do_not_outlive_an_mpiexec_that_was_asked_to_end(launch, mark) -> None:
    """SIGTERM: it ends the slots and then itself, and only afterwards, here once the watch moves, the ranks end."""
    session = launch(n=2)
    watch = watch_of(session, 0)
    watch.suspend()
    try:
        child_named(session, "prterun").terminate()
        until(lambda: state_of(session).notices)
        still = [runs(rank.pid) for rank in session.world.ranks]
    finally:
        watch.resume()
    [notice] = state_of(session).notices
    until(lambda: [rank.state for rank in session.world.ranks] == ["dead", "dead"])
    session.stop()

    assert still == [True, True]
    assert "so have all ranks: another process may have sent it SIGTERM or SIGINT. %distributed restart" in notice
    assert wait_until_gone(mark) == []


def test_ranks_that_die_together_with_much_to_say_are_all_reported(launch, mark) -> None:
    """Each report is tens of kilobytes, and one pipe carries them: none is torn."""
    session = launch(n=4)
    code = "import os, signal; os.write(1, b'last words\\n' * 5000); os.kill(os.getpid(), signal.SIGKILL)"
    run = session.run(code, wait=False, view=None)
    ended = run.wait(20)
    said = [rank.words for rank in session.world.ranks]
    session.stop()

    assert ended
    assert run.outcomes == dict.fromkeys(range(4), "lost")
    assert all(words.startswith(f"rank {rank} was killed (SIGKILL)") for rank, words in enumerate(said))
    assert wait_until_gone(mark) == []
