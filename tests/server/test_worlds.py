"""The sidebar sees worlds and steers them, whatever their notebook does."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_dtrain import DistributedError, RanksBusy, Session, Settings, WorldLost
from jupyter_dtrain.launch.worlds import find_world
from tests.processes import wait_until_gone
from tests.server.page import Page, Server
from tests.session.cells import Notes, until

TRAIN = """
import os, time, jupyter_dtrain
rank = int(os.environ["RANK"])
for step in range({steps}):
    print("line", step)
    jupyter_dtrain.log(loss=float(step * 10 + rank), step=step)
    time.sleep({pause})
rank
"""
WAIT = """
from mpi4py import MPI
print("begun", flush=True)
if MPI.COMM_WORLD.rank == 0:
    time.sleep(1000)
MPI.COMM_WORLD.Barrier()
"""
DRIVER = """
from jupyter_dtrain import Session
session = Session.start(n=3, name="left")
session.run({code!r}, view=None, wait=False)
print("begun", flush=True)
import time
time.sleep(1000)
"""
STUBBORN = """
import time
print("begun", flush=True)
while True:
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture(scope="module")
def session(launch):
    """A world of three ranks, driven from here."""
    return launch(n=3, name="seen")


@pytest.fixture
def watching(page, session):
    """A page that looks closely at that world."""

    assert page.until(lambda: page.world("seen"))
    page.say(watch=[session.id])
    assert page.until(lambda: page.last("ranks"))
    return page


