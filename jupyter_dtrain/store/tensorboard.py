"""A world's runs as event files, with TensorBoard's own record writer and messages: metrics, media, configuration.

Each run and rank gets a folder, ``DIR/WORLD-ID/run-3/rank-0``, which TensorBoard shows as a run of its own. A run that
began with a name has it there, too, and one beneath a heading of its notebook has that: ``run-3-small-rate``. The
events are read independently of the store, so it goes on where the store cannot be written. From a series that is
faster than :data:`POINTS` points a poll (two polls a second) it writes the lowest and highest points; the store has
all. What was logged together at one step has names of its own: ``sample``, ``sample/1``, ``sample/2``. Tables and the
configuration are text, as tables in Markdown.

No framework is imported. Under failure (no room, a folder that is gone) one line says so, and no more
event files are written for this world.
"""

from __future__ import annotations

import html
import importlib.util
import itertools
import os
import re
import socket
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Body, Configured, Finished, MediaLogged, Metrics, Started
from jupyter_dtrain.core.metrics import Columns
from jupyter_dtrain.core.run_names import name_from_place
from jupyter_dtrain.core.structs import UNREADABLE, readable

from . import summaries
from .source import SpoolFolder

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

POINTS = 200
"""Points of one series to write after one poll."""
NAME = 80
"""Characters of a run's name in the name of its folder."""
RUNS = 8
"""Number of newest runs to read; an older run that never ended is ignored."""
ROWS = 200
"""Rows of a table."""
CONFIG = "config"
"""The name of the text that has the configuration."""
UNWANTED = ("output", "display", "clear_output", "result", "error", "progress", "sample", "dropped")
"""Types of events that the event files do not need."""

_UNSAFE = re.compile(r"[^\w.-]+")
_MARKS = re.compile(r"[\\`*_{}\[\]()#+!|~-]")
_count = itertools.count()


