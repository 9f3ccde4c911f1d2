"""Messages may be lost, worlds may not: each kind is lost once on its way, and every cell still ends rightly.

The driver reaches its world on a way on which messages get lost; the first session has its own way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_dtrain import DistributedError, ReadOnly, Session, Settings
from jupyter_dtrain.core.events import EVENTS_MESSAGE
from jupyter_dtrain.launch.worlds import find_world
from jupyter_dtrain.server.steward import Steward
from jupyter_dtrain.wire.agent_messages import RunCell
from jupyter_dtrain.wire.messages import HELLO_MESSAGE, RUN_MESSAGE, Cell, Watching
from jupyter_dtrain.wire.steward_messages import RelayQuestion, Restart
from tests.losses import LossyWay, Message, lossy_way
from tests.session.cells import Notes, begin, fail, run, same, texts, until, values
from tests.steward.until import state_of

FRESH_WORLD = True

COUNT = """
import time
ran = globals().get("ran", 0) + 1
print("one")
time.sleep(0.1)
print("two")
ran
"""


def announces(event: str) -> Callable[[Message], bool]:
    """An announcement with an event of that type."""
    return lambda message: (
        message.sort == EVENTS_MESSAGE and any(event == one["body"]["type"] for one in message.content["events"])
    )


def asks(op: str) -> Callable[[Message], bool]:
    """A request to a rank or to the steward."""
    return lambda message: not message.to_client and message.content.get("op") == op


def answers(op: str) -> Callable[[Message], bool]:
    """The answer to it."""
    return lambda message: message.sort.endswith("_reply") and message.request.get("op") == op


def tells(kind: str) -> Callable[[Message], bool]:
    """A broadcast of the steward."""
    return lambda message: message.to_client and message.content.get("kind") == kind


def is_cell(message: Message) -> bool:
    """A cell on its way to a rank."""
    return message.sort == RUN_MESSAGE


def is_greeting(message: Message) -> bool:
    """A greeting on its way to a rank's main thread."""
    return message.sort == HELLO_MESSAGE


@pytest.fixture(scope="module")
def first(launch) -> Iterator[Session]:
    """Starts the world."""
    with launch(n=3, name="lossy", settings=Settings(request_timeout=20)) as session:
        yield session


@pytest.fixture(scope="module")
def open_way(first, tmp_path_factory) -> Iterator[LossyWay]:
    """The lossy way to that world."""
    with lossy_way(first, tmp_path_factory.mktemp("lossy")) as way:
        yield way


@pytest.fixture
def way(open_way) -> Iterator[LossyWay]:
    """The way, on which nothing is lost at first."""
    yield open_way
    open_way.heal()


@pytest.fixture(scope="module")
def driver(open_way) -> Iterator[Session]:
    """Drives the world by it."""
    session = Session.attach(open_way.name, control=True)
    run(session, "from mpi4py import MPI\nimport time\nrank = MPI.COMM_WORLD.rank\nran = 0")
    yield session
    session.leave()


LOSSES = {
    "the cell of one rank": [is_cell],
    "the cells of all ranks": [is_cell] * 3,
    "a cell, and the question what became of it": [is_cell, asks("state")],
    "a cell, and the answer what became of it": [is_cell, answers("state")],
    "a cell that is sent again is lost again": [is_cell] * 5,
    "a cell, and the greeting after it": [is_cell, is_greeting],
    "a cell, and the answer to the greeting": [is_cell, lambda message: message.sort == "dtrain_hello_reply"],
    "the beginning": [announces("started")],
    "output": [announces("output")],
    "output, and the request for it": [announces("output"), asks("read")],
    "output, and the answer": [announces("output"), answers("read")],
    "the end": [announces("finished")],
    "the end, and the question for it": [announces("finished"), asks("state"), asks("read")],
    "the end, and the answer": [announces("finished"), answers("state"), answers("read")],
    "all announcements": [lambda message: message.sort == EVENTS_MESSAGE] * 30,
    "the renewal of the lease": [asks("renew")],
    "the answer to that": [answers("renew")],
}


OFTEN = (
    "the cell of one rank",
    "output, and the answer",
    "the end, and the answer",
    "the beginning",
)
"""The rest is played by `make test-all`."""


