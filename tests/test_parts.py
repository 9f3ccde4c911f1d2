"""``make test`` makes an exit status and a table from its parts, and shows the output of those that failed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tests import run
from tests.steward.until import until

PASSES = "def test_it_passes():\n    pass\n"
FAILS = "def test_it_fails():\n    print('seen by whoever looks')\n    assert 1 == 2\n"
HANGS = """
import os, pathlib, time

def test_it_hangs():
    place = pathlib.Path(__file__).parents[1] / "begun"
    os.mkdir(place); time.sleep(600)  # one step, so that no frame of pathlib is interrupted after it
"""
WAITS = """
import pathlib, time

def test_it_meets_the_other():
    here = pathlib.Path(__file__).parents[1]
    (here / {mine!r}).touch()
    deadline = time.monotonic() + 30
    while not (here / {other!r}).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


COMPARES = """
import pathlib, time
here = pathlib.Path({here!r})
try:
    (here / "began").touch()
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(1)  # a world is stopped
    (here / "stopped").touch()
"""
ALL = """
import pathlib, sys
from tests import run
run.REPORTS = pathlib.Path({here!r})
run.parts = lambda: []
run.RATIOS = [sys.executable, "-c", {compares!r}]
sys.argv = ["run"]
sys.exit(run.main())
"""


@pytest.fixture
def play(tmp_path, monkeypatch, capsys):
    """Run parts of one test file each: ``play({name: source}, budget=60) -> (status, what was printed)``."""
    monkeypatch.setattr(run, "TESTS", tmp_path)
    monkeypatch.setattr(run, "REPORTS", tmp_path)
    monkeypatch.setattr(run, "LANES", 2)

    def play(sources, budget=60):
        monkeypatch.setattr(run, "BUDGETS", dict.fromkeys(sources, budget))
        for name, source in sources.items():
            folder = tmp_path / name
            folder.mkdir()
            (folder / "test_it.py").write_text(source)
        status = run.summary(run.Runner(slow=False).run(list(sources)), 0.0)
        return status, capsys.readouterr().out

    return play


def test_a_failed_test_is_printed_and_fails_the_run(play):
    status, printed = play({"fine": PASSES, "broken": FAILS})

    assert status == 1
    assert "seen by whoever looks" in printed
    assert re.search(r"Not passed: broken\n  \S*test_it::test_it_fails: assert 1 == 2\n", printed)
    assert printed.endswith("\n1 passed, 1 failed, 0 skipped\n")


def test_a_part_that_takes_longer_than_its_budget_passes_with_a_warning(play):
    status, printed = play({"fine": PASSES}, budget=0)

    assert status == 0
    assert [line.split()[0] for line in printed.splitlines() if "over its budget" in line] == ["fine"]
    assert "All parts passed.\n1 passed" in printed


def test_a_part_that_hangs_is_ended_and_fails_with_where_it_was(play, monkeypatch, tmp_path):
    monkeypatch.setattr(run.Part, "cap", property(lambda _: 0.0 if (tmp_path / "begun").exists() else 600.0))
    status, printed = play({"stuck": HANGS})

    assert status == 1
    assert "FAILED: hung: it was ended after 0 s" in printed
    assert "test_it.py:6: KeyboardInterrupt" in printed


def test_a_part_may_take_several_times_its_budget(monkeypatch):
    """Never less than a quarter of an hour, and two hours with its slow tests."""
    monkeypatch.setattr(run, "BUDGETS", {"long": 200, "short": 10})

    assert [run.Part("long").cap, run.Part("short").cap, run.Part("long", slow=True).cap] == [1000, 900, 7200]


def test_two_parts_run_side_by_side(play, monkeypatch):
    """Each passes only once the other has begun; a line says meanwhile which are at work."""
    monkeypatch.setattr(run, "EVERY", 0.1)
    status, printed = play(
        {
            "one": WAITS.format(mine="1", other="2"),
            "two": WAITS.format(mine="2", other="1"),
        }
    )

    assert status == 0
    assert re.search(r"^\d\d:\d\d one \d+ s, two \d+ s; 0 of 2 parts done$", printed, re.MULTILINE)


def test_the_budgets_of_all_parts_add_up_to_a_quarter_of_an_hour():
    assert set(run.parts()) == set(run.BUDGETS)
    assert run.planned(run.BUDGETS, 2) <= 15 * 60
    assert run.planned(["lint", "unit", "view", "engine"], 2) <= 90


def test_an_interrupt_of_the_comparison_with_peers_lets_it_stop_its_worlds(tmp_path):
    """As in a terminal, where Ctrl-C reaches all processes of the group; no traceback is printed."""
    here = str(tmp_path)
    code = ALL.format(here=here, compares=COMPARES.format(here=here))
    tests = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until((tmp_path / "began").exists, 30)
    os.killpg(tests.pid, signal.SIGINT)
    printed, _ = tests.communicate(timeout=30)

    assert (tests.returncode, (tmp_path / "stopped").exists()) == (130, True), printed
    assert "Interrupted." in printed
    assert "Traceback" not in printed