def check_folder(folder: str) -> str:
    """The absolute path of ``folder``, which it makes. Raises :class:`BadRequest` when it or TensorBoard is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise BadRequest(
            "TensorBoard's event files need its package: pip install 'jupyter-dtrain[tensorboard]', or start without a "
            "TensorBoard folder.",
            option="tensorboard",
        )
    path = Path(folder).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        words = f"The TensorBoard folder {path} cannot be made: {error.strerror}."
        raise BadRequest(words, option="tensorboard") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise BadRequest(f"The TensorBoard folder {path} cannot be written to.", option="tensorboard")
    return str(path)


class TensorBoardIntake:
    """Reads events from a source and writes TensorBoard's event files. Use it from one thread."""

    def __init__(self, folder: str | Path, source: SpoolFolder, say: Callable[[str], None]) -> None:
        self._folder = Path(folder)
        self._source = source
        self._say = say
        self._files: dict[tuple[int, int], RecordWriter] = {}
        self._positions: dict[tuple[int, int], int] = {}
        self._names: dict[int, str] = {}
        """The folder of each run that began with a name, or beneath a heading."""
        self._configs: dict[tuple[int, int], dict[str, Any]] = {}
        self._done: set[tuple[int, int]] = set()
        self._failed = False

    def poll(self) -> bool:
        """Write new events; return whether there is more to write at once. Never raises."""
        if self._failed:
            return False
        try:
            return self._poll()
        except Exception as error:  # noqa: BLE001 — whatever TensorBoard's package raises, the world goes on
            self._failed = True
            self._say(f"TensorBoard's event files in {self._folder} can no longer be written: {error}")
            self._close_files()
            return False

    def close(self) -> None:
        """Write the rest at the end of the world. Never raises."""
        while self.poll():
            pass
        self._close_files()

    def _poll(self) -> bool:
        behind = False
        for run in sorted(self._source.runs())[-RUNS:]:
            for rank in self._source.ranks(run):
                if (run, rank) not in self._done:
                    behind |= self._follow(run, rank)
        return behind

    def _follow(self, run: int, rank: int) -> bool:
        key = (run, rank)
        read = self._source.read(run, rank, self._positions.get(key, 0))
        self._positions[key] = read.position
        points: dict[str, Columns] = {}
        for event in read.events:
            if isinstance(event.body, Metrics):
                for series in event.body.series:
                    points.setdefault(series.name, Columns.empty()).extend(series)
            else:
                self._take(key, event.time, event.body)
        if points:
            self._write(self._file(key), points)
        if key in self._files:
            self._files[key].flush()
        if key in self._done:
            self._configs.pop(key, None)
            if key in self._files:
                self._files.pop(key).close()
        return read.more

    def _take(self, key: tuple[int, int], when: float, body: Body) -> None:
        run, _ = key
        match body:
            case MediaLogged():
                self._write_medium(key, when, body)
            case Configured():
                self._write_config(key, when, body)
            case Started():
                if name := body.name or name_from_place(body.context.heading, body.cell):
                    self._names[run] = f"run-{run}-{_UNSAFE.sub('-', name)[:NAME].strip('-.')}"
            case Finished():
                self._done.add(key)

    def _file(self, key: tuple[int, int]) -> RecordWriter:
        if key not in self._files:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter

            run, rank = key
            folder = self._folder / self._names.get(run, f"run-{run}") / f"rank-{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            now = time.time()
            name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_count)}"
            writer = self._files[key] = RecordWriter(open(folder / name, "wb"))  # noqa: SIM115 — until the run ends
            writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        return self._files[key]

    def _write(self, file: RecordWriter, points: dict[str, Columns]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, columns in points.items():
            for step, when, number in zip(*columns.thinned(POINTS), strict=True):
                value: Any = Summary.Value(tag=name, simple_value=number)
                file.write(Event(wall_time=when, step=step, summary=Summary(value=[value])).SerializeToString())

    def _write_config(self, key: tuple[int, int], when: float, configured: Configured) -> None:
        known = self._configs.setdefault(key, {})
        known.update(configured.values)
        rows = [[name, _json(value)] for name, value in sorted(known.items())[:ROWS]]
        self._write_value(key, when, 0, summaries.text(CONFIG, _markdown(["name", "value"], rows)))

    def _write_medium(self, key: tuple[int, int], when: float, medium: MediaLogged) -> None:
        if not medium.data:
            return
        tag = f"{medium.name}/{medium.number}" if medium.number else medium.name
        try:
            value = _summary(tag, medium)
        except (*UNREADABLE, ValueError, TypeError, KeyError, IndexError, EOFError, wave.Error):  # a later version's
            return
        self._write_value(key, when, medium.step, value)

    def _write_value(self, key: tuple[int, int], when: float, step: int, value: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        event = Event(wall_time=when, step=step, summary=Summary(value=[value]))
        self._file(key).write(event.SerializeToString())

    def _close_files(self) -> None:
        for file in self._files.values():
            try:
                file.close()
            except OSError:
                continue
        self._files.clear()


def _summary(tag: str, medium: MediaLogged) -> Any:
    """What TensorBoard shows as ``tag``. Raises what damaged data raises."""
    words = "\n\n".join(one for one in (medium.caption, medium.note) if one)
    if medium.mime in ("image/png", "image/jpeg"):
        return summaries.image(tag, medium.data, medium.mime, words)
    if medium.kind == "audio":
        return summaries.audio(tag, medium.data, words)
    if medium.kind == "text":
        return summaries.text(tag, "\n\n".join([_escaped(words), medium.data.decode()]).strip())
    told = msgspec.json.decode(medium.data, type=readable(dict[str, Any]))
    if medium.kind == "histogram":
        return summaries.histogram(tag, told)
    rows = [[_json(one) for one in row] for row in told["rows"][:ROWS]]
    more = f"{len(rows):,} of {told['total']:,} rows" if len(rows) < told["total"] else ""
    return summaries.text(tag, "\n\n".join(one for one in (_markdown(told["columns"], rows), more) if one))


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(one if one == "---" else _escaped(one) for one in line) + " |" for line in lines)


def _escaped(text: str) -> str:
    """``text`` as one line of Markdown that shows it as it is: TensorBoard makes HTML of the line."""
    return _MARKS.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))
