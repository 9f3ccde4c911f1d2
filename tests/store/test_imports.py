"""Runs of W&B, MLflow and TensorBoard in the store: what they have, once each, and clear words for what is broken.

The files of most tests are written here, as these tools write them. Where wandb or mlflow is installed, their own are
read as well.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
import re
import sqlite3
import struct
import subprocess
import sys
import time
import zlib
from contextlib import closing

import pytest

import jupyter_dtrain
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.store.importing import bring_in
from jupyter_dtrain.store.run_page import commit_of
from tests.store.conftest import drain, points

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BEGAN = 1_700_000_000
"""Seconds since the epoch at which the runs here begin."""
KEY = "hf_abcdefghijklmnopqrstuv"


@pytest.fixture(autouse=True)
def own_store(store, monkeypatch):
    """The store of the calls that name none."""
    monkeypatch.setenv("JUPYTER_DTRAIN_STORE", str(store.path))


def values(run, name, rank=0):
    """Steps and values of a metric."""
    columns = run.metrics[name][rank]
    return list(zip(columns.steps, columns.values, strict=True))


def content(run):
    """All that an import brings."""
    metrics = {
        name: {rank: [*map(list, columns)] for rank, columns in part.items()} for name, part in run.metrics.items()
    }
    media = [(one.name, one.kind, one.step, one.data) for one in run.media]
    facts = (run.id, run.label, run.name, run.note, run.tags, run.outcome, run.started, run.elapsed, run.config)
    return repr((facts, metrics, media, run.text(0), run.environments))


# W&B.


def varint(number):
    """A whole number in protocol buffers."""
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def field(number, value):
    """A field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def items(number, told, nested=2):
    """Items by name, as configurations and histories have them."""
    found = b""
    for name, value in told.items():
        path = name if isinstance(name, tuple) else (name,)
        item = b"".join(field(nested, part) for part in path) + field(16, json.dumps(value))
        found += field(number, item)
    return found


def history(step, **told):
    """A row of a history."""
    return field(2, items(1, {"_step": step, "_timestamp": BEGAN + step, **told}) + field(2, field(1, step)))


def begun(**more):
    """The record with which a run begins."""
    run = (
        field(1, "abc123")
        + field(3, "shapes")
        + field(4, items(1, {"lr": 0.1, "_wandb": {}}, 1) + items(1, {"model": {"width": 8}}))
    )
    run += (
        field(6, "sweep")
        + field(8, more.get("name", "first"))
        + field(9, "A <b>note</b>.")
        + field(10, "best")
        + field(10, "x" * 60)
    )
    return field(
        17,
        run
        + field(13, "some-host")
        + field(17, field(1, BEGAN))
        + field(21, field(1, "https://me:pw@host/r.git") + field(2, "1a2b")),
    )


def write_log(path, records):
    """A log in LevelDB's form."""
    data = b":W&B\xe1\xbe\x00"
    for record in records:
        rest, first = record, True
        while first or rest:
            room = 32768 - len(data) % 32768
            if room < 7:
                data += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (2 if rest else 1) if first else (3 if rest else 4)
            data += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def offline(folder, records, name="offline-run-20231114_221320-abc123"):
    """A folder of W&B's with one run."""
    path = folder / "wandb" / name / "run-abc123.wandb"
    write_log(path, records)
    return path


ROWS = [history(step, loss=1 / (step + 1), **{"val/acc": step / 4}) for step in range(3)]
ENDED = field(18, field(2, 9))


