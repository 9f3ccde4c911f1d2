"""The memory of ranks over one cell, as data: its course, its peak, and the lines of the cell that made it grow.

A rank looks many times a second (:mod:`jupyter_dtrain.rank.memory_record`). Sizes are bytes, times are seconds since
the cell began. What a rank sends is bounded, however long a cell lasts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .contents import Kind
from .events import Frame

POINTS: Final = 300
"""Points of a course, at most; each has the most memory of its time."""
LINES: Final = 12
"""Places of one course, at most."""
LITTLE: Final = 1_000_000
"""A rise by less is none."""


class Place(msgspec.Struct, frozen=True):
    """Where the cell was between two looks: in one line, or on the way from one to another."""

    before: Frame | None = None
    """The line that ran at the first look; None before the first line."""
    line: Frame | None = None
    """The line that ran at the second look; None after the last line. A cell may be too short for any look."""


class Growth(msgspec.Struct, frozen=True):
    """What a place did to the memory."""

    place: Place
    rise: int
    """The most by which memory rose in one visit."""
    highest: int
    """The most memory that there was meanwhile."""


class MemoryCourse(msgspec.Struct, frozen=True):
    """The memory of a rank on one device over a cell: what its process has on the host, or its tensors on a GPU."""

    device: str
    """``cpu``, or such as ``cuda:0``."""
    begin: int
    end: int
    """At the end of the cell, or now."""
    peak: int
    at: float
    """When memory had come to its peak, or close to it."""
    place: Place
    """Where the cell was then, if memory has risen."""
    grown: list[Growth]
    """The places in which memory rose most, that first."""
    points: list[int]
    reserved: list[int] = []
    """Of a GPU: what the framework had taken from the device."""


class KindsSeen(msgspec.Struct, frozen=True):
    """What the rank's names held at one moment, by kind. Gradients are left out: the cell may replace them."""

    at: float
    host: dict[Kind, int]
    devices: dict[Kind, int]


class RecordedMemory(msgspec.Struct, frozen=True):
    """The memory of one rank over a cell."""

    run: int
    seconds: float
    over: bool
    """Whether the cell has ended."""
    looks: int
    times: list[float]
    """Of the points of all courses."""
    courses: list[MemoryCourse]
    """The host's first."""
    kinds: list[KindsSeen]
    cut: bool
    """Whether the newest look at names was too short for all objects, so that more memory may have names."""
