"""Real worlds: the events of their ranks are in the store, with a client and without, whatever its state."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_dtrain import Session, Store
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.view.labels import took
from tests.processes import wait_until_gone
from tests.session.cells import begin, fail, run, until


def newest(outcome: str | None = None):
    """The newest stored run, once it has ended (as ``outcome``)."""

    def found():
        runs = Store.open().runs(1)
        return runs and runs[0].outcome != "running" and (outcome is None or runs[0].outcome == outcome) and runs[0]

    return until(found)


def stored(number: int):
    """The stored run of that number in the newest world that has it, once it has ended."""

    def found():
        runs = [run for run in Store.open().runs(50) if run.number == number]
        return runs and runs[0].outcome != "running" and runs[0]

    return until(found)


LOG = """
import jupyter_dtrain
for step in range({points}):
    jupyter_dtrain.log(loss=step * 0.5 + {rank}, step=step)
"""


@pytest.mark.slow
def test_a_hundred_thousand_points_of_each_of_four_ranks_are_stored_whole_and_in_order(launch, own_data):
    """Run.metrics has the same ones."""
    with launch(n=4) as session:
        cell = run(session, LOG.format(points=100_000, rank="int(__import__('os').environ['RANK'])"))
        kept = newest("ok").metrics
        for metrics in (kept, cell.metrics):
            assert list(metrics) == ["loss"]
            for rank in range(4):
                columns = metrics["loss"][rank]
                assert list(columns.steps) == list(range(100_000))
                assert list(columns.values) == [step * 0.5 + rank for step in range(100_000)]
        assert list(kept["loss"][0].times) == sorted(kept["loss"][0].times)
    with closing(sqlite3.connect(Store.open().path)) as db:
        assert db.execute("SELECT count(*) FROM blocks").fetchone()[0] < 500


def test_a_run_that_has_just_ended_is_found_whole(launch, own_data):
    """A notebook asks for the run in its next cell, and waits for the store."""
    with launch(n=2) as session:
        for steps in (3, 5000):
            cell = run(session, LOG.format(points=steps, rank=0))
            kept = Store.open().run_of(cell)

            assert (kept.number, kept.outcome) == (cell.number, "ok")
            assert len(kept.metrics["loss"][1].values) == steps


def test_every_end_of_a_run_is_stored(launch, own_data):
    """Well, with an error, interrupted, on some ranks, with a rank that was killed, with a world that was stopped."""
    with launch(n=3) as session:
        run(session, "print('fine'); 6 * 7")
        fail(session, "raise ValueError('on purpose')", "0,2")
        loop = begin(session, "import time\ntry: time.sleep(1000)\nexcept KeyboardInterrupt: print('caught')")
        session.interrupt()
        loop.wait(20)
        stubborn = begin(session, "import os, time\nif os.environ['RANK'] == '1': time.sleep(1000)")
        os.kill(session.world.ranks[1].pid, signal.SIGKILL)
        stubborn.wait(20)
        first, second, third, fourth = (stored(number) for number in (1, 2, 3, 4))
        last = begin(session, "import time; time.sleep(1000)", "0")
    fifth = newest()

    assert (first.outcome, first.text(2), first.results[2].data["text/plain"]) == ("ok", "fine\n", "42")
    assert (second.outcome, second.ranks, second.errors[2].evalue) == ("error", [0, 2], "on purpose")
    assert (third.outcome, loop.outcome) == ("interrupted", "interrupted")
    assert (fourth.outcome, fourth.outcomes) == ("lost", {0: "ok", 1: "lost", 2: "ok"})
    assert "SIGKILL" in fourth.parts[1].words
    assert (fifth.number, fifth.outcome, fifth.world_id) == (last.number, "lost", first.world_id)
    assert [one.source for one in (first, second)] == ["print('fine'); 6 * 7", "raise ValueError('on purpose')"]
    assert 0 <= first.elapsed < 20
    assert Store.open().finished_away() == []


@pytest.mark.slow
def test_a_restart_ends_what_ran_and_the_store_goes_on(launch, own_data):
    """The old run is lost, the new one is not."""
    with launch(n=2) as session:
        begin(session, "import time; time.sleep(1000)")
        session.restart()
        cell = run(session, "print('fresh')")
        assert stored(cell.number).text(1) == "fresh\n"
        lost = stored(1)

    assert (lost.outcome, lost.ranks) == ("lost", [0, 1])


def test_a_world_that_never_came_up_leaves_no_trace_in_the_store(own_data):
    """No row for it."""
    from jupyter_dtrain import Settings, StartFailed

    with pytest.raises(StartFailed):
        Session.start(n=2, mpiexec="/bin/false", settings=Settings(start_timeout=4))

    assert Store.open().runs() == []


START = """
%load_ext jupyter_dtrain
%distributed start -n 2
"""

WORK = """%%distributed --no-wait
import pathlib, time, jupyter_dtrain
for step in range(100_000):
    jupyter_dtrain.log(loss=1.0 / (step + 1), step=step)
    if step % 100 == 0: print('step', step, flush=True)
    time.sleep(0.001)
    if pathlib.Path('go').exists(): break
