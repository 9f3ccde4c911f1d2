"""A loop that runs is profiled from a page, while its notebook waits for the very cell."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from jupyter_dtrain import DistributedError, DistributedInterrupt
from jupyter_dtrain.core.errors import ProfileFailed
from jupyter_dtrain.launch.worlds import Listing
from jupyter_dtrain.server.profiles import Profiles, Wanted
from tests.pace import slack
from tests.server.page import Page, Server
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


PLUGIN = """
from jupyter_dtrain.core.declarations import Declaration
print("a plug-in says hello", flush=True)
DECLARATION = Declaration("chatty")
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


@pytest.fixture
def other_server(server, tmp_path, monkeypatch):
    """One more server, for one test; in it is a plug-in that prints."""
    (tmp_path / "chatty.py").write_text(PLUGIN)
    info = tmp_path / "chatty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chatty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[jupyter_dtrain.declarations]\nchatty = chatty:DECLARATION\n")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    found = Server(tmp_path)
    yield found
    found.close()


def gone(folder):
    """A world whose files are gone."""
    return Listing("gone", "gone", 1, "", 0, 0.0, str(folder / "gone" / "client.json"))


def programs(server):
    """The programs that make profiles for a server."""
    return [one for one in psutil.Process(server.process.pid).children() if "profiler" in " ".join(one.cmdline())]


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


def profile(page, session, **body):
    """The profile that is made."""
    status, answer, _ = ask(page, session, **body)
    assert status == 200, answer
    return answer["profile"]


def records(page, session, address):
    """Whether a profile is so far that the ranks record their steps."""
    status, answer = page.act(session.id, address, "GET")
    assert status == 200, answer
    return "Recording" in answer["words"]


def test_a_loop_is_profiled_while_its_notebook_waits(page, session, loop, server):
    """The trace lies beside the notebook, pages can download it, and the next profile is compared with this one."""
    (server.folder / "work").mkdir(exist_ok=True)
    # Its three steps last long enough to be seen under way, also on a full machine.
    cell = loop(pause=0.3)
    status, answer, told = ask(page, session, steps=3, folder="work")
    again = profile(page, session, ranks=[0, 2], folder="work")

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
    assert page.act(session.id, "profile", ranks=[])[1]["message"].startswith("Name the ranks to profile")
    status, answer = page.act(session.id, "profiles/99", "GET")
    assert (status, answer["message"].partition(":")[0]) == (404, "This profile is no longer kept")
    status, answer, _ = ask(page, session, folder="")
    assert (status, answer["message"].partition(",")[0]) == (400, "Nothing runs on ranks 0-2")


def test_one_profile_at_a_time_and_it_ends_with_its_cell(page, session, loop):
    """A second one is refused; the first has the steps that there were."""
    loop(pause=0.2)
    status, begun = page.act(session.id, "profile", steps=1000, folder="")
    assert status == 202
    second = page.act(session.id, "profile", folder="")
    address = f"profiles/{begun['number']}"
    until(lambda: records(page, session, address), 60 * slack())
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
    until(lambda: records(page, session, address), 60 * slack())
    (made,) = programs(server)
    os.kill(made.pid, signal.SIGKILL)
    status, answer = until(lambda: (found := page.act(session.id, address, "GET"))[0] != 200 and found, 30 * slack())

    assert (status, answer["message"].partition(":")[0]) == (409, "There is no profile")
    assert "was killed, as where memory is short. Profile fewer steps" in answer["message"]
    assert not cell.done


def test_a_program_ends_with_its_server(page, session, loop, other_server):
    """What a plug-in prints there goes to the server's log, and the ranks can be profiled by another server at once."""
    cell = loop(pause=0.2)
    theirs = Page(other_server)
    # The ranks keep what they recorded for the program that was killed until they hear nothing of it for some time.
    first = until(lambda: (found := ask(theirs, session, steps=2, folder=""))[0] == 200 and found[1], 90 * slack())
    begun = theirs.act(session.id, "profile", steps=1000, folder="")[1]
    address = f"profiles/{begun['number']}"
    until(lambda: records(theirs, session, address), 60 * slack())
    (made,) = programs(other_server)
    other_server.process.kill()
    until(lambda: not made.is_running() or made.status() == psutil.STATUS_ZOMBIE, 20 * slack())
    again = profile(page, session, steps=2, folder="")

    assert "a plug-in says hello" in other_server.log
    for found in (first["profile"], again):
        assert [row[0] for row in found["tables"][0]["rows"]] == ["0", "1", "2"]
    assert not cell.done


def test_a_folder_that_is_gone_is_named_as_such(tmp_path):
    """It is so where a notebook is in no folder of the server's, and its world's folder was removed meanwhile."""
    wanted = msgspec.json.encode(Wanted(gone(tmp_path), [0], 1, str(tmp_path / "gone"), b""))
    program = [sys.executable, "-m", "jupyter_dtrain.server.profiler"]
    said = subprocess.run(program, input=wanted, stdout=subprocess.PIPE, check=True, timeout=60 * slack()).stdout
    answer = json.loads(said)

    assert answer["bad"]
    assert answer["words"].startswith(f"The trace cannot be written to {tmp_path / 'gone'}, which is no longer there:")


def test_profiles_of_several_pages_are_kept_and_no_number_comes_again(tmp_path):
    """Neither in one server nor after its restart. The programs cannot be run here: the world's folder is gone."""
    listing = gone(tmp_path)

    async def begin(profiles):
        number = profiles.begin([0], 1, tmp_path)
        while True:
            try:
                assert profiles.look(number, tmp_path)
            except ProfileFailed:
                return number
            await asyncio.sleep(0.01)

    async def play():
        before, after = Profiles(listing), Profiles(listing)
        numbers = [await begin(before) for _ in range(6)]
        for number in numbers[:2]:
            assert before.look(number, tmp_path) is None
        for number in numbers[2:]:
            with pytest.raises(ProfileFailed):
                before.look(number, tmp_path)
        assert after.look(numbers[-1], tmp_path) is None
        return [*numbers, await begin(after)]

    numbers = asyncio.run(play())
    assert numbers == sorted(set(numbers))


def test_a_world_that_ends_meanwhile_becomes_an_error_in_words(page, session, loop):
    """The last test here: the profile ends at once, as its world has."""
    loop(pause=0.2)
    begun = page.act(session.id, "profile", steps=1000, folder="")[1]
    address = f"profiles/{begun['number']}"
    until(lambda: records(page, session, address), 60 * slack())
    session.stop()
    status, answer = until(lambda: (found := page.act(session.id, address, "GET"))[0] != 200 and found, 20 * slack())

    assert status in (404, 409)
    assert "world" in answer["message"].lower()
