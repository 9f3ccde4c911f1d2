"""MLflow: ``mlflow[:ADDRESS][#EXPERIMENT]``, with MLflow's own client.

``ADDRESS`` is what ``mlflow.set_tracking_uri`` takes: a server, ``sqlite:///runs.db``, a folder; without one, MLflow's
own. A run is found again by its tag ``dtrain.id``. What a killed process had sent after the position is asked for once,
by metric, and left out. Images are MLflow's images of a step; other media are files in ``media``.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from .facts import SentFacts, StoredMedium
from .merging import Point
from .state import TrackedState
from .tracker import TrackedRun, Tracker, flat

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT: Final = "jupyter-dtrain"
"""Where runs go that no person and no variable of MLflow's gives an experiment."""
METRICS: Final = 1000
"""Values that MLflow takes at once, and the same for parameters."""
PARAMETERS: Final = 100
LONGEST: Final = 5000
"""Characters of a tag or a parameter."""
NAME: Final = 250

_UNSAFE: Final = re.compile(r"[^\w\-. :/]")
_NO_IMAGE: Final = re.compile(r"[^a-zA-Z0-9_\-./ ]")
"""What MLflow refuses in the name of an image, beside what it refuses in others."""


class Mlflow(Tracker):
    """MLflow, by its own client."""

    title: ClassVar[str] = "MLflow"
    package: ClassVar[str] = "mlflow"

    @classmethod
    def check(cls, where: str) -> str:
        """Make the path of a folder or a SQLite file absolute: a later process may work elsewhere."""
        address, mark, experiment = where.partition("#")
        file = re.fullmatch(r"sqlite:///(?!/)(.+)", address)
        if file is not None:
            address = f"sqlite:///{Path(file[1]).absolute()}"
        elif address and "://" not in address and address not in ("databricks", "databricks-uc"):
            address = str(Path(address).expanduser().absolute())
        return f"{address}{mark}{experiment}"

    def __init__(self, where: str, flags: frozenset[str]) -> None:
        del flags
        address, _, experiment = where.partition("#")
        self._address = address
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)

    def open(self, facts: SentFacts, state: TrackedState) -> TrackedRun:
        """The run with its tag, or a new one."""
        import mlflow

        address = self._address or state.place.get("address", "")
        if not address:
            address = mlflow.get_tracking_uri()
            if address.startswith(("sqlite:", "file:", "/")):
                state.place["address"] = address  # MLflow's own place depends on the folder that this process runs in
        client = mlflow.MlflowClient(tracking_uri=address)
        run = state.place.get("run") or self._find(client, facts)
        state.place["run"] = run
        return _Run(client, run, again=state.again)

    def _find(self, client: MlflowClient, facts: SentFacts) -> str:
        found = client.get_experiment_by_name(self._experiment)
        experiment = client.create_experiment(self._experiment) if found is None else found.experiment_id
        runs = client.search_runs([experiment], f"tags.`dtrain.id` = '{facts.id}'", max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        tags = {"dtrain.id": facts.id, "mlflow.source.type": "NOTEBOOK"}
        made = client.create_run(experiment, int(1000 * facts.started), tags, facts.name[:NAME])
        return str(made.info.run_id)


class _Run(TrackedRun):
    def __init__(self, client: MlflowClient, run: str, *, again: bool) -> None:
        self._client = client
        self._run = run
        self._again = again
        self._there: dict[str, set[tuple[int, int, float]]] = {}
        """By metric, what had arrived when this process began; only for what an earlier one has sent."""
        self._parameters: dict[str, str] | None = None
        self._tags: dict[str, str] = {}
        self._diff = ""

    def add_points(self, points: Sequence[Point], *, ranks: bool) -> None:
        from mlflow.entities import Metric

        metrics = []
        for point in points:
            when = int(1000 * point.time)
            for name, value in point.told(ranks=ranks).items():
                key = _safe(name)
                if not self._again or (point.step, when, _same(value)) not in self._arrived(key):
                    metrics.append(Metric(key, value, when, point.step))
        for first in range(0, len(metrics), METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + METRICS])

    def add_medium(self, medium: StoredMedium) -> None:
        key = _safe(medium.name)
        if medium.pictured and self._add_image(key, medium):
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{medium.key}{medium.suffix}"
            path.write_bytes(medium.data)
            self._client.log_artifact(self._run, str(path), f"media/{key.strip('/.') or 'media'}")

    def describe(self, facts: SentFacts) -> None:
        from mlflow.entities import Param, RunTag

        if self._parameters is None:
            self._parameters = dict(self._client.get_run(self._run).data.params)
        config = {_safe(name): _text(value) for name, value in flat(facts.config).items()}
        new = {name: value for name, value in config.items() if name not in self._parameters}
        changed = {name: value for name, value in config.items() if self._parameters.get(name, value) != value}
        items = list(new.items())
        for first in range(0, len(items), PARAMETERS):
            some = [Param(*item) for item in items[first : first + PARAMETERS]]
            self._client.log_batch(self._run, params=some)
        self._parameters |= new
        tags = {
            "mlflow.runName": facts.name[:NAME],
            "mlflow.note.content": facts.notes,
            "dtrain.group": facts.group,
            "dtrain.outcome": facts.outcome,
            "dtrain.error": facts.error,
            "dtrain.events": "\n".join(one.words for one in facts.happenings),
            "mlflow.source.name": facts.about.get("notebook", ""),
            "mlflow.source.git.commit": facts.about.get("commit", ""),
            "mlflow.source.git.branch": facts.about.get("commit branch", ""),
            "mlflow.source.git.repoURL": facts.about.get("commit remote", ""),
            **{f"dtrain.{_safe(name)}": value for name, value in facts.about.items()},
            # MLflow keeps the first value of a parameter for ever.
            **{f"config.{name}": value for name, value in changed.items()},
            **dict.fromkeys((_safe(tag) for tag in facts.tags), "true"),
        }
        tags = {name[:NAME]: value[:LONGEST] for name, value in tags.items() if value or name in self._tags}
        fresh = [RunTag(*one) for one in tags.items() if self._tags.get(one[0]) != one[1]]
        for first in range(0, len(fresh), PARAMETERS):
            self._client.log_batch(self._run, tags=fresh[first : first + PARAMETERS])
        for gone in self._tags.keys() - tags.keys():
            self._client.delete_tag(self._run, gone)
        self._tags = tags
        if facts.diff != self._diff:
            self._client.log_text(self._run, facts.diff, "code/diff.patch")
            self._diff = facts.diff

    def end(self, facts: SentFacts) -> None:
        status = "KILLED" if facts.outcome == "interrupted" else "FAILED" if facts.failed else "FINISHED"
        self._client.set_terminated(self._run, status, int(1000 * (facts.ended or facts.started)))

    def _arrived(self, key: str) -> set[tuple[int, int, float]]:
        if key not in self._there:
            history = self._client.get_metric_history(self._run, key)
            self._there[key] = {(one.step, one.timestamp, _same(one.value)) for one in history}
        return self._there[key]

    def _add_image(self, key: str, medium: StoredMedium) -> bool:
        """Log an image of a step; False where the libraries for that are missing."""
        try:
            import PIL.Image
        except ImportError:
            return False
        import io

        key = _NO_IMAGE.sub("_", key)
        when = int(1000 * medium.time) + medium.number  # tells the images of one step apart
        if self._again:
            # MLflow's own form of the name, with either sign by its version; the rest of it is random.
            words = [f"images/{key.replace('/', '#')}", "step", str(medium.step), "timestamp", str(when), ""]
            begins = re.compile("[+%]".join(map(re.escape, words)))
            if any(begins.match(one.path) for one in self._client.list_artifacts(self._run, "images")):
                return True
        image = PIL.Image.open(io.BytesIO(medium.data))
        self._client.log_image(self._run, image, key=key, step=medium.step, timestamp=when)
        return True


def _safe(name: str) -> str:
    """``name`` as MLflow takes it."""
    found = _UNSAFE.sub("_", name)[:NAME].strip("/") or "_"
    # A path that leads elsewhere is no name for MLflow.
    return "/".join(part if part.strip(".") else "_" for part in found.split("/"))


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:LONGEST]


def _same(value: float) -> float:
    """A value that equals itself."""
    return math.inf if math.isnan(value) else value
