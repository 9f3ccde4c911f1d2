"""How much memory the process of a rank takes, as Linux counts it.

Under failure: what cannot be read counts as 0.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from jupyter_dtrain.core.memory import SHARED, Footprint

_BLOCK: Final = 512
"""Bytes of a block, in the answer of stat(2)."""


def read_footprint() -> Footprint:
    """The memory of this process now. Any thread; a few milliseconds."""
    status = _fields("status")
    return Footprint(
        status.get("VmRSS", 0), _fields("smaps_rollup").get("Pss", 0), status.get("VmHWM", 0), _shared_memory()
    )


def _fields(file: str) -> dict[str, int]:
    """The sizes that a file of this process in ``/proc`` names, in bytes."""
    found: dict[str, int] = {}
    with contextlib.suppress(Exception):  # an audit hook of the user's may refuse the file, by any exception
        for line in Path(f"/proc/self/{file}").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                found[name] = int(rest[:-3]) * 1024
    return found


def _shared_memory() -> int:
    """The bytes of the files in ``/dev/shm`` that this process has mapped or open, each file once."""
    found: dict[tuple[int, int], int] = {}
    with contextlib.suppress(Exception):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            if f"{SHARED}/" not in line:
                continue
            place, _, _, device, inode, _ = line.split(maxsplit=5)
            start, end = (int(one, 16) for one in place.split("-"))
            major, minor = (int(one, 16) for one in device.split(":"))
            key = os.makedev(major, minor), int(inode)
            found[key] = found.get(key, 0) + end - start
    with contextlib.suppress(Exception):
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if str(link.readlink()).startswith(f"{SHARED}/"):
                    seen = link.stat()
                    found[seen.st_dev, seen.st_ino] = seen.st_blocks * _BLOCK
    return sum(found.values())