@pytest.mark.parametrize(
    "losses",
    [pytest.param(lost, id=name, marks=() if name in OFTEN else pytest.mark.slow) for name, lost in LOSSES.items()],
)
def test_a_cell_runs_once_on_each_rank_whatever_is_lost(driver, way, losses) -> None:
    """It ends on its own, with all of its text."""
    run(driver, "ran = 0")
    lost = [way.lose(one) for one in losses]
    cell = driver.run(COUNT, wait=False, view=None)

    assert cell.wait(20)
    way.heal()
    assert cell.outcome == "ok"
    assert texts(cell) == same("one\ntwo\n")
    assert values(cell) == same(1)
    assert lost[0].lost
    assert run(driver, "ran").outcome == "ok"
    assert driver.pull("ran") == same(1)


class Slow:
    """Takes its time to become a value: a rank's main thread is busy, and the rank counts as idle."""

    def __init__(self, begun: Path) -> None:
        """The file ``begun`` comes when that begins."""
        self.begun = begun

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, (f"(open({str(self.begun)!r}, 'w').close(), __import__('time').sleep(3))",)


def test_no_copies_of_a_cell_wait_for_a_busy_main_thread(driver, way, tmp_path) -> None:
    """Though the rank says that it is idle: it is greeted, gets no cell twice, and runs the one that it has."""
    run(driver, "ran = 0")
    cells, greetings = way.count(is_cell), way.count(is_greeting)
    pushing = threading.Thread(target=lambda: driver.push({"slow": Slow(tmp_path / "begun")}))
    pushing.start()
    until((tmp_path / "begun").exists)
    cell = run(driver, COUNT, inputs={"big": bytes(1 << 20)})
    pushing.join()

    assert values(cell) == same(1)
    assert cell.fold.ranks[0].started is not None
    assert driver.pull("ran") == same(1)
    assert len(cells.met) == 3
    assert len(greetings.met) >= 3


def test_a_cell_that_a_rank_never_gets_says_so_and_can_be_stopped(driver, way) -> None:
    """A note shows that the rank is idle. After Stop the ranks take the next cell, and never this."""
    notes = Notes()
    way.lose(is_cell, most=1000)
    cell = driver.run("ran = 'too late'", wait=False, view=notes)
    until(lambda: len(notes.words) == 3)
    driver.interrupt()

    assert cell.wait(20)
    assert (cell.outcome, cell.busy) == ("interrupted", [])
    assert "Rank 0 is idle but has not started this cell" in "".join(notes.words)
    way.heal()
    assert run(driver, "ran").outcome == "ok"
    assert "too late" not in driver.pull("ran").values()


def test_a_busy_rank_refuses_a_cell(driver, first, way) -> None:
    """Another client's cell was on its way when this one took over, and this one does not hear of it.

    The refused cell ends and never runs. A client that hears of the other run follows it, and Stop ends that.
    """
    world, channel = first._link.bound()
    number = driver.last_run.number + 50
    code = "print('there', flush=True)\ntime.sleep(1000)"
    channel.run(world.ranks[0].engine, RunCell(number, code, [0], world.generation, Watching(), Cell()), [])
    until(lambda: [one.run for one in state_of(first).runs] == [number])
    lost = way.lose(asks("renew"), most=1000)
    cell = driver.run("ran = 'never'", [0], wait=False, view=None)
    other = driver.run("ran = 'never'; time.sleep(1000)", "all", wait=False, view=None)

    assert cell.wait(20)
    assert f"Rank 0 is still working on run {number}" in cell.not_sent
    assert other.wait(20)
    assert lost.lost
    way.heal()
    notes = Notes()
    behind = driver.run("'behind'", [0], wait=False, view=notes)
    assert notes.words == [] or f"Waits for run {number}" in notes.words[0]
    followed = next(one for one in driver.running if one.number == number)
    until(lambda: followed.text(0) == "there\n")
    driver.interrupt()
    assert followed.wait(20)
    assert behind.wait(20)
    assert "never" not in run(driver, "ran").results[0].data["text/plain"]


@pytest.mark.parametrize("loss", [asks("interrupt"), answers("interrupt")], ids=["the signal", "its answer"])
def test_stop_ends_a_cell_although_a_message_is_lost(driver, way, loss) -> None:
    """It is sent until it is taken."""
    cell = begin(driver, "time.sleep(1000)")
    lost = way.lose(loss, most=3)
    driver.interrupt()

    assert cell.wait(20)
    assert (cell.outcome, cell.busy) == ("interrupted", [])
    assert lost.lost