print('last', step)
"""


@pytest.mark.slow
def test_a_run_whose_kernel_is_killed_goes_on_and_is_stored_whole(open_notebook, own_data, mark):
    """Without a client the store has all points and lines since the start. The next notebook mentions it, once."""
    notebook = open_notebook()
    notebook.ok(START)
    notebook.ok(WORK)
    until(lambda: (runs := Store.open().runs(1)) and runs[0].metrics.get("loss"))
    quiet = open_notebook()
    (said,) = quiet.ok("%load_ext jupyter_dtrain").said.strip().splitlines()
    assert said.startswith("World 'world' is running")
    os.kill(notebook.manager.provisioner.pid, signal.SIGKILL)
    before = len(Store.open().runs(1)[0].metrics["loss"][0].values)
    until(lambda: len(Store.open().runs(1)[0].metrics["loss"][0].values) > before + 500)
    went_on = Store.open().runs(1)[0].outcome
    (notebook.folder / "go").touch()
    ended = newest()
    counts = {}
    for rank in (0, 1):
        *lines, last = ended.text(rank).splitlines()
        count = int(last.split()[1]) + 1
        counts[rank] = count
        assert lines == [f"step {step}" for step in range(0, count, 100)]
        assert list(ended.metrics["loss"][rank].steps) == list(range(count))
        assert list(ended.metrics["loss"][rank].values) == [1.0 / (step + 1) for step in range(count)]
    told = open_notebook().ok("%load_ext jupyter_dtrain").out.splitlines()
    again = open_notebook().ok("%load_ext jupyter_dtrain").out.splitlines()
    worlds.stop_world(ended.world)

    assert went_on == "running"
    assert ended.outcome == "ok"
    assert min(counts.values()) > before + 500
    assert told[-1].startswith("World 'world' is running")
    assert told[:-1] == [
        f"run {ended.label} ended while you were away: ok, {took(ended.elapsed)}",
        f"%distributed show {ended.label} shows what it printed and logged.",
    ]
    assert len(again) == 1
    notebook.close()
    quiet.close()
    assert processes_left(mark) == []


def processes_left(mark: str) -> list[str]:
    """Processes left by notebooks that were closed; others close with the test."""
    return [line for line in wait_until_gone(mark, patience=0) if "ipykernel" not in line]


@pytest.fixture
def mark(monkeypatch) -> str:
    """A word in the environment of all processes that are started from now on."""
    monkeypatch.setenv("DTRAIN_TEST_MARK", "mark-of-the-store")
    return "mark-of-the-store"


@pytest.mark.slow
def test_a_run_that_was_followed_to_its_end_is_not_reported_again(open_notebook, own_data):
    """A run that ended well does not count, nor runs that end with the kernel's shutdown."""
    notebook = open_notebook()
    notebook.ok(START)
    notebook.ok("%%distributed\nprint('x')")
    notebook.ok("%%distributed --no-wait\nimport time; time.sleep(1000)")
    until(lambda: len(Store.open().runs()) == 2)
    notebook.close()
    ended = [newest("lost"), stored(1)]
    said = open_notebook().ok("%load_ext jupyter_dtrain").said

    assert [one.outcome for one in ended] == ["lost", "ok"]
    assert said.strip() == ""


def test_a_steward_that_is_killed_leaves_a_store_that_the_next_one_completes(launch, own_data):
    """All that the ranks had spooled is there, and the run is lost. The next world of its name counts on."""
    session = launch(n=2)
    lines = "".join(f"line {k}\n" for k in range(1000))
    cell = session.run("for k in range(1000): print('line', k)\nimport time; time.sleep(1000)", wait=False, view=None)
    until(lambda: all(totals.lines == 1000 for totals in cell.totals.values()))
    until(lambda: Store.open().runs(1))
    os.kill(session._link.listing.steward, signal.SIGKILL)
    cell.wait(20)
    until(lambda: session.closed)
    seen = Store.open().runs(1)[0].outcome
    with launch(n=1) as later:
        until(lambda: Store.open().runs(1)[0].outcomes == {0: "lost", 1: "lost"})
        again = later.run("pass", name="again", view=None)
        until(lambda: Store.open().runs(1)[0].number == again.number)
    named, ended = Store.open().runs(2)

    assert (cell.number, again.number, named.label, named.name) == (1, 2, "world/2", "again")
    assert seen == ended.outcome == "lost"
    assert (ended.text(0), ended.text(1)) == (lines, lines)


