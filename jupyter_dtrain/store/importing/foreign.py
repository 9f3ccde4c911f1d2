"""A run of another tool as our ranks would have told it, and what the readers have in common."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.events import Environment, MediaLogged, Outcome
from jupyter_dtrain.core.metrics import Columns, is_finite
from jupyter_dtrain.core.run_names import NOTE, TAG, TAGS, WIDTH
from jupyter_dtrain.core.secrets import redact, redact_command, redact_value
from jupyter_dtrain.core.structs import readable

from ..provenance import RunCommit

MEDIUM_BYTES: Final = 1 << 20
"""Bytes of one picture; a larger one is left out and counted."""
MEDIA_BYTES: Final = 64 << 20
"""Bytes of all pictures of a run."""
TEXT_BYTES: Final = 1 << 20
ROWS: Final = 1000
"""Rows of a table."""
PICTURES: Final[Mapping[str, str]] = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""The MIME types of pictures, by the ends of their files' names."""
_UNSAFE: Final = re.compile(r"[^\w.-]+")


@dataclass
class ForeignRun:
    """One run of another tool."""

    key: str
    """Its identity, from the tool: equal in every import."""
    title: str
    """Its place, for remarks."""
    project: str
    """Becomes the name of its world."""
    started: float
    """Seconds since the epoch."""
    ended: float
    outcome: Outcome = "ok"
    name: str = ""
    note: str = ""
    tags: list[str] = field(default_factory=list)
    group: str = ""
    source: str = ""
    host: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[int, dict[str, Columns]] = field(default_factory=dict)
    """By rank and name."""
    resources: dict[int, dict[str, Columns]] = field(default_factory=dict)
    """What the ranks used, under the names that ours have."""
    media: list[tuple[float, MediaLogged]] = field(default_factory=list)
    """With the time of each, of rank 0."""
    environment: Environment | None = None
    text: str = ""
    """What it printed."""
    commit: RunCommit | None = None
    """The state of its code, where the tool knows it."""
    error: tuple[str, str] | None = None
    """Type and message of the exception that ended it, where the tool knows it."""
    size: int = 1
    ours: str = ""
    """For a run that one of our own worlds may have sent to the tool: its :func:`own_id`."""

    def add(self, name: str, step: int, time: float, value: float, rank: int = 0) -> None:
        """Append a point of a metric."""
        metrics = self.metrics.setdefault(rank, {})
        columns = metrics.get(name)
        if columns is None:
            columns = metrics[name] = Columns.empty()
        columns.steps.append(max(-(1 << 62), min(step, 1 << 62)))
        columns.times.append(time)
        columns.values.append(value)

    def add_picture(self, name: str, step: int, time: float, data: bytes, mime: str, **more: Any) -> None:
        """Add a picture, or count it where it is too large."""
        room = MEDIA_BYTES - sum(len(medium.data) for _, medium in self.media)
        if len(data) > min(MEDIUM_BYTES, room):
            self.media.append((time, MediaLogged(name, "image", step, left_out=1)))
        else:
            self.media.append((time, MediaLogged(name, "image", step, mime=mime, data=data, **more)))

    def set_config(self, values: Mapping[str, Any]) -> None:
        """Take hyper-parameters: JSON, without secrets; nested ones become ``model.width``."""
        for name, value in flat(values):
            self.config[name] = redact_value(name, json_value(value))

    def take_own(self, told: Mapping[str, str]) -> None:
        """Take what one of our trackers has told the tool of a run of ours, beside what every run has there."""
        with contextlib.suppress(ValueError):
            self.started = real(float(told.get("started", ""))) or self.started
        found = code(*(told.get(name, "") for name in ("commit", "commit_remote", "commit_branch")))
        if found is not None:
            message, dirty = redact(told.get("commit_message", ""))[:1000], told.get("commit_dirty") == "True"
            self.commit = msgspec.structs.replace(found, message=message, dirty=dirty)
        # RANK: TYPE: MESSAGE
        _, _, error = told.get("error", "").partition(": ")
        kind, sign, words = error.partition(":")
        if sign:
            self.error = kind, redact(words.strip())

    def settled(self) -> ForeignRun:
        """Itself, with its words in the bounds that a person's words have here, and without secrets."""
        self.name = _line(redact(self.name), WIDTH)
        self.source, self.text = redact(self.source), redact(self.text)[-TEXT_BYTES:]
        self.group = _line(redact(self.group), WIDTH)
        good = [
            tag for tag in map(str.strip, self.tags) if 0 < len(tag) <= TAG and tag.isprintable() and "," not in tag
        ]
        bad = [tag for tag in map(str.strip, self.tags) if tag and tag not in good]
        self.tags = [redact(tag) for tag in dict.fromkeys(good)][:TAGS]
        note = "\n".join([self.note.strip(), *bad]).strip()
        self.note = _text(redact(note))[:NOTE]
        self.media = [(when, _without_secrets(medium)) for when, medium in self.media]
        return self

    @property
    def world(self) -> str:
        """The name of its world: a label is ``WORLD/NUMBER``, so it has neither spaces nor slashes."""
        return _UNSAFE.sub("-", self.project).strip("-.")[:60] or "imported"


