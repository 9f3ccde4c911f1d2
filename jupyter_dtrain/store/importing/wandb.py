"""W&B's offline folders, read as they are: the log of a run, and the files beside it.

The log (``run-ID.wandb``) is in LevelDB's log format: blocks of 32 KiB with records, each in one part or several with
a checksum. A record is a message of protocol buffers whose field numbers W&B keeps, so neither package is needed.

Under failure: a log that ends early, as that of a killed process, gives what it has up to there, and the run counts as
lost. A folder whose log cannot be read is left out with a remark.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import re
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.events import Environment
from jupyter_dtrain.core.metrics import Columns
from jupyter_dtrain.core.structs import readable

from .foreign import ForeignRun, Found, code, command, content, flat, histogram, picture, real, table

BLOCK: Final = 32 << 10
QUIET: Final = 600.0
"""Seconds for which nothing was written to the log of a run without an end, after which it counts as killed."""

_HEADER: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MARK: Final = b":W&B\xe1\xbe"
_HISTORY, _CONFIG, _STATS, _METRIC, _OUTPUT, _RUN, _EXIT, _ENVIRONMENT = 2, 5, 7, 12, 13, 17, 18, 26
"""The numbers of the kinds of records that matter here."""
_PICTURES: Final = 64  # of one entry
_INTERRUPTED: Final = 255
_RAISED: Final = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Exception|Interrupt|Exit)): ?(.*)$", re.MULTILINE)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RESOURCES: Final = {
    "proc.memory.rssMB": ("rss", float(1 << 20)),
    "gpu.0.gpu": ("gpu utilisation", 1.0),
    "gpu.0.memoryAllocatedBytes": ("gpu used", 1.0),
    "gpu.0.temp": ("gpu temperature", 1.0),
    "gpu.0.powerWatts": ("gpu power", 1.0),
}
"""What the system's figures are called here, and the factor to our unit."""

Fields = dict[int, list[Any]]
"""A message: the values of each field by its number, as bytes, whole numbers or floats."""


def find(path: Path) -> Found:
    """The runs of a log, of a run's folder, of a folder ``wandb``, or of a folder that has one."""
    logs = _logs(path)
    found = Found()
    runs: dict[str, _Reader] = {}
    for log in logs:
        try:
            reader = _Reader(log)
            reader.read()
        except (OSError, ValueError) as error:
            found.left_out.append(f"W&B's log {log} cannot be read: {error}.")
            continue
        if not reader.run_id:
            found.left_out.append(f"W&B's log {log} has no run in it.")
        elif reader.goes_on:
            found.left_out.append(f"The run of {log} may still go on: import it again once it has ended.")
        elif reader.key in runs:
            # A run that was resumed has a folder for each process.
            runs[reader.key].go_on(reader)
        else:
            runs[reader.key] = reader
    found.runs = [reader.run() for reader in runs.values()]
    return found


def _logs(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".wandb" else []
    with contextlib.suppress(OSError):
        for folder in (path, path / "wandb"):
            own = sorted(folder.glob("run-*.wandb"))
            runs = own or sorted(log for log in folder.glob("*run-*/run-*.wandb") if not log.parent.is_symlink())
            if runs:
                return runs
    return []


def records(path: Path) -> Iterator[Fields]:
    """The records of a log, up to the first that is damaged or not whole.

    Raises :class:`ValueError` for a file of another kind, and :class:`OSError`.
    """
    data = path.read_bytes()
    if not data.startswith(_MARK):
        raise ValueError("it is no log of W&B")
    at, parts = len(_MARK) + 1, b""
    while at + _HEADER.size <= len(data):
        rest = BLOCK - at % BLOCK
        if rest < _HEADER.size:
            at += rest
            continue
        checksum, length, kind = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + _HEADER.size + length]
        if len(body) < length or zlib.crc32(body, zlib.crc32(bytes([kind]))) != checksum:
            return
        at += _HEADER.size + length
        parts = parts + body if kind in (_MIDDLE, _LAST) else body
        if kind in (_FULL, _LAST):
            yield message(parts)