def spoil_newer(path: Path) -> None:
    with closing(open_for_writing(path)) as db:
        db.execute("PRAGMA user_version = 99")


def spoil_corrupt(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"This was a store once. " * 500)


def spoil_folder(path: Path) -> None:
    path.mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(spoil_newer, "written by a newer jupyter-dtrain (version 99", id="newer"),
        pytest.param(spoil_corrupt, "is damaged (file is not a database)", id="corrupt"),
        pytest.param(spoil_folder, "cannot be used (Is a directory)", id="a folder"),
    ],
)
def test_a_store_that_cannot_be_written_is_reported_once_and_cells_run(launch, own_data, capfd, spoil, words):
    """The file stays as it is; once it is moved away, a new one holds what the spools still have."""
    path = own_data / "dtrain" / "runs.sqlite"
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with launch(n=1) as session:
        until(lambda: session._notices._notices or session._notices._shown)
        cells = [run(session, f"print({number})") for number in range(3)]
        said = capfd.readouterr().err
        after = path.read_bytes() if path.is_file() else None
        for part in path.parent.glob("runs.sqlite*"):
            part.rename(part.with_name(f"old-{part.name}"))
        texts = [stored(number).text(0) for number in (1, 2, 3)]

    assert [cell.outcome for cell in cells] == ["ok"] * 3
    assert said.count("[jupyter-dtrain] ") == 1
    assert words in said
    assert before == after
    assert texts == ["0\n", "1\n", "2\n"]


def test_a_read_only_home_stops_no_world(launch, tmp_path, monkeypatch, capfd):
    """Jupyter's data folder lies below a file: one line each for logs and store, and text is whole meanwhile."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "file" / "data"))
    with launch(n=2) as session:
        until(lambda: len(session._notices._shown) == 2)
        cell = run(session, "for k in range(50_000): print('x' * 99)")
        text = cell.text(1)
        run(session, LOG.format(points=1000, rank=0))
        points = session.last_run.metrics["loss"][1].values
        said = capfd.readouterr().err

    assert text == ("x" * 99 + "\n") * 50_000
    assert len(points) == 1000
    assert "dtrain/spool is not writable: the output of runs is kept only until their world ends" in said
    assert "runs.sqlite cannot be used (Not a directory): runs are not stored" in said
    assert said.count("[jupyter-dtrain] ") == 2


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """Jupyter's data on a disk of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.getuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False, timeout=20)
    if mounted.returncode:
        pytest.skip("this machine lets root mount nothing")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


def test_a_full_disk_stops_no_cell_and_takes_nothing_from_the_store(launch, small_disk, capfd):
    """The user gets a message; when there is room again, storing goes on."""
    with launch(n=2) as session:
        run(session, "print('before')")
        first = stored(1)
        filler = small_disk / "filler"
        disk = os.statvfs(small_disk)
        filler.write_bytes(b"x" * (disk.f_bavail * disk.f_frsize - 200_000))
        full = run(session, LOG.format(points=20_000, rank=0) + "\nprint('during'); 'went on'")
        until(lambda: any("full" in words for words in session._notices._shown))
        kept = first.text(0), len(full.metrics["loss"][1].values)
        filler.unlink()
        run(session, "print('after')")
        third = stored(3)
        second = stored(2)
        said = capfd.readouterr().err

    assert full.outcome == "ok"
    assert kept == ("before\n", 20_000)
    assert "runs.sqlite cannot be used (database or disk is full): runs are not stored until it can" in said
    assert (third.outcome, third.text(1)) == ("ok", "after\n")
    assert second.outcome == "ok"  # as the session reported
    assert stored(1).text(0) == "before\n"


@pytest.mark.slow
def test_ten_thousand_names_and_odd_ones_do_not_harm(launch, own_data):
    """A rank keeps a thousand, and says so; odd names come as they are, on one line."""
    with launch(n=1) as session:
        cell = run(
            session,
            "import jupyter_dtrain\n"
            "jupyter_dtrain.log({'a\\nb': 1, '': 2, \"x'; DROP TABLE runs; --\": 3, 'ä🎉': float('nan')})\n"
            "jupyter_dtrain.log({'y' * 999: 1e400})\n"
            "for k in range(10_000): jupyter_dtrain.log({f'name {k}': k})\n"
            "jupyter_dtrain.log(text='no number', vector=[1, 2, 3])",
        )
        metrics = newest("ok").metrics

    assert cell.outcome == "ok"
    assert list(metrics)[:4] == ["a b", "value", "x'; DROP TABLE runs; --", "ä🎉"]
    assert len(metrics) == 1000
    assert str(list(metrics["ä🎉"][0].values)) == "[nan]"
    assert metrics["y" * 200][0].values[0] == float("inf")
    assert "more than 1000 metrics in one run" in cell.text(0, "stderr")
