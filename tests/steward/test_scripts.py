"""Python processes other than a notebook's kernel: they end for good when they end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from jupyter_dtrain import Session
from tests.processes import processes_of, wait_until_gone

START = "from jupyter_dtrain import Session; session = Session.start(n=1); session.run('x = 1', view=None)"


def script(code: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_script_that_ends_takes_its_world_along(home: Path, mark: str) -> None:
    """No stop, no with."""
    ended = script(f"{START}; print(session.world.size)")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")
    assert wait_until_gone(mark) == []


def test_a_script_that_fails_takes_its_world_along(home: Path, mark: str) -> None:
    """No code catches the exception; the user sees that exception alone."""
    ended = script(f"{START}; 1 / 0")

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert ended.stderr.count("Traceback") == 1
    assert wait_until_gone(mark) == []


def test_a_terminal_ipython_takes_its_world_along(home: Path, mark: str) -> None:
    """IPython in a terminal, left with exit."""
    terminal = pexpect.spawn(
        sys.executable, ["-m", "IPython", "--simple-prompt", "--colors=NoColor"], encoding="utf-8", timeout=60
    )
    try:
        terminal.expect_exact("In [1]: ")
        terminal.sendline(START)
        terminal.expect_exact("In [2]: ")
        started = processes_of(mark)
        terminal.sendline("exit")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)

    assert len(started) > 4
    assert wait_until_gone(mark) == []


def test_a_with_block_stops_its_world(home: Path, mark: str) -> None:
    """Its body may fail: after the block nothing is left."""
    sessions = []

    def fail() -> None:
        with Session.start(n=1) as session:
            sessions.append(session)
            session.run("1", view=None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert processes_of(mark) == []
    assert sessions[0].closed


def test_a_world_may_be_stopped_inside_its_with_block(home: Path, mark: str) -> None:
    """The end of the block then has nothing to do."""
    with Session.start(n=1) as session:
        session.stop()

    assert processes_of(mark) == []
