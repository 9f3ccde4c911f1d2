"""A failure gives back the resources that it takes: releases in one world, again and again."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import DistributedError, NoWorld, Settings, WorldLost
from tests.processes import loose_segments, wait_for_segments
from tests.steward.until import family, steward_of, until

WARM = 20
RELEASES = 200
"""Releases before the first look: a rank keeps spools and sources of its last runs, and libraries fill their caches."""
SPARE = 3
"""Descriptors that may be there for a moment, such as those of a connection that is being closed."""
ONCE = 4 << 20
"""Bytes by which a process may grow at some time: an allocator takes memory in steps."""
PER_RELEASE = 64 << 10
"""Bytes by which a process may grow with each cell: it keeps what the user may ask for, as the history of cells."""
OF_A_WORLD = ("dtrain-world", "dtrain-scheduler")
"""The threads that a client has for each world, by name."""
PROGRAM = "".join(f"def layer_{i}(x, w, b=0.0):\n    return [v * w[{i}] + b for v in x]\n" for i in range(50))
"""A rank reads all of its cell to find the call that failed, and must let go of what it has read."""
FAILS = f"""{PROGRAM}
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    raise ValueError("a bug")
dist.all_reduce(torch.ones(3))
"""


def release(session) -> None:
    """One rank fails, and the other, which waits for it, is freed."""
    with pytest.raises(DistributedError) as caught:
        session.run(FAILS, view=None, timeout=60)
    assert caught.value.run.errors[0].waited == "all_reduce"


def held(processes) -> dict[int, tuple[int, int]]:
    """How many descriptors and threads each process has."""
    return {one.pid: (one.num_fds(), one.num_threads()) for one in processes}


def files(folder) -> set[str]:
    """The names in a folder, without the sockets of clients."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(("s-", "c"))}


@pytest.mark.slow
def test_releases_leave_nothing(launch, tmp_path, monkeypatch) -> None:
    """No descriptor, thread, memory or file: on ranks, watches, steward, controller, store and client."""
    pytest.importorskip("torch", reason="torch, in which a rank waits here, is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    session = launch(n=2, settings=Settings(release_grace=0.05))
    for _ in range(WARM):
        release(session)
    processes = [psutil.Process(), *family(session)]
    folders = [Path(folder) for folder in session.request.passing_folders]
    folders += [tmp_path, folders[-1] / "logs", folders[-1] / "profile" / "security"]
    before, there = held(processes), [files(folder) for folder in folders]
    memory = {one.pid: one.memory_info().rss for one in processes}
    shared = loose_segments()
    for _ in range(RELEASES):
        release(session)

    until(lambda: flat(before, held(processes)))
    assert [psutil.Process(), *family(session)] == processes
    grown = {one.pid: one.memory_info().rss - memory[one.pid] for one in processes}
    ranks = {rank.pid: f"rank {number}" for number, rank in enumerate(session.world.ranks)}
    for one in processes:
        name = ranks.get(one.pid) or one.cmdline()[-1][-30:]
        print(f"{grown[one.pid] / RELEASES / 1024:6.1f} kB a release: {name}")
    assert {pid: size for pid, size in grown.items() if size > ONCE + PER_RELEASE * RELEASES} == {}
    assert [files(folder) for folder in folders] == there
    session.stop()
    assert wait_for_segments(shared) == set()
    assert files(tmp_path) == set()


@pytest.mark.slow
def test_a_lost_world_leaves_nothing_in_its_client(launch) -> None:
    """Neither threads nor sockets, though its session is still there, says why, and can be stopped."""
    client, sessions, seen, there = psutil.Process(), [], [], set(threading.enumerate())
    for _ in range(2):
        session = launch(n=1)
        run = session.run("import time; time.sleep(1000)", view=None, wait=False)
        sessions.append(session)
        steward_of(session).kill()
        assert run.wait(20)
        until(lambda session=session: session.closed)
        if seen:
            until(lambda: flat(seen[0], held([client])))
        else:
            # Whatever a client makes once is there by now.
            until(lambda: not of_a_world(there))
            seen.append(held([client]))

    assert of_a_world(there) == []
    assert run.outcome == "lost"
    for session in sessions:
        with pytest.raises(WorldLost, match="its main process has ended"):
            session.run("1", view=None)
        session.stop()
        with pytest.raises(NoWorld):
            session.run("1", view=None)


def of_a_world(there) -> list[str]:
    """The names of a client's threads for a world, without those that were ``there``."""
    return [thread.name for thread in set(threading.enumerate()) - there if thread.name in OF_A_WORLD]


def flat(before, after) -> bool:
    """Whether no process holds more than it did."""
    return all(fds <= before[pid][0] + SPARE and threads <= before[pid][1] + 1 for pid, (fds, threads) in after.items())
