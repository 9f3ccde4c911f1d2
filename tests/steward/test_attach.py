"""A world outlives the client that started it, and another one joins: everything is there, and one of them drives."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from jupyter_dtrain import BadRequest, DistributedError, NoWorld, RanksBusy, ReadOnly, Session, WorldLost
from jupyter_dtrain.launch.worlds import find_world, interrupt_world, open_channel
from jupyter_dtrain.wire.steward_messages import InterruptRun, ReadState
from tests.processes import wait_until_gone
from tests.session.cells import Notes, until
from tests.steward.until import state_of

START = """
import os, time
from mpi4py import MPI
import jupyter_dtrain
rank = int(os.environ["RANK"])
kept = object()
kept_id = id(kept)
"""

FIRST = """
from jupyter_dtrain import Session, Settings
import time
if {own}:
    session = Session.start(n=3, name="own", settings=Settings(keep_alive=3))
    session.run({start!r}, view=None)
else:
    session = Session.attach("left", control=True)
for ranks in {ranks!r}:
    session.run({code!r}, ranks, wait=False, view=None)
    while not all(totals.bytes for totals in session.last_run.totals.values()):
        time.sleep(0.01)
print("begun", flush=True)
time.sleep(1000)
"""

LONG = """
for step in range({steps}):
    print("line", step, flush=True)
    jupyter_dtrain.log(x=step)
    time.sleep(0.02)
