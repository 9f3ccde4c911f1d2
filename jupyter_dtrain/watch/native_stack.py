"""The stack of a rank's main thread, read from outside the process, for a rank that cannot answer.

A rank in native code that holds the interpreter lock answers no request. py-spy, a process that the watch starts and
listens to, reads the rank's stack with its native frames from the rank's memory.

Under failure: the answer says so where the system forbids this (containers may forbid ``ptrace``), and where it takes
longer than :data:`PATIENCE`. The watch does not read a stopped rank: a debugger may hold it.
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
from jupyter_dtrain.rank.tracebacks import cell_name
from jupyter_dtrain.wire.spool import read_file

PATIENCE = 4.0
"""Seconds that py-spy may take; it takes half a second for a rank with many libraries."""
DYING = 1.0
"""Seconds in which py-spy ends once it was killed."""
MAX_NATIVE = 8
"""Native frames in an answer, the innermost ones."""

FORBIDDEN = (
    "the system forbids it to look into other processes: start the container with --cap-add=SYS_PTRACE, or set Linux's "
    "kernel.yama.ptrace_scope to 1"
)
_FORBIDDEN = ("Permission denied", "Operation not permitted")
CELL = re.compile(r"<ipython-input-(\d+)-[0-9a-f]{8}>")
"""The name under which a rank compiles a cell: with the number of its run."""
_INTERPRETER = re.compile(r"(^|/)(python[\d.]*|libpython[^/]*|_ctypes[^/]*|libffi[^/]*)$")
"""Files whose frames say only that Python has called something."""


def find_py_spy() -> str:
    """The program py-spy: the one beside this Python was installed with this package; PATH is the user's."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if own.exists() else shutil.which("py-spy") or "py-spy"


def why_not(said: bytes | bytearray, silent: str) -> str:
    """Why py-spy could not read a process, and what helps, from what it ``said``; ``silent`` where that is nothing."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("py-spy> ")]  # progress
    if any(word in line for line in lines for word in _FORBIDDEN):
        return FORBIDDEN
    errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    return next(iter([*errors, *lines]), silent).rstrip(".")


class StackLook:
    """A look at the stack of one process that py-spy is taking."""

    def __init__(self, pid: int, spool: str) -> None:
        """``spool``: the folder of the world's spools, which have the cells' code."""
        self._pid = pid
        self._spool = spool
        self._said = bytearray()
        self._process = subprocess.Popen(
            [find_py_spy(), "dump", "--native", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()
        self.deadline = time.monotonic() + PATIENCE

    def read(self) -> bool:
        """Read the output that is there; return whether that was all."""
        data = os.read(self.fd, 1 << 16)
        self._said += data
        return not data

    def end(self) -> Stack:
        """End py-spy; return the stack, or why there is none."""
        # Where it was late. One that has ended by itself is not harmed, and waited for in either case.
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING)
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            threads = json.loads(self._said)
            # Linux gives the main thread the number of its process.
            main = next(thread for thread in threads if thread["os_thread_id"] == self._pid)
            return Stack("native", frames=self._frames(main["frames"][::-1]))
        except Exception:  # noqa: BLE001 — the watch's loop must go on, whatever py-spy has said
            return Stack("silent", f"py-spy cannot read the stack: {why_not(self._said, 'it took too long')}")

    def _frames(self, stack: list[dict[str, Any]]) -> list[Frame]:
        frames: list[Frame] = []
        native: list[Frame] = []
        source_of = CellLines(self._spool)
        for step in stack:
            file, name, line = step["filename"], step["name"], int(step["line"] or 0)
            cell = CELL.fullmatch(file)
            if not frames and not cell:
                continue  # the engine, above the cell
            if step.get("module"):
                if not _INTERPRETER.search(step["module"]) and not name.startswith("0x"):
                    native.append(Frame(Path(step["module"]).name, 0, name, "", cell=False))
                continue
            # Native frames between two of Python are only the way from one to the other; the innermost ones count.
            native.clear()
            function = "" if name == "<module>" else name
            if cell:
                called, source = source_of(int(cell[1]), line)
                frames.append(Frame(called, line, function, source, cell=True))
            else:
                frames.append(Frame(file, line, function, "", cell=False))
        return frames + native[-MAX_NATIVE:]


class CellLines:
    """The names and lines of cells, from the spool of the rank that recorded them."""

    def __init__(self, spool: str) -> None:
        self._spool = Path(spool)
        self._found: dict[int, tuple[str, list[str]]] = {}

    def __call__(self, run: int, line: int) -> tuple[str, str]:
        """The name of the cell of ``run``, and its line; empty where that is not known."""
        if run not in self._found:
            self._found[run] = self._read(run)
        name, lines = self._found[run]
        return name, lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def _read(self, run: int) -> tuple[str, list[str]]:
        for path in (self._spool / f"run-{run}").glob("rank-*.jsonl"):
            with contextlib.suppress(OSError, StopIteration):
                first = next(read_file(path)).body
                if isinstance(first, Started) and first.source:
                    # Lines are numbered as in the notebook's cell, whose first ones may be magics.
                    return cell_name(run, first.cell), [""] * first.above + first.source.splitlines()
        return cell_name(run, None), []
