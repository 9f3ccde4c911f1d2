"""Where the main thread of a rank spends a cell's time: data, forward, backward, communication, and so on.

A thread looks at the main thread's stack every :data:`PERIOD`, a little earlier or later, and adds the time
since its last look to the part that the stack shows. Frameworks say once for each function what it does in a step
(``Waiting.part_of``), and once for each place in the source what the call there does (``Waiting.part_at``): so a look
takes microseconds, and the training loop has no hooks for it. The numbers are those of a sample, good to a few per cent
of a run of seconds. Linux adds, exactly, how long the thread waited for a processor.

Only communication that the main thread waits for counts as communication. What goes on beside the work, as DDP's does
while the backward pass computes, is no time lost. A wait for a device is the device's, whatever the device does.

Nothing looks within the first :data:`~jupyter_dtrain.rank.resources.FIRST` seconds of a cell. Under failure: what
cannot be read counts as ``other``, and a look that raises is left out.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.events import CodeLine, Spent, StepParts
from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.plugins.framework import Doing
from jupyter_dtrain.plugins.libraries import is_library
from jupyter_dtrain.plugins.sources import called_in

from .tracebacks import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .plugins import Plugins

PERIOD: Final = 0.02
"""Seconds between two looks, on average."""
SPREAD: Final = 0.3
"""A share of it: else the looks would meet a loop of the same period at the same place each time."""
COST: Final = 0.004
"""The share of a processor that looks may use; where a look is dear, as in a loop of short steps, there are fewer."""
DEAR: Final = 0.0005
"""Seconds: a look that takes longer meets code for the first time, and the next ones will not."""
MEMORY: Final = 0.25
"""Seconds between two readings of the rank's memory."""
LONGEST: Final = 1.0
"""Seconds that one look may stand for: the rank was stopped, or native code held the interpreter lock."""
DEEP: Final = 80
"""Frames of a stack that are looked at, from the innermost."""
LINES: Final = 4
"""Lines of the user's that a window names."""
SITES: Final = 512
"""Calls of one cell that are known; the others count as ``other``."""
LABELS: Final = 8192
"""Functions that are known at a time."""
SHORTEST: Final = 0.25
"""Seconds of a window that is worth an event."""

PAGE: Final = os.sysconf("SC_PAGESIZE")

_ABOVE = f"IPython{os.sep}core{os.sep}interactiveshell.py"
"""The end of the name of the file whose functions call a cell's code."""
_LOGGING = tuple(f"{os.sep}{name}{os.sep}" for name in ("logging", "tqdm", "wandb", "mlflow", "tensorboard"))
"""Parts of the names of files whose functions write what a person reads."""
_CAPTURE = (f"{PACKAGE}rank{os.sep}capture.py", f"{PACKAGE}rank_api.py")
"""Our own ones: behind ``print()``, and ``jupyter_dtrain.log()``."""
_FIRST = ("data", "checkpoint", "logging", "communication", "optimizer", "backward", "compiled", "forward")
"""The part that counts where a stack shows several: the first of these."""
_STRENGTH = {part: len(_FIRST) - place for place, part in enumerate(_FIRST)}

_Label = Doing | str | None
"""What a function is: something of a step, the user's own, the end of the cell's stack, or nothing that counts."""
_USER, _END = "user", "end"


