"""``jupyter dtrain`` and ``%distributed export``: the same export from a terminal and from a live notebook."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jupyter_dtrain.cli import main
from tests.jobs.cells import file_of, run
from tests.kernels import Notebook


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """A notebook's file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return file_of(
        tmp_path,
        "%load_ext jupyter_dtrain",
        "%distributed start -n 2 --env CHOICE=secret",
        "lr = 0.5",
        "# Train",
        "%%distributed\nimport os\nprint('rank', os.environ['RANK'], lr, flush=True)",
        tags={4: ["train"]},
    )


def test_a_file_is_exported_from_a_terminal_and_runs(lesson, capsys):
    status = main(["export", "lesson.ipynb", "--to", "mpi", "--with-local", "--tag", "train"])
    said = capsys.readouterr().out
    ended = run("./lesson.sh", cwd=lesson.parent, CHOICE="x")

    assert status == 0
    assert said.startswith("lesson.sh and lesson.py: 2 cells for mpi.\n")
    assert said.endswith("Start it with: ./lesson.sh\n")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["rank 0 0.5", "rank 1 0.5"]
    assert "# %% [cell 4] Train\n" in Path("lesson.py").read_text()
    assert "secret" not in Path("lesson.py").read_text() + Path("lesson.sh").read_text() + said


def test_a_refusal_ends_the_command_with_its_words(lesson, capsys):
    status = main(["export", "lesson.ipynb", "--to", "script"])
    said = capsys.readouterr().err

    assert status == 1
    assert "cell 4 uses lr (from cell 3)" in said
    assert "Add --with-local" in said
    assert not Path("lesson.py").exists()


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("-h", 0, "export make a job of a notebook's cells"),
        ("export -h", 0, "kubernetes: a TrainJob or an MPIJob"),
        ("export lesson.ipynb --to frob", 2, "invalid choice: 'frob'"),
        ("frob", 2, "invalid choice: 'frob'"),
        ("runs --outcome error", 0, "No stored run matches these conditions."),
        ("list", 0, "list is called jupyter dtrain worlds now"),
        ("worlds", 0, ""),
        ("stop nobody", 1, "No world of yours is named 'nobody': jupyter dtrain worlds shows them."),
        ("snapshots", 0, "There is no snapshot in"),
    ],
)
def test_the_command_lists_what_there_is_and_refuses_the_rest(lesson, capsys, line, status, words):
    assert main(line.split()) == status
    said = capsys.readouterr()
    assert words in " ".join((said.out + said.err).split())


def test_a_live_notebook_exports_its_own_cells(home, tmp_path):
    """Each once: a cell that failed is left out, and values of --env stay here."""
    notebook = Notebook({})
    try:
        notebook.run(f"%cd -q {tmp_path}")
        notebook.run("%load_ext jupyter_dtrain")
        notebook.run("%distributed start -n 2 --env CHOICE=secret")
        notebook.run("%%distributed\nimport os\nx = int(os.environ['RANK'])")
        failed = notebook.client.execute("%%distributed\n1 / 0", reply=True, timeout=60, stop_on_error=False)
        notebook.run("%%rank 1\nprint('x is', x, flush=True)")
        said = notebook.run("%distributed export script train.py")
        again = notebook.client.execute(
            "%distributed export script train.py -n 4", reply=True, timeout=60, stop_on_error=False
        )
        tagged = notebook.client.execute(
            "%distributed export script a.py --tag train", reply=True, timeout=60, stop_on_error=False
        )
    finally:
        notebook.run("%distributed stop")
        notebook.close()
    ended = run("mpiexec", "-n", "2", sys.executable, "train.py", cwd=tmp_path, CHOICE="x")
    text = (tmp_path / "train.py").read_text()

    assert failed["content"]["status"] == "error"
    assert "2 cells for script.\nCell 5 failed, so it is left out." in said
    assert "add --force to replace it" in again["content"]["evalue"]
    assert "A session does not know the tags of its cells" in tagged["content"]["evalue"]
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["x is 1"]
    assert 'check_variables(("CHOICE",))' in text
    assert "secret" not in text