def message(data: bytes) -> Fields:
    """A message of protocol buffers. Raises :class:`ValueError` for anything else."""
    if not isinstance(data, bytes):
        raise ValueError("a record in it is damaged")  # noqa: TRY004 — as for any other damage
    found: Fields = {}
    at, size = 0, len(data)
    while at < size:
        # A log has millions of these numbers, and nearly all are one byte.
        tag, at = (data[at], at + 1) if data[at] < 128 else _varint(data, at)  # noqa: PLR2004
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 1:
            value, at = _fixed(data, at, "<d"), at + 8
        elif kind == 2:  # noqa: PLR2004 — the wire's number for bytes
            length, at = (data[at], at + 1) if at < size and data[at] < 128 else _varint(data, at)  # noqa: PLR2004
            value, at = data[at : at + length], at + length
        elif kind == 5:  # noqa: PLR2004 — the wire's number for four bytes
            value, at = _fixed(data, at, "<f"), at + 4
        else:
            raise ValueError("a record in it is damaged")
        if number in found:
            found[number].append(value)
        else:
            found[number] = [value]
    if at > size:
        raise ValueError("a record in it is not whole")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 — the last byte of a number
            return value, at
        shift += 7
    raise ValueError("a record in it is not whole")


def _fixed(data: bytes, at: int, form: str) -> float:
    if at + struct.calcsize(form) > len(data):
        raise ValueError("a record in it is not whole")
    value: float = struct.unpack_from(form, data, at)[0]
    return value


