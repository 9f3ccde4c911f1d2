"""MLflow's stores, read as they are: a folder ``mlruns`` with a file for each metric, or an SQLite file.

Both have the same in other forms, and neither needs MLflow, whose newest versions refuse folders.

Under failure: a run whose files cannot be read is left out with a remark. Deleted runs and experiments are left out.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlparse

from jupyter_dtrain.core.events import Environment, Outcome

from .foreign import PICTURES, ForeignRun, Found, code, command, parsed, picture, real, span

QUIET: Final = 3600.0
"""Seconds for which a run without an end has logged nothing, after which it counts as killed."""

_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "FINISHED": "ok",
    "FAILED": "error",
    "KILLED": "interrupted",
    "3": "ok",
    "4": "error",
    "5": "interrupted",
}
_NAMES: Final = ("mlflow.db", "mlruns.db")
_PICTURES: Final = 64  # of one run, beside those that were logged with a step
_FILES: Final = 5000  # that are looked at below the artifacts of a run
_IMAGE: Final = re.compile(r"(.+)[+%]step[+%](-?\d+)[+%]timestamp[+%](\d+)[+%][^+%]+\.\w+\Z")
_LARGEST: Final = 1.7976931348623157e308
"""Stands in SQL for infinity."""

Point = tuple[str, int, float, float]
"""A metric's name, a step, seconds since the epoch, and a value."""


def find(path: Path) -> Found:
    """The runs of a store: its folder or its file, or a folder that has one of these."""
    if path.is_file():
        return _read_sql(path) if _is_store(path) else Found()
    folders = [folder for folder in (path, path / "mlruns") if _experiments(folder)]
    if folders:
        return _read_folder(folders[0])
    for name in _NAMES:
        if _is_store(path / name):
            return _read_sql(path / name)
    return Found()


class _Told:
    """What both forms tell of a run."""

    def __init__(self, run_id: str, experiment: str, facts: Mapping[str, str]) -> None:
        self.run_id = run_id
        self.experiment = experiment
        self.facts = facts
        """Its name, status, times (in milliseconds) and the place of its artifacts."""
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.points: Iterable[Point] = ()
        self.artifacts: Path | None = None


def _add(found: Found, told: _Told) -> None:
    """Make a run of what is told, unless it goes on."""
    facts, tags = told.facts, told.tags
    name = tags.get("mlflow.runName") or facts.get("run_name") or facts.get("name") or told.run_id
    run = ForeignRun(f"mlflow:{told.run_id}", f"MLflow's run {name} ({told.run_id})", told.experiment, 0.0, 0.0)
    run.name, run.note = name, tags.get("mlflow.note.content", "")
    run.tags = [
        key if value in ("true", "True", "") else f"{key}: {value}"
        for key, value in tags.items()
        if not key.startswith(("mlflow.", "dtrain.", "config."))
    ]
    run.ours, run.group = tags.get("dtrain.id", ""), tags.get("dtrain.group", "")
    run.set_config({key: parsed(value) for key, value in told.params.items()})
    for point in told.points:
        run.add(*point)
    times = span(run)
    run.started = _seconds(facts.get("start_time")) or (times[0] if times else time.time())
    last = max(run.started, times[1]) if times else run.started
    status = facts.get("status", "")
    run.outcome = _OUTCOMES.get(status, "lost")
    run.ended = max(run.started, _seconds(facts.get("end_time")) or last)
    if run.outcome == "lost" and time.time() - last < QUIET:
        found.left_out.append(f"{run.title} may still go on: import it again once it has ended.")
        return
    about = "mlflow.source.git."
    run.commit = code(*(tags.get(f"{about}{name}", "") for name in ("commit", "repoURL", "branch")))
    if run.ours:
        run.take_own({key.removeprefix("dtrain.").replace(" ", "_"): value for key, value in tags.items()})
    if source := tags.get("mlflow.source.name"):
        run.environment = Environment("", command=command([source]))
    if told.artifacts is not None:
        _add_pictures(run, told.artifacts)
    found.runs.append(run.settled())


def _add_pictures(run: ForeignRun, folder: Path) -> None:
    others = 0
    with contextlib.suppress(OSError):
        for path in sorted(_below(folder)):
            if path.suffix.lower() not in PICTURES or path.stem.endswith(("+compressed", "%compressed")):
                continue
            with_step = _IMAGE.match(path.name) if path.parent == folder / "images" else None
            others += with_step is None
            if others > _PICTURES and with_step is None:
                continue
            content = picture(path, folder)
            if content is None:
                continue
            if with_step is not None:
                when = int(with_step[3]) / 1e3
                run.add_picture(with_step[1].replace("#", "/"), int(with_step[2]), when, *content)
            else:
                run.add_picture(str(path.relative_to(folder).with_suffix("")), 0, path.stat().st_mtime, *content)


def _below(folder: Path) -> Iterator[Path]:
    for count, path in enumerate(folder.rglob("*")):
        if count >= _FILES:
            return
        if path.is_file():
            yield path


def _place(uri: str, *near: Path) -> Path | None:
    """The folder of artifacts on this machine; None where they are elsewhere."""
    parts = urlparse(uri)
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path))
    for found in (folder, *(one / folder for one in near)):
        with contextlib.suppress(OSError):
            if found.is_dir():
                return found
    return None