def test_wandb_folders(tmp_path, store):
    """Configuration, metrics, pictures, histograms, output, environment, tags, note and outcome."""
    log = offline(
        tmp_path,
        [
            begun(),
            field(
                26, field(1, "Linux") + field(2, "CPython 3.11.2") + field(6, "train.py") + field(5, f"--token={KEY}")
            ),
            *ROWS,
            history(3, loss=math.nan, words="no number", nested={"deep": 2}),
            history(4, pic={"_type": "image-file", "path": "media/images/a.png", "caption": "a cat"}),
            history(5, h={"_type": "histogram", "bins": [0, 1, 2], "values": [3, 1]}),
            history(6, long="x" * 100_000, loss=0.5),
            history(6, t={"_type": "table-file", "path": "t.table.json"}),
            history(7, pic={"_type": "image-file", "path": "../../../secret.png"}),
            field(5, items(1, {"api_key": "abc", "epochs": 3})),
            field(7, field(2, field(1, BEGAN + 1)) + items(3, {"proc.memory.rssMB": 2.0}, 1)),
            field(13, field(1, 1) + field(3, "\x1b[32mhello\x1b[0m\n")),
            ENDED,
        ],
    )
    files = log.parent / "files"
    (files / "media" / "images").mkdir(parents=True)
    (files / "media" / "images" / "a.png").write_bytes(PNG)
    (files / "t.table.json").write_text(json.dumps({"columns": ["a", 1], "data": [[1, f"key {KEY}"], [None, [2]]]}))
    (tmp_path / "secret.png").write_bytes(PNG)
    (files / "requirements.txt").write_text("numpy==2.3.1\n")
    [run] = jupyter_dtrain.import_runs(tmp_path)

    assert (run.name, run.world, run.outcome, run.group, run.elapsed) == ("first", "shapes", "ok", "sweep", 9.0)
    assert run.config == {"lr": 0.1, "model.width": 8, "api_key": "[redacted]", "epochs": 3}
    assert values(run, "loss")[:3] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert math.isnan(values(run, "loss")[3][1])
    assert values(run, "loss")[4] == (6, 0.5)
    assert values(run, "val/acc") == [(0, 0), (1, 0.25), (2, 0.5)]
    assert values(run, "nested.deep") == [(3, 2.0)]
    assert list(run.metrics["loss"][0].times)[:2] == [BEGAN, BEGAN + 1]
    assert list(run.resources["rss"][0].values) == [2 << 20]
    assert [(one.name, one.kind, one.step, one.caption) for one in run.media] == [
        ("h", "histogram", 5, ""),
        ("pic", "image", 4, "a cat"),
        ("t", "table", 6, ""),
    ]
    assert json.loads(run.media[2].data)["rows"] == [[1, "key [redacted]"], [None, "[2]"]]
    assert run.media[1].data == PNG
    assert json.loads(run.media[0].data)["counts"] == [3, 1]
    assert run.text(0) == "hello\n"
    assert run.tags == ["best"]
    assert run.note == f"A <b>note</b>.\n{'x' * 60}"
    assert run.environments[0].packages == {"numpy": "2.3.1"}
    assert run.environments[0].command == ["train.py", "--token=[redacted]"]
    assert run.kept
    commit = commit_of(store, run.id)
    assert (commit.hash, commit.remote) == ("1a2b", "https://me:[redacted]@host/r.git")


def test_a_second_import_changes_nothing(tmp_path):
    """Whether the folder is the same or was moved; a person's words stay."""
    offline(tmp_path, [begun(), *ROWS, ENDED])
    [run] = jupyter_dtrain.import_runs(tmp_path)
    run.edit(name="mine", note="my note", tags=["my tag"])
    before = content(jupyter_dtrain.runs()[0])
    (tmp_path / "wandb").rename(tmp_path / "elsewhere")
    again = bring_in(tmp_path / "elsewhere")

    assert again.remarks == ["1 run was there already."]
    assert [content(one) for one in jupyter_dtrain.runs()] == [before]


def test_an_import_adds_what_the_run_has_logged_since(tmp_path):
    """A run that was resumed has a second folder; it stays the run that it was."""
    offline(tmp_path, [begun(), *ROWS, ENDED])
    [run] = jupyter_dtrain.import_runs(tmp_path)
    run.edit(name="mine", tags=["my tag"])
    offline(tmp_path, [begun(), history(3, loss=0.125), field(18, field(1, 1))], "offline-run-20231115_000000-abc123")
    again = bring_in(tmp_path)
    [after] = jupyter_dtrain.runs()

    assert again.remarks == ["1 run brought up to date."]
    assert (after.id, after.label, after.name, after.tags) == (run.id, run.label, "mine", ["my tag"])
    assert values(after, "loss") == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.125)]
    assert after.outcome == "error"
    assert after.losses[0].last == 0.125
    assert bring_in(tmp_path).remarks == ["1 run was there already."]


def test_a_deleted_run_comes_back_when_it_is_imported_again(tmp_path):
    offline(tmp_path, [begun(), *ROWS, ENDED])
    [run] = jupyter_dtrain.import_runs(tmp_path)
    run.keep(kept=False)
    run.delete()
    [again] = jupyter_dtrain.import_runs(tmp_path)

    assert values(again, "loss") == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert again.id != run.id


