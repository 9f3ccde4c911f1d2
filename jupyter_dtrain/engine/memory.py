"""The memory of a rank: what it keeps for its next step, and what is done after a cell ran out, of GPU or host memory.

When memory ran out, the exception's traceback keeps every frame between the cell and the failed allocation, and these
keep the tensors that did not fit: as long as anybody holds it, the next attempt fails for want of what the last one
left. So they are let go, and caches are emptied. What the user's own names hold stays. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import traceback
from typing import TYPE_CHECKING

import psutil

from .tracebacks import causes

if TYPE_CHECKING:
    from .plugins import Plugins

MENTIONED = 10_000_000
"""Bytes; less than that is not worth a word."""
LARGEST = (32 << 20) - (64 << 10)
"""Bytes; about the largest block from whose release glibc learns (DEFAULT_MMAP_THRESHOLD_MAX, 64 bits)."""


def keep_freed() -> None:
    """Have the allocator keep what is freed, rather than give it back to Linux and fetch it again page by page.

    glibc learns to do so when a large block is freed that it had fetched from Linux by itself (mallopt(3),
    M_MMAP_THRESHOLD). That happens early in a process of its own; a rank has so much free memory from all that it has
    imported that it never comes to it, and each step of a training fetched its pages anew: 118 faults and 5 % of the
    time in a step of 16 ms. So it is shown one. Where the user has set glibc's tunables, these hold.
    """
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
        libc.free(libc.malloc(LARGEST))


def is_out_of_memory(exception: BaseException | None, plugins: Plugins | None) -> bool:
    """Whether ``exception``, or one that it comes from, says that there was not enough memory."""
    return any(
        isinstance(one, MemoryError) or (plugins is not None and plugins.is_out_of_memory(one))
        for one in causes(exception)
    )


def let_go(exception: BaseException | None, plugins: Plugins) -> str:
    """Let go of what ``exception`` holds; how much came free, in words. Main thread, when the cell has ended."""
    host, device = _held(plugins)
    for one in causes(exception):
        with contextlib.suppress(Exception):
            traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
    sys.last_type = sys.last_value = sys.last_traceback = None
    gc.collect()
    plugins.free_memory()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).malloc_trim(0)
    after_host, after_device = _held(plugins)
    given_back = {"the GPU": device - after_device, "the host": host - after_host}
    freed = [f"{size / 1e9:.2f} GB of {where}'s memory" for where, size in given_back.items() if size >= MENTIONED]
    if not freed:
        return "Out of memory. Nothing came free: names of yours hold what is in use (del NAME)."
    return f"Out of memory. What the failed call held was let go: {' and '.join(freed)} came free."


def _held(plugins: Plugins) -> tuple[int, int]:
    """Bytes of this process on the host, and on its GPU."""
    reserved = plugins.reserved()
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process().memory_info().rss), reserved
    return 0, reserved