def test_the_cell_after_a_release_has_whole_groups(driver, way) -> None:
    """This client did not hear that the steward has released ranks and begun a new generation."""
    lost = [way.lose(one) for one in (tells("released"), asks("advance"), answers("advance"))]
    fail(driver, "if rank == 0: 1 / 0\nMPI.COMM_WORLD.Barrier()")
    way.heal()

    assert values(run(driver, "MPI.COMM_WORLD.allreduce(1)")) == same(3)
    assert lost[0].lost


def test_an_interrupt_that_the_driver_does_not_hear_of(driver, first, way) -> None:
    """The steward takes the steps."""
    from jupyter_dtrain.wire.steward_messages import InterruptRun

    cell = begin(driver, "time.sleep(1000)")
    lost = way.lose(tells("interrupt"))
    first._link.ask(InterruptRun("a test"))

    assert cell.wait(20)
    assert lost.lost
    assert {error.ename for error in cell.errors.values()} == {"KeyboardInterrupt"}


@pytest.mark.parametrize("loss", [asks("ask"), answers("ask")], ids=["the request", "its answer"])
def test_the_sidebars_server_gets_its_answer_although_a_message_is_lost(way, loss) -> None:
    """It asks again, and the steward does nothing twice: each question gets the next number."""

    async def ask() -> tuple[int, int, int]:
        steward = Steward(find_world(way.name))
        try:
            before = await steward.ask(RelayQuestion("state", [0]))
            lost = way.lose(loss, most=2)
            return before.ticket, (await steward.ask(RelayQuestion("state", [0]))).ticket, len(lost.lost)
        finally:
            steward.close()

    before, after, lost = asyncio.run(ask())
    assert (after - before, lost) == (1, 2)


def test_another_driver_that_a_client_does_not_hear_of(driver, first, way) -> None:
    """Its next cell is refused."""
    lost = way.lose(tells("driver"))
    first.control()
    with pytest.raises(ReadOnly):
        run(driver, "1")
    driver.control()

    assert lost.lost
    assert run(driver, "1").outcome == "ok"


@pytest.mark.slow
def test_a_restart_that_the_driver_does_not_hear_of(driver, first, way) -> None:
    """The run that goes on is lost, in words; the next cells go to the fresh ranks."""
    cell = begin(driver, "time.sleep(1000)")
    lost = way.lose(tells("restarting"))
    first.control()
    driver.control()
    first._link.ask(Restart(first._link.me.id, first._link.me.words))

    assert cell.wait(20)
    assert lost.lost
    assert "restarted by" in cell.lost[0]
    until(lambda: not driver._link._restarting, 60)  # processes start: this may take long
    assert run(driver, "from mpi4py import MPI\nimport time\nrank = MPI.COMM_WORLD.rank").outcome == "ok"


def test_a_death_that_the_driver_does_not_hear_of(driver, way) -> None:
    """The cell ends, and says who died; what it did before is there."""
    lost = way.lose(tells("died"))
    with pytest.raises(DistributedError, match="rank 1 was killed"):
        run(
            driver,
            "import os, signal\nprint('last words', flush=True)\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)",
        )
    assert lost.lost
    assert driver.last_run.text(1) == "last words\n"
    assert [rank.rank for rank in driver.world.dead] == [1]
    assert set(values(run(driver, "1", ranks=[0, 2]))) == {0, 2}


FULL = """
import ctypes, os, resource, time
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for process in (os.getpid(), os.getppid()):
    resource.prlimit(process, resource.RLIMIT_FSIZE, (1, hard))
print("in memory", flush=True)
while not os.path.exists({goes!r}): time.sleep(0.02)
ctypes.PyDLL(None).abort()
"""
"""No file grows any more, whether the rank or its watch writes; the end of the rank is told by native code alone."""


@pytest.mark.parametrize(("rank", "losses"), [(2, [tells("died")]), (0, [])], ids=["by a renewal", "by a broadcast"])
def test_last_words_of_a_rank_survive_a_full_disk(driver, way, tmp_path, rank, losses) -> None:
    """The spool has not got them; the news of the death brings them."""
    goes = tmp_path / "goes"
    cell = driver.run(FULL.format(goes=str(goes)), [rank], wait=False, view=None)
    until(lambda: "in memory\n" in cell.text(rank))
    lost = [way.lose(one) for one in losses]
    goes.touch()

    assert cell.wait(20)
    assert all(one.lost for one in lost)
    assert f"rank {rank} crashed (SIGABRT)" in cell.lost[rank]
    assert "in memory\n" in cell.text(rank)
    assert "Fatal Python error: Aborted" in cell.text(rank)