@pytest.mark.slow
def test_an_idle_world_is_asked_seldom(watching, session):
    """The steward's kernel publishes messages for each question; they are no news that calls for the next question."""
    client = BlockingKernelClient(connection_file=find_world("seen").connection_file)
    client.load_connection_file()
    client.start_channels(shell=False, stdin=False, hb=False)
    asked = 0
    until_when = time.monotonic() + 4
    try:
        while (left := until_when - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                message = client.iopub_channel.get_msg(timeout=left)
                asked += message["msg_type"] == "status" and message["content"]["execution_state"] == "busy"
    finally:
        client.stop_channels()

    assert 1 <= asked <= 20  # a look each second, and the driver's requests


def test_all_points_and_ranks_of_a_run_are_sent(watching, session):
    """They come in order, once, to a page that was there from the start and to a later one."""
    run = session.run(TRAIN.format(steps=200, pause=0.01), view=None)
    number = run.number
    assert watching.until(lambda: watching.world("seen")["run"]["outcome"] == "ok")
    late = Page(watching.server)
    late.open()
    assert late.until(lambda: late.world("seen"))
    late.say(watch=[session.id])
    assert late.until(lambda: late.last("run"))
    late.close()

    wanted = {rank: [(step, float(step * 10 + rank)) for step in range(200)] for rank in range(3)}
    assert watching.points("loss", number) == wanted
    assert late.points("loss", number) == wanted
    told = watching.world("seen")["run"]
    assert (told["number"], told["ranks"], told["states"]) == (number, [0, 1, 2], {"ok": 3})
    ranks = session.world.ranks
    assert watching.until(lambda: [row[6] for row in watching.last("ranks")["ranks"]] == ["idle"] * 3)
    assert [row[:6] for row in watching.last("ranks")["ranks"]] == [
        [rank.rank, 0, rank.host, rank.local_rank, rank.device, rank.pid] for rank in ranks
    ]


def test_runs_that_go_on_at_once_are_all_reported_and_ended(watching, session):
    """Each with its points, to a page that comes later too; one request interrupts them all."""
    runs = [session.run(TRAIN.format(steps=5000, pause=0.02), ranks, view=None, wait=False) for ranks in ("0", "1-2")]
    numbers = [run.number for run in runs]
    assert watching.until(lambda: [one["number"] for one in watching.world("seen")["runs"]] == numbers)
    late = Page(watching.server)
    late.open()
    assert late.until(lambda: late.world("seen"))
    late.say(watch=[session.id])
    told = watching.until(lambda: watching.world("seen")["runs"])
    assert [(run["ranks"], run["outcome"]) for run in told] == [([0], "running"), ([1, 2], "running")]
    for page in (watching, late):
        for run in runs:
            assert page.until(lambda page=page, run=run: set(page.points("loss", run.number)) == set(run.ranks))
    late.close()
    assert watching.until(lambda: [row[6] for row in watching.last("ranks")["ranks"]] == ["running"] * 3)
    assert watching.act(session.id, "interrupt")[0] == 202

    for run in runs:
        assert run.wait(20)
        assert (run.outcome, run.busy) == ("interrupted", [])
    assert watching.until(lambda: watching.world("seen")["runs"] == [])
    assert watching.world("seen")["run"]["number"] == numbers[1]


def test_output_and_stacks_come_on_demand(watching, session):
    """They come while the driver waits; markup is text like any other."""
    run = session.run(
        "import sys, time\nprint('<script>alert(1)</script>')\nprint('end', file=sys.stderr)\ntime.sleep(1000)",
        view=None,
        wait=False,
    )
    until(lambda: all("end" in run.text(rank) for rank in range(3)))
    status, output = watching.act(session.id, f"runs/{run.number}/ranks/1/output", "GET")
    told = watching.act(session.id, "stacks")
    some = watching.act(session.id, "stacks", ranks=[1])
    cell = f"runs/{run.number}/cell"
    begun = watching.act(session.id, cell, "GET")
    session.interrupt()
    run.wait(20)

    # A page that was reloaded gets the cell's output from the spools.
    assert begun[0] == 200
    text = "".join(output["text"] for _, output in begun[1]["outputs"][1:])
    assert text.startswith("[0")
    assert "<script>alert(1)</script>\n" in text
    assert "end\n" in text
    ask = f"{cell}?replay={begun[1]['replay']}&since={begun[1]['version']}"
    ended = until(lambda: (one := watching.act(session.id, ask, "GET")[1])["over"] and one)
    assert [output["output_type"] for _, output in ended["outputs"]] == ["display_data", "error"]
    assert ended["outputs"][1][1]["ename"] == "DistributedInterrupt"
    assert watching.act(session.id, "runs/999/cell", "GET")[0] == 404
    assert (status, output) == (200, {"text": "<script>alert(1)</script>\nend\n", "cut": False})
    assert told[0] == some[0] == 200
    assert "Ranks 0-2: running" in told[1]["text"]
    assert "time.sleep(1000)" in told[1]["text"]
    assert some[1]["text"].startswith("Rank 1: ")


def test_an_impossible_action_gets_an_error_in_words(watching, session):
    """Ranks and runs that are not there."""
    assert watching.act(session.id, "runs/999/ranks/0/output", "GET")[0] == 404
    assert watching.act(session.id, "runs/1/ranks/99/output", "GET")[0] == 404
    for ranks in ([3], [-1], ["x"], [0.5]):
        status, answer = watching.act(session.id, "interrupt", ranks=ranks)
        assert status == 400
        assert answer["message"]
    assert watching.act(session.id, "kill")[1]["message"] == "Name the ranks to kill, as a list of numbers in `ranks`."


def test_an_interrupt_reaches_the_cell_of_its_driver(watching, session):
    """Its ranks are idle within a second, the cell says who it was, variables stay, and the next one runs."""
    notes = Notes()
    run = session.run("import time\nkept = 5\nprint('begun', flush=True)\ntime.sleep(1000)", view=notes, wait=False)
    until(lambda: all("begun" in run.text(rank) for rank in range(3)))
    asked = time.monotonic()
    status, answer = watching.act(session.id, "interrupt")
    run.wait(20)
    took = time.monotonic() - asked
    seen = watching.until(lambda: watching.world("seen")["run"]["outcome"] == "interrupted")

    assert (status, answer) == (202, {"run": run.number})
    assert run.outcome == "interrupted"
    assert notes.words[0] == "Interrupted by the JupyterLab sidebar."
    assert seen
    assert session.run("kept", view=None).results[2].data["text/plain"] == "5"
    print(f"interrupted within {took:.2f} s")


def test_a_panel_in_an_observers_notebook_does_not_stop_the_drivers_cell(watching, session):
    """The panel of a cell says which kernel its notebook has; the sidebar belongs to no notebook."""
    run = session.run("import time\nprint('begun', flush=True)\ntime.sleep(1000)", view=None, wait=False)
    until(lambda: all("begun" in run.text(rank) for rank in range(3)))
    status, answer = watching.act(session.id, "interrupt", place="cell", kernel="of another notebook")
    goes_on = run.outcome
    own, _ = watching.act(session.id, "interrupt", place="cell", kernel="")  # the driver is this process, and no kernel
    run.wait(20)

    assert status == 400
    assert answer["message"] == (
        f"World 'seen' is controlled by process {os.getpid()}; here it is read-only. "
        f"%distributed attach seen --control takes control."
    )
    assert goes_on == "running"
    assert (own, run.outcome) == (202, "interrupted")


def test_ranks_that_wait_in_a_collective_are_interrupted_too(watching, session):
    """The page shows the call they are in, and after some seconds that they wait there; then they are released."""
    run = session.run("import time" + WAIT, view=None, wait=False)
    waits = watching.until(lambda: [row[8] for row in watching.last("ranks")["ranks"]][1:] == ["Barrier"] * 2)
    called = {row[6] for row in watching.last("ranks")["ranks"]}
    frameworks = watching.until(lambda: watching.world("seen")["frameworks"])
    # The news of the run, from which the cell's panel is drawn, and the list of ranks say the same.
    states = ["running", "waiting", "waiting"]
    told = watching.until(
        lambda: (news := watching.last("news")) and [row[2] for row in news["status"]["ranks"]] == states and news
    )
    assert [row[6] for row in watching.last("ranks")["ranks"]] == states
    assert told["status"]["words"] == {"1": "Barrier", "2": "Barrier"}
    watching.act(session.id, "interrupt")
    run.wait(20)

    assert waits
    assert called == {"running"}
    assert frameworks == ["MPI"]
    assert run.outcome == "interrupted"
    assert session.run("MPI.COMM_WORLD.Barrier()", view=None).outcome == "ok"


def test_one_rank_alone_is_interrupted(watching, session):
    """Ranks that wait for it are released, as for a rank that has failed."""
    session.run("from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank", view=None)
    run = session.run(
        "import time\nprint('begun', flush=True)\nif rank == 0:\n    time.sleep(1000)\nMPI.COMM_WORLD.Barrier()",
        view=None,
        wait=False,
    )
    until(lambda: all("begun" in run.text(rank) for rank in range(3)))
    watching.act(session.id, "interrupt", ranks=[0])
    run.wait(20)

    assert run.outcomes == {0: "interrupted", 1: "error", 2: "error"}
    # MPI may revoke the communicator on the way of one rank's release, before another is asked to release itself.
    assert run.errors[1].waited == run.errors[2].waited == "Barrier"


def test_nothing_to_interrupt_is_no_harm(watching, session):
    """Twice, between cells: the next cell runs."""
    for _ in range(2):
        assert watching.act(session.id, "interrupt")[0] == 202
    assert session.run("1", view=None).outcome == "ok"


@pytest.mark.slow
def test_a_problem_of_a_run_is_reported_once(watching, session):
    """A value that is no number; a rank whose loss leaves the others'. The end of a run that went well is none."""
    code = (
        "import time, jupyter_dtrain\nrank = jupyter_dtrain.comm.Get_rank()\n"
        "for step in range(110):\n"
        "    value = 1.0 + 0.01 * (step % 3) + (50 if rank == 1 and step > 20 else 0)\n"
        "    jupyter_dtrain.log(loss=value, other=float('nan') if rank == 2 and step == 7 else 0.0, step=step)\n"
        "    time.sleep(0.1)\n"
    )
    run = session.run(code, view=None)
    assert watching.until(lambda: (watching.world("seen")["run"] or {}).get("outcome") == "ok")

    (strange,) = watching.items("nan")
    assert (strange["words"], strange["ranks"], strange["run"]) == ("other is NaN on rank 2, step 7", [2], run.number)
    (apart,) = watching.items("apart")
    assert apart["words"] == "loss of rank 1 is above the others'"
    assert {item["kind"] for item in watching.last("attention")["items"]} == {"nan", "apart"}
    watching.say(dismiss=strange["id"])
    assert watching.until(lambda: not watching.items("nan"))
    watching.say(dismiss=None)
    assert watching.until(lambda: not watching.last("attention")["items"])


def test_a_dead_rank_is_reported_and_a_restart_makes_the_world_whole(watching, session):
    """The driver goes on with the fresh ranks, without a word of its own."""
    pids = [rank.pid for rank in session.world.ranks]
    with pytest.raises(DistributedError):
        session.run("1 / 0", view=None)
    failed = watching.until(lambda: watching.last("ranks")["ranks"][0][6] == "error")
    asked = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    dead = watching.until(lambda: watching.items("dead"))
    took = time.monotonic() - asked
    row = watching.until(lambda: watching.last("ranks")["ranks"][1][6] == "dead")
    seen = watching.world("seen")["dead"] == 1 or watching.until(lambda: watching.world("seen")["dead"] == 1)
    status, _ = watching.act(session.id, "restart")
    starting = watching.until(lambda: watching.world("seen")["state"] == "starting")
    with pytest.raises(RanksBusy, match="restarted by the JupyterLab sidebar"):
        session.run("1", view=None)
    up = watching.until(lambda: watching.world("seen")["state"] == "running")
    fresh = watching.until(lambda: {row[6] for row in watching.last("ranks")["ranks"]} == {"idle"})
    until(lambda: not session._link._restarting)
    run = session.run("import os; os.getpid()", view=None)

    assert dead[0]["words"].startswith("Rank 1 was killed (SIGKILL)")
    assert dead[0]["ranks"] == [1]
    assert failed
    assert row
    assert fresh
    assert seen
    assert status == 202
    assert starting
    assert up
    assert run.outcome == "ok"
    assert not {int(result.data["text/plain"]) for result in run.results.values()} & set(pids)
    print(f"told within {took:.2f} s")


def test_a_run_that_a_restart_ends_is_lost(watching, session):
    """It says why."""
    run = session.run("import time; print('begun', flush=True); time.sleep(1000)", view=None, wait=False)
    until(lambda: all("begun" in run.text(rank) for rank in range(3)))
    watching.act(session.id, "restart")
    run.wait(20)
    until(lambda: not session._link._restarting)

    assert run.outcome == "lost"
    assert run.lost[0].endswith("its world was restarted by the JupyterLab sidebar")
    assert session.run("1", view=None).outcome == "ok"


def test_a_rank_is_killed_from_the_page(watching, session):
    """The words name the sidebar. Nobody is alarmed: a person asked for it."""
    watching.act(session.id, "kill", ranks=[2])
    until(lambda: session.world.ranks[2].state == "dead")

    assert session.world.ranks[2].words == "rank 2 was killed (SIGKILL), from the JupyterLab sidebar"
    assert watching.until(lambda: watching.world("seen")["dead"] == 1)
    assert watching.items("dead") == []


def test_a_stopped_world_is_gone_for_its_driver(watching, session):
    """Last: the world of this module ends. No process is left."""
    folder = session.request.folder
    assert watching.act(session.id, method="DELETE")[0] == 202
    assert watching.until(lambda: not watching.world("seen"))
    until(lambda: session.closed)

    with pytest.raises(WorldLost):
        session.run("1", view=None)
    assert wait_until_gone(folder) == []


@pytest.fixture
def left(page, request):
    """A world with a running cell whose driver was killed; the test names the cell."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(code=request.param)], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout.readline() == "begun\n"

    assert page.until(lambda: page.world("left").get("run"))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    yield page
    if page.world("left"):
        page.act(page.world("left")["id"], method="DELETE")
        assert page.until(lambda: not page.world("left"))


@pytest.mark.parametrize(
    "left",
    [
        pytest.param("import time" + WAIT, id="waiting", marks=pytest.mark.slow),
        pytest.param(STUBBORN, id="stubborn", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_a_run_without_its_driver_is_interrupted_all_the_same(left):
    """Ranks may wait for each other, or catch the interrupt; a client that attaches then has the variables."""
    world = left.world("left")
    assert left.until(lambda: not left.world("left")["driver"]["there"])
    asked = time.monotonic()
    left.act(world["id"], "interrupt")
    ended = left.until(lambda: left.world("left")["run"]["outcome"] != "running")
    took = time.monotonic() - asked
    outcome = left.world("left")["run"]["outcome"]
    session = Session.attach("left")
    run = session.run("'time' in globals()", view=None)
    session.leave()

    assert ended
    assert outcome in ("interrupted", "error")
    assert took < 15
    assert {result.data["text/plain"] for result in run.results.values()} == {"True"}


def test_pages_renew_no_lease(page, launch):
    """A world without a driver ends with its lease, also with a page open all the while."""
    session = launch(n=1, name="short", settings=Settings(keep_alive=3))

    assert page.until(lambda: page.world("short"))
    page.say(watch=[session.id])
    folder = session.request.folder
    session.leave()

    assert page.until(lambda: not page.world("short"))
    assert wait_until_gone(folder) == []
    assert page.until(lambda: page.items("ended"))
    assert page.items("ended")[0]["words"] == "World 'short' has ended: no client has controlled it for 3 s"


@pytest.mark.slow
def test_a_run_that_hangs_is_reported_with_its_stacks(page, launch):
    """Grouped, once."""
    session = launch(n=2, name="hung", settings=Settings(hang_notice=1.5))

    assert page.until(lambda: page.world("hung"))
    session.run("import os, time; from mpi4py import MPI", view=None)
    code = "if os.environ['RANK'] == '0':\n    time.sleep(1000)\nMPI.COMM_WORLD.barrier()"
    run = session.run(code, view=None, wait=False)
    (item,) = page.until(lambda: page.items("hung"))
    session.interrupt()
    run.wait(20)
    session.stop()

    assert item["words"] == "Run 2 looks hung. No rank has moved for 1.5 s."
    assert "Rank 0: sleeping in run 2, line 2: time.sleep(1000)" in item["detail"]
    assert "Rank 1: waiting in barrier" in item["detail"]


@pytest.mark.slow
def test_a_server_that_begins_anew_has_everything(launch, tmp_path):
    """The old one ends in the middle of a run: the next one shows the run from its first point on."""
    session = launch(n=2, name="kept")
    first = Server(tmp_path)
    page = Page(first)
    page.open()

    assert page.until(lambda: page.world("kept"))
    run = session.run(TRAIN.format(steps=150, pause=0.04), view=None, wait=False)
    page.say(watch=[session.id])
    assert page.until(lambda: page.points("loss", 1))
    first.process.kill()
    first.process.wait()
    second = Server(tmp_path)
    again = Page(second)
    again.open()
    assert again.until(lambda: again.world("kept"))
    again.say(watch=[session.id])
    run.wait(20)
    assert again.until(lambda: (again.world("kept")["run"] or {}).get("outcome") == "ok")
    again.until(lambda: len(again.points("loss", 1).get(1, ())) == 150)
    page.close()
    again.close()
    second.close()
    session.stop()

    wanted = {rank: [(step, float(step * 10 + rank)) for step in range(150)] for rank in range(2)}
    assert again.points("loss", 1) == wanted


def test_an_error_in_a_cell_is_no_affair_of_the_page(page, launch):
    """The notebook shows a cell that fails fast: attention is for events that the person may not see."""
    session = launch(n=1, name="fast")

    with pytest.raises(DistributedError):
        session.run("1 / 0", view=None)
    assert page.until(lambda: (page.world("fast").get("run") or {}).get("outcome") == "error")
    session.stop()

    assert not [item for item in page.last("attention")["items"] if item["name"] == "fast"]