def test_a_log_that_ends_early_gives_what_it_has(tmp_path):
    """A process was killed, long ago: its run is lost. One that may still write is left out."""
    log = offline(tmp_path, [begun(), *ROWS])
    log.write_bytes(log.read_bytes()[:-5])

    with pytest.raises(BadRequest, match="may still go on: import it again once it has ended"):
        jupyter_dtrain.import_runs(tmp_path)
    os.utime(log, (time.time() - 7200,) * 2)
    [run] = jupyter_dtrain.import_runs(tmp_path)
    assert values(run, "loss") == [(0, 1.0), (1, 0.5)]
    assert run.outcome == "lost"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is no log of W&B"),
        (b"something else", "it is no log of W&B"),
        (b":W&B\xe1\xbe\x00", "has no run in it"),
        (b":W&B\xe1\xbe\x00" + bytes(100), "has no run in it"),
    ],
)
def test_a_broken_log_is_told(tmp_path, data, words):
    """Beside a good one, it is left out with a warning."""
    log = offline(tmp_path, [])
    log.write_bytes(data)
    with pytest.raises(BadRequest, match=words):
        jupyter_dtrain.import_runs(tmp_path)

    write_log(tmp_path / "wandb" / "offline-run-2" / "run-def.wandb", [begun(), *ROWS, ENDED])
    with pytest.warns(UserWarning, match=words):
        assert len(jupyter_dtrain.import_runs(tmp_path)) == 1


def test_any_damage_of_a_log_is_survived(tmp_path):
    """Whatever byte is another one: there is a run or there are words."""
    log = offline(tmp_path, [])
    whole = write_log(log, [begun(), *ROWS, ENDED])
    for at in range(0, len(whole), 7):
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        os.utime(log, (BEGAN, BEGAN))
        try:
            found, words = len(bring_in(tmp_path).runs), ""
        except BadRequest as error:
            found, words = 0, str(error)
        assert found == 1 or "W&B's log" in words


# MLflow.


def mlflow_folder(folder, status=3, *, points=True):
    """A folder of MLflow's with one run."""
    run = folder / "mlruns" / "1" / "r1"
    for name, text in {
        "../meta.yaml": "experiment_id: '1'\nname: shapes cnn\nlifecycle_stage: active\n",
        "meta.yaml": f'run_id: r1\nrun_name: "fi\\u00e9st"\nlifecycle_stage: active\nstatus: {status}\n'
        f"start_time: {BEGAN}000\nend_time: {'null' if status == 1 else f'{BEGAN + 9}000'}\nartifact_uri: file:///gone\n",
        "params/lr": "0.1",
        "params/amp": "True",
        "params/opt": "adam",
        "params/token": KEY,
        "tags/team": "vision",
        "tags/mlflow.note.content": "A <b>note</b>.",
        "tags/mlflow.runName": "first",
        "metrics/loss": f"{BEGAN}000 1.0 0\n{BEGAN + 1}000 0.5 1\n{BEGAN + 2}000 nan 2\n" if points else "x y z\n",
        "metrics/val/acc": f"{BEGAN}500 0.25 0\n" if points else "",
    }.items():
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pictures = run / "artifacts" / "images"
    pictures.mkdir(parents=True)
    (pictures / f"pred+step+5+timestamp+{BEGAN}000+1a2b.png").write_bytes(PNG)
    (pictures / f"pred+step+5+timestamp+{BEGAN}000+1a2b+compressed.webp").write_bytes(PNG)
    (run / "artifacts" / "curve.png").write_bytes(PNG)
    return folder / "mlruns"


