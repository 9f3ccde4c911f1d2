"""``%distributed start`` and ``stop``: what begins and ends a world, and what does not."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest

from tests.steward.until import until

NOTHING = "No world is running here"


@pytest.fixture
def empty(notebook):
    """The notebook without a world, before and after."""
    yield notebook
    if NOTHING not in notebook.ok("%distributed").out:
        notebook.ok("%distributed stop")


def test_a_start_shows_its_progress_in_one_line(empty):
    """The line is there before any rank is, and changes in place: a saved notebook has its last state only."""
    cell = empty.ok("%distributed start -n 2")
    first = cell.of("display_data")[0]["data"]["text/plain"]

    assert len(cell.displays) == 1
    assert first == "Starting world 'world'"
    assert re.fullmatch(r"World 'world' is up: 2 ranks in [0-9.]+ s", cell.display_texts[0])
    assert cell.out == cell.err == ""


def test_after_a_start_that_failed_no_cell_starts_another_world(empty, tmp_path):
    """It says so and names the way on, until a start succeeds."""
    mpiexec = tmp_path / "broken"
    mpiexec.write_text("#!/bin/sh\necho a library is missing >&2\nexit 1\n")
    mpiexec.chmod(0o755)
    failed = empty.run(f"%distributed start -n 1 --mpiexec {mpiexec}")
    cells = [empty.run("%%distributed\n1"), empty.run("%%rank 0\n1")]
    status = empty.ok("%distributed").out
    empty.ok("%distributed start -n 1")
    empty.ok("%%distributed\n1")
    empty.ok("%distributed stop")

    assert failed.ename == "StartFailed"
    for cell in cells:
        assert cell.ename == "NoWorld"
        assert "its start failed: " in cell.traceback
        assert "a library is missing" in cell.traceback
        assert "%distributed start" in cell.traceback
        assert cell.out == ""
    assert "its start failed: " in status
    assert empty.ok("%distributed").out == f"{NOTHING}: start one with %distributed start, or Session.start(n=2).\n"


def test_after_a_world_was_lost_no_cell_starts_another_one(empty):
    """It was perhaps on other machines. The cell says why the world is gone, and the lines that start or choose one."""
    empty.ok("%distributed start -n 1 --name lost")
    steward = empty.value("__import__('jupyter_dtrain.launch.worlds').launch.worlds.find_world('lost').steward")
    psutil.Process(steward).kill()
    until(lambda: empty.value("__import__('jupyter_dtrain').session.open_sessions.failure"))
    cells = [empty.run("%%distributed\n1"), empty.run("%%rank 0\n1")]
    status = empty.ok("%distributed").out
    empty.ok("%distributed start -n 1")
    empty.ok("%%distributed\n1")
    empty.ok("%distributed stop")

    for cell in cells:
        assert cell.ename == "NoWorld"
        assert "World 'lost' is gone (its main process has ended)" in cell.traceback
        assert all(line in cell.traceback for line in ("%distributed start", "%distributed attach"))
        assert cell.out == ""
    assert "World 'lost' is gone" in status
    assert empty.ok("%distributed").out == f"{NOTHING}: start one with %distributed start, or Session.start(n=2).\n"


def test_a_second_start_is_refused_and_the_world_goes_on(empty):
    """One notebook has one world at a time, unless it says otherwise."""
    empty.ok("%distributed start -n 1")
    empty.ok("%%distributed\nx = 1")
    cell = empty.run("%distributed start -n 2")

    assert cell.ename == "BadRequest"
    assert "%distributed stop ends it" in cell.traceback
    assert empty.ok("%%distributed\nx").display_texts == ["1"]


def test_stop_ends_the_world_and_a_second_stop_says_that_there_is_none(empty):
    """Nothing of the world is left when stop returns."""
    empty.ok("%distributed start -n 1")
    pid = empty.value("__import__('jupyter_dtrain').current().world.ranks[0].pid")
    first, second = empty.ok("%distributed stop"), empty.run("%distributed stop")

    assert first.out == "World 'world' has ended.\n"
    assert second.ename == "NoWorld"
    assert "%distributed start" in second.traceback
    assert not Path(f"/proc/{pid}").exists()
    assert NOTHING in empty.ok("%distributed status").out
    assert "No world of yours" in empty.ok("%distributed worlds").out


@pytest.mark.parametrize("verb", ["stop", "restart", "interrupt", "stacks", "flame"])
def test_verbs_that_need_a_world_say_that_there_is_none(empty, verb):
    """The message says how to get one."""
    cell = empty.run(f"%distributed {verb}")

    assert cell.ename == "NoWorld"
    assert "%distributed start" in cell.traceback


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-n 0", "n must be a whole number, at least 1 and at most 1024, not 0"),
        ("-n -3", "at least 1 and at most 1024, not -3"),
        ("-n 9999", "at least 1 and at most 1024, not 9999"),
        ("-n x", "'x'"),
        ("-n", "expected one argument"),
        ("-n 4 --chief --ps", "expected one argument"),
        ("-n 4 --ps 1", "set the option chief"),
        ("-n 3 --chief --ps 2", "need 4 ranks or more, not 3: ask for more ranks"),
        ("--ranks 3", "unrecognized arguments: --ranks"),
        ("--nam x", "unrecognized arguments: --nam"),
        ("--name 'a/b'", "cannot name a world"),
        ("--name ''", "cannot name a world"),
        ("--name ../up", "cannot name a world"),
        ("--env hunter2", "NAME=value"),
        ("--env =hunter2", "NAME=value"),
        ("--env MASTER_PORT=hunter2", "port number"),
        ("--torch-backend x", "auto"),
        ("--mpiexec missing-mpiexec", "missing-mpiexec"),
        ("--name 'open", "No closing quotation"),
    ],
)
def test_a_start_that_cannot_be_says_why_and_changes_nothing(empty, home, arguments, words):
    """The cell fails with one message; no process and no folder comes of it."""
    folder = home / "runtime" / "dtrain"
    before = sorted(folder.iterdir()) if folder.exists() else []
    cell = empty.run(f"%distributed start {arguments}")
    assert cell.reply is not None

    assert cell.reply["status"] == "error"
    assert words in cell.said
    assert "File " not in cell.said  # no frames of ours
    assert "hunter2" not in cell.said
    assert NOTHING in empty.ok("%distributed").out
    assert (sorted(folder.iterdir()) if folder.exists() else []) == before


def test_ranks_with_roles_are_shown_with_them(empty):
    """A world with other roles is another world."""
    empty.ok("%distributed start -n 2 --chief")
    shown = empty.ok("%distributed").display_texts[0]
    again = empty.ok("%distributed start -n 2 --chief").out
    other = empty.run("%distributed start -n 2")

    assert "role" in shown
    assert [line.split()[1] for line in shown.splitlines() if line.split()[0] in ("0", "1")] == ["chief", "worker"]
    assert "already running" in again
    assert "options differ from those asked for" in other.traceback


def test_names_and_variables_reach_the_world(empty):
    """Values may hold spaces and equals signs; several may follow one ``--env``."""
    empty.ok("%distributed start -n 1 --name my.world-1 --env A=1 'B=two words' --env C=x=y --torch-backend gloo")
    cell = empty.ok("%%distributed\nimport os\n[os.environ[name] for name in 'ABC']")
    status, listing = empty.ok("%distributed"), empty.ok("%distributed worlds")

    assert cell.display_texts == ["['1', 'two words', 'x=y']"]
    assert "World 'my.world-1': 1 rank;" in status.display_texts[0]
    assert "my.world-1" in listing.display_texts[0]
    assert "<table>" in listing.displays[0]["data"]["text/html"]


def test_a_cell_without_a_world_starts_a_default_one_and_says_so(empty):
    """The cell then runs on its ranks."""
    cell = empty.ok("%%distributed\nimport os\nprint(os.environ['RANK'])")

    assert cell.lines[0].startswith("No world is running: starting one with 2 ranks, as there is no GPU (to choose, ")
    assert "%%distributed -n 4" in cell.lines[0]
    assert "World 'world' is up" in cell.display_texts[0]
    assert "[0] 0" in cell.lines


def test_the_first_cell_takes_the_options_of_start_and_may_run_again(empty):
    """Run All gives the same line to the world that runs; other options are refused, and nothing runs."""
    first = "%%distributed -n 1 --env 'WORD=two words' --torch-backend gloo\nimport os\nprint(os.environ['WORD'])"
    cells = [empty.ok(first), empty.ok(first)]
    fewer = empty.ok("%%distributed -n 1\nprint('ran')")
    other = empty.run("%%distributed -n 2\nprint('ran')")
    elsewhere = empty.run("%%distributed --hosts localhost:1\nprint('ran')")

    assert cells[0].lines[0] == "No world is running: starting one with 1 rank."
    assert [cell.lines[-1] for cell in cells] == ["two words"] * 2
    assert cells[1].lines == ["two words"]
    assert fewer.lines == ["ran"]
    for cell, flag in ((other, "(-n)"), (elsewhere, "--hosts")):
        assert cell.ename == "BadRequest"
        assert all(words in cell.traceback for words in (flag, "nothing ran", "%distributed stop", "restart"))
        assert cell.out == ""


def test_a_first_cell_with_options_that_cannot_be_starts_nothing(empty):
    """Two launchers at once, a value out of range, ranks that the world would not have: one message each."""
    for line, words in (
        ("--slurm --hosts a:1", "each say where the ranks run"),
        ("-n 0", "n must be a whole number"),
        ("-n 1 -r 1", "There is no rank 1"),
    ):
        said = empty.run(f"%%distributed {line}\n1").said
        assert words in said
        assert "starting one" not in said
        assert NOTHING in empty.ok("%distributed").out


def test_a_first_cell_with_options_may_follow_a_start_that_failed(empty, tmp_path):
    """Its options say which world is meant, so Run All needs no other cell."""
    mpiexec = tmp_path / "broken"
    mpiexec.write_text("#!/bin/sh\nexit 1\n")
    mpiexec.chmod(0o755)
    failed = empty.run(f"%%distributed -n 1 --mpiexec {mpiexec}\n1")
    plain = empty.run("%%distributed\n1")
    cell = empty.ok("%%distributed -n 1\nprint('ran')")

    assert failed.ename == "StartFailed"
    assert plain.ename == "NoWorld"
    assert cell.lines[-1] == "ran"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%distributed\nx = (1 +", "never closed"),
        ("%%distributed\n", "The cell is empty"),
        ("%%distributed -i nowhere\n1", "no such variable"),
        ("%%distributed --pull x --no-wait\n1", "--pull must wait for the end"),
        ("%%distributed --timeout 0\n1", "not above 0"),
        ("%%rank\n1", "RANKS"),
        ("%%distributed -r 99\n1", "There is no rank 99"),
        ("%%rank -\n1", "names no rank"),
    ],
)
def test_a_cell_that_cannot_run_starts_no_world(empty, cell, words):
    """It is refused before anything is made for it."""
    said = empty.run(cell).said

    assert words in said
    assert "starting one" not in said
    assert NOTHING in empty.ok("%distributed").out


def test_worlds_of_other_notebooks_are_mentioned(empty, launch):
    """Status names what runs elsewhere, and the list says who drives it."""
    elsewhere = launch(n=1, name="elsewhere")
    status = empty.ok("%distributed").out
    rows = empty.ok("%distributed worlds").display_texts[0].splitlines()
    elsewhere.stop()

    assert "You have 1 world elsewhere" in status
    assert [row.split()[0] for row in rows[2:]] == ["elsewhere"]
    assert "this notebook" not in rows[2]
    assert f"process {os.getpid()}" in rows[2]
    assert os.getcwd() in rows[2]  # noqa: PTH109 — what the row must name
