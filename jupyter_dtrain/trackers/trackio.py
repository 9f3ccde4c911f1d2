"""trackio: ``trackio[:PROJECT]``, into trackio's files on this machine, where ``trackio.show`` and ``sync`` find them.

Each point has an id (``log_id``) that follows from the run, the metric and the place, and trackio takes an id once: a
batch that is sent again changes nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar, Final

from jupyter_dtrain.core.errors import BadRequest

from .facts import SentFacts, StoredMedium
from .merging import Point
from .state import TrackedState
from .tracker import TrackedRun, Tracker

PROJECT: Final = "jupyter-dtrain"

_log = logging.getLogger(__name__)


class Trackio(Tracker):
    """trackio's files on this machine."""

    title: ClassVar[str] = "trackio"
    package: ClassVar[str] = "trackio"

    @classmethod
    def check(cls, where: str) -> str:
        """A project's name."""
        project = where or PROJECT
        if not re.fullmatch(r"[\w.-][\w. -]*", project):
            raise BadRequest(
                f"{project!r} cannot name a project of trackio: use letters, digits, dashes and underscores.",
                option="track",
            )
        return project

    def __init__(self, where: str, flags: frozenset[str]) -> None:
        del flags
        self._project = where or PROJECT

    def open(self, facts: SentFacts, state: TrackedState) -> TrackedRun:
        """The run, which trackio knows by the id that we give it."""
        # trackio has a folder for each name of a run: it stays, whatever the run is called later.
        name = state.place.setdefault("name", f"{facts.name[:80]} ({facts.label})")
        return _Run(self._project, name, facts)


class _Run(TrackedRun):
    def __init__(self, project: str, name: str, facts: SentFacts) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self._storage = SQLiteStorage
        self._project = project
        self._name = name
        self._id = facts.id
        self._config: dict[str, Any] = {}
        self._alerts = 0

    def add_points(self, points: Sequence[Point], *, ranks: bool) -> None:
        self._log(
            [{_safe(name): value for name, value in point.told(ranks=ranks).items()} for point in points],
            [point.step for point in points],
            [point.time for point in points],
            ["/".join(map(str, (self._id, *point.place, point.name))) for point in points],
        )

    def add_medium(self, medium: StoredMedium) -> None:
        try:
            value = self._value(medium)
        except ValueError as error:
            _log.warning("%s", error)
            return
        self._log([{_safe(medium.name): value}], [medium.step], [medium.time], [f"{self._id}/medium/{medium.key}"])

    def describe(self, facts: SentFacts) -> None:
        more = {
            "notes": facts.notes,
            "tags": facts.tags,
            "outcome": facts.outcome,
            "error": facts.error,
            "label": facts.label,
            "name": facts.name,
            **{name.replace(" ", "_"): value for name, value in facts.about.items()},
        }
        config = {name.lstrip("_") or "_": value for name, value in facts.config.items()}
        self._config = {
            **config,
            "dtrain": {name: value for name, value in more.items() if value},
            "_Group": facts.group or None,
            "_Created": datetime.fromtimestamp(facts.started, timezone.utc).isoformat(),
        }
        # Without a point there is no place for it yet.
        if self._storage.get_log_count(self._project, run_id=self._id):
            self._log([{}], [0], [facts.started], [f"{self._id}/begin"])

    def end(self, facts: SentFacts) -> None:
        alerts = [(one.time, one.words, "warn") for one in facts.happenings]
        if facts.failed:
            alerts.append((facts.ended or facts.started, facts.error or f"The run ended: {facts.outcome}.", "error"))
        if alerts:
            self._storage.bulk_alert(
                project=self._project,
                run=self._name,
                run_id=self._id,
                titles=[words[:200] for _, words, _ in alerts],
                texts=[words for _, words, _ in alerts],
                levels=[level for _, _, level in alerts],
                steps=[None for _ in alerts],
                timestamps=[_time(when) for when, _, _ in alerts],
                alert_ids=[f"{self._id}/alert/{number}" for number in range(len(alerts))],
            )

    def _log(self, metrics: list[dict[str, Any]], steps: list[int], times: list[float], ids: list[str]) -> None:
        self._storage.bulk_log(
            project=self._project,
            run=self._name,
            run_id=self._id,
            metrics_list=metrics,
            steps=steps,
            timestamps=[_time(when) for when in times],
            config=self._config,
            log_ids=ids,
        )

    def _value(self, medium: StoredMedium) -> dict[str, Any]:
        """A medium as trackio stores it. Raises :class:`ValueError` for one that cannot be read."""
        if medium.kind == "histogram":
            counts, edges = medium.histogram
            return {"_type": "trackio.histogram", "bins": edges, "values": counts}
        if medium.kind == "table":
            columns, rows = medium.table
            return {"_type": "trackio.table", "_value": [dict(zip(columns, row, strict=False)) for row in rows]}
        if medium.kind == "text":
            return {"_type": "trackio.markdown", "_value": medium.text}
        if medium.pictured or medium.mime == "audio/wav":
            return {"_type": f"trackio.{medium.mime.partition('/')[0]}", **self._file(medium)}
        return {"_type": "trackio.markdown", "_value": medium.text}

    def _file(self, medium: StoredMedium) -> dict[str, Any]:
        from trackio.media import get_project_media_path
        from trackio.utils import MEDIA_DIR

        folder = get_project_media_path(project=self._project, run=self._name, step=medium.step)
        path = folder / f"{self._id}-{medium.key}{medium.suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(medium.data)
        return {"file_path": str(path.relative_to(MEDIA_DIR)), "caption": medium.caption or None}


def _safe(name: str) -> str:
    """``name``, unless trackio has it for itself."""
    return f"__{name}" if name in {"project", "run", "timestamp", "step", "time", "metrics"} else name


def _time(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).isoformat()
