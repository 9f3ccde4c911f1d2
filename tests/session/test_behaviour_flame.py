"""The stacks of ranks over some seconds: while a cell runs, between cells, and when something ends meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import BadRequest, Flame, Session, TransferFailed
from jupyter_dtrain.core.flames import IDLE, hottest
from jupyter_dtrain.wire.agent_messages import SampleRank
from tests.session.cells import run, until, values
from tests.steward.until import family, runs

PREPARE = """
import ctypes, os, time, pathlib
rank = int(os.environ["RANK"])
def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(2000))
def locked(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
"""


@pytest.fixture(scope="module")
def sampled(world):
    """Three ranks."""
    run(world, PREPARE)
    return world


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Files of flames go there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def endless(sampled, tmp_path):
    """Give a cell that works until its file is there; it ends with the test."""
    go = tmp_path / "go"
    started: list = []

    def start(code: str):
        loop = f"turns = 0\nwhile not pathlib.Path({str(go)!r}).exists():\n    turns += 1\n    {code}\nturns"
        cell = sampled.run(loop, wait=False, view=None)
        until(lambda: all(stack and stack.frames for stack in sampled.stacks().values()))
        started.append(cell)
        return cell

    def end():
        go.touch()
        cell = started.pop()
        assert cell.wait(20)
        return cell

    start.end = end
    yield start
    if started:
        end()


def spies(session: Session) -> list[psutil.Process]:
    """The processes of py-spy that look at the session's ranks."""
    found = []
    for one in family(session):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [one] if one.name() == "py-spy" and runs(one) else []
    return found


def lines(flame) -> dict[int, str]:
    """The line at which each rank was longest."""
    return {rank: hottest({rank: one}, 1)[0][0][0].source for rank, one in flame.ranks.items()}


def test_while_a_cell_runs(sampled, endless):
    """Each rank at its own line, also where native code holds the interpreter lock; the cell goes on."""
    endless("busy(0.1) if rank == 0 else time.sleep(0.1) if rank == 1 else locked(0.1)")
    flames: list[Flame] = []
    sampler = threading.Thread(target=lambda: flames.append(sampled.flame(1)))
    sampler.start()
    states = set()
    while sampler.is_alive():
        states |= {one.state for one in sampled.world.ranks}
        time.sleep(0.001)
    [flame] = flames
    ended = endless.end()

    assert [20 < one.count <= 100 for one in flame.ranks.values()] == [True] * 3
    assert [one.words for one in flame.ranks.values()] == [""] * 3
    found = lines(flame)
    assert found[0] == "sum(range(2000))"
    assert found[1].startswith("busy(0.1) if rank == 0")
    assert found[2] == "ctypes.PyDLL(None).usleep(int(seconds * 1e6))"
    assert states == {"running"}
    assert ended.outcome == "ok"
    assert min(values(ended).values()) > 5
    assert spies(sampled) == []


def test_the_file_has_a_profile_for_each_rank(sampled, endless):
    """Named after the run; a second one of the same run gets a number; a name of one's own is taken as it is."""
    endless("busy(0.1)")
    first, second, own = sampled.flame(0.5), sampled.flame(0.5, ranks="1-2"), sampled.flame(0.5, file="mine.json")
    cell = endless.end()

    assert [str(one.path) for one in (first, second, own)] == [
        f"flame-{cell.number}.speedscope.json",
        f"flame-{cell.number}-2.speedscope.json",
        "mine.json",
    ]
    data = json.loads(first.path.read_text())
    assert [one["name"] for one in data["profiles"]] == ["rank 0", "rank 1", "rank 2"]
    for one in data["profiles"]:
        assert len(one["samples"]) == len(one["weights"]) > 0
        assert sum(one["weights"]) == pytest.approx(one["endValue"])
        assert {frame for stack in one["samples"] for frame in stack} <= set(range(len(data["shared"]["frames"])))
    names = {frame["name"] for frame in data["shared"]["frames"]}
    assert any(name.endswith(": sum(range(2000))") for name in names)
    assert not any("ipython-input" in name or "run_cell" in name for name in names)
    assert list(second.ranks) == [1, 2]
    assert f"flame-{cell.number}.speedscope.json" in repr(first)
    assert "speedscope.app" in repr(first)
    assert "<svg" in first._repr_mimebundle_()["text/html"]


def test_between_cells_ranks_are_idle(sampled):
    flame = sampled.flame(0.5)

    assert [one.samples for one in flame.ranks.values()] == [[(-1, one.count)] for one in flame.ranks.values()]
    assert hottest(flame.ranks, 9) == [((IDLE, IDLE), dict.fromkeys(range(3), 1.0))]


@pytest.mark.parametrize("seconds", [0.4, 61, float("nan"), -1, True, "5"])
def test_a_time_that_is_too_short_or_too_long(sampled, seconds):
    with pytest.raises(BadRequest, match=re.escape(f"0.5 to 60 seconds, not for {seconds!r}")):
        sampled.flame(seconds)


def test_ranks_that_are_not_there(sampled):
    with pytest.raises(BadRequest, match="ranks 0 to 2"):
        sampled.flame(1, ranks="1,7")


@pytest.mark.parametrize("file", ["/dev/full", "none/there.json"])
def test_a_file_that_cannot_be_written(sampled, file):
    """The disk is full, or there is no such folder: the picture is shown all the same."""
    flame = sampled.flame(0.5, file=file)

    assert flame.path is None
    assert f"The file {file} could not be written: " in repr(flame)
    assert "<svg" in flame._repr_mimebundle_()["text/html"]
    assert min(one.count for one in flame.ranks.values()) > 10


@pytest.mark.here("it looks at processes of the ranks' hosts")
def test_stop_ends_it_at_once(sampled, endless):
    endless("busy(0.1)")
    press = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    press.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sampled.flame(60)
    took = time.monotonic() - began

    assert took < 5
    until(lambda: not spies(sampled), 3)
    assert list(Path().glob("*.json")) == []
    assert endless.end().outcome == "ok"


@pytest.mark.here("it looks at processes of the ranks' hosts")
@pytest.mark.slow
def test_nobody_asks_any_more(sampled, endless):
    """The notebook's kernel was killed, say: py-spy ends long before its time, and the cell goes on."""
    endless("busy(0.1)")
    world, channel = sampled._link.bound()
    place = world.ranks[0]
    channel.ask(place.watch, SampleRank(0, place.pid, "abc", 60)).cancel()
    until(lambda: spies(sampled))
    until(lambda: not spies(sampled), 8)

    assert min(one.count for one in sampled.flame(0.5).ranks.values()) > 10
    assert endless.end().outcome == "ok"


@pytest.mark.here("it looks at processes of the ranks' hosts")
@pytest.mark.slow
def test_two_notebooks_at_once(sampled):
    """The second is told."""
    flames = []
    first = threading.Thread(target=lambda: flames.append(sampled.flame(4)))
    first.start()
    until(lambda: len(spies(sampled)) == 3)
    with pytest.raises(TransferFailed, match="Ranks 0-2: no samples: another notebook samples"):
        sampled.flame(0.5)
    first.join()

    assert min(one.count for one in flames[0].ranks.values()) > 50


def test_a_rank_that_is_stopped(sampled, endless, process_at):
    endless("busy(0.1)")
    process_at(sampled, 1).suspend()
    until(lambda: sampled.world.ranks[1].state == "stopped")
    flame = sampled.flame(0.5)
    process_at(sampled, 1).resume()

    assert "Rank 1: no samples: it is stopped (SIGSTOP); SIGCONT lets it go on." in repr(flame)
    assert [bool(one.samples) for one in flame.ranks.values()] == [True, False, True]
    assert endless.end().outcome == "ok"


@pytest.mark.here("it looks at processes of the ranks' hosts")
@pytest.mark.slow
def test_stacks_meanwhile(sampled, endless):
    """py-spy reads the native stack of the same ranks."""
    endless("locked(0.1)")
    flames = []
    first = threading.Thread(target=lambda: flames.append(sampled.flame(3)))
    first.start()
    until(lambda: len(spies(sampled)) == 3)
    found = [stack.state for _ in range(3) for stack in sampled.stacks(native=True).values()]
    first.join()
    endless.end()

    assert "silent" not in found
    assert min(one.count for one in flames[0].ranks.values()) > 50


FORBIDDEN = """
import ctypes
from jupyter_dtrain import Session
ctypes.CDLL(None).prctl(24, 19, 0, 0, 0)  # for root: no process that is started from here on has CAP_SYS_PTRACE
with Session.start(n=2) as session:
    session.run("import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)", 1, view=None)  # not dumpable
    print(session.stacks([1], native=True)[1].words)
    print(session.flame(0.5))
    session.flame(0.5, 1)
"""
"""A rank into which no process of its user may look."""


@pytest.mark.here("it starts its own world")
def test_a_system_that_forbids_it():
    """As some containers do."""
    command = [sys.executable, "-c", FORBIDDEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    words = (
        "Rank 1: no samples: py-spy cannot read its stacks: the system forbids it to look into other processes: start "
    )
    assert "py-spy cannot read the stack: the system forbids" in done.stdout
    assert f"\n{words}" in done.stdout
    assert "in  rank 0\n" in done.stdout
    assert f"TransferFailed: {words}" in done.stderr
    assert "--cap-add=SYS_PTRACE" in done.stderr


def test_a_rank_dies_meanwhile(launch):
    """Its samples until then are there, and those of the others; the answer names it. Then a dead one is named."""
    with launch(n=2) as session:
        run(session, PREPARE)
        cell = session.run("busy(1.5)\nif rank == 1: os.kill(os.getpid(), 9)\nbusy(1)", wait=False, view=None)
        until(lambda: all(stack and stack.frames for stack in session.stacks().values()))
        flame = session.flame(2.5)
        assert cell.wait(20)
        again = session.flame(0.5)

        assert 0 < flame.ranks[1].count < flame.ranks[0].count
        assert "Rank 1: the samples end early, as it died meanwhile." in repr(flame)
        assert again.ranks[1].samples == []
        assert "Rank 1: no samples: " in repr(again)
        assert "SIGKILL" in repr(again)
