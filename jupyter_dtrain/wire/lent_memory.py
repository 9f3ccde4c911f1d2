"""Memory that a process lends to others of this machine: large values cross it, and need neither sockets nor copies.

It is a file without a name (``memfd_create``), which another process opens as ``/proc/PID/fd/N``. Linux lets only
processes of the same user do that, and only where they see each other's ids. The place that is told has a random word,
and a process opens nothing whose name has another one: it neither reads nor writes a stranger's file.

Under failure: the memory ends with the last process that has it open, so whoever dies, nothing is left. It takes no
room of ``/dev/shm``, which is small in many containers. What cannot be lent, opened or written raises :class:`OSError`;
the caller then sends a message, as it does to another machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import secrets
import weakref
from pathlib import Path

import msgspec
from typing_extensions import Self

SLICE: int = 1 << 26
"""Bytes that one system call copies, so that signals need not wait for all of them."""
_CLOEXEC = 1
"""``MFD_CLOEXEC``."""


class MemoryPlace(msgspec.Struct, frozen=True):
    """Where another process of this machine finds memory that was lent."""

    pid: int
    descriptor: int
    word: str
    """Part of its name: no other file has it."""


class LentMemory:
    """Memory that this process lends (:meth:`lend`), or that another one lends to it (:meth:`borrow`).

    It is written, and read, from its start to its end.
    """

    def __init__(self, descriptor: int, place: MemoryPlace) -> None:
        """Take over ``descriptor``, and close it with this object."""
        self.place = place
        self._descriptor = descriptor
        self._at = 0
        """Where the next bytes are written or read."""
        self.close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def lend(cls) -> Self:
        """New, empty memory."""
        word = secrets.token_hex(16)
        descriptor = _make(f"dtrain-{word}")
        return cls(descriptor, MemoryPlace(os.getpid(), descriptor, word))

    @classmethod
    def borrow(cls, place: MemoryPlace) -> Self:
        """The memory at ``place``. Raises :class:`OSError` where it is not, or no longer."""
        path = f"/proc/{place.pid}/fd/{place.descriptor}"
        _check(path, place)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except Exception as error:
            raise OSError(errno.EACCES, f"It cannot be opened: {error}") from error
        memory = cls(descriptor, place)
        # The other process may have closed it between the two lines above, and opened something else.
        _check(f"/proc/self/fd/{memory._descriptor}", place)
        return memory

    def write(self, data: memoryview) -> None:
        """Add ``data``, of bytes. Raises :class:`OSError` where there is no memory left."""
        for start in range(0, len(data), SLICE):
            part = data[start : start + SLICE]
            while part:
                written = os.pwrite(self._descriptor, part, self._at)
                self._at += written
                part = part[written:]

    def read(self, size: int) -> memoryview:
        """The next ``size`` bytes, at least one, in memory of their own, which ends with the last reference to it.

        Raises :class:`OSError` where there are fewer. Copied, not mapped: arrays would keep a descriptor each, and what
        a cell writes to would be copied amid the cell.
        """
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Fewer faults: half of the time. NumPy asks for the same.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        done = 0
        with memoryview(memory) as view:
            while done < size:
                with view[done : done + SLICE] as part:
                    came = os.preadv(self._descriptor, [part], self._at)
                if not came:
                    raise OSError(errno.EIO, "The memory ends too early")
                done += came
                self._at += came
        return memoryview(memory)


def _make(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    # A Python that was built for older systems, such as conda's.
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor: int = libc.memfd_create(name.encode(), _CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def _check(path: str, place: MemoryPlace) -> None:
    if str(Path(path).readlink()) != f"/memfd:dtrain-{place.word} (deleted)":
        raise FileNotFoundError(errno.ENOENT, "Another file has taken its place", path)
