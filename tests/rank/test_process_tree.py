"""The processes that a cell starts, told from those that were there when it began."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from jupyter_dtrain.rank import process_tree

ROUNDS = """
import os, subprocess
from jupyter_dtrain.rank.process_tree import CellProcesses, _session

processes, same = CellProcesses(), 0
for _ in range(40):
    earlier = subprocess.Popen(["sleep", "1000"])
    processes.begin()
    own = subprocess.Popen(["sleep", "1000"])
    started = {child.pid: child.started for child in _session(os.getpid())}
    same += started[earlier.pid] == processes._began
    ended, left = processes.end()
    assert (ended, left) == ({own.pid}, []), (ended, left, earlier.pid, own.pid)
    assert earlier.poll() is None
    earlier.kill()
    earlier.wait()
    own.wait()
assert same, "no process started in the tick in which a cell began"
"""


def test_a_process_that_started_right_before_a_cell_is_not_the_cells():
    """Linux notes both starts in the same hundredth of a second, in most rounds."""
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS], start_new_session=True, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_no_file_of_another_sessions_process_is_read(monkeypatch):
    """A rank looks for its cell's processes at each interrupt; with a file for each process of a busy machine, it does
    nothing else.
    """
    read, original = [], process_tree._read
    monkeypatch.setattr(process_tree, "_read", lambda path: read.append(path) or original(path))
    session = os.getsid(0)
    with contextlib.ExitStack() as there:
        mine, other = (
            there.enter_context(subprocess.Popen(["sleep", "1000"], start_new_session=own)) for own in (False, True)
        )
        found = {child.pid for child in process_tree._session(session)}
        for process in (mine, other):
            process.kill()

    assert {os.getpid(), mine.pid} <= found
    assert f"/proc/{mine.pid}/stat" in read
    assert {f"/proc/{pid}/stat" for pid in found} <= set(read)
    assert f"/proc/{other.pid}/stat" not in read
