"""Whether a rank's main thread waits for other ranks in JAX, read from its Python frames.

JAX waits in native code: where user code asks for an array's value, or in a jitted function itself, which any library
may call. A rank that waits there uses no CPU, and a rank that computes on the host does. A rank whose GPU computes
looks the same as one that waits.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from jupyter_dtrain.plugins.framework import Doing, locals_of, value_of
from jupyter_dtrain.plugins.libraries import file_in
from jupyter_dtrain.plugins.patches import Patch

_ON_TOP = ("jax", "jaxlib", "flax", "optax", "equinox", "keras", "orbax", "haiku", "chex", "diffrax", "numpyro")
"""Packages whose frames may be the innermost: they call what JAX has compiled."""
_LIBRARY = re.compile(rf"/(?:site|dist)-packages/(?:{'|'.join(_ON_TOP)})/")
_PLUMBING = {"wrapper", "inner", "_call", "call", "__call__", "reraise_with_filtered_traceback", "cache_miss", "_value"}
"""Functions whose names do not describe the call."""
_METHODS = {"block_until_ready", "item", "tolist", "copy_to_host_async", "__array__", "addressable_data"}

SETTLES = Patch(
    "jax._src.xla_bridge",
    calls=("_backends",),
    why=(
        "A collective that a failed cell has begun on this rank alone is paired with another one in the next cell. "
        "Whether JAX computes can only be asked once it has a backend; JAX's public functions make one."
    ),
    lost="the next cell may fail after one in which a rank has failed",
)

PATIENCE_FAILED = 5.0
"""Seconds in which the computations of a failed cell may finish."""
SETTLE_POLL = 0.01
"""Seconds between two looks at running computations."""


def settle(released: Callable[[], bool], patience: float, poll: float = SETTLE_POLL) -> bool:
    """Wait until all existing arrays have been computed, or until ranks are ``released()``.

    ``poll``: seconds between two looks. Returns False when that took longer than ``patience`` seconds.

    JAX computes asynchronously, collectives too. A computation that one rank has begun in a cell, and a failed rank has
    not, would meet what that rank begins in its next cell.
    """
    jax: Any = sys.modules["jax"]
    if not has_backend():
        return True  # asking for arrays would make backends, for which ranks wait for each other
    deadline = time.monotonic() + patience
    while not released() and any(not (one.is_deleted() or one.is_ready()) for one in jax.live_arrays()):
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True


def has_backend() -> bool:
    """Whether JAX has computed something, or was asked for its devices. Any thread, at once.

    JAX's own question waits for its lock, which a thread holds while it starts a GPU or waits for other ranks.
    """
    return bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


def call_that_waits(frame: FrameType, call: ast.Call | None) -> str:
    """The function, called by user code, that may wait for other ranks; empty when none does.

    ``frame``: the innermost of a thread that uses no CPU; ``call``: the call that it makes.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None or jax.__file__ is None:
        return ""
    if frame.f_code is settle.__code__:
        return "block_until_ready"
    root = f"{Path(jax.__file__).parent}{os.sep}"
    file = frame.f_code.co_filename
    if file.startswith(root) or _LIBRARY.search(file):
        return _outermost(frame, root)
    return _called(jax, frame, call)


def part_of(code: CodeType) -> Doing | None:
    """As :meth:`.Framework.part_of`. A wait for what a jitted function computes is that function's time."""
    file, name = file_in("jax", code.co_filename), code.co_name
    if file == "experimental/multihost_utils.py":
        return Doing("communication", name)
    if file in ("_src/pjit.py", "_src/array.py") or (file == "_src/api.py" and name == "block_until_ready"):
        return Doing("compiled")
    return None


def part_at(frame: FrameType, call: ast.Call | None) -> Doing | None:
    """As :meth:`.Framework.part_at`."""
    jax: Any = sys.modules.get("jax")
    return Doing("compiled") if jax is not None and _called(jax, frame, call) else None


def _outermost(frame: FrameType | None, root: str) -> str:
    """The function that user code called, in the library whose frames reach to ``frame``."""
    name = inner = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(root) and not _LIBRARY.search(file):
            break
        inner = inner or frame.f_code.co_name
        if frame.f_code.co_name == "__init__" and (made := locals_of(frame).get("self")) is not None:
            name = type(made).__name__
        elif frame.f_code.co_name not in _PLUMBING:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name or inner.strip("_")


def _called(jax: Any, frame: FrameType, call: ast.Call | None) -> str:
    """The name of native code that user code called directly: a jitted function, or a method of an array."""
    if call is None:
        return ""
    match call.func:
        case ast.Attribute(value=owner, attr=name):
            value = value_of(frame, owner)
            if name in _METHODS and isinstance(value, jax.Array):
                return name
            function = inspect.getattr_static(value, name, None) if value is not None else None
        case ast.Name(id=name):
            function = value_of(frame, call.func)
        case _:
            return ""
    # Functions from jax.jit and jax.pmap are native code, without frames of their own.
    return name if type(function).__module__.startswith("jaxlib") else ""
