"""Copies of numbers from a CUDA device to the host, made on another thread than the training loop's.

The loop must not notice them, so a copy keeps to four rules:

* It waits for the stream that computes the numbers, and for no other. It waits in an event, asleep: a wait for the
  stream would keep a processor busy, and would fail where user code forbids waits
  (``torch.cuda.set_sync_debug_mode("error")`` holds for all threads).
* It leaves no CUDA context on another device: ``torch.cuda.stream`` alone, on a thread that has used no device yet,
  would make one on device 0 when it ends, with hundreds of megabytes in each rank.
* It may come while another thread captures a CUDA graph. CUDA would forbid it to allocate and to wait then, and would
  break the capture, unless this thread says that it takes no part (:func:`beside_captures`).
* It adds nothing to a graph that its own stream captures: then it takes a stream of its own. Earlier work has ended by
  then, because ``torch.cuda.graph`` waits for the device before it begins.

Under failure: whatever CUDA reports is raised, such as the fault of a kernel that came before.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_RELAXED = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED``."""


def copied(tensors: list[Any], stream: Any) -> list[float]:
    """The numbers in ``tensors``, all of one type and computed on the CUDA ``stream``."""
    cuda = sys.modules["torch"].cuda
    with beside_captures(), cuda.device(stream.device), cuda.stream(stream):
        if not cuda.is_current_stream_capturing():
            return _copied(tensors)
        with cuda.stream(cuda.Stream()):
            return _copied(tensors)


def _copied(tensors: list[Any]) -> list[float]:
    """Copy the numbers in ``tensors`` to the host on the current stream."""
    torch = sys.modules["torch"]
    together = torch.stack(tensors)
    # Only a copy to pinned memory leaves the wait to us.
    on_host = torch.empty(together.shape, dtype=together.dtype, device="cpu", pin_memory=True)
    on_host.copy_(together, non_blocking=True)
    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()
    numbers: list[float] = on_host.double().tolist()
    return numbers


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """Let calls of this thread have no effect on the CUDA graphs that others capture. No-op without NVIDIA's driver."""
    exchange = _exchange()
    mode = ctypes.c_int(_RELAXED)
    if exchange is None or exchange(ctypes.byref(mode)):
        yield
        return
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@lru_cache(1)
def _exchange() -> Any:
    """The driver's function that swaps this thread's mode with a given one; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None
