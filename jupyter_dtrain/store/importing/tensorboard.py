"""TensorBoard's event files, read with TensorBoard's own package: scalars, pictures, histograms, text and sound.

Each folder with event files is a run, as in TensorBoard, but for those that belong together: what a library writes into
``train`` and ``validation``, the ranks of a run of ours (``WORLD-ID/run-3/rank-0``), and what a writer keeps below its
own folder for ``add_scalars`` and ``add_hparams``.

Under failure: a file that ends early gives what it has up to there. Where the package is missing, the error says how to
install it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import MediaLogged

from .foreign import MEDIUM_BYTES, ForeignRun, Found, histogram, own_id, span

_PARTS: Final = ("train", "training", "validation", "val", "valid", "test", "eval", "evaluation")
"""Folders below that of a run, as writers name them; metrics of those after the first two get the name in front."""
_OURS: Final = re.compile(r"run-(\d+)(?:-.*)?\Z")
_RANK: Final = re.compile(r"rank-(\d+)\Z")
_CONFIGS: Final = ("args", "config", "hparams", "model_config")
"""Texts that have a configuration where they are JSON: some trainers write such."""
_TOGETHER: Final = 64
_FOLDERS: Final = 20_000
_DEEPEST: Final = 12
_RECORD: Final = 256 << 20  # bytes of one event
_LIMIT: Final = 1e300
"""The edges of the outermost parts of a histogram may be the largest numbers that there are."""

Folder = tuple[Path, int, str]
"""A folder with event files, the rank that has written it, and what stands before the names of its metrics."""


def find(path: Path) -> Found:
    """The runs below a folder, or that of one file. Raises :class:`BadRequest` where the package is missing."""
    files = _files(path)
    found = Found()
    if not files:
        return found
    if importlib.util.find_spec("tensorboard") is None:
        raise BadRequest("TensorBoard's event files need its package: pip install 'jupyter-dtrain[tensorboard]'.")
    base = path if path.is_dir() else path.parent
    for root, folders in _grouped(base, files).items():
        run = _Reader(base, root)
        for folder, rank, prefix in folders:
            for file in files[folder]:
                run.read(file, rank, prefix)
        if (told := run.run(min(files[folders[0][0]]))) is not None:
            found.runs.append(told)
        else:
            found.left_out.append(f"The event files of {root} have nothing that can be imported.")
    return found


def _files(path: Path) -> dict[Path, list[Path]]:
    """All event files, by folder."""
    if path.is_file():
        return {path.parent: [path]} if "tfevents" in path.name else {}
    found: dict[Path, list[Path]] = {}
    for count, (place, folders, names) in enumerate(os.walk(path)):
        if count >= _FOLDERS:
            break
        folder = Path(place)
        if len(folder.parts) - len(path.parts) >= _DEEPEST:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # A profile of a few steps is no run.
        events = [folder / name for name in sorted(names) if "tfevents" in name and "profile-empty" not in name]
        if events:
            found[folder] = events
    return found


def _grouped(base: Path, files: Mapping[Path, list[Path]]) -> dict[Path, list[Folder]]:
    """The folders of each run, by the run's own folder."""
    found: dict[Path, list[Folder]] = {}
    for folder in sorted(files):
        root, rank, prefix = folder, 0, ""
        parent = folder.parent
        if folder != base and (ours := _RANK.match(folder.name)) and _OURS.match(parent.name):
            root, rank = parent, int(ours[1])
        elif folder != base and folder.name in _PARTS and (parent in files or _has_parts(parent, files)):
            root = parent
            prefix = "" if folder.name in _PARTS[:2] else f"{folder.name}/"
        elif parent in found and parent in files:
            below = _below_writer(folder, files)
            if below is not None:
                root, prefix = parent, below
        found.setdefault(root, []).append((folder, rank, prefix))
    return found


def _has_parts(parent: Path, files: Mapping[Path, list[Path]]) -> bool:
    return sum(parent / name in files for name in _PARTS) > 1


def _below_writer(folder: Path, files: Mapping[Path, list[Path]]) -> str | None:
    """What stands before the metrics of a folder that a writer made below its own; ``None`` for a run of its own."""
    tags: set[str] = set()
    for event in _events(files[folder][0]):
        for value in event.summary.value:
            if value.tag.startswith("_hparams_/"):
                return ""
            tags.add(value.tag)
    if len(tags) == 1 and folder.name.startswith(f"{next(iter(tags)).replace('/', '_')}_"):
        return f"\0{folder.name[len(next(iter(tags))) + 1 :]}"
    return None


def _events(file: Path) -> Iterator[Any]:
    """The events of a file, up to the first that is damaged or not whole.

    TensorBoard's own reader of files would import a framework where one is installed, which takes seconds.
    """
    from tensorboard import data_compat, dataclass_compat
    from tensorboard.compat.proto.event_pb2 import Event

    metadata: dict[str, Any] = {}
    # Whatever the package raises for a damaged event, those before it count.
    with contextlib.suppress(Exception):
        for record in _records(file):
            event = data_compat.migrate_event(Event.FromString(record))
            yield from dataclass_compat.migrate_event(event, metadata)


def _records(file: Path) -> Iterator[bytes]:
    """The records of a file: each has its length before it, and checksums."""
    from tensorboard.summary.writer.record_writer import masked_crc32c

    with open(file, "rb") as opened:
        while len(head := opened.read(12)) == 12:  # noqa: PLR2004 — a length and its checksum
            length, checksum = struct.unpack("<QI", head)
            if length > _RECORD or masked_crc32c(head[:8]) != checksum:
                return
            record = opened.read(length)
            if len(record) < length or len(opened.read(4)) < 4:  # noqa: PLR2004 — the record's checksum
                return
            yield record


