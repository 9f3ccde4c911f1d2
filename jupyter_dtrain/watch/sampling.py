"""The stacks of a rank's main thread over some seconds, read from outside the process, for a flame graph.

py-spy, a process that the watch starts, reads the rank's memory a hundred times a second, whatever the rank does, and
writes what it has seen when the time is over. It holds the rank at no time: of a stack that changes meanwhile it may
see nothing, or a mixture of two. The watch listens to py-spy, and waits for it only when its rank has died, for
:data:`LAST` seconds at most.

Whoever asks repeats the question while it waits. So a lost message is made good, and py-spy ends soon after nobody asks
any more.

Under failure: the answer says why there are no samples. py-spy is interrupted when nobody asks any more, or when it is
late; it then writes what it has. One that does not end is killed. When the rank dies, its samples until then remain.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

import msgspec
import psutil

from jupyter_dtrain.core.events import Frame
from jupyter_dtrain.core.flames import RATE, Sampled, SampledStacks
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.rank.tracebacks import PACKAGE

from .native_stack import CELL, DYING, CellLines, find_py_spy, why_not

ASKED: Final = 3.5
"""Seconds after a question in which it must come again; see :data:`jupyter_dtrain.wire.questions.ASK_AGAIN`."""
LATE: Final = 10.0
"""Seconds beyond the time of sampling after which py-spy is late: it has to find its way in a busy process first."""
LAST: Final = 0.3
"""Seconds in which py-spy writes what it has of a rank that has died."""
MOST_TEXT: Final = 300
"""Characters of a name or a line that are kept."""
DIED: Final = "it died meanwhile"
STOPPED: Final = "it is stopped (SIGSTOP); SIGCONT lets it go on"
TAKEN: Final = "another notebook samples it now; ask again when that has ended"
_BETWEEN: Final = (PACKAGE, "<frozen importlib")
"""How the files of frames begin that stand between the user and a library: this package, and Python's imports."""


class _SpiedFrame(msgspec.Struct):
    name: str
    file: str = ""
    line: int | None = None


class _Shared(msgspec.Struct):
    frames: list[_SpiedFrame]


class _SpiedThread(msgspec.Struct):
    name: str
    samples: list[list[int]]


class _SpiedFile(msgspec.Struct):
    """The parts of py-spy's file for speedscope that are read here."""

    profiles: list[_SpiedThread]
    shared: _Shared


