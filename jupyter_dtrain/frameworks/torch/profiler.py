"""PyTorch's profiler for some steps of a loop: operators of the thread of the loop, gloo's collectives, and kernels.

Under failure: a cell that starts a profiler of its own gets it: PyTorch has one for each thread, so ours stops first
and keeps what it has. One whose stop has raised an error is stopped again before the next one starts.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from jupyter_dtrain.core.traces import GroupOf
from jupyter_dtrain.plugins.framework import Recording
from jupyter_dtrain.plugins.patches import Patch

from .flight_recorder import is_pending, recorded_groups

PROFILER = Patch(
    "torch.autograd.profiler",
    replaces=("profile._prepare_trace",),
    reads=("_is_profiler_enabled",),
    why="A thread has one profiler: that of %distributed profile makes room for one that the cell starts.",
    lost="a profiler that a cell starts while %distributed profile records may raise an error",
)
LOG: Final = re.compile(r"(USDT|STAGE):\d{4}-\d\d-\d\d \S+ \S+ \w+\.(cpp|h):\d+\]")
"""A line that PyTorch's profiler writes to stderr whenever it starts or stops."""
SETTLING: Final = 0.002
"""Seconds in which gloo's threads come to rest."""
PATIENCE: Final = 10.0
"""Seconds that the cell's own profiler waits until ours may stop."""
_recording: TorchRecording | None = None
"""The one that records now."""


class TorchRecording(Recording):
    """One use of PyTorch's profiler."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._thread = 0
        self._began = self._ended = 0

    def prepare(self) -> None:
        """Start and stop the profiler once, where there is a GPU: that loads what it needs, which may take seconds."""
        if (device := _device()) is not None and not _is_running():
            with _module().profile(use_device=device):
                pass

    def start(self) -> None:
        """Raise :class:`RuntimeError` where the cell's own profiler runs."""
        global _recording  # noqa: PLW0603 — a process has one profiler
        if _recording is not None:
            with contextlib.suppress(Exception):
                _recording.stop()
        if _is_running():
            raise RuntimeError("the cell's own profiler is running")
        self._profile = _module().profile(use_device=_device(), record_shapes=True, use_kineto=True)
        self._began, self._thread = time.time_ns(), threading.get_ident()
        _recording = self  # first: whatever breaks in from here on, stop() ends it
        try:
            self._profile.__enter__()
        except Exception:
            if _is_running():
                with contextlib.suppress(Exception):
                    self._profile.__exit__(None, None, None)
            _recording = None
            raise

    def may_stop(self) -> bool:
        """Whether no thread of gloo's will note the end of a collective any more."""
        return _recording is not self or not is_pending(self._began)

    def stop(self) -> None:
        """Stop the profiler, if it was started and not stopped yet."""
        global _recording  # noqa: PLW0603 — as above
        if _recording is self:
            # A thread of gloo's notes the end of a collective a moment after the waiter has it, in memory that is the
            # profiler's: it must not be gone by then.
            time.sleep(SETTLING)
            self._ended = time.time_ns()
            try:
                self._profile.__exit__(None, None, None)
            finally:
                if not _is_running():
                    _recording = None

    def makes_room_for(self, profile: Any) -> bool:
        """Whether ``profile``, which starts on this thread, needs the place of this one."""
        return profile is not self._profile and self._thread == threading.get_ident()

    def write(self, path: Path) -> list[GroupOf]:
        """Write the trace, and return the groups in the flight recorder."""
        profile, self._profile = self._profile, None
        groups = recorded_groups(self._began, self._ended)
        profile.export_chrome_trace(str(path))
        return groups


def hook_profilers(module: Any) -> None:
    """Make room for a profiler that a cell starts, once ``torch.autograd.profiler`` is imported."""

    def prepare(original: Any, profile: Any) -> Any:
        recording = _recording
        if recording is not None and recording.makes_room_for(profile):
            recording.cut = "the cell has started a profiler of its own"
            deadline = time.monotonic() + PATIENCE
            while not recording.may_stop() and time.monotonic() < deadline:
                time.sleep(SETTLING)
            recording.stop()
        return original(profile)

    PROFILER.replace(module.profile, "_prepare_trace", prepare)


def _module() -> Any:
    return sys.modules["torch.autograd.profiler"]


def _is_running() -> bool:
    return bool(getattr(_module(), "_is_profiler_enabled", False))


def _device() -> str | None:
    """The kind of GPU that the rank uses; None where it computes on processors alone."""
    cuda = sys.modules["torch"].cuda
    return "cuda" if cuda.is_initialized() else None
