"""torchft's lighthouse and the stores of its Managers, in a process of the steward's, so that they outlive every rank.

The steward runs this module, with a socket that already listens (``--fd``), when the first rank asks. A rank connects,
shows the world's secret and gets the URL of the lighthouse and the port of a store of its own: a Manager writes its
address into its store, so no two ranks may share one. Before the first step of a cell, its ranks meet here. Neither
lighthouse nor store asks for a password, so the whole process accepts connections of this user only
(:mod:`jupyter_dtrain.rank.tcp_guard`).

Under failure: a rank that dies leaves its store behind, and its replacement gets the same one. If the lighthouse cannot
start, each rank that asks gets the reason. This module closes a connection that says anything but a rank's line, or
nothing for :data:`SILENCE`. The process ends with the steward.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.core.world import MAX_RANKS
from jupyter_dtrain.rank.rank_directory import DeskServer, begin, read_spec
from jupyter_dtrain.wire.requests import ServerSpec

from .desk import LONGEST, MEETING, Directions, Question

SILENCE: Final = 10.0
"""Seconds in which a connection must show that it is a rank's."""
JOIN_TIMEOUT: Final = 1000
"""Milliseconds for which the lighthouse waits for a replica that is there and has not asked for this step. A shorter
time leaves out ranks that are merely slow, and after the last step nobody gives them the others' weights."""
TICK: Final = 50
"""Milliseconds between two looks of the lighthouse."""
HEARTBEAT_TIMEOUT: Final = 700
"""Milliseconds without a sign of life after which a replica counts as gone: the pause of the others after a death. A
replica sends one each 100 ms, from native code, whatever Python does."""


class Places:
    """The lighthouse, and a store for each rank. Any thread may call its methods."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._lighthouse: Any = None
        self._stores: dict[int, Any] = {}

    def of(self, rank: int) -> Directions:
        """Return the directions for ``rank``, or the reason why there are none."""
        with self._lock:
            try:
                return Directions(self._url(), self._store(rank))
            except Exception as error:  # noqa: BLE001 — the rank reports it
                return Directions(problem=f"{type(error).__name__}: {error}")

    def _url(self) -> str:
        if self._lighthouse is None:
            from torchft.coordination import LighthouseServer

            self._lighthouse = LighthouseServer(
                bind=f"{self._host}:0",
                min_replicas=1,
                join_timeout_ms=JOIN_TIMEOUT,
                quorum_tick_ms=TICK,
                heartbeat_timeout_ms=HEARTBEAT_TIMEOUT,
            )
        # It names itself by the host's name, which may lead to another address.
        port = self._lighthouse.address().rpartition(":")[2]
        return f"http://{self._host}:{port}"

    def _store(self, rank: int) -> int:
        if rank not in self._stores:
            from torch.distributed import TCPStore

            # torch's own socket would listen at all addresses.
            with socket.create_server((self._host, 0)) as listening:
                port = listening.getsockname()[1]
                self._stores[rank] = TCPStore(
                    self._host,
                    port,
                    None,
                    is_master=True,
                    wait_for_workers=False,
                    master_listen_fd=os.dup(listening.fileno()),
                )
        return int(self._stores[rank].port)


class CellStarts:
    """Where the ranks of a cell wait for each other before its first step. Any thread may call its method.

    The lighthouse gives a step at once to the replicas that made the last one, and to a replica that knows of no other:
    a rank whose cell begins before those of the others would train alone, and may have ended when they begin.
    """

    REMEMBERED: Final = 16
    """The runs for which a rank may come late."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._here: dict[int, set[int]] = {}
        """The ranks that have come, by run."""

    def wait(self, rank: int, run: int, ranks: list[int]) -> None:
        """Note that ``rank`` has come; return when all ``ranks`` of ``run`` have, or after :data:`.MEETING` seconds."""
        with self._changed:
            here = self._here.setdefault(run, set())
            here.add(rank)
            while len(self._here) > self.REMEMBERED:
                self._here.pop(min(self._here))
            self._changed.notify_all()
            self._changed.wait_for(lambda: here.issuperset(ranks), MEETING)


class LighthouseHandler(socketserver.StreamRequestHandler):
    """The connection of one rank, which asks for directions or waits for the others."""

    server: LighthouseServer
    timeout = SILENCE

    def handle(self) -> None:
        """Answer the rank's question."""
        try:
            question = msgspec.json.decode(self.rfile.readline(LONGEST), type=readable(Question))
            if not self.server.knows(question):
                return
            if question.run is None:
                answer = self.server.places.of(question.rank)
            else:
                self.server.cell_starts.wait(question.rank, question.run, question.ranks)
                answer = Directions()
            self.wfile.write(msgspec.json.encode(answer) + b"\n")
        except (OSError, *UNREADABLE):
            pass  # it has disconnected, or is no rank


class LighthouseServer(DeskServer):
    """Accepts the ranks' connections, each on a thread of its own."""

    def __init__(self, listening: socket.socket, places: Places, spec: ServerSpec) -> None:
        self.places = places
        self.cell_starts = CellStarts()
        super().__init__(listening, LighthouseHandler, spec)

    def knows(self, question: Question) -> bool:
        """Whether a rank of this world has sent ``question``."""
        return self.is_from_rank(question.secret) and 0 <= question.rank < MAX_RANKS


def main() -> None:
    """Serve the ranks until the process is killed."""
    os.environ.setdefault("RUST_LOG", "warn")  # a line for each heartbeat, otherwise
    given = begin(__doc__)
    LighthouseServer(given.socket, Places(given.host), read_spec()).serve_forever()


if __name__ == "__main__":
    main()