@dataclass
class Found:
    """What a reader has found below a path."""

    runs: list[ForeignRun] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Sentences on what could not be read."""


def own_id(world: str, number: int) -> str:
    """The id of a run of ours at trackers, from the id of its world and its number."""
    return hashlib.sha256(f"{world}/{number}".encode()).hexdigest()[:20]


def flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """The values of nested mappings, with dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def json_value(value: Any) -> Any:
    """``value`` as JSON has it; text for what JSON has no form for."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=readable(Any))
    except (TypeError, ValueError, RecursionError, OverflowError):
        return str(value)[:1000]


def parsed(text: str) -> Any:
    """The number, boolean or list that a text is, as tools store hyper-parameters; else the text."""
    if text in ("True", "False", "true", "false"):
        return text in ("True", "true")
    if text in ("None", "null"):
        return None
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return msgspec.json.decode(text, type=readable(list[Any]))
    for kind in (int, float):
        try:
            found = kind(text)
        except ValueError:
            continue
        return found if found - found == 0 and abs(found) < 1 << 63 else text
    return text


def real(value: Any) -> float | None:
    """``value`` as a finite number; None for anything else."""
    if not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if is_finite(found) else None


def histogram(name: str, step: int, edges: Any, counts: Any) -> MediaLogged | None:
    """A histogram as ours are; None for what is none. ``edges``: one more than ``counts``."""
    if not (isinstance(edges, list) and isinstance(counts, list) and len(edges) == len(counts) + 1 and counts):
        return None
    if any(real(one) is None for one in [*edges, *counts]):
        return None
    total = sum(counts)
    middles = [(one + other) / 2 for one, other in pairwise(edges)]
    mean = sum(middle * count for middle, count in zip(middles, counts, strict=True)) / total if total else 0.0
    apart = sum(count * (middle - mean) ** 2 for middle, count in zip(middles, counts, strict=True))
    told = {"edges": edges, "counts": counts, "total": total, "lowest": edges[0], "highest": edges[-1], "mean": mean}
    told |= {"deviation": math.sqrt(apart / total) if total and apart > 0 else 0.0, "not_finite": 0}
    return MediaLogged(name, "histogram", step, mime="application/json", data=msgspec.json.encode(told))


def table(name: str, step: int, columns: Any, rows: Any) -> MediaLogged | None:
    """A table as ours are: its first rows; None for what is none."""
    if not (isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)):
        return None
    plain = (str, int, float, bool, type(None))
    kept = [
        [one if isinstance(one, plain) else str(one)[:1000] for one in redact_value("", json_value(row))]
        for row in rows[:ROWS]
    ]
    told = {"columns": list(map(str, columns)), "rows": kept, "total": len(rows)}
    data = msgspec.json.encode(told)
    note = f"the first {len(kept):,} of {len(rows):,} rows" if len(rows) > len(kept) else ""
    if len(data) > MEDIUM_BYTES:
        return MediaLogged(name, "table", step, left_out=1)
    return MediaLogged(name, "table", step, mime="application/json", data=data, note=note)


def code(commit: str, remote: str = "", branch: str = "") -> RunCommit | None:
    """The state of the code, from what tools know of it; None where they do not."""
    return RunCommit(hash=commit[:64], branch=branch[:200], remote=redact(remote)[:1000]) if commit else None


def command(words: Iterable[str]) -> list[str]:
    """A command line without secrets."""
    return redact_command(list(words))


def content(path: Path, folder: Path) -> bytes:
    """The bytes of a file that lies below ``folder`` and is not too large. Raises :class:`OSError`."""
    if not path.resolve().is_relative_to(folder.resolve()) or path.stat().st_size > 8 * MEDIUM_BYTES:
        raise OSError(f"{path} is not read")
    return path.read_bytes()


def picture(path: Path, folder: Path) -> tuple[bytes, str] | None:
    """The bytes and the MIME type of a picture below ``folder``; None for anything else."""
    mime = PICTURES.get(path.suffix.lower())
    if mime is None:
        return None
    try:
        return content(path, folder), mime
    except (OSError, ValueError):
        return None


def span(run: ForeignRun) -> tuple[float, float] | None:
    """The times of the first and the last point of a run; None without points."""
    times: list[array[float]] = [
        columns.times for metrics in run.metrics.values() for columns in metrics.values() if columns.times
    ]
    return (min(map(min, times)), max(map(max, times))) if times else None


def _without_secrets(medium: MediaLogged) -> MediaLogged:
    data = medium.data
    if medium.mime == "text/plain":
        data = redact(data.decode("utf-8", "replace")).encode("utf-8", "replace")
    return msgspec.structs.replace(medium, data=data, caption=redact(medium.caption))


def _line(text: str, width: int) -> str:
    words = "".join(one if one.isprintable() else " " for one in _text(text)).strip()
    return words if len(words) <= width else words[: width - 1].rstrip() + "…"


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
