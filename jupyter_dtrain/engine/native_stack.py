"""Where a rank's main thread is, seen from outside the process: for one that cannot say it itself.

A rank that is in native code which keeps the interpreter lock answers nobody. py-spy reads its stack, with the native
frames, from its memory: a process of its own, which the watch starts and listens to.

Under failure: where this is not permitted (containers may forbid ``ptrace``), or takes longer than :data:`PATIENCE`,
the answer says so. A rank that is stopped is not looked at: who stopped it may hold it in a debugger.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_dtrain.core.events import Frame, Started
from jupyter_dtrain.core.stacks import Stack
from jupyter_dtrain.wire.spool import read_file

from .tracebacks import cell_name

PATIENCE = 4.0
"""Seconds that py-spy may take; it takes half a second where much is loaded."""
DYING = 1.0
"""Seconds in which py-spy ends once it was killed."""
MAX_NATIVE = 8
"""Native frames that are told, the innermost ones."""

_CELL = re.compile(r"<run-(\d+)-[0-9a-f]{8}>")
_INTERPRETER = re.compile(r"(^|/)(python[\d.]*|libpython[^/]*|_ctypes[^/]*|libffi[^/]*)$")
"""Where frames lie that say only that Python has called something."""


class Look:
    """One look at a process, under way."""

    def __init__(self, pid: int, spool: str) -> None:
        """``spool``: the folder of the world's spools, where cells can be read."""
        self._pid = pid
        self._spool = spool
        self._said = bytearray()
        own = Path(sys.executable).with_name("py-spy")
        command = str(own) if own.exists() else shutil.which("py-spy") or "py-spy"
        self._process = subprocess.Popen(
            [command, "dump", "--native", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()
        self.deadline = time.monotonic() + PATIENCE

    def read(self) -> bool:
        """Read what there is; whether that was all."""
        data = os.read(self.fd, 1 << 16)
        self._said += data
        return not data

    def end(self) -> Stack:
        """What was found."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING)
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            threads = json.loads(self._said)
            main = next(thread for thread in threads if thread["os_thread_id"] == self._pid)
            return Stack("native", frames=self._frames(main["frames"][::-1]))
        except Exception:  # noqa: BLE001 — the watch's loop must go on, whatever py-spy has said
            text = self._said.decode(errors="replace").strip()
            why = text.splitlines()[0] if text else "it took too long"
            return Stack("silent", f"py-spy cannot look at it: {why}")

    def _frames(self, stack: list[dict[str, Any]]) -> list[Frame]:
        frames: list[Frame] = []
        native: list[Frame] = []
        source_of = _Sources(self._spool)
        for step in stack:
            file, name, line = step["filename"], step["name"], int(step["line"] or 0)
            cell = _CELL.fullmatch(file)
            if not frames and not cell:
                continue
            if step.get("module"):
                if not _INTERPRETER.search(step["module"]) and not name.startswith("0x"):
                    native.append(Frame(Path(step["module"]).name, 0, name, "", cell=False))
                continue
            native.clear()
            function = "" if name == "<module>" else name
            if cell:
                called, source = source_of(int(cell[1]), line)
                frames.append(Frame(called, line, function, source, cell=True))
            else:
                frames.append(Frame(file, line, function, "", cell=False))
        return frames + native[-MAX_NATIVE:]


class _Sources:
    """What cells are called, and their lines, from the spool of whichever rank was told them."""

    def __init__(self, spool: str) -> None:
        self._spool = Path(spool)
        self._found: dict[int, tuple[str, list[str]]] = {}

    def __call__(self, run: int, line: int) -> tuple[str, str]:
        if run not in self._found:
            self._found[run] = self._read(run)
        name, lines = self._found[run]
        return name, lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def _read(self, run: int) -> tuple[str, list[str]]:
        for path in (self._spool / f"run-{run}").glob("rank-*.jsonl"):
            with contextlib.suppress(OSError, StopIteration):
                first = next(read_file(path)).body
                if isinstance(first, Started) and first.source:
                    return cell_name(run, first.cell), first.source.splitlines()
        return cell_name(run, None), []
