"""Whether a rank's main thread waits for other ranks in torch, read from its Python frames.

From outside, a waiting rank and a computing rank look alike: both are in native code. Two things tell them apart: the
function that called that code, and the CPU, which a rank waiting in gloo does not use. A rank that waits for a GPU does
use it: CUDA polls. There the flight recorder tells whether the GPU has a collective to do.
"""

from __future__ import annotations

import ast
import os
import sys
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import Any

from jupyter_dtrain.core.frames import frames_of_threads
from jupyter_dtrain.frameworks.rendezvous import arriving_in
from jupyter_dtrain.plugins.framework import locals_of, value_of
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.plugins.sources import calls_on_line

_WRAPPERS = {"wrapper", "inner", "decorate_context", "<lambda>"}
_WRAPPERS |= {"__torch_dispatch__", "tree_map_only", "tree_map", "unflatten", "wrapped", "unwrap", "trigger_wait"}
"""Functions whose names do not describe the call."""
_CALLS_MODULE = "_call_impl"
"""The caller of a module's ``forward``, and of its hooks, in which FSDP2 gathers the parameters."""
FRAMES = Patch(
    "torch.nn.modules.module",
    calls=(f"Module.{_CALLS_MODULE}",),
    why="A rank that waits for others looks like one that computes; only the functions on its stack tell them apart.",
    lost="a rank that waits in the call of a module may be shown as waiting in a private function of torch",
)
_DISPATCHER = f"{os.sep}distributed{os.sep}tensor{os.sep}_dispatch.py"
"""The file that native code calls for an operation on DTensors."""
_TREES = f"{os.sep}optree{os.sep}"
"""The library optree, through which torch calls functions of its own."""
_ON_DEVICE = {"item", "tolist", "cpu", "numpy", "synchronize"}
"""Functions and methods that wait for a GPU."""
_COMMUNICATING = tuple(f"{part}{os.sep}" for part in ("distributed", "autograd", f"nn{os.sep}parallel"))
"""The parts of torch whose functions wait for other ranks."""
carrying_on: set[CodeType] = set()
"""Functions in which a library waits for other ranks, and goes on by itself when one dies."""
OURS = tuple(f"{Path(__file__).parents[2] / part}{os.sep}" for part in ("frameworks", "plugins"))
"""The folders of all frameworks and of the guard around what they replace: both stand between torch and its caller."""


def call_that_waits(frame: FrameType, call: ast.Call | None, *, on_device: bool) -> str:
    """The function, called by user code, that waits for other ranks, such as ``all_reduce``; empty when none does.

    ``frame``: the innermost of a thread that uses no CPU; ``call``: the call that it makes. ``on_device``: whether a
    GPU may do some group's work, so that any wait for the GPU may be a wait for other ranks.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return ""
    if arriving := arriving_in(frame):
        return arriving
    root = f"{Path(torch.__file__).parent}{os.sep}"
    inner: FrameType | None = frame
    # DTensor's and FSDP2's collectives are operators, and Python calls these through parts of torch of their own.
    operators = (f"{root}_ops.py", f"{root}_library{os.sep}")
    while inner is not None and inner.f_code.co_filename.startswith(operators):
        inner = inner.f_back
    communicating = tuple(root + part for part in _COMMUNICATING)
    if inner is None or not inner.f_code.co_filename.startswith(communicating):
        return _called(frame, call, on_device=on_device)
    return "" if _carries_on() else outermost_of(frame, root) or frame.f_code.co_name


def call_that_waits_for_device(frame: FrameType, call: ast.Call | None) -> str:
    """The function, called by user code, that may wait for a GPU, such as ``item``; empty when none does.

    Libraries wait for it as well, such as a GradScaler for what it has found: then the function of torch that user code
    has called. ``frame`` and ``call``: as above, whether or not the thread uses the CPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return ""
    if found := _called(frame, call, on_device=True):
        return found
    root = f"{Path(torch.__file__).parent}{os.sep}"
    return outermost_of(frame, root) if frame.f_code.co_filename.startswith(root) else ""


def _carries_on() -> bool:
    """Whether some thread is in a function of :data:`carrying_on`: on a GPU, autograd calls it on a thread of its own.

    The main thread then waits for that one.
    """
    for innermost in frames_of_threads().values() if carrying_on else ():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code in carrying_on:
                return True
            frame = frame.f_back
    return False


def outermost_of(frame: FrameType | None, root: str) -> str:
    """The function of torch (at ``root``) that user code called, found outwards from ``frame`` over torch and us.

    By its public name: the call of a module is its ``forward``, the making of an object its class.
    """
    public = private = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(root) and not file.startswith(f"{root}_dynamo{os.sep}"):
            name = _name(frame)
            if name.startswith("_"):
                private = name
            elif name:
                public = name
        elif not file.startswith((root, *OURS)) and _TREES not in file:
            break
        frame = frame.f_back
    return public or private


def _name(frame: FrameType) -> str:
    """The name that people use for the function of ``frame``; empty for one whose name says nothing."""
    name = frame.f_code.co_name
    if name == _CALLS_MODULE:
        return "forward"
    if name == "__init__" and (made := locals_of(frame).get("self")) is not None:
        return type(made).__name__
    if frame.f_code.co_filename.endswith(_DISPATCHER):
        operator = getattr(locals_of(frame).get("op_call"), "overloadpacket", None)
        return getattr(operator, "__name__", name)
    return "" if name in _WRAPPERS else name


def _called(frame: FrameType, call: ast.Call | None, *, on_device: bool) -> str:
    """The name of native code that user code called directly: ``work.wait()``, or ``loss.item()`` on a GPU."""
    if call is None:
        return "wait" if any(_is_wait(value_of(frame, node.func)) for node in calls_on_line(frame)) else ""
    if not isinstance(call.func, ast.Attribute):
        return ""
    name = call.func.attr
    if name not in {"wait", *(_ON_DEVICE if on_device else ())}:
        return ""
    owner = value_of(frame, call.func.value)
    # The owner is unknown where it is no variable, as in ``all_reduce(x, async_op=True).wait()``.
    return name if owner is None or type(owner).__module__.startswith("torch") else ""


def _is_wait(method: Any) -> bool:
    """Whether a library that calls ``method`` waits for a collective: a thread or a pool was handed ``work.wait``."""
    if type(method) is partial:  # as asyncio.to_thread() hands it on
        return any(map(_is_wait, (method.func, *method.args)))
    is_bound = type(method) is MethodType and method.__name__ == "wait"
    return is_bound and type(method.__self__).__module__.startswith("torch.distributed")