def mlflow_file(folder):
    """An SQLite file of MLflow's with the same run, a deleted one, and a run that is going on."""
    path = folder / "mlflow.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            # The numbers are our own.
            f"""CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);
            CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INT, end_time INT, artifact_uri TEXT,
                lifecycle_stage TEXT, experiment_id INT);
            CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
            CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
            CREATE TABLE metrics (key TEXT, value FLOAT, timestamp INT, run_uuid TEXT, step INT, is_nan BOOLEAN);
            INSERT INTO experiments VALUES (1, 'shapes cnn', 'active');
            INSERT INTO runs VALUES ('r1', 'first', 'FINISHED', {BEGAN}000, {BEGAN + 9}000, '', 'active', 1),
                ('r2', 'gone', 'FINISHED', {BEGAN}000, {BEGAN + 9}000, '', 'deleted', 1),
                ('r3', 'now', 'RUNNING', {time.time():.0f}000, NULL, '', 'active', 1);
            INSERT INTO params VALUES ('lr', '0.1', 'r1'), ('amp', 'True', 'r1'), ('opt', 'adam', 'r1'),
                ('token', '{KEY}', 'r1');
            INSERT INTO tags VALUES ('mlflow.source.git.commit', '1a2b', 'r1');
            INSERT INTO tags VALUES ('team', 'vision', 'r1'), ('mlflow.note.content', 'A <b>note</b>.', 'r1');
            INSERT INTO metrics VALUES ('loss', 1.0, {BEGAN}000, 'r1', 0, 0), ('loss', 0.5, {BEGAN + 1}000, 'r1', 1, 0),
                ('loss', 0, {BEGAN + 2}000, 'r1', 2, 1), ('val/acc', 0.25, {BEGAN}500, 'r1', 0, 0);"""  # noqa: S608
        )
        db.commit()
    return path


@pytest.mark.parametrize("make", [mlflow_folder, mlflow_file])
def test_mlflow_stores(tmp_path, make):
    """The folder and the file tell the same, and a run of one is that of the other."""
    place = make(tmp_path)
    found = bring_in(place)
    [run] = found.runs

    assert (run.name, run.world, run.outcome, run.elapsed) == ("first", "shapes-cnn", "ok", 9.0)
    assert run.config == {"lr": 0.1, "amp": True, "opt": "adam", "token": "[redacted]"}
    assert values(run, "loss")[:2] == [(0, 1.0), (1, 0.5)]
    assert math.isnan(values(run, "loss")[2][1])
    assert values(run, "val/acc") == [(0, 0.25)]
    assert run.started == BEGAN
    assert run.note == "A <b>note</b>."
    assert run.tags == ["team: vision"]
    if make is mlflow_folder:
        assert [(one.name, one.step, one.data) for one in run.media] == [("curve", 0, PNG), ("pred", 5, PNG)]
    else:
        assert found.left_out == ["MLflow's run now (r3) may still go on: import it again once it has ended."]
    before = content(run)
    assert "1 run was there already." in bring_in(tmp_path).remarks
    assert content(jupyter_dtrain.runs()[0]) == before


def test_a_killed_run_of_mlflow_is_lost(tmp_path):
    """It says that it runs for ever, and nothing was logged for an hour."""
    [run] = jupyter_dtrain.import_runs(mlflow_folder(tmp_path, status=1))

    assert run.outcome == "lost"
    assert run.elapsed == 2.0


def test_a_damaged_store_of_mlflow_is_told(tmp_path):
    with pytest.raises(BadRequest, match=r"MLflow's run .* cannot be read: could not convert|invalid literal"):
        jupyter_dtrain.import_runs(mlflow_folder(tmp_path, points=False))
    path = mlflow_file(tmp_path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE metrics DROP COLUMN is_nan")
        db.commit()
    with pytest.raises(BadRequest, match=r"MLflow's store .* cannot be read: no such column"):
        jupyter_dtrain.import_runs(path)


# TensorBoard.

events = pytest.importorskip("tensorboard.compat.proto.event_pb2", reason="needs TensorBoard: pip install tensorboard")


def write_events(folder, *rows, name="events.out.tfevents.1700000000.host.1.0"):
    """An event file: each row is a step, and the value at it."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "wb") as file:
        writer = RecordWriter(file)
        writer.write(events.Event(wall_time=BEGAN, file_version="brain.Event:2").SerializeToString())
        for step, value in rows:
            summary = Summary(value=[value])
            writer.write(events.Event(wall_time=BEGAN + step, step=step, summary=summary).SerializeToString())
        writer.flush()


def scalar(tag, number):
    """A number, as most writers have it."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=tag, simple_value=number)


def text(tag, words):
    """A text."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype=7, string_val=[words.encode()]))


def hyperparameters(**given):
    """What ``add_hparams`` and Keras write."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    told = HParamsPluginData(version=0)
    for name, value in given.items():
        kind = "string_value" if isinstance(value, str) else "number_value"
        setattr(told.session_start_info.hparams[name], kind, value)
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=told.SerializeToString())
    return Summary.Value(tag="_hparams_/session_start_info", metadata=SummaryMetadata(plugin_data=plugin))