class _Reader:
    """Reads the files of one run."""

    def __init__(self, base: Path, root: Path) -> None:
        self._root = root
        place = root.relative_to(base)
        project = base.resolve().name
        name = str(place) if place.parts else project
        if not place.parts:
            project = base.resolve().parent.name
        self._found = ForeignRun("", f"The run of {root}", project, 0.0, 0.0)
        self._found.name = name
        self._kinds: dict[str, str] = {}
        """The plug-in of each tag, which only its first value names."""

    def read(self, file: Path, rank: int, prefix: str) -> None:
        """Read one file. ``prefix``: before the names of its metrics; behind them where it begins with a NUL."""
        run = self._found
        for event in _events(file):
            for value in event.summary.value:
                tag = value.tag
                kind = value.metadata.plugin_data.plugin_name
                if kind:
                    self._kinds[tag] = kind
                name = f"{tag}/{prefix[1:]}" if prefix.startswith("\0") else f"{prefix}{tag}"
                with contextlib.suppress(ValueError, TypeError, IndexError, KeyError):
                    self._take(self._kinds.get(tag, ""), name, event, value, rank)
            run.ended = max(run.ended, event.wall_time)
            run.started = min(run.started or event.wall_time, event.wall_time)

    def run(self, first: Path) -> ForeignRun | None:
        """The run; None where its files have nothing. ``first``: the file whose beginning tells it from others."""
        run = self._found
        if not run.metrics and not run.media and not run.config:
            return None
        began = next((event.wall_time for event in _events(first)), 0.0)
        run.key = f"tensorboard:{hashlib.sha256(f'{first.name} {began!r}'.encode()).hexdigest()[:24]}"
        if (times := span(run)) is not None:
            run.started, run.ended = min(run.started or times[0], times[0]), max(run.ended, times[1])
        run.size = max(run.metrics, default=0) + 1
        if (ours := _OURS.match(self._root.name)) is not None:
            run.ours = own_id(self._root.parent.name, int(ours[1]))
        return run.settled()

    def _take(self, kind: str, name: str, event: Any, value: Any, rank: int) -> None:
        from tensorboard.util.tensor_util import make_ndarray

        run, step, when = self._found, int(event.step), float(event.wall_time)
        if kind == "hparams":
            self._take_hparams(value)
            return
        if not value.HasField("tensor"):
            return
        found = make_ndarray(value.tensor)
        if kind in ("scalars", "") and found.size == 1 and found.dtype.kind in "fiub":
            run.add(name, step, when, float(found.reshape(-1)[0]), rank)
        elif kind in _TAKES and not rank:  # one rank's pictures show what all ranks' do
            _TAKES[kind](run, name, step, when, found)

    def _take_hparams(self, value: Any) -> None:
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
        if not content.HasField("session_start_info"):
            return
        values: dict[str, Any] = {}
        for name, one in content.session_start_info.hparams.items():
            kind = one.WhichOneof("kind")
            if kind in ("number_value", "string_value", "bool_value"):
                number = getattr(one, kind)
                whole = kind == "number_value" and number == number // 1 and abs(number) < 1 << 53
                values[name] = int(number) if whole else number
        self._found.set_config(values)


def _take_pictures(run: ForeignRun, name: str, step: int, when: float, found: Any) -> None:
    for number, data in enumerate(found.reshape(-1)[2 : 2 + _TOGETHER]):
        mime = "image/png" if data[:4] == b"\x89PNG" else "image/jpeg" if data[:2] == b"\xff\xd8" else ""
        if mime:
            run.add_picture(name, step, when, bytes(data), mime, number=number)


def _take_histogram(run: ForeignRun, name: str, step: int, when: float, found: Any) -> None:
    """Rows of left, right and count."""
    rows = [row for row in found.tolist() if max(abs(row[0]), abs(row[1])) < _LIMIT]
    edges = [row[0] for row in rows] + [rows[-1][1]]
    if (medium := histogram(name, step, edges, [row[2] for row in rows])) is not None:
        run.media.append((when, medium))


def _take_audio(run: ForeignRun, name: str, step: int, when: float, found: Any) -> None:
    data = bytes(found.reshape(-1)[0])
    if data[:4] == b"RIFF" and len(data) <= MEDIUM_BYTES:
        run.media.append((when, MediaLogged(name, "audio", step, mime="audio/wav", data=data)))


def _take_text(run: ForeignRun, name: str, step: int, when: float, found: Any) -> None:
    data = b"\n".join(found.reshape(-1).tolist())
    title = name.removesuffix("/text_summary")
    if title in _CONFIGS:
        with contextlib.suppress(ValueError, RecursionError):
            told = json.loads(data)
            if isinstance(told, dict):
                run.set_config(told)
                return
    text = data.decode("utf-8", "replace").encode("utf-8", "replace")[:MEDIUM_BYTES]
    if text:
        run.media.append((when, MediaLogged(title, "text", step, mime="text/plain", data=text)))


_TAKES: Final[Mapping[str, Callable[[ForeignRun, str, int, float, Any], None]]] = {
    "images": _take_pictures,
    "histograms": _take_histogram,
    "audio": _take_audio,
    "text": _take_text,
}
"""What reads the values of each plug-in."""
