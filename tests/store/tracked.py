"""Runs for trackers, and what the trackers' own readers find: the judges of the tests with trackers."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from jupyter_dtrain.store import Store

Found = dict[str, list[tuple[int, float]]]
"""Steps and values, by metric."""


def expected(store: Store, run: int, *, ranks: bool = False) -> Found:
    """What a tracker must have of a stored run, from the store: means, and the lowest and highest of several ranks."""
    found: Found = defaultdict(list)
    for name, series in store.run_with_id(run).metrics.items():
        at: dict[int, list[float]] = defaultdict(list)
        for rank, columns in sorted(series.items()):
            for step, value in zip(columns.steps, columns.values, strict=True):
                at[step].append(value)
                if ranks:
                    found[f"{name}/rank-{rank}"].append((step, value))
        for step, values in sorted(at.items()):
            found[name].append((step, sum(values) / len(values)))
            if len(values) > 1:
                found[f"{name}/min"].append((step, min(values)))
                found[f"{name}/max"].append((step, max(values)))
    return dict(found)


def wandb_records(path: Path) -> list[Any]:
    """The records of W&B's file of a run: blocks of 32 kB with pieces of records, as LevelDB has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, piece, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        piece += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(piece)
            found.append(record)
            piece = b""
    return found


def wandb_files(folder: Path) -> list[Path]:
    """The files of runs beneath a folder."""
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def wandb_points(path: Path) -> Found:
    """The points in W&B's file of a run, by the step that is their axis."""
    found: Found = defaultdict(list)
    for record in wandb_records(path):
        row = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
        for name, value in row.items():
            if name != "step" and not name.startswith("_") and isinstance(value, (int, float)):
                found[name].append((row["step"], float(value)))
    return dict(found)


def mlflow_points(address: str, key: str = "") -> Found:
    """The points of the one run that MLflow has, by its client."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=address)
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()], key)
    names = run.data.metrics
    return {
        name: sorted((one.step, one.value) for one in client.get_metric_history(run.info.run_id, name))
        for name in names
    }


def trackio_points(project: str) -> Found:
    """The points of the one run that trackio has, by its API, in a process that reads ``TRACKIO_DIR`` anew."""
    code = (
        "import json, sys, trackio\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "(run,) = trackio.Api().runs(sys.argv[1])\n"
        "print(json.dumps(SQLiteStorage.get_logs(sys.argv[1], run.name, run_id=run.id)))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, project], capture_output=True, text=True, check=True, timeout=120, env=os.environ
    ).stdout
    found: Found = defaultdict(list)
    for row in json.loads(said):
        for name, value in row.items():
            if name not in ("step", "timestamp") and isinstance(value, (int, float)):
                found[name].append((row["step"], value))
    return dict(found)


def wait_for(question: Any, seconds: float = 90.0) -> Any:
    """What ``question`` answers, once that is something."""
    deadline = time.monotonic() + seconds
    while not (found := question()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return found