class StepTimer:
    """Observes the main thread while a cell runs. The thread that takes samples lets it begin and takes its windows."""

    def __init__(self, plugins: Plugins, name_of: Callable[[str], str | None]) -> None:
        """``name_of``: the name of the cell whose code has this file name; None for any other code."""
        self._plugins = plugins
        self._name_of = name_of
        self._main = threading.main_thread()
        self._labels: dict[int, tuple[CodeType, _Label]] = {}
        self._sites: dict[tuple[int, int], tuple[CodeType, Doing | None]] = {}
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._from = 0.0
        """When the looks at this cell began."""
        self.resting = False
        """Whether the main thread waits for a person: that time is none of the loop's."""
        self.begin(on=False)

    def _clear(self) -> None:
        self._call_asleep: str | None = None
        self._looks = 0
        self._memory: list[int] = []
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._calls: defaultdict[str, float] = defaultdict(float)
        self._lines: defaultdict[tuple[str, int, str], float] = defaultdict(float)

    def begin(self, *, on: bool) -> None:
        """Begin a cell; ``on``: whether it wants its time observed. Main thread."""
        self._over.set()
        self._wanted.clear()
        with self._lock:
            self._on = on
            self._labels.clear()
            self._sites.clear()
            self._clear()
            self._total: defaultdict[str, float] = defaultdict(float)
            # Seconds for which the main thread had waited for a processor: at the last window, when the looks began.
            self._since: float | None = None
            self._started: float | None = None
            self._alone = os.environ.get("OMP_NUM_THREADS") == "1"

    def go(self) -> None:
        """Begin to look: the cell lasts. Any thread."""
        with self._lock:
            if not self._on or self._started is not None:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name="dtrain-step-time", daemon=True)
                thread.start()
                self._thread = thread
            self._since = self._started = _delayed()
            self._from = time.monotonic()
            self._over.clear()
            self._wanted.set()

    def take(self, step: int | None) -> StepParts | None:
        """The window since the last one; None where there is nothing in it. ``step``: the newest step. Any thread."""
        with self._lock:
            seconds = sum(self._parts.values())
            if self._since is None or seconds < SHORTEST:
                return None
            now = _delayed()
            before, self._since = self._since, now
            most = sorted(self._lines.items(), key=lambda pair: -pair[1])[:LINES]
            window = StepParts(
                seconds=round(seconds, 4),
                parts=_rounded(self._parts),
                calls=_rounded(self._calls),
                lines=[self._line(*place, spent) for place, spent in most],
                delayed=round(now - before, 4),
                step=step,
                looks=self._looks,
                memory=self._memory,
            )
            for part, spent in self._parts.items():
                self._total[part] += spent
            self._clear()
        return window

    def _line(self, file: str, line: int, part: str, seconds: float) -> CodeLine:
        return CodeLine(self._name_of(file) or file, line, part, round(seconds, 4))

    def end(self) -> Spent | None:
        """End the cell; return how it spent its time, or None where that was not observed. Main thread."""
        self._over.set()
        self._wanted.clear()
        with self._lock:
            started, self._on = self._started, False
            if started is None:
                return None
            for part, spent in self._parts.items():
                self._total[part] += spent
            delayed = _delayed() - started
            self._since = self._started = None
        seconds = sum(self._total.values())
        numbers = (seconds, self._total["communication"], self._total["data"], min(delayed, seconds))
        return Spent(*(round(number, 4) for number in numbers))

    def _loop(self) -> None:
        pause = random.Random(os.getpid())  # noqa: S311 — for no secret, and not the user's own
        while True:
            self._wanted.wait()
            before, spent = time.monotonic(), time.thread_time()
            read, period, cost = before, PERIOD, 0.0
            while not self._over.wait(period * (1 + SPREAD * (2 * pause.random() - 1))):
                now = time.monotonic()
                with contextlib.suppress(Exception):
                    self._look(min(now - max(before, self._from), LONGEST))
                    if now - read >= MEMORY:
                        read = max(read + MEMORY, now - MEMORY)  # after a pause, one reading, not all that it missed
                        self._memory.append(_held())
                before, spent, took = now, time.thread_time(), time.thread_time() - spent
                cost += (min(took, DEAR) - cost) / 10
                period = max(PERIOD, cost / COST)

    def _look(self, passed: float) -> None:
        innermost = frame_of(self._main.ident)
        if innermost is None or self.resting:
            return
        found, users = self._walk(innermost)
        part, call = (found.part, found.call) if found is not None else ("other", "")
        # Only in native code: Python's own functions in it, as of a user's autograd.Function, sleep for other reasons.
        known = self._labels.get(id(innermost.f_code)) if part == "backward" else None
        if known is not None and known[1] == found and self._sleeps() and (awaited := self._awaited()):
            part, call = "communication", awaited
        with self._lock:
            if not self._wanted.is_set():
                return
            self._looks += 1
            self._parts[part] += passed
            if part == "communication":
                self._calls[call] += passed
            if users is not None:
                # Code that the interpreter or a library has added has no line: the function's own, then.
                line = users.f_lineno or users.f_code.co_firstlineno
                self._lines[users.f_code.co_filename, line, part] += passed

    def _walk(self, innermost: FrameType) -> tuple[Doing | None, FrameType | None]:
        """What the stack does, and the innermost frame of the user's own code."""
        best: Doing | None = None
        strength, users, cells = 0, None, None
        frame: FrameType | None = innermost
        for _ in range(DEEP):
            if frame is None:
                break
            known = self._labels.get(id(frame.f_code))
            label = known[1] if known is not None else self._label(frame.f_code)
            if label is None:
                pass
            elif label is _END:
                break
            elif label is _USER:
                users = users or frame
                if cells is None and self._name_of(frame.f_code.co_filename) is not None:
                    cells = frame
            elif isinstance(label, Doing) and _STRENGTH.get(label.part, 0) > strength:
                best, strength = label, _STRENGTH.get(label.part, 0)
            frame = frame.f_back
        # Libraries' own calls say little, and to look them up in the source takes a millisecond each.
        if (best is None or users is innermost) and strength < _STRENGTH["communication"]:
            best = self._site(innermost) or best
        return best, cells or users

    def _label(self, code: CodeType) -> _Label:
        file = code.co_filename
        found: _Label = None
        if file.endswith(_ABOVE):
            found = _END
        elif file.startswith(PACKAGE):
            found = Doing("logging") if file.startswith(_CAPTURE) else None
        elif (doing := self._plugins.part_of(code)) is not None:
            found = doing
        elif is_library(file):
            found = Doing("logging") if any(part in file for part in _LOGGING) else None
        else:
            found = _USER
        if len(self._labels) >= LABELS:  # code that is made at each step
            self._labels.clear()
        # With the code itself, so that no other code gets its id meanwhile.
        self._labels[id(code)] = (code, found)
        return found

    def _site(self, frame: FrameType) -> Doing | None:
        """What the native call does that ``frame`` is in the middle of."""
        key = (id(frame.f_code), frame.f_lasti)
        known = self._sites.get(key)
        if known is None:
            if len(self._sites) >= SITES:
                return None
            known = self._sites[key] = (frame.f_code, self._plugins.part_at(frame, called_in(frame)))
        return known[1]

    def _awaited(self) -> str:
        """The call in which the thread waits for other ranks if it sleeps in the backward pass; asked once a window."""
        if self._call_asleep is None:
            self._call_asleep = self._plugins.sleeps("backward")
        return self._call_asleep

    def _sleeps(self) -> bool:
        """Whether the main thread sleeps, and no other thread works for it, as OpenMP's do."""
        # The file is opened anew each time: user code may close descriptors that it does not know.
        stat = os.open(f"/proc/self/task/{os.getpid()}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            state = _letter(os.read(stat, 128))
        finally:
            os.close(stat)
        return state == "S" and (self._alone or not self._others_run())

    def _others_run(self) -> bool:
        own, mine = os.getpid(), threading.get_native_id()
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if int(thread.name) not in (own, mine) and _letter((thread / "stat").read_bytes()) == "R":
                    return True
        return False


def _letter(stat: bytes) -> str:
    """The state of a thread, as in ``ps``."""
    return stat[stat.rfind(b")") + 2 :][:1].decode("ascii")


def _delayed() -> float:
    """Seconds for which the main thread has waited for a processor so far; 0 where Linux does not say it."""
    with contextlib.suppress(Exception):  # an audit hook of the user's may refuse to open it
        # The main thread's own number is that of its process; Python may know another one, of before a fork.
        return int(Path(f"/proc/self/task/{os.getpid()}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def _held() -> int:
    """Bytes of memory that this process alone holds, without pages of files; 0 where Linux does not say it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, resident, of_files, *_ = Path("/proc/self/statm").read_bytes().split()
        return (int(resident) - int(of_files)) * PAGE
    return 0


def _rounded(times: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds, 4) for name, seconds in sorted(times.items()) if seconds > 0}
