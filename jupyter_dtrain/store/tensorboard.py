"""The metrics of a world's runs as event files, with TensorBoard's own record writer and messages.

Each run and rank gets a folder, ``DIR/WORLD-ID/run-3/rank-0``, which TensorBoard shows as a run of its own. A run that
began with a name has it there, too: ``run-3-small-rate``. The events are read independently of the store, so it goes on
where the store cannot be written. From a series that is faster than :data:`POINTS` points a poll (two polls a second)
it writes the lowest and highest points; the store has all.

No framework is imported. Under failure (no room, a folder that is gone) one line says so, and no more
event files are written for this world.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Finished, Metrics, Started
from jupyter_dtrain.core.metrics import Columns

from .source import SpoolFolder

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

POINTS = 200
"""Points of one series to write after one poll."""
NAME = 80
"""Characters of a run's name in the name of its folder."""
RUNS = 8
"""Number of newest runs to read; an older run that never ended is ignored."""
UNWANTED = ("output", "display", "clear_output", "result", "error", "progress", "sample", "dropped")
"""Types of events that the event files do not need."""

_UNSAFE = re.compile(r"[^\w.-]+")
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
        """The folder of each run that began with a name."""
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
            elif isinstance(event.body, Started) and event.body.name:
                self._names[run] = f"run-{run}-{_UNSAFE.sub('-', event.body.name)[:NAME].strip('-.')}"
            elif isinstance(event.body, Finished):
                self._done.add(key)
        if points:
            self._write(self._file(key), points)
        if key in self._done and key in self._files:
            self._files.pop(key).close()
        return read.more

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
        file.flush()

    def _close_files(self) -> None:
        for file in self._files.values():
            try:
                file.close()
            except OSError:
                continue
        self._files.clear()
