"""``%distributed start --track``: a world's runs reach a tracker, also past its end, and a tracker delays nothing."""

from __future__ import annotations

import time

import psutil
import pytest

from jupyter_dtrain.store import Store
from tests.session.cells import run
from tests.steward.until import state_of
from tests.store.test_worlds import stored

from .tracked import expected, mlflow_points, trackio_points, wait_for

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the trackers' own libraries, in the readers

LOOP = """
import os, time, jupyter_dtrain
for step in range(100):
    jupyter_dtrain.log(loss=step + int(os.environ["RANK"]), step=step)
    time.sleep(0.02)
"""


def senders(home):
    """The processes that send, of the worlds of this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if "jupyter_dtrain.trackers" in process.cmdline() and str(home) in " ".join(process.environ().values()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_killed_process_is_started_again_and_the_rest_goes_on_after_the_world(
    launch, own_data, tmp_path, monkeypatch
):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    with launch(n=2, track="trackio:tests") as session:
        running = run(session, LOOP, wait=False)
        (process,) = wait_for(lambda: senders(own_data))
        assert "DTRAIN_WORLD" not in process.environ()  # what names a process as the world's, to be removed with it
        process.kill()
        (again,) = wait_for(lambda: [one for one in senders(own_data) if one.pid != process.pid])
        running.result()
        run(session, "print('no metrics')")
    wait_for(lambda: tracked_rows(Store.open()) == [("", 1)])
    found = {name: sorted(points) for name, points in trackio_points("tests").items()}
    assert found == expected(Store.open(), stored(1).id)
    wait_for(lambda: not again.is_running())
    assert senders(own_data) == []


def test_a_tracker_that_is_down_says_so_once_and_catches_up(launch, own_data, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    folder = tmp_path / "later"
    folder.write_text("in the way")
    address = f"sqlite:///{folder}/runs.db"
    monkeypatch.setenv("MLFLOW_ARTIFACT_ROOT", str(tmp_path))
    with launch(n=1, track=f"mlflow:{address}") as session:
        run(session, LOOP)
        words = wait_for(lambda: [one for one in state_of(session).notices if "MLflow does not take run" in one])
        began = time.monotonic()
    assert len(words) == 1
    assert time.monotonic() - began < 60
    assert [done for _, done in tracked_rows(Store.open())] == [0]
    folder.unlink()
    folder.mkdir()
    wait_for(lambda: tracked_rows(Store.open()) == [("", 1)], 200)
    assert mlflow_points(address) == {"loss": [(step, float(step)) for step in range(100)]}
    wait_for(lambda: senders(own_data) == [])


def tracked_rows(store):
    return store.ask(lambda db: db.execute("SELECT words, done FROM tracked").fetchall())
