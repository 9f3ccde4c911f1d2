"""What a watch tells the steward: one JSON object a line, on the standard output that ``mpiexec`` carries."""

from __future__ import annotations

from typing import Final

import msgspec

from ..events import Event

REPORT_PREFIX: Final = "dtrain "
"""Begins every line that is a report; other lines are somebody's output."""


class Ready(msgspec.Struct, frozen=True):
    """What a rank tells when it can run cells. Goes over the watch to the steward."""

    rank: int
    size: int
    pid: int
    host: str
    engine: str
    local_rank: int
    node: int


class Died(msgspec.Struct, frozen=True):
    """A rank has ended."""

    rank: int
    pid: int
    status: int
    """As :func:`os.waitpid` gives it."""
    words: str
    run: int | None
    """The run that it was working on."""
    events: list[Event]
    """The last events of that run, written by the watch; the ones before are in the spool."""
    last_words: str
    """What the rank had written to its descriptors and nobody had read."""
