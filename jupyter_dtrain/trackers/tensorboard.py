"""TensorBoard: ``tensorboard:DIR`` for a stored run, in ``DIR/WORLD-ID/run-3``: what all ranks have as one run.

A world writes its event files while it runs, with its option ``tensorboard`` (:mod:`jupyter_dtrain.store.tensorboard`).
This is for runs that had none. A file that was cut off is removed, and the run is written from its beginning.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.store.tensorboard import check_folder

from .facts import SentFacts, StoredMedium
from .merging import Point
from .state import TrackedState
from .tracker import TrackedRun, Tracker

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

SIZE: Final = slice(16, 24)
"""Where a PNG says how wide and how high it is."""

_UNSAFE: Final = re.compile(r"[^\w.-]+")


class TensorBoard(Tracker):
    """TensorBoard's event files."""

    title: ClassVar[str] = "TensorBoard"
    package: ClassVar[str] = "tensorboard"
    rewrites: ClassVar[bool] = True

    @classmethod
    def check(cls, where: str) -> str:
        """The folder, which is made."""
        if not where:
            raise BadRequest("Give TensorBoard a folder, such as tensorboard:runs.", option="track")
        return check_folder(where)

    def __init__(self, where: str, flags: frozenset[str]) -> None:
        del flags
        self._folder = Path(where)

    def open(self, facts: SentFacts, state: TrackedState) -> TrackedRun:
        """A new file for the run."""
        del state
        world, _, number = facts.key.rpartition("/")
        folder = self._folder / _UNSAFE.sub("-", world) / f"run-{number}-merged"
        # Our own folder: whatever is there is an earlier writing of this run.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return _Run(folder)


class _Run(TrackedRun):
    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        path = folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file: RecordWriter = RecordWriter(open(path, "wb"))  # noqa: SIM115 — until the run ends
        self._file.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())

    def add_points(self, points: Sequence[Point], *, ranks: bool) -> None:
        for point in points:
            for name, value in point.told(ranks=ranks).items():
                self._add(point.step, point.time, tag=name, simple_value=value)
        self._file.flush()

    def add_medium(self, medium: StoredMedium) -> None:
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

        more: dict[str, Any] = {"tag": medium.name if not medium.number else f"{medium.name}/{medium.number}"}
        if medium.mime == "image/png":
            width, height = (int.from_bytes(medium.data[SIZE][at : at + 4], "big") for at in (0, 4))
            image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=medium.data)
            self._add(medium.step, medium.time, **more, image=image)
        elif medium.mime == "audio/wav":
            rate = int.from_bytes(medium.data[24:28], "little")
            audio = Summary.Audio(sample_rate=rate, content_type="audio/wav", encoded_audio_string=medium.data)
            self._add(medium.step, medium.time, **more, audio=audio)
        elif medium.kind == "histogram":
            counts, edges = medium.histogram
            histogram = HistogramProto(
                min=edges[0], max=edges[-1], num=sum(counts), bucket_limit=edges[1:], bucket=counts
            )
            self._add(medium.step, medium.time, **more, histo=histogram)
        else:
            self._add_text(medium.name, medium.text, medium.step, medium.time)
        self._file.flush()

    def describe(self, facts: SentFacts) -> None:
        told = {
            "name": facts.name,
            "config": "\n".join(
                f"    {name} = {msgspec.json.encode(value).decode()}" for name, value in facts.config.items()
            ),
            "notes": facts.notes,
            "tags": ", ".join(facts.tags),
            "outcome": f"{facts.outcome} {facts.error}".rstrip(),
            **facts.about,
        }
        for name, text in told.items():
            if text:
                self._add_text(f"run/{name}", text, 0, facts.started)
        self._file.flush()

    def end(self, facts: SentFacts) -> None:
        del facts
        self._file.close()

    def leave(self) -> None:
        self._file.close()

    def _add_text(self, tag: str, text: str, step: int, when: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        self._add(step, when, tag=tag, metadata=metadata, tensor=tensor)

    def _add(self, step: int, when: float, **value: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        event = Event(wall_time=when, step=step, summary=Summary(value=[Summary.Value(**value)]))
        self._file.write(event.SerializeToString())
