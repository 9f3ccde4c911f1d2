"""Whether a rank's main thread waits for other ranks in torch, read from its Python frames.

A rank that waits and one that computes look alike from outside: both are in native code. What tells them apart is who
called that code, and that a rank which waits for gloo uses no processor.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from types import FrameType

from jupyter_dtrain.engine.framework import value_of
from jupyter_dtrain.frameworks.rendezvous import arriving_in

_WRAPPERS = {"wrapper", "inner", "_call_impl", "_wrapped_call_impl", "decorate_context", "<lambda>"}
_WRAPPERS |= {"__torch_dispatch__", "tree_map_only", "tree_map", "unflatten", "wrapped", "unwrap", "trigger_wait"}
"""Functions that say nothing of what was called."""
_ON_DEVICE = {"item", "tolist", "cpu", "numpy", "synchronize"}
"""Functions and methods that wait for a GPU."""
_COMMUNICATING = tuple(f"{part}{os.sep}" for part in ("distributed", "autograd", f"nn{os.sep}parallel"))
"""The parts of torch whose functions wait for other ranks."""
OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""The folder of all frameworks: frames of ours, of which some wait for ranks in Python."""


def call_that_waits(frame: FrameType, call: ast.Call | None, *, on_device: bool) -> str:
    """What the user's code has called that waits for other ranks, such as ``all_reduce``; empty when nothing does.

    ``frame``: the innermost of a thread that uses no processor; ``call``: what is called there. ``on_device``: whether
    there are groups whose work is done by a GPU, for which any wait for the GPU may be one for others.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return ""
    if arriving := arriving_in(frame):
        return arriving
    root = f"{Path(torch.__file__).parent}{os.sep}"
    inner: FrameType | None = frame
    # The collectives of DTensor and FSDP2 are operators, which Python calls through a class of their own.
    while inner is not None and inner.f_code.co_filename == f"{root}_ops.py":
        inner = inner.f_back
    communicating = tuple(root + part for part in _COMMUNICATING)
    if inner is None or not inner.f_code.co_filename.startswith(communicating):
        return _called(frame, call, on_device=on_device)
    return outermost_of(frame, root) or frame.f_code.co_name


def outermost_of(frame: FrameType | None, root: str) -> str:
    """The function that the user's code has called: of torch, at ``root``, whose frames and ours reach to ``frame``."""
    name = ""
    while frame is not None and frame.f_code.co_filename.startswith((root, OURS)):
        if frame.f_code.co_filename.startswith(root) and frame.f_code.co_name not in _WRAPPERS:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def _called(frame: FrameType, call: ast.Call | None, *, on_device: bool) -> str:
    """Native code that the user's own code has called: ``work.wait()``, or ``loss.item()`` on a GPU."""
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    name = call.func.attr
    if name not in {"wait", *(_ON_DEVICE if on_device else ())}:
        return ""
    owner = value_of(frame, call.func.value)
    # Unknown where it is no variable, as in ``all_reduce(x, async_op=True).wait()``.
    return name if owner is None or type(owner).__module__.startswith("torch") else ""
