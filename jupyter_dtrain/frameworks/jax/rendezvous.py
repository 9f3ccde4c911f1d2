"""Waiting in Python for the ranks of a set-up of JAX: JAX would wait in native code, which nothing could end.

The other side is :mod:`.coordinator`.
"""

from __future__ import annotations

import inspect
import json
import socket
import time
from collections.abc import Callable
from types import FrameType

import msgspec

from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.frameworks.rendezvous import ARRIVAL_POLL, end_of_wait
from jupyter_dtrain.plugins.framework import locals_of
from jupyter_dtrain.plugins.patches import raises_on_purpose
from jupyter_dtrain.rank.connectivity import PATIENCE, check_reach
from jupyter_dtrain.wire.requests import Desk

ANSWER_PATIENCE = 30.0
"""Seconds to wait for an answer: the first one comes only when the server has started."""


class Arrival(msgspec.Struct, frozen=True):
    """A rank's message to the desk, as a line of JSON: whether it comes to a meeting or not."""

    secret: str
    meeting: str
    rank: int
    size: int
    """How many ranks meet."""
    comes: bool


class Absent(TimeoutError):
    """Some rank has declared that it will not come."""


@raises_on_purpose
def meet(call: str, desk: Desk, name: str, rank: int, size: int, timeout: float, released: Callable[[], bool]) -> str:
    """Join the meeting ``name`` and wait until all ``size`` ranks have come; return their coordinator's address.

    ``call``: the function that the user called, for the errors. Raises :class:`RuntimeError` once ``released()``, and
    :class:`TimeoutError` after ``timeout`` seconds; both name the missing ranks. Raises :class:`Absent` when a rank
    will not come, :class:`RuntimeError` with the reason when no coordinator can start, :class:`OSError` without a
    server, with the fix where a firewall drops the packets.
    """
    deadline = time.monotonic() + timeout
    with _connect(call, desk) as connection:
        while True:
            _send(connection, Arrival(desk.secret, name, rank, size, comes=True))
            read = b""
            while not read.endswith(b"\n"):
                part = connection.recv(65536)
                if not part:
                    raise ConnectionError(f"{call}: the process that keeps JAX's coordinator has ended.")
                read += part
            answer = json.loads(read)
            if answer["problem"]:
                raise RuntimeError(f"{call}: JAX's coordinator cannot start: {answer['problem']}")
            if answer["address"]:
                return str(answer["address"])
            if answer["absent"]:
                raise Absent(f"{count_ranks(answer['absent'])} had not set it up")
            missing = [one for one in range(size) if one not in answer["here"]]
            if end := end_of_wait(call, missing, deadline, timeout, released):
                raise end
            time.sleep(ARRIVAL_POLL)


_MEETS = inspect.unwrap(meet).__code__


def _connect(call: str, desk: Desk) -> socket.socket:
    try:
        # The steward listens there from the first second.
        connection = socket.create_connection(desk[:2], PATIENCE)
    except OSError:
        check_reach("the process that keeps JAX's coordinator", desk[:2], call)
        raise
    connection.settimeout(ANSWER_PATIENCE)
    return connection


def stay_away(desk: Desk, name: str, rank: int, size: int) -> None:
    """Declare at the meeting ``name`` of ``size`` ranks that ``rank`` will not come."""
    with socket.create_connection(desk[:2], ANSWER_PATIENCE) as connection:
        _send(connection, Arrival(desk.secret, name, rank, size, comes=False))
        connection.recv(1)


def _send(connection: socket.socket, arrival: Arrival) -> None:
    connection.sendall(msgspec.json.encode(arrival) + b"\n")


def meeting_in(frame: FrameType) -> str:
    """The user's call that waits for ranks to come, if ``frame`` is in such a wait; else empty.

    The wait polls, and so uses some CPU.
    """
    return str(locals_of(frame)["call"]) if frame.f_code is _MEETS else ""
