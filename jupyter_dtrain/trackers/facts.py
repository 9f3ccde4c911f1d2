"""What a tracker is told of a run beside its points, as the store has it: names, configuration, commit, outcome, media.

It is read anew at each look, since a person may name a run or write a note while it runs.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any, Final, TypeVar

import msgspec

from jupyter_dtrain.core.secrets import redact
from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.store.stored_run import StoredRun

T = TypeVar("T")

WORDS: Final = 1000
"""Characters of the words of an exception."""


class Happening(msgspec.Struct, frozen=True):
    """Something that happened to the run, such as the replacement of a rank."""

    time: float
    words: str


class StoredMedium(msgspec.Struct, frozen=True):
    """Something that was logged beside numbers."""

    id: int
    """Its row in the store: later ones have higher numbers."""
    rank: int
    name: str
    kind: str
    """One of :data:`~jupyter_dtrain.core.events.MediaKind`."""
    step: int
    number: int
    time: float
    mime: str
    caption: str
    data: bytes

    @property
    def key(self) -> str:
        """Tells it from all others of its run."""
        return f"{self.step}-{self.rank}-{self.number}-{self.id}"

    @property
    def suffix(self) -> str:
        """The ending of a file with it."""
        return {"image/png": ".png", "image/jpeg": ".jpg", "audio/wav": ".wav", "text/plain": ".txt"}.get(
            self.mime, ".json" if "json" in self.mime else ".bin"
        )

    @property
    def pictured(self) -> bool:
        """Whether it is a picture that each program can show."""
        return self.mime in ("image/png", "image/jpeg")

    @property
    def text(self) -> str:
        """Its bytes as text."""
        return self.data.decode(errors="replace")

    @property
    def histogram(self) -> tuple[list[float], list[float]]:
        """The counts and the edges of a histogram. Raises :class:`ValueError` where it is none."""
        told = self._told(_Histogram)
        if len(told.edges) != len(told.counts) + 1:
            raise ValueError(f"{self.name} is no histogram.")
        return told.counts, told.edges

    @property
    def table(self) -> tuple[list[str], list[list[Any]]]:
        """The columns and the rows of a table. Raises :class:`ValueError` where it is none."""
        told = self._told(_Table)
        return [str(one) for one in told.columns], [[_cell(one) for one in row] for row in told.rows]

    def _told(self, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.data, type=readable(kind))
        except UNREADABLE as error:
            raise ValueError(f"{self.name} cannot be read ({error}).") from error


class _Histogram(msgspec.Struct):
    counts: list[float]
    edges: list[float]


class _Table(msgspec.Struct):
    columns: list[Any]
    rows: list[list[Any]]


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else msgspec.json.encode(value).decode()


class SentFacts(msgspec.Struct, frozen=True):
    """What is known of a run."""

    key: str
    """Names it everywhere and for ever."""
    label: str
    """``world/3``."""
    name: str
    note: str
    tags: list[str]
    group: str
    config: dict[str, Any]
    started: float
    ended: float | None
    """None while it runs."""
    outcome: str
    elapsed: float
    error: str
    """The exception that ended it, in one line; empty for none."""
    about: dict[str, str]
    """More in words, by what it is: the notebook, Python, devices, hosts, the commit."""
    diff: str
    """What the working folder had beyond the commit."""
    happenings: list[Happening]

    @property
    def id(self) -> str:
        """The key as 20 letters and digits, for trackers that let us choose a run's id."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:20]

    @property
    def digest(self) -> str:
        """Changes with everything but the time that it has taken."""
        return hashlib.sha256(repr(msgspec.structs.replace(self, elapsed=0.0)).encode()).hexdigest()

    @property
    def notes(self) -> str:
        """The person's note, then what happened, one line each."""
        lines = [one.words for one in self.happenings]
        return "\n".join([*([self.note] if self.note else []), *lines])

    @property
    def failed(self) -> bool:
        """Whether it ended by an error."""
        return self.ended is not None and self.outcome not in ("ok", "interrupted")


def read_facts(db: sqlite3.Connection, run: StoredRun) -> SentFacts:
    """The facts. Raises :class:`sqlite3.Error` and :class:`~jupyter_dtrain.core.errors.StoreFailed`."""
    happenings = db.execute("SELECT time, words FROM happenings WHERE run = ? ORDER BY time, id", (run.id,)).fetchall()
    row = db.execute("SELECT told FROM commits WHERE run = ?", (run.id,)).fetchone()
    commit: dict[str, Any] = {} if row is None else msgspec.json.decode(row[0], type=readable(dict[str, Any]))
    error = next((redact(f"rank {rank}: {one.ename}: {one.evalue}")[:WORDS] for rank, one in run.errors.items()), "")
    return SentFacts(
        key=f"{run.world_id}/{run.number}",
        label=run.label,
        name=run.name or run.label,
        note=redact(run.note),
        tags=run.tags,
        group=run.group,
        config=run.config,
        started=run.started,
        ended=run.ended,
        outcome=run.outcome,
        elapsed=run.elapsed if run.ended is not None else 0.0,
        error=error,
        about=_about(run, commit),
        diff=str(commit.get("diff") or ""),
        happenings=[Happening(when, redact(words)) for when, words in happenings],
    )


def _about(run: StoredRun, commit: dict[str, Any]) -> dict[str, str]:
    environments = run.environments
    one = next(iter(environments.values()), None)
    found = {
        "run": run.label,
        "world": run.world,
        "ranks": str(len(run.ranks)),
        "notebook": run.notebook,
        "heading": run.heading,
        "resumes": next((one.label for one in run.lineage if one.id == run.resumes), ""),
        "hosts": ", ".join(dict.fromkeys(part.host for part in run.parts.values() if part.host)),
    }
    if one is not None:
        found |= {
            "python": one.python,
            "platform": one.platform,
            "devices": ", ".join(dict.fromkeys(device for each in environments.values() for device in each.devices)),
            "packages": ", ".join(f"{name} {version}" for name, version in sorted(one.packages.items())),
        }
    for name in ("hash", "branch", "remote", "message", "dirty", "notes", "untracked", "folder"):
        if (value := commit.get(name)) not in (None, "", []):
            told = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
            found["commit" if name == "hash" else f"commit {name}"] = told
    return {name: value for name, value in found.items() if value}
