"""A loop that runs is profiled from a page, while its notebook waits for the very cell."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import os
import signal
import time

import psutil
import pytest

from jupyter_dtrain import DistributedError, DistributedInterrupt
from tests.pace import slack
from tests.session.cells import until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SET_UP = """
import time, torch, torch.distributed as dist
dist.init_process_group()
torch.set_num_threads(1)
"""
LOOP = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    opt.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    opt.step()
    time.sleep({pause})
"""


@pytest.fixture(scope="module")
def session(launch):
    """A world of three ranks with a group."""
    found = launch(n=3, name="profiled")
    found.run(SET_UP, view=None, timeout=120 * slack())
    return found


@pytest.fixture
def loop(session):
    """Starts a cell that goes on, and ends it after the test."""
    runs = []

    def start(code=LOOP, pause=0.02):
        runs.append(session.run(code.format(pause=pause), view=None, wait=False))
        return runs[-1]

    yield start
    for one in runs:
        if not one.done:
            session.interrupt()
        with contextlib.suppress(DistributedError, DistributedInterrupt):
            one.result(30 * slack())


def ask(page, session, **body):
    """Begin a profile, and wait for its end: the status, the answer, and all that was told meanwhile."""
    status, begun = page.act(session.id, "profile", **body)
    if status != 202:
        return status, begun, []
    told = []
    deadline = time.monotonic() + 120 * slack()
    while time.monotonic() < deadline:
        status, answer = page.act(session.id, f"profiles/{begun['number']}", "GET")
        if status != 200 or answer["profile"] is not None:
            return status, answer, told
        told.append(answer["words"])
        time.sleep(0.05)
    raise AssertionError(told)


def test_a_loop_is_profiled_while_its_notebook_waits(page, session, loop, server):
    """The trace lies beside the notebook, pages can download it, and the next profile is compared with this one."""
    (server.folder / "work").mkdir(exist_ok=True)
    cell = loop()
    status, answer, told = ask(page, session, steps=3, folder="work")
    again = ask(page, session, ranks=[0, 2], folder="work")[1]["profile"]

    found = answer["profile"]
    assert status == 200
    assert found["path"] == str(server.folder / found["file"])
    assert found["file"].startswith(f"work/profile-{cell.number}-")
    trace = json.loads(gzip.decompress((server.folder / found["file"]).read_bytes()))
    assert trace["dtrain"]["ranks"] == [0, 1, 2]
    caption = found["tables"][0]["caption"]
    assert caption.startswith(f"Run {cell.number}, 3 steps from step {trace['dtrain']['step'] + 1} on, ranks 0-2: ")
    assert [row[0] for row in found["tables"][0]["rows"]] == ["0", "1", "2"]
    assert found["remarks"][-1].startswith("100% of the ranks' collectives are matched")
    assert any(words.startswith("Recording 3 steps from step") for words in told)
    assert [row[0] for row in again["tables"][0]["rows"]] == ["0", "2"]
    assert again["tables"][-1]["caption"].startswith(f"Beside the last profile (run {cell.number}, from step ")
    assert not cell.done


def test_what_cannot_be_profiled_is_refused_in_words(page, session, loop):
    """Nothing runs; the loop makes no step that is seen, as no framework with a profiler is in use."""
    for steps, words in ((0, "1 to 1000 steps, not 0"), (1001, "1 to 1000"), ("x", "int"), (True, "int")):
        status, answer = page.act(session.id, "profile", steps=steps)
        assert status == 400
        assert words in answer["message"]
    assert page.act(session.id, "profile", ranks=[3])[1]["message"] == "The world only has ranks 0 to 2."
    assert page.act(session.id, "profiles/99", "GET")[0] == 404
    status, answer, _ = ask(page, session, folder="")
    assert (status, answer["message"].partition(",")[0]) == (400, "Nothing runs on ranks 0-2")


def test_one_profile_at_a_time_and_it_ends_with_its_cell(page, session, loop):
    """A second one is refused; the first has the steps that there were."""
    loop(pause=0.2)
    status, begun = page.act(session.id, "profile", steps=1000, folder="")
    assert status == 202
    second = page.act(session.id, "profile", folder="")
    address = f"profiles/{begun['number']}"
    until(lambda: "Recording" in page.act(session.id, address, "GET")[1]["words"], 60 * slack())
    time.sleep(0.5)  # a step
    session.interrupt()
    found = until(lambda: page.act(session.id, address, "GET")[1].get("profile"), 60 * slack())

    assert second[0] == 400
    assert second[1]["message"].startswith("Another profile of this world is being made")
    assert any("of 1,000 steps: the cell was interrupted or failed" in line for line in found["remarks"])


def test_a_program_that_is_killed_becomes_an_error_in_words(page, session, loop, server):
    """The loop goes on, and can be profiled again."""
    cell = loop(pause=0.2)
    begun = page.act(session.id, "profile", steps=1000, folder="")[1]
    address = f"profiles/{begun['number']}"
    until(lambda: "Recording" in page.act(session.id, address, "GET")[1]["words"], 60 * slack())
    made = [one for one in psutil.Process(server.process.pid).children() if "profiler" in " ".join(one.cmdline())]
    assert len(made) == 1
    os.kill(made[0].pid, signal.SIGKILL)
    status, answer = until(lambda: (found := page.act(session.id, address, "GET"))[0] != 200 and found, 30 * slack())

    assert (status, answer["message"].partition(":")[0]) == (409, "There is no profile")
    assert "code -9" in answer["message"]
    assert not cell.done


def test_a_world_that_ends_meanwhile_becomes_an_error_in_words(page, session, loop):
    """The last test here: the profile ends at once, as its world has."""
    loop(pause=0.2)
    begun = page.act(session.id, "profile", steps=1000, folder="")[1]
    address = f"profiles/{begun['number']}"
    until(lambda: "Recording" in page.act(session.id, address, "GET")[1]["words"], 60 * slack())
    session.stop()
    status, answer = until(lambda: (found := page.act(session.id, address, "GET"))[0] != 200 and found, 20 * slack())

    assert status in (404, 409)
    assert "world" in answer["message"].lower()
