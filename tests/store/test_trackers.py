"""MLflow's client, W&B's file and trackio's storage find what the store has, point for point, also after SIGKILL."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing

import msgspec
import pytest

from jupyter_dtrain import TrackFailed
from jupyter_dtrain.core.events import Error, Metrics
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.settings import STORE_VARIABLE
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.importing import import_runs
from jupyter_dtrain.store.importing.foreign import own_id
from jupyter_dtrain.store.run_page import commit_of
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.trackers.sender import SendJob
from jupyter_dtrain.trackers.starting import start_sender
from jupyter_dtrain.trackers.state import Claim, read_state
from jupyter_dtrain.trackers.tracking import track
from tests.store.conftest import drain, gone_process, points

from .tracked import expected, mlflow_points, trackio_points, wait_for, wandb_files, wandb_points, wandb_records

# Those of the trackers' own libraries, in the readers.
pytestmark = pytest.mark.filterwarnings("ignore")

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100"
    "18dd8db00000000049454e44ae426082"
)


class Place:
    """A target, and what its own reader finds there."""

    def __init__(self, tracker, folder):
        self.tracker, self.folder = tracker, folder
        address = f"sqlite:///{folder}/runs.db"
        self.target = {
            "mlflow": f"mlflow:{address}",
            "trackio": "trackio:tests",
            "wandb": "wandb:tests?offline",
        }[tracker]
        self.address = address

    @property
    def points(self):
        if self.tracker == "mlflow":
            return mlflow_points(self.address)
        if self.tracker == "trackio":
            return {name: sorted(found) for name, found in trackio_points("tests").items()}
        (file,) = wandb_files(self.folder)
        return {name: sorted(found) for name, found in wandb_points(file).items()}


@pytest.fixture(params=["mlflow", "trackio", "wandb"])
def place(request, tmp_path, monkeypatch, store):
    pytest.importorskip(request.param)
    folder = tmp_path / "tracker"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    monkeypatch.setenv("MLFLOW_ARTIFACT_ROOT", str(folder))
    monkeypatch.setenv("WANDB_DIR", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("MY_OWN_TOKEN", "sk-never-anywhere-0123456789")
    monkeypatch.setenv(STORE_VARIABLE, str(store.path))
    return Place(request.param, folder)


def test_a_stored_run_arrives_point_for_point(fake, db, store, place):
    fake.begin(1)
    for rank in (0, 1):
        fake.say(1, rank, points("loss", [float("nan") if step == 3 else rank + 1 / (step + 1) for step in range(50)]))
    fake.say(1, 0, points("val/acc [%]", [0.5, 0.75], first=49))
    fake.finish(1)
    drain(fake.writer, db)
    run = store.run_with_id(1)
    run.edit(name="<b>lr 0.1</b>", note="a note", tags=["best", "cnn"])
    db.execute("""UPDATE runs SET config = '{"lr": 0.001, "model": {"depth": 3}, "name": "<script>"}'""")

    track(run, place.target)

    wanted = {
        name.replace("[%]", "___") if place.tracker == "mlflow" else name: found
        for name, found in expected(store, 1).items()
    }
    found = place.points
    for name in ("loss", "loss/min", "loss/max"):
        # How NaN is shown is the tracker's matter.
        assert [one for one in found[name] if one[0] != 3] == [one for one in wanted[name] if one[0] != 3]
    assert found.keys() == wanted.keys()
    everything = b"".join(path.read_bytes() for path in place.folder.rglob("*") if path.is_file())
    for told in (b"<b>lr 0.1</b>", b"a note", b"best", b"0.001"):
        assert told in everything
    assert b"sk-never-anywhere" not in everything


def test_a_sender_that_is_killed_in_mid_run_loses_and_doubles_nothing(fake, db, store, place):
    """Points come in many blocks, and the process is killed between two of them, twice."""
    fake.begin(1)
    job = SendJob(str(store.path), place.target, fake.owner.id)
    sent = 0
    for turn in range(3):
        for _ in range(2):
            for rank in (0, 1):
                fake.say(1, rank, points("loss", [float(rank + step) for step in range(sent, sent + 700)], first=sent))
            sent += 700
            drain(fake.writer, db)
        process = start_sender(job)
        try:
            if turn < 2:
                # Somewhere on its way: not when it has all.
                wait_for(lambda before=sent - 1400: position(store) > before)
                os.kill(process.pid, signal.SIGKILL)
            else:
                fake.finish(1)
                drain(fake.writer, db)
                fake.writer.close(db, "over")
                assert process.wait(300) == 0
        finally:
            process.kill()
            process.wait()
    assert place.points == expected(store, 1)


def position(store):
    """The last step of the metric that was sent."""
    with closing(open_for_writing(store.path)) as db:
        row = db.execute("SELECT state FROM tracked").fetchone()
    return -1 if row is None else read_state(row[0]).sent.get("loss", (0, -1, 0))[1]


def test_media_events_and_the_outcome_go_along(make_world, db, store, place):
    fake = make_world(owner=gone_process())
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0, 2.0]))
    fake.say(1, 1, Error("ValueError", "no such thing", []))
    fake.finish(1, [0])
    fake.finish(1, [1], "error")
    drain(fake.writer, db)
    fake.writer.close(db, "over")
    media = [
        ("digit", "image", "image/png", PNG),
        ("weights", "histogram", "application/json", b'{"counts": [1, 2], "edges": [0.0, 0.5, 1.0]}'),
        ("errors", "table", "application/json", b'{"columns": ["a", "<i>"], "rows": [[1, "x"], [null, "<b>"]]}'),
        ("said", "text", "text/plain", b"<script>alert(1)</script>"),
    ]
    for name, kind, mime, data in media:
        db.execute(
            "INSERT INTO media (run, rank, name, step, number, kind, time, mime, caption, note, data) "
            "VALUES (1, 0, ?, 1, 0, ?, 1001.0, ?, '', '', ?)",
            (name, kind, mime, data),
        )
    db.execute("INSERT INTO happenings (run, time, words) VALUES (1, 1001.0, 'Rank 1 was replaced.')")
    told = '{"hash": "0123abcd", "branch": "main", "dirty": true, "diff": "+ lr = 2"}'
    db.execute("INSERT INTO commits (run, told) VALUES (1, ?)", (told,))

    track(store.run_with_id(1), place.target)
    track(store.run_with_id(1), place.target)  # the same again: nothing twice

    everything = b"".join(path.read_bytes() for path in place.folder.rglob("*") if path.is_file())
    for words in (b"Rank 1 was replaced.", b"0123abcd", b"ValueError: no such thing"):
        assert words in everything
    assert place.points["loss"] == [(0, 1.0), (1, 2.0)]
    if place.tracker == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=place.address)
        (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
        assert run.info.status == "FAILED"
        names = [
            one.path
            for folder in ("media/errors", "media/said", "media/weights")
            for one in client.list_artifacts(run.info.run_id, folder)
        ]
        assert len(names) == 3
        assert len(client.list_artifacts(run.info.run_id, "images")) == 2  # MLflow keeps a smaller one beside it
    elif place.tracker == "wandb":
        (file,) = wandb_files(place.folder)
        items = [one for record in wandb_records(file) for one in record.history.item]
        kinds = {one.nested_key[0]: json.loads(one.value_json) for one in items if one.nested_key[1:] == ["_type"]}
        wanted = {"digit": "image-file", "weights": "histogram", "errors": "table-file", "said": "html-file"}
        assert kinds == wanted
        (end,) = [record.exit.exit_code for record in wandb_records(file) if record.HasField("exit")]
        assert end == 1
    else:
        assert everything.count(PNG) == 1


def test_what_arrived_after_the_position_is_not_sent_twice(make_world, db, store, place):
    """The process is killed after the tracker has taken a batch, and before the position is written."""
    fake = make_world(owner=gone_process())
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0, 2.0]), Error("ValueError", f"no such key {'sk-' + 'error' * 6}", []))
    fake.finish(1, outcome="interrupted")
    drain(fake.writer, db)
    fake.writer.close(db, "over")
    db.execute(
        "INSERT INTO media (run, rank, name, step, number, kind, time, mime, caption, note, data) "
        "VALUES (1, 0, 'a: größe', 1, 0, 'image', 1001.0, 'image/png', '', '', ?)",
        (PNG,),
    )
    run = store.run_with_id(1)
    track(run, place.target)

    (text,) = db.execute("SELECT state FROM tracked").fetchone()
    state = read_state(text)
    state.sent, state.medium, state.claim = {}, 0, Claim(fake.host, *gone_process(), 1000.0)
    db.execute("UPDATE tracked SET state = ?, done = 0", (msgspec.json.encode(state).decode(),))
    # As W&B leaves it when its process is killed while it begins.
    begun = place.folder / "wandb" / f"offline-run-20260101_000000-{own_id(fake.owner.id, 1)}"
    (begun / "logs").mkdir(parents=True)
    (begun / "logs" / "debug.log").write_text(f"2026 INFO MainThread:{state.claim.pid} [wandb_init.py] Logging\n")
    track(run, place.target)

    assert place.points["loss"] == [(0, 1.0), (1, 2.0)]
    files = [path for path in place.folder.rglob("*.png") if "compressed" not in path.name]
    assert len(files) == 1
    if place.tracker == "wandb":
        (file,) = wandb_files(place.folder)
        (end,) = [record.exit.exit_code for record in wandb_records(file) if record.HasField("exit")]
        assert end == 255
    everything = b"".join(path.read_bytes() for path in place.folder.rglob("*") if path.is_file())
    assert b"no such key [redacted]" in everything
    assert b"sk-error" not in everything


@pytest.mark.parametrize("place", ["wandb"], indirect=True)
def test_a_folder_that_cannot_be_made_is_told(fake, db, store, place, monkeypatch):
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0]))
    fake.finish(1)
    drain(fake.writer, db)
    (place.folder / "later").write_text("in the way")
    monkeypatch.setenv("WANDB_DIR", str(place.folder / "later"))
    with pytest.raises(TrackFailed, match=r"W&B does not take run world/1: .*later"):
        track(store.run_with_id(1), place.target)


@pytest.mark.parametrize("place", ["mlflow", "wandb"], indirect=True)
def test_what_a_tracker_has_comes_back(make_world, db, store, place, tmp_path, monkeypatch):
    fake = make_world(owner=gone_process())
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0, 2.0], first=7), Error("ValueError", "no such thing", []))
    fake.finish(1, outcome="error")
    drain(fake.writer, db)
    fake.writer.close(db, "over")
    config = {"lr": 0.1, "sizes": [1, 2], "name": "<b>", "model.depth": 3}
    db.execute("UPDATE runs SET config = ?, batch = 'sweep'", (json.dumps(config),))
    told = {"hash": "0123abcd", "branch": "main", "message": "First", "dirty": True}
    db.execute("INSERT INTO commits (run, told) VALUES (1, ?)", (json.dumps(told),))
    db.execute(
        "INSERT INTO media (run, rank, name, step, number, kind, time, mime, caption, note, data) "
        "VALUES (1, 0, 'digit', 8, 0, 'image', 1001.0, 'image/png', '', '', ?)",
        (PNG,),
    )
    before = store.run_with_id(1)
    before.edit(name="a name", note="a note", tags=["best"])
    track(before, place.target)

    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "empty.sqlite"))
    (after,) = import_runs(place.folder / "runs.db" if place.tracker == "mlflow" else place.folder)

    facts = [(run.name, run.note, run.tags, run.group, run.config, run.outcome) for run in (before, after)]
    assert facts[0] == ("a name", "a note", ["best"], "sweep", config, "error")
    assert facts[1] == facts[0]
    assert abs(after.started - before.started) < 0.01
    assert {name: (*series[0].steps, *series[0].values) for name, series in after.metrics.items()} == {
        "loss": (7, 8, 1.0, 2.0)
    }
    assert [(medium.name, medium.step, medium.kind) for medium in after.media] == [("digit", 8, "image")]
    assert after.errors[0].evalue == "no such thing"
    commit = commit_of(Store.open(), after.id)
    assert (commit.hash, commit.branch, commit.message, commit.dirty) == tuple(told.values())


def test_each_rank_on_demand_and_steps_that_begin_again(fake, db, store, place):
    """A loop that begins again logs the same steps once more: each of them is there, twice."""
    fake.begin(1)
    for turn in range(2):
        for rank in (0, 1):
            fake.say(1, rank, points("loss", [10.0 * turn + rank + step for step in range(5)]))
    fake.finish(1)
    drain(fake.writer, db)
    place.target += "&ranks" if "?" in place.target else "?ranks"

    track(store.run_with_id(1), place.target)

    found = place.points
    assert found["loss/rank-1"] == sorted((step, 10.0 * turn + 1 + step) for turn in range(2) for step in range(5))
    assert found["loss"] == sorted((step, 10.0 * turn + 0.5 + step) for turn in range(2) for step in range(5))


def test_infinite_values_and_long_names(fake, db, store, place):
    fake.begin(1)
    columns = Columns.empty()
    for step, value in enumerate([1.0, float("inf"), -float("inf"), 2.0]):
        columns.steps.append(step)
        columns.times.append(1000.0 + step)
        columns.values.append(value)
    name = "x" * 10_000
    fake.say(1, 0, Metrics([pack("loss", columns)]), points(name, [1.0]), points("../../x", [1.0]))
    fake.finish(1)
    drain(fake.writer, db)

    track(store.run_with_id(1), place.target)

    found = place.points["loss"]
    assert (0, 1.0) in found
    assert (3, 2.0) in found
    assert len(place.points) == 3