def test_tensorboards_files_of_a_writer(tmp_path):
    """Numbers, pictures, histograms, texts, and what the writer keeps in folders below its own."""
    from tensorboard.compat.proto.histogram_pb2 import HistogramProto
    from tensorboard.compat.proto.summary_pb2 import Summary

    picture = Summary.Value(tag="pic", image=Summary.Image(height=1, width=1, encoded_image_string=PNG))
    drawn = HistogramProto(min=0, max=2, num=4, sum=3, bucket_limit=[1, 2], bucket=[3, 1])
    own = tmp_path / "runs" / "first"
    write_events(
        own,
        *((step, scalar("loss", 1 / (step + 1))) for step in range(3)),
        (3, scalar("loss", math.nan)),
        (1, picture),
        (2, Summary.Value(tag="weights", histo=drawn)),
        (2, text("words", f"<b>hello</b> {KEY}")),
        (0, text("args/text_summary", json.dumps({"epochs": 3, "hub_token": KEY}))),
    )
    write_events(own / "accs_train", (0, scalar("accs", 0.5)))
    write_events(own / "1700000000.1", (0, hyperparameters(lr=0.1, layers=2, opt="adam")))
    write_events(tmp_path / "runs" / "second", (0, scalar("loss", 2.0)), name="events.out.tfevents.1700000001.host.1.1")
    second, first = sorted(jupyter_dtrain.import_runs(tmp_path / "runs"), key=lambda run: run.name, reverse=True)

    assert (first.name, second.name, first.world) == ("first", "second", "runs")
    assert values(first, "loss")[:2] == [(0, 1.0), (1, 0.5)]
    assert math.isnan(values(first, "loss")[3][1])
    assert list(first.metrics["loss"][0].times)[:2] == [BEGAN, BEGAN + 1]
    assert values(first, "accs/train") == [(0, 0.5)]
    assert first.config == {"epochs": 3, "hub_token": "[redacted]", "lr": 0.1, "layers": 2, "opt": "adam"}
    assert [(one.name, one.kind, one.step) for one in first.media] == [
        ("pic", "image", 1),
        ("weights", "histogram", 2),
        ("words", "text", 2),
    ]
    assert first.media[0].data == PNG
    assert sum(json.loads(first.media[1].data)["counts"]) == 4
    assert first.media[2].data == b"<b>hello</b> [redacted]"
    assert values(second, "loss") == [(0, 2.0)]
    before = sorted(map(content, jupyter_dtrain.runs()))
    assert bring_in(own).remarks == ["1 run was there already."]
    assert bring_in(tmp_path).remarks == ["2 runs were there already."]
    assert sorted(map(content, jupyter_dtrain.runs())) == before


def test_the_folders_of_keras_are_one_run(tmp_path):
    write_events(tmp_path / "logs" / "train", (0, scalar("epoch_loss", 1.0)))
    write_events(tmp_path / "logs" / "validation", (0, scalar("epoch_loss", 2.0)))
    [run] = jupyter_dtrain.import_runs(tmp_path / "logs")

    assert values(run, "epoch_loss") == [(0, 1.0)]
    assert values(run, "validation/epoch_loss") == [(0, 2.0)]


def test_our_own_files_come_back_with_their_ranks(tmp_path, store, db, fake):
    """A run that the store still has is not imported beside itself."""
    for rank in (0, 1):
        write_events(tmp_path / fake.owner.id / "run-1-small" / f"rank-{rank}", (0, scalar("loss", 1.0 + rank)))
    [run] = jupyter_dtrain.import_runs(tmp_path)

    assert run.ranks == [0, 1]
    assert (values(run, "loss", 0), values(run, "loss", 1)) == ([(0, 1.0)], [(0, 2.0)])

    run.keep(kept=False)
    run.delete()
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0]))
    fake.finish(1)
    drain(fake.writer, db)
    [own] = jupyter_dtrain.import_runs(tmp_path)
    assert own.world_id == fake.owner.id
    assert len(jupyter_dtrain.runs()) == 1


