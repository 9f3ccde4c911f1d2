"""``%distributed runs``, ``show`` and ``compare`` in a notebook, without a world of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_dtrain import Store
from jupyter_dtrain.core.events import Output
from jupyter_dtrain.store.schema import open_for_writing
from tests.store.conftest import FakeWorld, drain, points


@pytest.fixture(scope="module")
def module_home(tmp_path_factory):
    """Jupyter's data folder of this module's notebook, with three runs: 1 and 2 log a loss, 3 something else."""
    folder = tmp_path_factory.mktemp("stored")
    world = FakeWorld(folder)
    with closing(open_for_writing(folder / "dtrain" / "runs.sqlite")) as db:
        for number in (1, 2, 3):
            world.begin(number, f"lr = 0.{number}\ntrain(lr)")
            for rank in (0, 1):
                world.say(number, rank, points("other" if number == 3 else "loss", [3.0, 1.0 / number]))
                world.say(number, rank, Output("stdout", f"trained with 0.{number}\n"))
            world.finish(number)
        drain(world.writer, db)
        db.execute("UPDATE runs SET seen = 1")
    world.close()
    return folder


@pytest.fixture(scope="module")
def notebook(module_home, tmp_path_factory):
    """A notebook with the extension and that store."""
    from tests.magics.notebook import Notebook

    opened = Notebook(tmp_path_factory.mktemp("notebook"), JUPYTER_DATA_DIR=str(module_home))
    opened.ok("%load_ext jupyter_dtrain")
    yield opened
    opened.close()


def test_runs_lists_what_is_stored(notebook):
    """Newest first, as text and as a table; so many; of one world."""
    (text,) = notebook.ok("%distributed runs --all").display_texts
    (fewer,) = notebook.ok("%distributed runs -n 2 --all").display_texts
    html = notebook.ok("%distributed runs --all").displays[0]["data"]["text/html"]

    assert [line.split()[:5] for line in text.splitlines()[2:]] == [
        ["world/3", "train(lr)", "ok", "-", "-"],
        ["world/2", "train(lr)", "ok", "0.5", "0.5"],
        ["world/1", "train(lr)", "ok", "1", "1"],
    ]
    assert "1.5 s" in text
    assert len(fewer.splitlines()) == 4
    assert html.count("<tr>") == 4
    assert "No run of a world named 'nobody' is stored" in notebook.ok("%distributed runs --world nobody").out
    assert len(notebook.ok("%distributed runs --world world").display_texts) == 1
    (found,) = notebook.ok("%distributed runs --outcome ok --search 'lr 0.2'").display_texts
    assert [line.split()[0] for line in found.splitlines()[2:]] == ["world/2"]
    assert "No stored run matches these conditions" in notebook.ok("%distributed runs --tag none").out


def test_runs_lists_trainings_with_chosen_columns_in_order(notebook):
    """A cell without metrics is none; a filter that cannot be read says where."""
    (text,) = notebook.ok(
        "%distributed runs --where 'loss<=1' --sort -loss --columns loss.min --group outcome"
    ).display_texts
    heads, *rows = text.splitlines()[1:]

    assert heads.split()[:9] == ["group", "run", "name", "outcome", "last", "loss", "best", "lowest", "loss"]
    assert [row.split()[1] for row in rows] == ["world/1", "world/2"]
    wrong = notebook.run("%distributed runs --where 'loss<'").said
    assert "At character 6 of the filter: A value is missing after loss<" in wrong
    assert "named 'losss'. Do you mean loss?" in notebook.ok("%distributed runs --where losss>1").out


@pytest.mark.parametrize("name", ["1", "world/1"])
def test_show_shows_a_run(notebook, name):
    """Each of its names finds it; a stored run at the end of a cell shows the same."""
    chart, text = notebook.ok(f"%distributed show {name}").displays
    (same,) = notebook.ok("import jupyter_dtrain\njupyter_dtrain.Store.open().run(1)").display_texts

    text = text["data"]["text/plain"]

    assert text.startswith("Run world/1 (train(lr)): ok, 1.5 s on ranks 0-1, started ")
    assert "    train(lr)" in text
    assert "[0-1] trained with 0.1" in text
    assert text == same
    assert [rank[2] for rank in chart["data"]["application/vnd.jupyter-dtrain.run+json"]["ranks"]] == ["ok", "ok"]
    assert "loss" in chart["data"]["image/svg+xml"]


def test_compare_shows_runs_side_by_side(notebook):
    """A table, and curves as SVG; without a metric in common, words."""
    table, differing, curves = notebook.ok("%distributed compare 1 world/2 3").displays
    cell = notebook.ok("%distributed compare 1,3")

    assert "loss" in table["data"]["text/plain"]
    assert "0.5" in table["data"]["text/plain"]
    assert (
        "+print('trained with', 0.2)" in differing["data"]["text/plain"]
        or "+lr = 0.2" in differing["data"]["text/plain"]
    )
    assert curves["data"]["image/svg+xml"].count("world/2") >= 1
    assert len(cell.displays) == 2
    assert "no metric in common" in cell.out


def test_without_matplotlib_compare_says_what_to_install(notebook):
    """The table is there."""
    notebook.ok("import sys; kept = {name: sys.modules[name] for name in list(sys.modules) if 'matplotlib' in name}")
    notebook.ok("for name in kept: del sys.modules[name]\nsys.modules['matplotlib'] = None")
    cell = notebook.ok("%distributed compare 1 2")
    notebook.ok("del sys.modules['matplotlib']; sys.modules.update(kept)")

    assert len(cell.displays) == 2
    assert "pip install matplotlib" in cell.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("show", "required: RUN"),
        ("show 9", "There is no run 9 in the store. The newest is world/3."),
        ("show world", "'world' names no run"),
        ("show 1 2", "unrecognized arguments: 2"),
        ("compare", "required: RUN"),
        ("compare 1", "needs two runs or more"),
        ("compare 1 2 world/1", "Run world/1 is named twice"),
        ("runs --outcome done", "choose from"),
        ("compare 1 nobody/1", "There is no run nobody/1"),
        ("runs -n 0", "'0' is not a whole number above 0"),
        ("runs -n -3", "'-3' is not a whole number above 0"),
        ("runs -n x", "'x' is not a whole number above 0"),
        ("show -1", "names no run"),
        (
            "runs delete 1-2",
            "Nothing was deleted: no run 1 is of this notebook's world. Give the world, too, such as world/1",
        ),
    ],
)
def test_a_wrong_line_gets_an_error_with_the_right_form(notebook, line, words):
    """The error has no traceback of the package."""
    cell = notebook.run(f"%distributed {line}")

    assert cell.reply["status"] == "error"
    assert words in cell.said
    assert "site-packages" not in cell.said


def test_an_empty_store_says_so(open_notebook, tmp_path):
    """A store that cannot be read is not empty; loading the extension mentions neither."""
    notebook = open_notebook(JUPYTER_DATA_DIR=str(tmp_path))
    loading = notebook.ok("%load_ext jupyter_dtrain").said.strip()
    empty = notebook.ok("%distributed runs").out
    path = tmp_path / "dtrain" / "runs.sqlite"
    path.parent.mkdir()
    path.write_bytes(b"not a store " * 100)
    notebook.ok("%reload_ext jupyter_dtrain")
    broken = notebook.run("%distributed runs")

    assert loading == ""
    assert empty == "No run has been stored yet.\n"
    assert broken.ename == "StoreFailed"
    assert "is damaged" in broken.said


def test_runs_that_finished_unseen_are_listed_ten_at_a_time(open_notebook, tmp_path):
    """The newest ones, and how many came before."""
    world = FakeWorld(tmp_path)
    with closing(open_for_writing(tmp_path / "dtrain" / "runs.sqlite")) as db:
        for number in range(1, 14):
            world.begin(number, when=1000.0)
            if number == 5:
                world.say(number, 0, points("loss", [3.0, float("nan")]))
            world.finish(number, when=1001.0)
        drain(world.writer, db)
    world.close()
    notebook = open_notebook(JUPYTER_DATA_DIR=str(tmp_path))
    lines = notebook.ok("%load_ext jupyter_dtrain").out.splitlines()
    again = open_notebook(JUPYTER_DATA_DIR=str(tmp_path)).ok("%load_ext jupyter_dtrain").out

    assert len(lines) == 12
    assert lines[0] == "run world/4 ended while you were away: ok, 1.5 s"
    assert lines[1] == "run world/5 ended while you were away: ok, but NaN, 1.5 s"
    assert lines[9].startswith("run world/13 ")
    assert lines[10] == "and 3 earlier runs: %distributed runs lists them"
    assert lines[11] == "%distributed show world/13 shows what it printed and logged."
    assert again == ""


def test_a_store_on_a_read_only_disk_is_read_all_the_same(module_home, tmp_path):
    """No file can be made beside it."""
    if os.getuid() != 0:
        pytest.skip("needs root, to mount a disk that is read-only")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine lets root mount nothing")
    try:
        copied = Path(shutil.copy(module_home / "dtrain" / "runs.sqlite", disk))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=20)
        runs = Store(copied).runs()
        Store(copied).mark_seen(runs)

        assert [run.id for run in runs] == [3, 2, 1]
        assert list(runs[1].metrics["loss"][0].values) == [3.0, 0.5]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=20)