rank * 10
"""


@pytest.fixture(scope="module")
def left(launch) -> Iterator[Session]:
    """A world of three ranks, which clients drive one after the other."""
    session = launch(n=3, name="left")
    session.run(START, view=None)
    yield session
    session.stop()


@pytest.fixture
def first(left) -> Iterator[Callable[..., subprocess.Popen]]:
    """A process that drives that world, or one of its ``own``, and has begun a cell there on each of ``ranks``.

    It is killed in the end.
    """
    started = []

    def make(code: str, *, own: bool = False, ranks: tuple[str | None, ...] = (None,)) -> subprocess.Popen:
        script = FIRST.format(code=code, own=own, start=START, ranks=ranks)
        client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        started.append(client)
        assert client.stdout is not None
        assert client.stdout.readline() == "begun\n"
        return client

    yield make
    for client in started:
        client.kill()
        client.wait()
        client.stdout.close()


@pytest.fixture
def attach() -> Iterator[Callable[..., Session]]:
    """Attach; what a test leaves open is left in the end."""
    sessions: list[Session] = []

    def make(name: str = "left", **options: object) -> Session:
        sessions.append(Session.attach(name, **options))
        return sessions[-1]

    yield make
    for session in sessions:
        session.leave()


def is_whole(session: Session, steps: int) -> None:
    """Every line and every point of :data:`LONG`, in order, and the result."""
    run = session.last_run
    assert run is not None
    assert run.wait(30)
    assert run.outcome == "ok"
    for rank in range(3):
        assert run.text(rank).splitlines() == [f"line {step}" for step in range(steps)]
        points = run.metrics["x"][rank]
        assert list(points.values) == list(range(steps))
        assert run.results[rank].data["text/plain"] == str(10 * rank)


def test_a_kernel_is_killed_in_mid_run(first, attach) -> None:
    """The next one has all of it, drives the world, and can interrupt what runs."""
    client = first(LONG.format(steps=200))
    client.kill()
    client.wait()
    session = attach()

    assert session.controls
    number = session.last_run.number
    assert "line" in session.last_run.source
    assert not session.last_run.done
    is_whole(session, 200)
    assert session.run("id(kept) == kept_id", view=None).results[2].data["text/plain"] == "True"
    again = session.run("time.sleep(1000)", wait=False, view=None)
    session.interrupt()
    assert again.wait(20)
    assert (again.number, again.outcome) == (number + 2, "interrupted")


def test_the_lowest_rank_begins_last(left, attach) -> None:
    """A client that attaches before knows that the cell is on that rank, too, and has all that comes from there."""
    driver = attach(control=True)
    stopped = psutil.Process(left.world.ranks[0].pid)
    stopped.suspend()
    try:
        driver.run("print('here', flush=True)\nrank * 10", wait=False, view=None)
        until(lambda: driver.last_run.totals[2].lines and driver.last_run.totals[1].lines)
        observer = attach()
        followed = observer.last_run
        assert followed.number == driver.last_run.number
    finally:
        stopped.resume()

    assert followed.wait(20)
    assert followed.ranks == [0, 1, 2]
    assert [followed.text(rank) for rank in range(3)] == ["here\n"] * 3
    assert followed.results[0].data["text/plain"] == "0"


def test_an_interrupt_of_what_another_client_has_begun(first, attach) -> None:
    """It works from the new kernel; a cell that is run there meanwhile says what it waits for."""
    client = first("print('begun', flush=True)\ntime.sleep(1000)")
    client.kill()
    client.wait()
    session = attach()
    begun, notes = session.last_run, Notes()
    behind = session.run("1", wait=False, view=notes)
    until(lambda: notes.words)
    session.interrupt()

    assert begun.wait(20)
    assert begun.outcome == "interrupted"
    assert notes.words == [
        f"Waits for run {begun.number}, which was running before this client joined; Stop ends both."
    ]
    assert behind.wait(20)
    assert behind.not_sent == "interrupted while it was queued"
    assert session.run("2", view=None).outcome == "ok"


def test_all_runs_that_go_on_are_followed(first, attach) -> None:
    """Each has all of its output; the steward names them, and their ranks count as busy."""
    client = first(LONG.format(steps=100), ranks=("0", "1-2"))
    client.kill()
    client.wait()
    session = attach()
    runs = session.running
    told = state_of(session).runs

    assert [run.ranks for run in runs] == [[0], [1, 2]]
    assert [(run.run, run.ranks, run.working) for run in told] == [(run.number, run.ranks, run.ranks) for run in runs]
    with pytest.raises(RanksBusy, match=f"Cannot push x: rank 0 is still working on run {runs[0].number}"):
        session.push({"x": 1}, 0)
    behind = session.run("'behind'", "0", wait=False, view=None)
    for run in runs:
        assert run.wait(30)
        assert run.outcome == "ok"
        for rank in run.ranks:
            assert run.text(rank).splitlines() == [f"line {step}" for step in range(100)]
    assert behind.wait(20)
    assert behind.outcome == "ok"
    assert session.running == []
    assert state_of(session).runs == []


def test_stop_ends_all_runs_that_go_on(first, attach) -> None:
    """A new kernel presses Stop, and a cell queued behind the older of them ends, too."""
    client = first("print('begun', flush=True)\ntime.sleep(1000)", ranks=("0", "1"))
    client.kill()
    client.wait()
    session, notes = attach(), Notes()
    runs = session.running
    behind = session.run("1", "0,2", wait=False, view=notes)
    until(lambda: notes.words)
    assert f"Waits for run {runs[0].number}" in notes.words[0]
    session.interrupt()

    for run in (*runs, behind):
        assert run.wait(20)
        assert (run.outcome, run.busy) == ("interrupted", [])
    assert session.run("2", view=None).outcome == "ok"


def test_the_steward_ends_all_runs_that_no_client_follows(first, attach) -> None:
    """It does so for the sidebar, whose request may name ranks."""
    client = first("print('begun', flush=True)\ntime.sleep(1000)", ranks=("0", "1", "2"))
    client.kill()
    client.wait()
    observer = attach()
    runs = observer.running
    assert len(runs) == 3
    observer.leave()
    channel = open_channel(find_world("left"), 10)
    assert channel.ask(InterruptRun("a test", ranks=[1])).run == runs[1].number
    until(lambda: [run.run for run in channel.ask(ReadState()).runs] == [runs[0].number, runs[2].number])
    assert interrupt_world("left") == runs[2].number
    until(lambda: channel.ask(ReadState()).runs == [])
    channel.close()

    assert attach().run("1", view=None).outcome == "ok"


def test_a_run_that_ended_meanwhile(first, attach) -> None:
    """It is there as well, whole."""
    client = first(LONG.format(steps=20))
    client.kill()
    client.wait()
    session = attach()
    is_whole(session, 20)
    other = Session.attach("left")
    is_whole(other, 20)
    assert not other.controls
    other.leave()
    assert session.run("1", view=None).outcome == "ok"


@pytest.mark.slow
def test_an_observer_hears_of_a_restart(launch) -> None:
    """The ranks that it knows are gone; it can join again."""
    session = launch(n=1, name="again")
    observer = Session.attach("again")
    session.restart()
    until(lambda: observer.closed)

    with pytest.raises(WorldLost, match="%distributed attach again joins it again"):
        observer.stacks()
    observer.leave()
    with Session.attach("again") as observer:
        assert observer.stacks()[0].state == "idle"
    session.stop()


def test_a_client_that_has_left_drives_no_more(launch) -> None:
    """The next one does, and what the first had begun is lost to it, not to the world."""
    session = launch(n=1, name="left-alone")
    run = session.run("import time; time.sleep(1); 7", wait=False, view=None)
    until(lambda: run.logs)
    session.leave()
    assert run.outcome == "lost"
    assert run.lost == {0: "rank 0 is lost: this client has left it"}
    with Session.attach("left-alone") as session:
        assert session.controls
        assert until(lambda: session.last_run).wait(20)
        assert session.last_run.results[0].data["text/plain"] == "7"
        session.stop()


@pytest.mark.slow
def test_an_interrupt_goes_on_although_its_client_has_left(launch) -> None:
    """One rank ends; the other one waits for it in MPI, which no signal ends: the steward frees it."""
    session = launch(n=2, name="left-early")
    code = "import os, time\nfrom mpi4py import MPI\n"
    code += "time.sleep(1000) if os.environ['RANK'] == '0' else MPI.COMM_WORLD.Barrier()"
    session.run(code, wait=False, view=None)
    until(lambda: (stack := session.stacks()[1]) is not None and stack.waits)
    session.interrupt()
    session.leave()
    with Session.attach("left-early") as session:
        run = until(lambda: session.last_run)
        assert run.wait(20)
        assert (run.outcomes[0], run.busy) == ("interrupted", [])
        session.stop()


def test_ranks_are_released_without_any_client(first, attach) -> None:
    """One raises, the others wait for it, and no client is there: the steward frees them."""
    client = first("print('begun', flush=True)\ntime.sleep(1)\nif rank == 0: 1 / 0\nMPI.COMM_WORLD.Barrier()")
    client.kill()
    client.wait()
    session = attach()
    run = session.last_run

    assert run.wait(20)
    assert run.outcome == "error"
    assert run.errors[0].ename == "ZeroDivisionError"
    assert {rank: run.errors[rank].waited for rank in (1, 2)} == {1: "Barrier", 2: "Barrier"}
    added = session.run("MPI.COMM_WORLD.allreduce(1), id(kept) == kept_id", view=None)
    assert {result.data["text/plain"] for result in added.results.values()} == {"(3, True)"}


def test_an_observer_looks_on(first, attach) -> None:
    """The first client lives: the second follows the run, runs nothing, and does not end the world."""
    first(LONG.format(steps=100))
    observer = attach()

    assert not observer.controls
    assert "read-only" in repr(observer)
    with pytest.raises(ReadOnly, match=r"controlled by process \d+; .* %distributed attach left --control"):
        observer.run("1", view=None)
    nothing = [lambda: observer.push({"a": 1}), lambda: observer.pull("kept"), observer.interrupt, observer.restart]
    for refused in nothing:
        with pytest.raises(ReadOnly):
            refused()
    assert observer.stacks()[0].state == "running"
    is_whole(observer, 100)
    observer.leave()
    is_whole(attach(), 100)


def test_a_take_over_informs_the_first_client(launch, attach, capsys) -> None:
    """Its queued cells do not run, it still follows the cell that runs, and it can take the world back."""
    session = launch(n=2, name="contested")
    session.run("import time", view=None)
    begun = session.run("time.sleep(1.5); 7", wait=False, view=None)
    queued = session.run("never = 1", wait=False, view=None)
    until(lambda: all(part.started for part in begun.fold.ranks.values()))
    other = attach("contested", control=True)

    assert other.controls
    assert queued.wait(20)
    assert "the world is now controlled by process" in queued.not_sent
    assert not session.controls
    with pytest.raises(ReadOnly):
        session.run("1", view=None)
    assert "World 'contested' is now controlled by process" in capsys.readouterr().err
    for run in (begun, other.last_run):
        assert run.wait(20)
        assert {rank: result.data["text/plain"] for rank, result in run.results.items()} == {0: "7", 1: "7"}
    assert other.run("'never' in globals()", view=None).results[0].data["text/plain"] == "False"

    session.control()
    assert session.controls
    until(lambda: not other.controls)
    mine = session.run("3", view=None)
    assert mine.outcome == "ok"
    assert mine.number > other.last_run.number
    other.leave()
    session.stop()


@pytest.mark.slow
def test_only_the_driver_keeps_a_world(first, mark) -> None:
    """Its process is killed, and an observer was there all the while: the lease runs out, nothing is left."""
    client = first("print('begun', flush=True)\ntime.sleep(1000)", own=True)
    observer = Session.attach("own")
    lost = threading.Event()
    watcher = threading.Thread(target=lambda: observer.last_run.wait(60) and lost.set())
    watcher.start()
    client.kill()
    client.wait()

    watcher.join()
    assert lost.is_set()
    assert observer.last_run.outcome == "lost"
    until(lambda: observer.closed)
    observer.leave()
    assert wait_until_gone(mark) == []


def test_which_world(launch, left) -> None:
    """The only one, or by name."""
    with pytest.raises(NoWorld, match="No world of yours is named 'nowhere'"):
        Session.attach("nowhere")
    one = launch(n=1, name="one")
    with pytest.raises(BadRequest, match=r"Several worlds are running: name one of .*left, one"):
        Session.attach()
    with Session.attach("one") as joined:
        assert joined.name == "one"
        # The client is in the same process: only another session can lose the world.
        assert not joined.controls
    assert one.run("1", view=None).outcome == "ok"
    one.stop()


def test_an_error_of_a_run_that_was_adopted_is_its_own(first, attach) -> None:
    """The run ends as if it had begun here."""
    client = first("print('begun', flush=True)\ntime.sleep(0.3)\n1 / 0")
    client.kill()
    client.wait()
    session = attach()
    assert session.last_run.wait(20)
    assert "ZeroDivisionError" in str(DistributedError(session.last_run))
