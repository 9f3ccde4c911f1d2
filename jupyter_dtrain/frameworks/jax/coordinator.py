"""The ranks' meeting point for JAX, and JAX's coordinator, in a process of its own, so that they outlive every rank.

By default JAX runs the coordinator in rank 0. When that rank dies, the lost connection ends every other process, in
native code (JAX 0.10). Here the steward runs this module, with a socket that already listens (``--fd``), when the
first rank comes. It needs neither torch, whose store a world without torch lacks, nor MPI, whose communicators are the
user's.

A rank connects and asks, in lines of JSON, which ranks are here. Once all are, the answer has the address of a
coordinator started for them alone, so its keys belong to one set-up and no key is used twice. Coordinators of earlier
set-ups then end, because no rank is connected to them any more.

Under failure: a rank that disconnects counts as absent again. If a coordinator cannot start, the answer has the reason.
The process ends with the steward.
"""

from __future__ import annotations

import argparse
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any

LONG = 10 * 365 * 24 * 3600
"""Seconds without a sign of life after which JAX counts a rank as dead: the steward knows it in milliseconds."""
PORTS = 5
"""How many ports to try: another process may take one between the look and its use."""


class Meeting:
    """The ranks that come to one set-up of JAX."""

    def __init__(self) -> None:
        self.here: set[int] = set()
        self.absent: set[int] = set()
        """Ranks that have declared that they will not come."""
        self.address = ""
        self.problem = ""


class Meetings:
    """All meetings. Thread-safe."""

    def __init__(self, host: str, begin: Callable[[int], str] | None = None) -> None:
        """``begin`` begins a coordinator for so many ranks; by default JAX's. It gives the address, or raises."""
        self._host = host
        self._begin = begin or self._begin_service
        self._lock = threading.Lock()
        self._meetings: dict[str, Meeting] = {}
        self._coordinators: list[Any] = []

    def arrive(self, name: str, rank: int, size: int, *, comes: bool) -> dict[str, Any]:
        """Note that ``rank`` is at the meeting of ``size`` ranks; return who else is, and the coordinator once all are.

        Without ``comes``, ``rank`` declares to the others that it will not come.
        """
        with self._lock:
            meeting = self._meetings.setdefault(name, Meeting())
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


class Handler(socketserver.StreamRequestHandler):
    """One rank's connection."""

    server: Server

    def handle(self) -> None:
        """Answer the rank until it disconnects."""
        at: tuple[str, int] | None = None
        try:
            for line in self.rfile:
                asked = json.loads(line)
                at = str(asked["meeting"]), int(asked["rank"])
                answer = self.server.meetings.arrive(*at, int(asked["size"]), comes=bool(asked["comes"]))
                self.wfile.write(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError, KeyError):
            pass  # it has disconnected, or is no rank
        finally:
            if at is not None:
                self.server.meetings.leave(*at)


class Server(socketserver.ThreadingTCPServer):
    """A server on a socket that already listens."""

    daemon_threads = True

    def __init__(self, fd: int, host: str, port: int) -> None:
        self.meetings = Meetings(host)
        super().__init__((host, port), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=fd)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    Server(args.fd, args.host, args.port).serve_forever()


if __name__ == "__main__":
    main()
