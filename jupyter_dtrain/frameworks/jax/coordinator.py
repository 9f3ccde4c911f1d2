"""The ranks' meeting point for JAX, and JAX's coordinator, in a process of its own, so that they outlive every rank.

By default JAX runs the coordinator in rank 0. When that rank dies, the lost connection ends every other process, in
native code (JAX 0.10; JAX' pages say so: https://github.com/jax-ml/jax/pull/39095). Here the steward runs this module,
with a socket that already listens (``--fd``), when the first rank comes. It needs neither torch, whose store a world
without torch lacks, nor MPI, whose communicators are the user's.

A rank connects and asks, in lines of JSON, which ranks are here. Once all are, the answer has the address of a
coordinator started for them alone, so its keys belong to one set-up and no key is used twice. Coordinators of earlier
set-ups then end, because no rank is connected to them any more.

Each line carries the world's secret, which the steward gives to the ranks and to this process, and how many ranks meet:
a resize changes that. JAX's own coordinator asks for no password, so the whole process accepts connections of this user
only (:mod:`jupyter_dtrain.rank.tcp_guard`).

Under failure: a rank that disconnects counts as absent again. If a coordinator cannot start, the answer has the reason.
This module closes a connection that says anything but a rank's line, or nothing for :data:`SILENCE`. The process ends
with the steward.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.core.world import MAX_RANKS
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank.rank_directory import DeskServer, begin, read_spec
from jupyter_dtrain.wire.requests import ServerSpec

from .rendezvous import Arrival

LONG = 10 * 365 * 24 * 3600
"""Seconds without a sign of life after which JAX counts a rank as dead: the steward knows it in milliseconds."""
SILENCE = 10.0
"""Seconds in which a new connection must show that it is a rank's. A known rank may be stopped for any time."""
LONGEST = 4096
"""Bytes that a line may have."""
PORTS = 5
"""How many ports to try: another process may take one between the look and its use."""

COORDINATORS = Patch(
    "jaxlib._jax",
    calls=("get_distributed_runtime_service",),
    why="JAX runs its coordinator in rank 0, and the death of that rank ends all others, in native code.",
    lost="jax.distributed.initialize() says that JAX's coordinator cannot start",
)


class JaxMeeting:
    """The ranks that come to one set-up of JAX."""

    def __init__(self) -> None:
        self.here: set[int] = set()
        self.absent: set[int] = set()
        """Ranks that have declared that they will not come."""
        self.address = ""
        self.problem = ""


class Meetings:
    """All meetings of the world's ranks. Any thread may call its methods."""

    def __init__(self, host: str, begin: Callable[[int], str] | None = None) -> None:
        """``begin`` begins a coordinator for so many ranks, by default JAX's; it returns the address, or raises."""
        self._host = host
        self._begin = begin or self._begin_service
        self._lock = threading.Lock()
        self._meetings: dict[str, JaxMeeting] = {}
        self._coordinators: list[Any] = []

    def arrive(self, name: str, rank: int, size: int, *, comes: bool) -> dict[str, Any]:
        """Note that ``rank`` is at a meeting; return who else is, and the coordinator once all ``size`` ranks are.

        Without ``comes``, ``rank`` declares to the others that it will not come.
        """
        with self._lock:
            meeting = self._meetings.setdefault(name, JaxMeeting())
            (meeting.here if comes else meeting.absent).add(rank)
            if len(meeting.here) == size and not meeting.address and not meeting.problem:
                try:
                    meeting.address = self._begin(size)
                except Exception as error:  # noqa: BLE001 — the ranks report it
                    meeting.problem = f"{type(error).__name__}: {error}"
                self._meetings = {name: meeting}
            who = {"here": sorted(meeting.here), "absent": sorted(meeting.absent)}
            return {**who, "address": meeting.address, "problem": meeting.problem}

    def leave(self, name: str, rank: int) -> None:
        """Note that ``rank`` has left a meeting, unless that has taken place."""
        with self._lock:
            meeting = self._meetings.get(name)
            if meeting is not None and not meeting.address:
                meeting.here.discard(rank)

    def _begin_service(self, size: int) -> str:
        from jaxlib import _jax

        while self._coordinators:
            self._coordinators.pop().shutdown()
        for left in reversed(range(PORTS)):
            with socket.create_server((self._host, 0)) as free:
                address = f"{self._host}:{free.getsockname()[1]}"
            try:
                # Recoverable: the death of one rank must not end the others, and a rank that leaves waits for none.
                service = _jax.get_distributed_runtime_service(address, size, heartbeat_timeout=LONG, recoverable=True)
            except Exception:
                if not left:
                    raise
                continue
            self._coordinators.append(service)
            return address
        raise AssertionError


class CoordinatorHandler(socketserver.BaseRequestHandler):
    """The connection of one rank."""

    server: CoordinatorServer

    def handle(self) -> None:
        """Answer the rank's lines until it disconnects."""
        at: tuple[str, int] | None = None
        try:
            deadline: float | None = time.monotonic() + SILENCE
            while (asked := self._hear(deadline)) is not None:
                deadline = None
                at = asked.meeting, asked.rank
                answer = self.server.meetings.arrive(*at, asked.size, comes=asked.comes)
                self.request.sendall(json.dumps(answer).encode() + b"\n")
        except (OSError, *UNREADABLE):
            pass  # it has disconnected, or is no rank
        finally:
            if at is not None:
                self.server.meetings.leave(*at)

    def _hear(self, deadline: float | None) -> Arrival | None:
        """Read the rank's next line; return None at the connection's end, and for a line that no rank sends."""
        line = b""
        while not line.endswith(b"\n"):
            self.request.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            part = self.request.recv(LONGEST - len(line))
            if not part:
                return None  # the end, or a line that is too long
            line += part
        arrival = msgspec.json.decode(line, type=readable(Arrival))
        return arrival if self.server.knows(arrival) else None


class CoordinatorServer(DeskServer):
    """Accepts the ranks' connections, each on a thread of its own."""

    def __init__(self, listening: socket.socket, meetings: Meetings, spec: ServerSpec) -> None:
        self.meetings = meetings
        super().__init__(listening, CoordinatorHandler, spec)

    def knows(self, arrival: Arrival) -> bool:
        """Whether a rank of this world has sent ``arrival``."""
        return self.is_from_rank(arrival.secret) and 0 <= arrival.rank < arrival.size <= MAX_RANKS


def main() -> None:
    """Serve the ranks until the process is killed."""
    given = begin(__doc__)
    CoordinatorServer(given.socket, Meetings(given.host), read_spec()).serve_forever()


if __name__ == "__main__":
    main()