# The folder.


def _experiments(folder: Path) -> list[Path]:
    """The folders of a store's experiments; none for any other folder."""
    with contextlib.suppress(OSError):
        metas = [path for path in folder.glob("*/meta.yaml") if "experiment_id" in _meta(path)]
        return sorted(path.parent for path in metas if "run_id" not in _meta(path) and "run_uuid" not in _meta(path))
    return []


def _read_folder(folder: Path) -> Found:
    found = Found()
    for place in _experiments(folder):
        experiment = _meta(place / "meta.yaml")
        if experiment.get("lifecycle_stage") == "deleted":
            continue
        for path in sorted(place.glob("*/meta.yaml")):
            try:
                facts = _meta(path)
                run_id = facts.get("run_id") or facts.get("run_uuid")
                if run_id and facts.get("lifecycle_stage") != "deleted":
                    _add(found, _told_by_files(path.parent, run_id, experiment.get("name", "mlflow"), facts))
            except (OSError, ValueError) as error:
                found.left_out.append(f"MLflow's run {path.parent} cannot be read: {error}.")
    return found


def _told_by_files(folder: Path, run_id: str, experiment: str, facts: Mapping[str, str]) -> _Told:
    told = _Told(run_id, experiment, facts)
    told.params, told.tags = _values(folder / "params"), _values(folder / "tags")
    told.points = _points(folder / "metrics")
    own = folder / "artifacts"
    told.artifacts = own if own.is_dir() else _place(facts.get("artifact_uri", ""), folder.parent.parent.parent)
    return told


def _values(folder: Path) -> dict[str, str]:
    """The content of each file, by its name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace").rstrip("\n") for path in paths
    }


def _points(folder: Path) -> Iterator[Point]:
    """The points of all metrics. Raises :class:`ValueError` for a line that is none."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file):
                words = line.split()
                if len(words) > 1:
                    step = int(words[2]) if len(words) > 2 else number  # noqa: PLR2004 — the first versions had none
                    yield name, step, int(words[0]) / 1e3, float(words[1])


def _meta(path: Path) -> dict[str, str]:
    """The plain values of a file ``meta.yaml``, which MLflow writes in one form. Raises :class:`OSError`."""
    found = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, sign, text = line.partition(":")
        value = text.strip()
        if not sign or not value or line[:1].isspace():
            continue
        if value[0] == value[-1] == "'" and len(value) > 1:
            value = value[1:-1].replace("''", "'")
        elif value[0] == '"':
            with contextlib.suppress(ValueError):
                value = str(json.loads(value))
        found[name.strip()] = "" if value == "null" else value
    return found


# The file.


def _is_store(path: Path) -> bool:
    with contextlib.suppress(OSError, sqlite3.Error):
        with open(path, "rb") as file:
            head = file.read(15)
        if head == b"SQLite format 3":
            with contextlib.closing(_open(path)) as db:
                query = "SELECT count(*) FROM sqlite_master WHERE name IN ('experiments', 'runs', 'metrics', 'params')"
                return int(db.execute(query).fetchone()[0]) == 4  # noqa: PLR2004 — all of these tables
    return False


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=5)


def _read_sql(path: Path) -> Found:
    found = Found()
    columns = ("status", "start_time", "end_time", "artifact_uri")
    query = (
        f"SELECT run_uuid, experiments.name, runs.name, {', '.join(columns)} FROM runs "  # noqa: S608 — our own names
        "JOIN experiments ON experiments.experiment_id = runs.experiment_id "
        "WHERE runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active'"
    )
    try:
        with contextlib.closing(_open(path)) as db:
            for run_id, experiment, name, *values in db.execute(query).fetchall():
                facts = {key: "" if value is None else str(value) for key, value in zip(columns, values, strict=True)}
                told = _Told(str(run_id), str(experiment), {"run_name": str(name or ""), **facts})
                told.params = _pairs(db, "SELECT key, value FROM params WHERE run_uuid = ?", run_id)
                told.tags = _pairs(db, "SELECT key, value FROM tags WHERE run_uuid = ?", run_id)
                told.points = _sql_points(db, run_id)
                told.artifacts = _place(facts["artifact_uri"], path.absolute().parent)
                _add(found, told)
    except (sqlite3.Error, ValueError, TypeError) as error:
        found.left_out.append(f"MLflow's store {path} cannot be read: {error}.")
    return found


def _pairs(db: sqlite3.Connection, query: str, run_id: str) -> dict[str, str]:
    return {str(key): str(value) for key, value in db.execute(query, (run_id,))}


def _sql_points(db: sqlite3.Connection, run_id: str) -> Iterator[Point]:
    query = "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY key, step, timestamp"
    for name, step, when, value, is_nan in db.execute(query, (run_id,)):
        number = math.nan if is_nan else float(value)
        if abs(number) >= _LARGEST:
            number = math.copysign(math.inf, number)
        yield str(name), int(step), int(when) / 1e3, number


def _seconds(milliseconds: str | None) -> float:
    """Seconds since the epoch; 0 for none."""
    try:
        return (real(float(milliseconds or 0)) or 0.0) / 1e3
    except ValueError:
        return 0.0