class _Reader:
    """Reads the log of one process."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.run_id = self._entity = self._project = ""
        self._exit: int | None = None
        self._found = ForeignRun("", f"W&B's run {log.parent.name}", "wandb", 0.0, 0.0, "lost")
        self._environment: dict[str, Any] = {}
        self._steps: list[tuple[str, str]] = []
        """Patterns of metrics' names, and the metric that counts the steps of each."""
        self._hidden: set[str] = set()
        """Metrics that only count steps."""
        self._lines: list[str] = []
        self._last = 0.0

    @property
    def key(self) -> str:
        """The identity of the run."""
        return f"wandb:{self._entity}/{self._project}/{self.run_id}"

    @property
    def goes_on(self) -> bool:
        """Whether the process may still write the log."""
        return self._exit is None and time.time() - self.log.stat().st_mtime < QUIET

    def read(self) -> None:
        """Read the log. Raises :class:`ValueError`, :class:`OSError`."""
        takes = {
            _RUN: self._take_run,
            _CONFIG: self._take_config,
            _HISTORY: self._take_history,
            _STATS: self._take_stats,
            _METRIC: self._take_metric,
            _OUTPUT: self._take_output,
            _EXIT: self._take_exit,
            _ENVIRONMENT: self._take_environment,
        }
        for record in records(self.log):
            for number, take in takes.items():
                for body in record.get(number, ()):
                    take(message(body))

    def go_on(self, later: _Reader) -> None:
        """Add what a process has logged that resumed the run."""
        mine, theirs = self._found, later._found
        for name, columns in theirs.metrics.get(0, {}).items():
            mine.metrics.setdefault(0, {}).setdefault(name, Columns.empty()).extend(columns)
        mine.media += theirs.media
        mine.config |= theirs.config
        mine.tags, mine.note = theirs.tags or mine.tags, theirs.note or mine.note
        self._lines += later._lines
        self._exit, self._last = later._exit, max(self._last, later._last)

    def run(self) -> ForeignRun:
        """The run that the log tells of."""
        run = self._found
        run.key, run.ours = self.key, self.run_id
        run.project = self._project or "wandb"
        run.name = run.name or self.run_id
        run.text = _COLOURS.sub("", "".join(self._lines))
        if self._exit is not None:
            run.outcome = "ok" if self._exit == 0 else "interrupted" if self._exit == _INTERRUPTED else "error"
        if run.outcome == "error" and (raised := _RAISED.findall(run.text)):
            run.error = raised[-1]
        run.ended = max(run.started, self._last)
        run.environment = self._told_environment()
        return run.settled()

    def _take_run(self, fields: Fields) -> None:
        run = self._found
        self.run_id, self._entity, self._project = (_text(fields, number) for number in (1, 2, 3))
        run.group, run.name, run.note = (_text(fields, number) for number in (6, 8, 9))
        run.tags = [_decoded(tag) for tag in fields.get(10, ())]
        run.host = _text(fields, 13)
        for config in fields.get(4, ()):
            self._take_config(message(config))
        self._take_code(fields.get(21, ()))
        run.started = run.started or _moment(fields, 17) or self.log.stat().st_mtime
        self._last = max(self._last, run.started + float(_number(fields, 20)))

    def _take_code(self, told: Iterable[bytes]) -> None:
        for one in told:
            fields = message(one)
            self._found.commit = code(_text(fields, 2), _text(fields, 1)) or self._found.commit

    def _take_config(self, fields: Fields) -> None:
        values = _items(fields.get(1, ()))
        values.pop("_wandb", None)
        own = values.pop("dtrain", None)
        if isinstance(own, Mapping) and "label" in own:
            self._found.take_own({str(name): str(value) for name, value in own.items()})
        elif own is not None:
            values["dtrain"] = own
        self._found.set_config(values)

    def _take_history(self, fields: Fields) -> None:
        row = _items(fields.get(1, ()))
        steps = [message(step) for step in fields.get(2, ())]
        step = row.pop("_step", None)
        if not isinstance(step, int):
            step = _number(steps[-1], 1) if steps else 0
        runtime, when = row.pop("_runtime", None), row.pop("_timestamp", None)
        when = real(when)
        if when is None:
            when = self._found.started + (real(runtime) or 0.0)
        self._last = max(self._last, when)
        for name, value in row.items():
            if name in self._hidden:
                continue
            if isinstance(value, Mapping) and "_type" in value:
                self._take_media(name, self._step_of(name, row, step), when, value)
                continue
            for path, one in flat({name: value}):
                if isinstance(one, float) or real(one) is not None:
                    self._found.add(path, self._step_of(path, row, step), when, float(one))

    def _step_of(self, name: str, row: Mapping[str, Any], step: int) -> int:
        for pattern, counter in self._steps:
            counted = real(row.get(counter))
            if counted is not None and counted.is_integer() and fnmatch.fnmatchcase(name, pattern):
                return int(counted)
        return step

    def _take_media(self, name: str, step: int, when: float, value: Mapping[str, Any]) -> None:
        kind = value["_type"]
        paths = [value.get("path")] if kind == "image-file" else value.get("filenames")
        captions = value.get("captions") if kind == "images/separated" else [value.get("caption")]
        if kind in ("image-file", "images/separated") and isinstance(paths, list):
            files = self.log.parent / "files"
            for number, path in enumerate(paths[:_PICTURES]):
                if (found := picture(files / str(path), files)) is not None:
                    caption = captions[number] if isinstance(captions, list) and number < len(captions) else None
                    self._found.add_picture(name, step, when, *found, number=number, caption=str(caption or "")[:1000])
        elif kind == "table-file":
            with contextlib.suppress(OSError, ValueError, RecursionError):
                told = json.loads(
                    content(self.log.parent / "files" / str(value.get("path")), self.log.parent / "files")
                )
                medium = table(name, step, told.get("columns"), told.get("data")) if isinstance(told, dict) else None
                if medium is not None:
                    self._found.media.append((when, medium))
        elif kind == "histogram":
            medium = histogram(name, step, value.get("bins"), value.get("values"))
            if medium is not None:
                self._found.media.append((when, medium))

    def _take_stats(self, fields: Fields) -> None:
        when = _moment(fields, 2)
        for name, value in _items(fields.get(3, ())).items():
            number = real(value)
            if name in _RESOURCES and number is not None:
                title, factor = _RESOURCES[name]
                columns = self._found.resources.setdefault(0, {}).setdefault(title, Columns.empty())
                columns.steps.append(-1)
                columns.times.append(when)
                columns.values.append(number * factor)

    def _take_metric(self, fields: Fields) -> None:
        if any(_number(message(options), 2) for options in fields.get(6, ())):
            self._hidden.add(_text(fields, 1))
        if counter := _text(fields, 4):
            self._steps.append((_text(fields, 1) or _text(fields, 2), counter))

    def _take_output(self, fields: Fields) -> None:
        self._lines.append(_text(fields, 3))

    def _take_exit(self, fields: Fields) -> None:
        self._exit = _number(fields, 1)
        self._last = max(self._last, self._found.started + _number(fields, 2))

    def _take_environment(self, fields: Fields) -> None:
        told = self._environment
        for key, number in (("os", 1), ("python", 2), ("program", 6), ("gpu", 18)):
            told[key] = _text(fields, number) or told.get(key, "")
        told["args"] = [_decoded(word) for word in fields.get(5, ())] or told.get("args", [])
        told["root"] = _text(fields, 11) or told.get("root", "")
        told["cpu_count"] = _number(fields, 16) or told.get("cpu_count", 0)
        self._take_code(fields.get(9, ()))
        for memory in fields.get(21, ()):
            told["memory"] = _number(message(memory), 1)

    def _told_environment(self) -> Environment | None:
        files = self.log.parent / "files"
        told = self._environment
        with contextlib.suppress(OSError, ValueError):
            # Of the versions before 0.20, whose log has no such records.
            old = json.loads((files / "wandb-metadata.json").read_text(encoding="utf-8"))
            if isinstance(old, dict):
                told = {key: value for key, value in old.items() if isinstance(value, (str, list))} | told
        packages: dict[str, str] = {}
        with contextlib.suppress(OSError, UnicodeError):
            for line in (files / "requirements.txt").read_text(encoding="utf-8").splitlines()[:2000]:
                name, sign, version = line.partition("==")
                if sign:
                    packages[name.strip()[:200]] = version.strip()[:200]
        if not told and not packages:
            return None
        words = [str(told.get("program") or ""), *map(str, told.get("args") or ())]
        return Environment(
            str(told.get("python") or "").removeprefix("CPython "),
            packages,
            [str(told["gpu"])] if told.get("gpu") else [],
            command(words) if words[0] else [],
            str(told.get("root") or ""),
            str(told.get("os") or ""),
            int(told.get("cpu_count") or 0),
            int(told["memory"]) if isinstance(told.get("memory"), int) else 0,
        )


