"""The memory of a rank: what it keeps for its next step, and what it frees after a cell ran out of GPU or host memory.

When memory runs out, the exception's traceback keeps every frame between the cell and the failed allocation, and the
frames keep the tensors that did not fit. While anything holds that traceback, the next attempt fails, too. So the rank
drops it and empties caches. The user's own variables keep what they hold. Nothing here raises.

Frames of any other failed cell would be kept, too, until Python collects garbage, since an exception and the frames
that handle it hold each other. So :func:`clear_frames` empties them when the next cell fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import traceback
from typing import TYPE_CHECKING, Any

import psutil

from jupyter_dtrain.core.memory import FreedMemory

from .tracebacks import causes, members, trace_of

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .plugins import Plugins

LAST = ("_", "__", "___")
"""The names that IPython gives the last outputs."""
MENTIONED = 10_000_000
"""Bytes; a message says nothing about less."""
LARGEST = (32 << 20) - (64 << 10)
"""Bytes; about the largest block from whose release glibc learns (DEFAULT_MMAP_THRESHOLD_MAX, 64 bits)."""


def keep_freed() -> None:
    """Make the allocator keep freed memory, rather than return it to Linux and fetch it again page by page.

    glibc learns to do so when the program frees a large block that glibc had fetched from Linux on its own (mallopt(3),
    M_MMAP_THRESHOLD). An ordinary process comes to that early. A rank has so much free memory from its imports that it
    never does, and each training step fetched its pages anew: 118 faults and 5 % of the time in a step of 16 ms. So
    this allocates and frees one such block. The user's own settings of glibc's tunables hold.
    """
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
        libc.free(libc.malloc(LARGEST))


def is_out_of_memory(exception: BaseException | None, plugins: Plugins | None) -> bool:
    """Whether ``exception``, or one that it comes from, says that there was not enough memory."""
    return any(
        issubclass(type(one), MemoryError) or (plugins is not None and plugins.is_out_of_memory(one))
        for one in causes(exception)
    )


def let_go(exception: BaseException | None, plugins: Plugins) -> str:
    """Drop what ``exception`` holds; return how much that freed, in words. Main thread, when the cell has ended."""
    host, device = _held(plugins)
    clear_frames(exception)
    for one in causes(exception):
        BaseException.with_traceback(one, None)
    sys.last_type = sys.last_value = sys.last_traceback = None
    _give_back(plugins)
    after_host, after_device = _held(plugins)
    if freed := _gigabytes(device - after_device, host - after_host):
        return f"Out of memory. The rank dropped what the failed call held and freed {freed}."
    # That may be little, where others fill the memory or the call asked for too much.
    kept = _gigabytes(after_device, after_host)
    return f"Out of memory. Nothing could be freed: the rank keeps {kept or 'little'} (del NAME frees a variable)."


def free(shell: InteractiveShell, plugins: Plugins) -> FreedMemory:
    """Let go of old outputs and of the last error. Main thread, between cells; destructors of the user's may run.

    Whatever one of the user's own names holds stays, also ``_`` where user code has bound it.
    """
    host, device = _held(plugins)
    error = getattr(sys, "last_value", None) is not None
    sys.last_type = sys.last_value = sys.last_traceback = None
    vars(sys).pop("last_exc", None)  # from Python 3.12 on
    shell.last_execution_result = None
    outputs = _forget_outputs(shell)
    _give_back(plugins)
    after_host, after_device = _held(plugins)
    return FreedMemory(max(0, host - after_host), max(0, device - after_device), outputs, error)


def _forget_outputs(shell: InteractiveShell) -> int:
    """Let go of IPython's outputs; return how many there were."""
    names, hook = shell.user_ns, shell.displayhook
    outputs: dict[int, Any] = names.get("_oh", {})
    count = len(outputs)
    ours = last_outputs(shell)
    ours |= {f"_{number}": value for number, value in outputs.items()}
    numbered = [f"_{number}" for number in range(1, hook.prompt_count + 1)]
    users = {
        name: names[name]
        for name in {*ours, *numbered}
        if name in names and not (name in ours and names[name] is ours[name])
    }
    if hook.do_full_cache:
        hook.flush()  # type: ignore[no-untyped-call]
    names.update(users)
    shell.user_ns_hidden.update({name: "" for name in LAST if name in shell.user_ns_hidden})
    return count


def last_outputs(shell: Any) -> dict[str, Any]:
    """What IPython has bound to ``_``, ``__`` and ``___``; user code may have bound them to something else since."""
    return {name: shell.user_ns_hidden.get(name, getattr(shell.displayhook, name, "")) for name in LAST}


def _give_back(plugins: Plugins) -> None:
    """Collect garbage, and return what no object uses."""
    gc.collect()
    plugins.free_memory()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).malloc_trim(0)


def clear_frames(exception: BaseException | None) -> None:
    """Drop the local variables of the calls that ``exception`` has ended; its traceback keeps their lines."""
    for one in causes(exception):
        with contextlib.suppress(Exception):
            traceback.clear_frames(trace_of(one))
        for member in members(one):
            clear_frames(member)


def _gigabytes(device: int, host: int) -> str:
    """Bytes on the GPU and the host, in words; empty where both are few."""
    sizes = {"the GPU": device, "the host": host}
    return " and ".join(
        f"{size / 1e9:.2f} GB of {where}'s memory" for where, size in sizes.items() if size >= MENTIONED
    )


def _held(plugins: Plugins) -> tuple[int, int]:
    """Bytes of this process on the host, and on its GPU."""
    reserved = plugins.reserved()
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process().memory_info().rss), reserved
    return 0, reserved
