"""Whether a rank's main thread waits for other ranks in TensorFlow, read from its Python frames.

TensorFlow computes and communicates in threads of its own, while the main thread is in the one call that executes an
operation or a traced function. So a rank waits where its main thread is in such a call and the whole process uses
next to no processor.
"""

from __future__ import annotations

import inspect
import multiprocessing.pool
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType, FunctionType, MethodType

LISTEN = 0.03
"""Seconds for which the process is listened to."""
IDLE = 0.25
"""A process that takes less of a processor than this waits."""

_EXECUTING = {
    ("eager", "execute.py"),
    ("eager", "executor.py"),
    ("eager", "context.py"),
    ("ops", "gen_collective_ops.py"),
    # What a strategy runs untraced runs in threads of its own, for which the main thread waits.
    ("distribute", "cross_device_ops.py"),
    ("distribute", "mirrored_run.py"),
    ("training", "coordinator.py"),
}
"""Folder and name of the files whose functions are left for native code that may wait for other ranks."""
_WRAPPERS = {"error_handler", "__call__", "_call", "__init__", "wrapper", "<lambda>", "new_func", "_method_wrapper"}
"""Functions that say nothing of what was called."""
_FOR_THREADS = (threading.__file__, multiprocessing.pool.__file__)
"""Python's own files, in which a thread waits for others."""
_LIBRARIES = ("tensorflow", "keras", "tf_keras")


def call_that_waits(frame: FrameType) -> str:
    """What the user's code has called that waits for other ranks, such as ``fit`` or the name of a traced function.

    Empty when nothing does. ``frame``: the innermost of a thread that uses no processor, or of a traceback.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not getattr(tensorflow, "__file__", None):
        return ""
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_filename in _FOR_THREADS:
        inner = inner.f_back
    if inner is None:
        return ""
    file = inner.f_code.co_filename
    if tuple(file.rsplit(os.sep, 2)[1:]) not in _EXECUTING:
        return ""
    if not file.startswith(f"{Path(str(tensorflow.__file__)).parent}{os.sep}"):
        return ""
    if _is_alive(frame) and not _is_idle():
        return ""
    return _outermost(inner) or inner.f_code.co_name


def _outermost(frame: FrameType | None) -> str:
    """What the user's code has called of TensorFlow or Keras, whose frames reach to ``frame``."""
    packages = tuple(f"{os.sep}{library}{os.sep}" for library in _LIBRARIES)
    name = ""
    while frame is not None and any(package in frame.f_code.co_filename for package in packages):
        # Without running code of theirs: to ask a variable of several replicas for an attribute can be a collective.
        traced = inspect.getattr_static(frame.f_locals.get("self"), "_python_function", None)
        if traced is not None and frame.f_code.co_name in _WRAPPERS:
            name = traced.__name__ if type(traced) in {FunctionType, MethodType} else name
        elif frame.f_code.co_name not in _WRAPPERS:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def _is_alive(frame: FrameType) -> bool:
    """Whether the main thread is in ``frame`` now; it has left those of a traceback."""
    current = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 — documented all the same
    while current is not None:
        if current is frame:
            return True
        current = current.f_back
    return False


def _is_idle() -> bool:
    before = time.process_time()
    time.sleep(LISTEN)
    return time.process_time() - before < LISTEN * IDLE