def _items(items: Any) -> dict[str, Any]:
    """The values of items, by name; a name of several parts is a nested mapping."""
    found: dict[str, Any] = {}
    for item in items:
        fields = message(item)
        path = [_decoded(part) for part in fields.get(2, ())] or [_text(fields, 1)]
        try:
            value = _value(fields[16][-1]) if 16 in fields else None  # noqa: PLR2004 — the field's number
        except (ValueError, TypeError, RecursionError):
            continue
        place = found
        for part in path[:-1]:
            inner = place.get(part)
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        place[path[-1]] = value
    return found


def _value(data: bytes) -> Any:
    """A value of JSON, where NaN and the infinities are numbers."""
    try:
        return msgspec.json.decode(data, type=readable(Any))
    except msgspec.DecodeError:
        return json.loads(data)


def _text(fields: Fields, number: int) -> str:
    values = fields.get(number)
    return _decoded(values[-1]) if values else ""


def _decoded(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _number(fields: Fields, number: int) -> int:
    values = fields.get(number)
    return values[-1] if values and isinstance(values[-1], int) else 0


def _moment(fields: Fields, number: int) -> float:
    """Seconds since the epoch, from a timestamp of protocol buffers; 0 for none."""
    values = fields.get(number)
    if not values:
        return 0.0
    told = message(values[-1])
    return _number(told, 1) + _number(told, 2) / 1e9