class Sampling:
    """The sampling of one process by py-spy. Not locked: the watch has one thread."""

    def __init__(self, pid: int, spool: str, number: str, seconds: float) -> None:
        """``spool``: the folder of the world's spools, which have the cells' code; ``number``: the asker's own.

        Raises ``OSError`` where py-spy cannot be started.
        """
        self.number = number
        self.over = False
        """Whether py-spy has ended, and the result is there."""
        self._pid = pid
        self._spool = spool
        self._said = bytearray()
        self._answer: Callable[[Sampled], None] | None = None
        self._result = Sampled()
        self._most = round(RATE * seconds)
        now = time.monotonic()
        self._asked_until = now + ASKED
        self._samples_until = now + seconds
        self._deadline = self._samples_until + LATE
        self._kill_at: float | None = None
        """When it is killed, once it was interrupted."""
        self._file = os.memfd_create("flame", os.MFD_CLOEXEC)
        file = f"/proc/self/fd/{self._file}"
        # Waiting is a part of what a rank does, so idle threads count, too.
        options = ["--format", "speedscope", "--idle", "--rate", str(RATE), "--duration", str(math.ceil(seconds))]
        # A py-spy that holds the process at each look traces it for a tenth of the time. A rank that dies then is not
        # seen to die until py-spy ends, and some system calls of a process that was held fail (signal(7)).
        options.append("--nonblocking")
        try:
            self._process = subprocess.Popen(
                [find_py_spy(), "record", *options, "--output", file, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self._file,),
            )
        except BaseException:
            os.close(self._file)
            raise
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()

    def ask(self, answer: Callable[[Sampled], None]) -> None:
        """Have ``answer`` called with the result, in place of the function of the question before."""
        self._asked_until = time.monotonic() + ASKED
        if self.over:
            answer(self._result)
        else:
            self._answer = answer

    def read(self) -> bool:
        """Read what py-spy says; return whether that was all, and it has ended."""
        data = os.read(self.fd, 1 << 16)
        self._said += data
        return not data

    def due(self) -> float:
        """When :meth:`turn` is next due (monotonic)."""
        if self.over:
            return self._asked_until
        return min(self._asked_until, self._deadline) if self._kill_at is None else self._kill_at

    def turn(self, now: float) -> bool:
        """Interrupt py-spy where its time is over; whether it has not ended then, and must be killed."""
        if self._kill_at is not None:
            return now >= self._kill_at
        if now >= min(self._asked_until, self._deadline):
            self.interrupt()
        return False

    def interrupt(self) -> None:
        """Have py-spy end, and write what it has."""
        if self._kill_at is None and not self.over:
            self._kill_at = time.monotonic() + DYING
            self._process.send_signal(signal.SIGINT)

    def forgotten(self, now: float) -> bool:
        """Whether the result is there, and nobody has asked for it for long."""
        return self.over and now >= self._asked_until

    def end(self) -> None:
        """End py-spy, and answer with what it has written."""
        self._process.kill()  # does no harm to one that has ended by itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING)
        assert self._process.stdout is not None
        self._process.stdout.close()
        # It ends before its time when the process has gone, which it notices before the watch does. It may also end a
        # little early by its own clock.
        early = self._kill_at is None and time.monotonic() < self._samples_until
        words = DIED if early and not _lives(self._pid) else ""
        try:
            with open(self._file, "rb") as file:
                self._result = self._read(file.read(), words)
        except Exception:  # noqa: BLE001 — the watch's loop must go on, whatever py-spy has written
            why = why_not(self._said, words or "it has written nothing in time")
            self._result = Sampled(words=f"py-spy cannot read its stacks: {why}")
        self.over = True
        if self._answer is not None:
            self._answer(self._result)
        self._answer = None
        self._said.clear()

    def end_with_rank(self) -> None:
        """The rank has died: let py-spy, which notices that by itself, write what it has, and answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST)
        self.end()

    def _read(self, data: bytes, words: str) -> Sampled:
        """The samples of the main thread. Raises what a file of another kind makes it raise."""
        found = msgspec.json.decode(data, type=readable(_SpiedFile))
        # Linux gives the main thread the number of its process; before Python 3.11, py-spy knows only its name.
        main = re.compile(rf'Thread {self._pid}( |$)|.*"MainThread"$')
        thread = next(one for one in found.profiles if main.match(one.name))
        lines = CellLines(self._spool)
        ours = {index for index, one in enumerate(found.shared.frames) if one.file.startswith(_BETWEEN)}
        frames = [_frame(one, lines) for one in found.shared.frames]
        first = {index for index, frame in enumerate(frames) if frame.cell}
        stacks = SampledStacks()
        for sample in thread.samples[: self._most]:
            # The frames of the engine, above the cell, are left out; a rank without a cell is idle.
            begin = next((place for place, index in enumerate(sample) if index in first), len(sample))
            # Frames that only lead from one to another are left out; what they do themselves shows.
            own = next((place for place in range(len(sample), begin, -1) if sample[place - 1] not in ours), begin)
            stacks.add([frames[at] for at in sample[begin:own] if at not in ours] + [frames[at] for at in sample[own:]])
        return stacks.collect(words)


def _frame(one: _SpiedFrame, lines: CellLines) -> Frame:
    line = one.line or 0
    function = "" if one.name == "<module>" else one.name[:MOST_TEXT]
    cell = CELL.fullmatch(one.file)
    if not cell:
        return Frame(one.file[-MOST_TEXT:], line, function, "", cell=False)
    called, source = lines(int(cell[1]), line)
    return Frame(called, line, function, source[:MOST_TEXT], cell=True)


def _lives(pid: int) -> bool:
    """Whether the process runs. One that ends has no memory any more, and stays as a zombie until it is waited for."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.memory_info().rss > 0)
    except psutil.Error:
        return False
