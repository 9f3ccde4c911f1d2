"""The way back: a job writes what it logs into the store, so that runs of a job and of cells are listed side by side.

``JUPYTER_DTRAIN_STORE`` names the store's file. The job is a world of one run there. Each rank appends its events to a
spool in a folder beside that file, as a rank of a live world does, and rank 0 stores them about once a second, as a
steward does. On several nodes all of them must see the folder. A job has no steward that shares a name for it, so the
folder's comes from the launcher's own number of the job, and rank 0 makes the folder of the run.

Under failure: nothing here raises into the job, which goes on without its record; one line on stderr says why. A rank
whose rank 0 never comes keeps its points in memory, at most :data:`LIMIT`. When rank 0 is killed, the next steward that
uses the store records the rest as lost.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import psutil

from jupyter_dtrain.core.configuration import take_said
from jupyter_dtrain.core.environment import read_environment
from jupyter_dtrain.core.events import Body, Configured, Error, Event, Finished, Frame, Metrics, Outcome, Started
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.core.secrets import environment_secrets, redact
from jupyter_dtrain.core.settings import STORE_VARIABLE
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.store.file import last_number
from jupyter_dtrain.store.intake import StoreIntake
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.store.writer import SKIPPED, WorldOwner
from jupyter_dtrain.wire.spool import Spool, spool_path

PERIOD: Final = 0.5
"""Seconds between two looks at what was logged."""
PATIENCE: Final = 5.0
"""Seconds that rank 0 waits at its end for the ends of the other ranks, and these for rank 0's folder."""
EARLIER: Final = 5.0
"""Seconds by which rank 0 may have started before another rank: an older run in the folder is another job's."""
LIMIT: Final = 1 << 20
"""Points that a rank keeps while it has no folder."""
FRAMES: Final = 20

ERRORS = Patch(
    "sys",
    replaces=("excepthook",),
    why="The exception that ends a job's rank is known to nobody but Python's own hook.",
    lost="the record of a job does not say which exception has ended it",
)

_running: JobRecord | None = None
_lock = threading.Lock()


def record_job(name: str, training: str = "") -> None:
    """In a job: record it in the store that ``JUPYTER_DTRAIN_STORE`` names, as a run of ``name``.

    ``training``: a name of its own for the run (default: ``name``). Each further call begins another run of the job,
    such as one for each of several settings; all ranks make as many calls. Without that variable it does nothing.
    """
    _record(name, training, anew=True)


def log_to_store(numbers: Mapping[str, float], steps: Mapping[str, int]) -> None:
    """Record points of this job, if its environment asks for that. A script that nobody exported records itself too."""
    record = _record(Path(sys.argv[0]).stem or "job")
    if record is not None:
        record.add(numbers, steps)


def keep_configuration() -> None:
    """Record the hyper-parameters that :func:`jupyter_dtrain.config` has kept, as :func:`log_to_store` does."""
    _record(Path(sys.argv[0]).stem or "job")


def media_to_store(body: Body) -> None:
    """Record one of the media of this job, as :func:`log_to_store` does with points."""
    record = _record(Path(sys.argv[0]).stem or "job")
    if record is not None:
        record.take(body)


def _record(name: str, training: str = "", *, anew: bool = False) -> JobRecord | None:
    """The record of this process; None where nobody asks for one. ``anew``: begin another run if there is one."""
    global _running  # noqa: PLW0603 — a process is in one job
    store = os.environ.get(STORE_VARIABLE)
    with _lock:
        if not store:
            return None
        if _running is None:
            _running = JobRecord(Path(store).expanduser(), name, training)
            _running.start()
        elif anew:
            _running.begin(training)
        return _running


class _JobRun:
    """One run of a job, as this rank has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0
        """The run's number; 0 until it has a folder."""
        self.points: list[tuple[str, int, float, float]] = []
        """What is not written yet."""
        self.bodies: list[Body] = []
        """Other events that wait, whose giver bounds them."""
        self.began = time.time()
        self.spool: Spool | None = None
        self.seq = 0