def test_event_files_that_end_early_or_hold_nothing(tmp_path):
    write_events(tmp_path / "a", (0, scalar("loss", 1.0)), (1, scalar("loss", 0.5)))
    [path] = (tmp_path / "a").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "events.out.tfevents.1.host").write_bytes(b"no events at all")
    found = bring_in(tmp_path)

    assert values(found.runs[0], "loss") == [(0, 1.0)]
    assert found.left_out == [f"The event files of {tmp_path / 'b'} have nothing that can be imported."]


def test_no_framework_is_imported(tmp_path):
    """The kernel that imports runs is the person's."""
    write_events(tmp_path / "a", (0, scalar("loss", 1.0)))
    code = (
        "import sys, jupyter_dtrain; jupyter_dtrain.import_runs(sys.argv[1]);"
        "print([name for name in ('tensorflow', 'torch', 'wandb', 'mlflow') if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True, timeout=120
    )

    assert said.stdout.strip() == "[]"


# All of them.


def test_a_path_without_runs(tmp_path):
    with pytest.raises(BadRequest, match=r"has no runs that can be imported. It was looked through for folders of W&B"):
        jupyter_dtrain.import_runs(tmp_path)
    with pytest.raises(BadRequest, match="does not exist"):
        jupyter_dtrain.import_runs(tmp_path / "missing")
    with pytest.raises(BadRequest, match="'comet' is no tool whose runs can be imported"):
        jupyter_dtrain.import_runs(tmp_path, "comet")
    assert jupyter_dtrain.runs() == []


def test_a_folder_with_runs_of_several_tools(tmp_path):
    mlflow_folder(tmp_path)
    offline(tmp_path, [begun(), *ROWS, ENDED])
    with pytest.raises(BadRequest, match=re.escape("has runs of W&B and of MLflow: choose one with kind=")):
        jupyter_dtrain.import_runs(tmp_path)

    assert [run.world for run in jupyter_dtrain.import_runs(tmp_path, "mlflow")] == ["shapes-cnn"]
    assert [run.world for run in jupyter_dtrain.import_runs(tmp_path, "wandb")] == ["shapes"]


def test_imported_runs_stay_when_a_world_starts(tmp_path, store, db, fake):
    """A steward removes runs that began long ago, unless a person keeps them."""
    from jupyter_dtrain.store.intake import StoreIntake
    from jupyter_dtrain.store.source import SpoolFolder

    offline(tmp_path, [begun(), *ROWS, ENDED])
    jupyter_dtrain.import_runs(tmp_path)
    intake = StoreIntake(store.path, fake.owner, SpoolFolder(fake.folder), 1.0, pytest.fail)
    while intake.poll():
        pass
    intake.close("it is over")

    assert [run.name for run in store.runs()] == ["first"]


MAKE_WANDB = """
import wandb, numpy
run = wandb.init(project="shapes", name="real", config={"lr": 0.1, "model": {"width": 8}}, tags=["best"], notes="words")
for step in range(5):
    wandb.log({"loss": 1 / (step + 1)})
wandb.log({"pic": wandb.Image(numpy.zeros((8, 8, 3), numpy.uint8)), "h": wandb.Histogram([1, 2, 3])})
run.finish()
"""
MAKE_MLFLOW = """
import mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
with mlflow.start_run(run_name="real", description="words"):
    mlflow.log_params({"lr": 0.1, "model.width": 8})
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
"""


@pytest.mark.parametrize(("package", "code"), [("wandb", MAKE_WANDB), ("mlflow", MAKE_MLFLOW)])
def test_what_the_tools_themselves_write(tmp_path, package, code):
    """Their newest versions."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install {package}")
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, timeout=240, capture_output=True)
    [run] = jupyter_dtrain.import_runs(tmp_path)

    assert (run.name, run.note, run.outcome) == ("real", "words", "ok")
    assert run.config == {"lr": 0.1, "model.width": 8}
    assert values(run, "loss") == [(step, 1 / (step + 1)) for step in range(5)]
    if package == "wandb":
        assert run.tags == ["best"]
        assert sorted((one.name, one.kind, one.step) for one in run.media) == [
            ("h", "histogram", 5),
            ("pic", "image", 5),
        ]
    assert bring_in(tmp_path).remarks == ["1 run was there already."]
