"""Reports of a rank and its watch to the steward: one JSON object a line, on the watch's standard output.

A rank's own reports go through a pipe to its watch, which passes them on.
"""

from __future__ import annotations

import os
from typing import Final, Literal

import msgspec

from jupyter_dtrain.core.events import Event
from jupyter_dtrain.core.structs import readable

REPORT_PREFIX: Final = b"dtrain "
"""Begins every line that is a report; other lines are output of programs."""


Step = Literal["started", "mpi"]
"""The steps of a start before a rank is ready: its watch has forked it; it has imported MPI."""


class WatchReady(msgspec.Struct, frozen=True, tag="watching"):
    """The watch of a host is ready to take slots. Its first report."""

    host: str
    """The name that the host gives itself."""
    pid: int
    gpus: int
    """How many GPUs the ranks of this host may use."""
    identity: str
    """The routing identity of the watch."""
    interface: str = ""
    """The network interface that reaches the steward, where that is another host."""
    address: str = ""
    """The address of this host there."""
    instead: str = ""
    """The folder in which its ranks work, where that of the world cannot be entered."""


class Spooled(msgspec.Struct, frozen=True, tag="spooled"):
    """A piece of a rank's spool, from a host whose files the steward cannot read."""

    run: int
    rank: int
    at: int
    """Bytes before it in the file; the file has nothing after it."""
    data: bytes


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """A rank that starts has come so far."""

    rank: int
    step: Step
    pid: int = 0
    watch: str = ""
    """Routing identity of its watch, which adds it."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A rank can run cells."""

    rank: int
    size: int
    pid: int
    host: str
    engine: str
    local_rank: int
    node: int
    watch: str = ""
    """Routing identity of its watch, which adds it."""


class Formed(msgspec.Struct, frozen=True, tag="formed"):
    """A living rank has formed the world anew in a heal, or could not."""

    rank: int
    number: int
    """The number of the try, see :class:`~.healing_messages.FormWorld`."""
    words: str
    """Why the rank could not form the world; empty where it has."""
    local_rank: int = 0
    """The index of the rank on its host in that world."""


class Renumbered(msgspec.Struct, frozen=True, tag="renumbered"):
    """A living rank takes another number, as it takes the world that a resize has formed. It is for its watch alone."""

    rank: int
    """The rank's number from now on."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A rank has ended its part of a run, but not successfully."""

    rank: int
    run: int
    at_once: bool = False
    """Whether a person has ended it, who does not want to wait: ranks that wait for it are released without grace."""


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """A rank was stopped (SIGSTOP), or goes on. Its watch reports it."""

    rank: int
    stopped: bool
    pid: int = 0
    watch: str = ""
    """Routing identity of its watch."""


class Fell(msgspec.Struct, frozen=True, tag="fell"):
    """A rank has ended, and much of its spool is still to be copied from its host. :class:`Died` follows the copy."""

    rank: int
    words: str
    run: int | None
    """The run that the rank was working on."""
    pid: int = 0
    watch: str = ""
    """Routing identity of its watch."""


class Died(msgspec.Struct, frozen=True, tag="died"):
    """A rank has ended, and its spool is complete. Its watch reports it."""

    rank: int
    pid: int
    status: int
    """The status from :func:`os.waitpid`."""
    words: str
    run: int | None
    """The run that the rank was working on."""
    events: list[Event]
    """The last events of that run, which the watch has written; the earlier ones are in the spool."""
    last_words: str
    """Output on the rank's descriptors that the watch had not read."""
    asked: bool = False
    """Whether a person asked for it."""
    watch: str = ""
    """Routing identity of its watch."""


Report = WatchReady | Spooled | Reached | Ready | Formed | Renumbered | Ended | Paused | Fell | Died


def encode_report(report: Report) -> bytes:
    """The line of a report."""
    return REPORT_PREFIX + msgspec.json.encode(report) + b"\n"


def write_report(fd: int, report: Report) -> None:
    """Write one line. Raises :class:`OSError` when no process reads any more."""
    data = encode_report(report)
    while data:
        data = data[os.write(fd, data) :]


def read_report(line: bytes) -> Report | None:
    """The report on a line; None for any other line."""
    if not line.startswith(REPORT_PREFIX):
        return None
    return _decoder.decode(line[len(REPORT_PREFIX) :])


_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(readable(Report))
