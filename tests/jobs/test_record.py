"""The way back: jobs write into the store of the notebooks."""

from __future__ import annotations

import sys

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


def test_a_store_that_cannot_be_written_costs_one_line_and_no_job(tmp_path):
    (tmp_path / "file").write_text("")
    ended = job(tmp_path, LOG, JUPYTER_DTRAIN_STORE=str(tmp_path / "file" / "runs.sqlite"))

    assert ended.returncode == 0, ended.stderr
    assert "step 4  loss 0.2" in ended.stdout
    assert 1 <= ended.stderr.count("[jupyter-dtrain]") <= 2


def test_the_variable_of_the_store_is_no_unknown_setting():
    assert Settings.from_environment({"JUPYTER_DTRAIN_STORE": "/x"}) == Settings()
