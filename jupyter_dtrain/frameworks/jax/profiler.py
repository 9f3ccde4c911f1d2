"""JAX's profiler for some steps of a loop: XLA's operators and collectives on the host, and the kernels of GPUs.

JAX writes the trace itself, in native code: a file in Chrome's JSON format, whose times count from the start of the
profiler. Python's own calls are not traced: they would slow the loop down. JAX computes while the loop goes on, so a
step of a profile is over once its arrays are computed.

Under failure: a cell that starts a profiler of its own gets it: a process has one, so ours stops first and keeps what
it has. Where JAX cannot write the trace, as on a full disk, it would take the profiler for running ever after, and
refuse the cell's own: it is reset.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any, Final

from jupyter_dtrain.core.traces import GroupOf
from jupyter_dtrain.plugins.framework import Recording
from jupyter_dtrain.plugins.patches import Patch

from .waits import settle

PROFILER = Patch(
    "jax._src.profiler",
    replaces=("start_trace",),
    calls=("_profile_state.reset()",),
    why=(
        "A process has one profiler: that of %distributed profile makes room for one that the cell starts. JAX takes "
        "one whose trace it could not write for running ever after."
    ),
    lost="a profiler that a cell starts while %distributed profile records may raise an error",
)
PATIENCE: Final = 10.0
"""Seconds that a loop waits after a step for what it has begun."""
POLL: Final = 0.0002
"""Seconds between two looks."""
RUNNING: Final = "already been started"
"""A part of what JAX says where a profiler runs."""
_JSON: Final = ".trace.json.gz"
_recording: JaxRecording | None = None
"""The one that records now."""


class JaxRecording(Recording):
    """One use of JAX's profiler."""

    def __init__(self) -> None:
        self._folder = Path()
        self._remove: Any = None
        self._began = 0
        self.starts = False
        """Whether it calls JAX's ``start_trace`` now."""

    def prepare(self) -> None:
        """Start and stop the profiler once, where there is a GPU: that loads what it needs, which may take seconds."""
        if sys.modules["jax"].default_backend() != "cpu":
            self.start()
            self.stop()

    def start(self) -> None:
        """Raise :class:`RuntimeError` where the cell's own profiler runs."""
        global _recording  # noqa: PLW0603 — a process has one profiler
        if _recording is not None:
            _recording.stop()
        if self._remove is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dtrain-profile-"))
            self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        profiler = sys.modules["jax"].profiler
        _recording = self  # first: whatever breaks in from here on, stop() ends it
        self.starts = True
        try:
            profiler.start_trace(str(self._folder), **_options(profiler))
        except Exception as error:
            _recording = None
            if RUNNING in str(error):
                raise RuntimeError("the cell's own profiler is running") from None
            raise
        finally:
            self.starts = False
        self._began = time.time_ns()

    def complete(self) -> bool:
        """Wait until all arrays are computed: JAX computes while the loop goes on. What fails, fails in the loop."""
        with contextlib.suppress(Exception):
            return settle(lambda: False, PATIENCE, POLL)
        return False

    def stop(self) -> None:
        """Stop the profiler, if it was started and not stopped yet, and have JAX write the trace."""
        global _recording  # noqa: PLW0603 — as above
        if _recording is not self:
            return
        try:
            sys.modules["jax"].profiler.stop_trace()
        except Exception as error:
            _recording = None
            if type(error) is not RuntimeError:  # as it is where the cell has stopped it
                _reset()
                raise
        else:
            _recording = None

    def write(self, path: Path) -> list[GroupOf]:
        """Write the trace, with the time at which it begins. The groups of its collectives are not known."""
        try:
            written = max(self._folder.glob(f"plugins/profile/*/*{_JSON}"), key=lambda file: file.stat().st_mtime_ns)
            began = _began(written) or self._began
            with gzip.open(written) as source, path.open("wb") as target:
                target.write(source.read(1) + b'"baseTimeNanoseconds":%d,' % began)
                shutil.copyfileobj(source, target, 1 << 20)
        finally:
            self._remove()
        return []


def hook_profilers(module: Any) -> None:
    """Make room for a profiler that a cell starts, once ``jax._src.profiler`` is imported."""

    def start_trace(original: Any, *args: Any, **kwargs: Any) -> Any:
        recording = _recording
        if recording is not None and not recording.starts:
            recording.cut = "the cell has started a profiler of its own"
            recording.stop()
        return original(*args, **kwargs)

    PROFILER.replace(module, "start_trace", start_trace)


def _began(written: Path) -> int:
    """When the profiler of a trace has started, in ``time.time_ns()``: the file beside it says so; 0 where none does.

    JAX before 0.7 cannot read that file. The time after the call that starts the profiler is some microseconds late.
    """
    reader = getattr(sys.modules["jax"].profiler, "ProfileData", None)
    plain = written.with_name(f"{written.name.removesuffix(_JSON)}.xplane.pb")
    if reader is not None and plain.exists():
        for plane in reader.from_file(str(plain)).planes:
            if began := dict(plane.stats).get("profile_start_time"):
                return int(began)
    return 0


def _options(profiler: Any) -> dict[str, Any]:
    """The arguments by which the profiler is light; older versions of JAX have none."""
    if (kind := getattr(profiler, "ProfileOptions", None)) is None:
        return {}
    options = kind()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    return {"profiler_options": options}


def _reset() -> None:
    try:
        sys.modules["jax._src.profiler"]._profile_state.reset()  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 — another version of JAX; the loop goes on
        PROFILER.failed("_profile_state.reset", error)
