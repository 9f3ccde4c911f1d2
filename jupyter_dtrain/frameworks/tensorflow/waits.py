"""Whether a rank's main thread waits for other ranks in TensorFlow, read from its Python frames.

TensorFlow computes and communicates in threads of its own, while the main thread stays in the call that executes an
operation or a traced function. So a rank waits where its main thread is in such a call and the whole process uses
almost no CPU.
"""

from __future__ import annotations

import inspect
import multiprocessing.pool
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType

from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.plugins.framework import Doing, locals_of
from jupyter_dtrain.plugins.libraries import file_in
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank.tracebacks import PACKAGE

LISTEN = 0.03
"""Seconds over which to measure the CPU use of the process."""
IDLE = 0.25
"""Share of one CPU below which a process counts as waiting."""

_EXECUTING = {
    ("eager", "execute.py"),
    ("eager", "executor.py"),
    ("eager", "context.py"),
    ("ops", "gen_collective_ops.py"),
    # A strategy runs untraced functions in threads of its own, and the main thread waits for those.
    ("distribute", "cross_device_ops.py"),
    ("distribute", "mirrored_run.py"),
    ("training", "coordinator.py"),
}
"""Folder and name of the files whose functions enter native code that may wait for other ranks."""
_WRAPPERS = {"error_handler", "__call__", "_call", "__init__", "wrapper", "<lambda>", "new_func", "_method_wrapper"}
"""Functions whose names do not describe the call."""
_FOR_THREADS = (threading.__file__, multiprocessing.pool.__file__)
"""Python's own files, in which a thread waits for others."""
_LIBRARIES = ("tensorflow", "keras", "tf_keras")

WAITS = Patch(
    "tensorflow",
    reads=("_python_function",),
    why="The frames in which a rank waits have the name of the traced function, which the user has called, nowhere.",
    lost="a rank that waits in a traced function is shown without the function's name",
)


def call_that_waits(frame: FrameType) -> str:
    """The function, called by user code, that waits for other ranks: ``fit``, say, or a traced function by name.

    Empty when none does. ``frame``: the innermost of a thread that uses no CPU, or of a traceback.
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


def part_of(code: CodeType) -> Doing | None:
    """As :meth:`.Framework.part_of`. Keras' are here, too, since it runs on TensorFlow's functions and datasets."""
    file, name = file_in("tensorflow", code.co_filename), code.co_name
    if file.startswith("python/eager/polymorphic_function/"):
        return Doing("compiled")
    if file == "python/data/ops/iterator_ops.py" and name in ("__next__", "get_next", "_next_internal"):
        return Doing("data")
    if file.startswith("python/ops/collective_ops") or file.endswith("/cross_device_ops.py"):
        return Doing("communication", name.strip("_"))
    saves = file.startswith(("python/checkpoint/", "python/saved_model/"))
    return Doing("checkpoint") if saves or file_in("keras", code.co_filename).startswith("src/saving/") else None


def _outermost(frame: FrameType | None) -> str:
    """The function of TensorFlow or Keras that user code called, found outwards from ``frame``."""
    packages = tuple(f"{os.sep}{library}{os.sep}" for library in _LIBRARIES)
    name = ""
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):  # what stands around a replaced function
            frame = frame.f_back
            continue
        if not any(package in frame.f_code.co_filename for package in packages):
            break
        # Without running their code: asking a variable of several replicas for an attribute can be a collective.
        traced = inspect.getattr_static(locals_of(frame).get("self"), "_python_function", None)
        if traced is not None and frame.f_code.co_name in _WRAPPERS:
            name = traced.__name__ if type(traced) in {FunctionType, MethodType} else name
        elif frame.f_code.co_name not in _WRAPPERS:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def _is_alive(frame: FrameType) -> bool:
    """Whether the main thread is in ``frame`` now; it has left the frames of a traceback."""
    current = frame_of(threading.main_thread().ident)
    while current is not None:
        if current is frame:
            return True
        current = current.f_back
    return False


def _is_idle() -> bool:
    before = time.process_time()
    time.sleep(LISTEN)
    return time.process_time() - before < LISTEN * IDLE
