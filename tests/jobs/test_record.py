"""The way back: jobs write into the store of the notebooks."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from jupyter_dtrain import Session, Settings, Store, compare
from jupyter_dtrain.jobs import export_notebook
from tests.jobs.cells import notebook, ranks, run

LOG = "import jupyter_dtrain\nfor step in range(5):\n    jupyter_dtrain.log(loss=1 / (step + 1), step=step)"


def job(folder, *sources, **env):
    """An exported job of two ranks, run under mpirun."""
    cells = [ranks(number, source) for number, source in enumerate(sources, 1)]
    export_notebook(notebook(*cells), "script", folder / "train.py", force=True)
    return run("mpiexec", "-n", "2", sys.executable, "train.py", cwd=folder, **env)


def test_a_job_and_cells_are_compared_side_by_side(tmp_path, monkeypatch):
    """In the store that one variable names for both."""
    path = tmp_path / "store" / "runs.sqlite"
    monkeypatch.setenv("JUPYTER_DTRAIN_STORE", str(path))
    with Session.start(n=2, name="cells") as session:
        run_here = session.run(LOG, view=None)
        Store.open().run_of(run_here)
    ended = job(tmp_path, LOG)
    store = Store.open()
    found = store.runs()
    both = compare("cells/1", "train/1")

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("jupyter-dtrain") == 0
    assert {run.label: run.outcome for run in found} == {"cells/1": "ok", "train/1": "ok"}
    assert store.path == path
    here, there = (store.run(name).metrics["loss"] for name in ("cells/1", "train/1"))
    assert sorted(there) == [0, 1]
    assert list(there[1].values) == list(here[1].values) == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert list(there[0].steps) == [0, 1, 2, 3, 4]
    assert "exported by jupyter-dtrain" in store.run("train/1").source
    assert "train/1" in both.table["text/plain"]


def test_a_job_keeps_what_it_says_of_itself(tmp_path):
    """Hyper-parameters, before and after its points, its packages and its command; no secret."""
    says = "import jupyter_dtrain\njupyter_dtrain.config(lr=0.5, api_key='horse')\n"
    env = {"JUPYTER_DTRAIN_STORE": str(tmp_path / "runs.sqlite")}
    ended = job(tmp_path, says + LOG + "\njupyter_dtrain.config(lr=0.25, late=True, odd=object())", **env)
    found = Store.open(tmp_path / "runs.sqlite").run("train/1")

    assert ended.returncode == 0, ended.stderr
    assert found.config == {"lr": 0.25, "api_key": "[redacted]", "late": True}
    assert set(found.origins.values()) == {"set"}
    assert sorted(found.environments) == [0, 1]
    assert found.environments[0].command == ["train.py"]
    assert found.environments[0].packages["msgspec"]
    assert "horse" not in found.source
    assert b"horse" not in (tmp_path / "runs.sqlite").read_bytes()
    assert ended.stderr.count("config(): 'odd' is left out") == 2


def test_the_next_job_is_the_next_run_and_a_failed_rank_is_named_with_its_error(tmp_path):
    env = {"JUPYTER_DTRAIN_STORE": str(tmp_path / "runs.sqlite")}
    job(tmp_path, LOG, **env)
    fails = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no such data')"
    ended = job(tmp_path, LOG, fails, **env)
    failed = Store.open(tmp_path / "runs.sqlite").run("train/2")

    assert ended.returncode != 0
    assert "ValueError: no such data" in ended.stderr
    assert failed.outcome in ("error", "lost")  # mpirun ends rank 0 as soon as rank 1 has failed


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_job_keeps_its_hyper_parameters_what_it_ran_in_and_its_commit(tmp_path):
    """As a run of cells does; the last cell waits for git, which answers beside the job."""
    path = tmp_path / "runs.sqlite"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q", "-b", "topic"], ["commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True, capture_output=True)
    told = "import jupyter_dtrain\njupyter_dtrain.config(lr=0.5)\njupyter_dtrain.log(loss=1)"
    waits = """
import time
deadline = time.monotonic() + 60
while not (runs := jupyter_dtrain.Store.open().runs()) or runs[0].commit is None:
    assert time.monotonic() < deadline
    time.sleep(0.05)
"""
    ended = job(tmp_path, told, waits, JUPYTER_DTRAIN_STORE=str(path))
    (run,) = Store.open(path).runs()

    assert ended.returncode == 0, ended.stderr
    assert run.config["lr"] == 0.5
    assert sorted(run.environments) == [0, 1]
    assert (run.commit.branch, run.commit.message) == ("topic", "Begin")


def test_what_a_job_logs_beside_numbers_is_stored(tmp_path):
    """Also what it has logged last, and where it has logged nothing else; bad values get a line."""
    pytest.importorskip("numpy")
    code = (
        "import jupyter_dtrain, numpy\n"
        "for step in range(3): jupyter_dtrain.log(sample=numpy.zeros((8, 8)), step=10 * step)\n"
        "jupyter_dtrain.log(answer='yes', worse=[1, 2], rows=[{'a': 1}])"
    )
    ended = job(tmp_path, code, JUPYTER_DTRAIN_STORE=str(tmp_path / "runs.sqlite"))
    found = Store.open(tmp_path / "runs.sqlite").run("train/1")
    media = found.media

    assert ended.returncode == 0, ended.stderr
    assert [(one.step, one.rank) for one in media if one.name == "sample"] == [
        (step, rank) for step in (0, 10, 20) for rank in (0, 1)
    ]
    assert [(one.kind, one.data) for one in media if one.name == "answer"] == [("text", b"yes")] * 2
    assert ended.stderr.count("log(): 'worse' is left out: list is not one number (") == 2  # by each of two processes


def test_a_store_that_cannot_be_written_costs_one_line_and_no_job(tmp_path):
    (tmp_path / "file").write_text("")
    ended = job(tmp_path, LOG, JUPYTER_DTRAIN_STORE=str(tmp_path / "file" / "runs.sqlite"))

    assert ended.returncode == 0, ended.stderr
    assert "step 4  loss 0.2" in ended.stdout
    assert 1 <= ended.stderr.count("[jupyter-dtrain]") <= 2


def test_the_variable_of_the_store_is_no_unknown_setting():
    assert Settings.from_environment({"JUPYTER_DTRAIN_STORE": "/x"}) == Settings()


def test_each_training_of_a_job_is_a_run_with_its_values(tmp_path):
    """In the order of the cells, with the losses of each; a cell that only sets something up is none."""
    env = {"JUPYTER_DTRAIN_STORE": str(tmp_path / "runs.sqlite")}
    fit = "for step in range(3):\n    jupyter_dtrain.log(loss=scale / (step + 1))"
    ended = job(tmp_path, "import jupyter_dtrain\nscale = 2.0", f"# First\n{fit}", "print('between')", fit, **env)
    store = Store.open(tmp_path / "runs.sqlite")
    found = store.runs()

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("jupyter-dtrain") == 0
    assert [(run.label, run.outcome) for run in found] == [("train/2", "ok"), ("train/1", "ok")]
    assert [list(run.metrics["loss"][1].values) for run in found] == [[2.0, 1.0, 2 / 3]] * 2
    assert [list(run.metrics["loss"][1].steps) for run in found][1] == [0, 1, 2]