def _take_configuration(run: _JobRun) -> None:
    """Give ``run`` the hyper-parameters that were said since the last call."""
    if values := take_said():
        run.bodies.append(Configured(values, "set"))


class JobRecord:
    """One rank's record of its job."""

    def __init__(self, store: Path, name: str, training: str = "") -> None:
        env = os.environ
        self._store = store
        self._name = name
        self._rank, self._size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self._process = own_process()
        self._world = f"{name}-job-{_job_key()}"
        self._folder = store.parent / "spool" / self._world
        self._runs = [_JobRun(training or name)]
        """All runs of this job; the last one gets what is logged."""
        self._kept = 0
        """The points that wait in all of them."""
        self._error: Error | None = None
        self._intake: StoreIntake | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="dtrain-job", daemon=True)
        self._said = False

    def start(self) -> None:
        """Start the thread that records. Returns at once, but rank 0 first makes the folder."""
        if self._rank == 0:
            self._guard(lambda: self._make_run(self._runs[0]))
        ERRORS.when_imported(lambda module: ERRORS.replace(module, "excepthook", self._failed))
        atexit.register(self._end)
        self._thread.start()

    def begin(self, training: str) -> None:
        """Begin another run, which gets what is logged from now on. The one before has ended well."""
        run = _JobRun(training or self._name)
        if self._rank == 0:
            self._guard(lambda: self._make_run(run))
        with self._lock:
            _take_configuration(self._runs[-1])
            self._runs.append(run)

    def add(self, numbers: Mapping[str, float], steps: Mapping[str, int]) -> None:
        """Keep points for the thread, which writes them within :data:`PERIOD` seconds."""
        now = time.time()
        with self._lock:
            if self._kept < LIMIT:
                self._runs[-1].points += [(name, steps[name], now, value) for name, value in numbers.items()]
                self._kept += len(numbers)

    def take(self, body: Body) -> None:
        """Keep an event for the thread, as :meth:`add` does with points."""
        with self._lock:
            self._runs[-1].bodies.append(body)

    # The runs' folders.

    def _make_run(self, run: _JobRun) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = last_number(self._store, self._folder, self._name) + 1
        while spool_path(self._folder, number, 0).parent.exists():
            number += 1
        spool_path(self._folder, number, 0).parent.mkdir(mode=0o700)
        run.number = number
        if self._intake is None:
            owner = WorldOwner(
                self._world,
                self._name,
                self._size,
                socket.gethostname(),
                str(self._folder),
                time.time(),
                *self._process,
            )
            # A job removes nothing of its own accord: how long runs are kept is the notebooks' matter.
            self._intake = StoreIntake(
                self._store, owner, SpoolFolder(self._folder, SKIPPED), float("inf"), self._say, str(Path.cwd())
            )

    def _find_runs(self) -> None:
        """Take the numbers of the runs that rank 0 has made by now, in their order."""
        since = self._process[1] - EARLIER
        with contextlib.suppress(OSError):
            runs = [path for path in self._folder.glob("run-*") if path.stat().st_mtime >= since]
            numbers = sorted(int(path.name[4:]) for path in runs if path.name[4:].isdecimal())
            for run, number in zip(list(self._runs), numbers, strict=False):
                run.number = run.number or number

    # The thread, and the end.

    def _loop(self) -> None:
        # All of it is on this thread: SQLite's connections stay on one.
        while not self._ended.wait(PERIOD):
            self._guard(self._look)
        self._guard(self._finish)

    def _look(self) -> None:
        with self._lock:
            runs = list(self._runs)
        if self._rank and not all(run.number for run in runs):
            self._find_runs()
        for run in runs:
            if not run.number:
                break
            self._write(run)
            if run is not runs[-1]:
                self._append(run, Finished("ok", time.time() - run.began))
                if run.spool is not None:
                    run.spool.close()
                with self._lock:
                    self._runs.remove(run)
        if self._intake is not None:
            while self._intake.poll():
                pass

    def _write(self, run: _JobRun) -> None:
        """Write what was logged in ``run``, which has a number, after its beginning."""
        if run.spool is None:
            run.spool = Spool(spool_path(self._folder, run.number, self._rank))
            if run.spool.failure is not None:
                self._say(f"The metrics of this job cannot be stored: {run.spool.failure}.")
            first = self._rank == 0
            source = _script() if first else ""
            ranks = list(range(self._size)) if first else []
            name = run.name if first else ""
            place = str(run.spool.path)
            self._append(run, Started(os.getpid(), socket.gethostname(), place, source=source, ranks=ranks, name=name))
            with contextlib.suppress(Exception):  # a process in odd surroundings; its record goes on
                self._append(run, read_environment(command=sys.argv))
        with self._lock:
            if run is self._runs[-1]:
                _take_configuration(run)
            points, run.points = run.points, []
            bodies, run.bodies = run.bodies, []
            self._kept -= len(points)
        found: dict[str, Columns] = {}
        for metric, step, at, value in points:
            columns = found.setdefault(metric, Columns.empty())
            columns.steps.append(step)
            columns.times.append(at)
            columns.values.append(value)
        if found:
            self._append(run, Metrics([pack(metric, columns) for metric, columns in found.items()]))
        for body in bodies:
            self._append(run, body)

    def _append(self, run: _JobRun, body: Body) -> None:
        assert run.spool is not None
        run.spool.append(Event(run.number, self._rank, run.seq, time.time(), body))
        run.seq += 1

    def _failed(
        self, original: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None, /
    ) -> None:
        """Note the exception that ends this rank; Python shows it as always."""
        frames = traceback.extract_tb(trace)[-FRAMES:]
        known = environment_secrets()
        self._error = Error(
            kind.__name__,
            redact(str(error), known, named=False),
            [
                Frame(one.filename, one.lineno or 0, one.name, redact(one.line or "", known), cell=True)
                for one in frames
            ],
        )
        original(kind, error, trace)

    def _end(self) -> None:
        if os.getpid() != self._process[0]:
            return  # a child that was forked from this rank
        self._ended.set()
        self._thread.join(2 * PATIENCE)

    def _finish(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all(run.number for run in self._runs) and time.monotonic() < deadline:
            self._find_runs()
            time.sleep(PERIOD / 5)
        self._look()
        last = self._runs[-1]
        if last.spool is None:
            self._say("The metrics of this rank are not stored: rank 0 of the job has not begun its record.")
            return
        if self._error is not None:
            self._append(last, self._error)
        outcome: Outcome = "ok" if self._error is None else "error"
        self._append(last, Finished(outcome, time.time() - last.began))
        last.spool.close()
        if self._intake is not None:
            self._intake.poll()
            while self._intake.writer.active and time.monotonic() < deadline:
                time.sleep(PERIOD / 5)
                self._intake.poll()
            self._intake.close("its job has ended")

    def _guard(self, call: Any) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 — a job never fails because of its record
            self._say(f"The metrics of this job are no longer stored ({type(error).__name__}: {error}).")

    def _say(self, words: str) -> None:
        if not self._said:
            self._said = True
            print(f"[jupyter-dtrain] {words}", file=sys.stderr, flush=True)  # noqa: T201 — a job has no other place


def _job_key() -> str:
    """The same text on all ranks of this job, and another one in the next."""
    env = os.environ
    words = [env[name] for name in ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID") if name in env]
    if env.get("TORCHELASTIC_RUN_ID", "none") != "none":
        words = [env["TORCHELASTIC_RUN_ID"], env.get("TORCHELASTIC_RESTART_COUNT", "")]
    if not words:
        # All on one node then, started by one process; or alone.
        parent = os.getppid() if env.get("WORLD_SIZE", "1") != "1" else os.getpid()
        words = [str(parent), f"{psutil.Process(parent).create_time():.0f}"]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


def _script() -> str:
    """The text of the program, without secrets."""
    with contextlib.suppress(OSError, UnicodeError):
        return redact(Path(sys.argv[0]).read_text(encoding="utf-8"), environment_secrets())
    return ""
