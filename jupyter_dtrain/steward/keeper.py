"""The steward's thread that stores the ranks' events, with or without a client.

It reads the ranks' spools about once a second, or when a client is about to read the store. It hands new events to the
store and, where the user wants that, to TensorBoard; for other trackers it starts processes that read the store. The
supervisor posts to it and waits only when the world ends, for a bounded time. First of all it tells where the numbers
of the world's runs begin.

Under failure: the user gets one notice of the store's error; the world goes on.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.core.world import Client
from jupyter_dtrain.wire.requests import WorldRequest
from jupyter_dtrain.wire.steward_messages import Followed

if TYPE_CHECKING:
    from jupyter_dtrain.store.intake import StoreIntake
    from jupyter_dtrain.store.tensorboard import TensorBoardIntake
    from jupyter_dtrain.store.writer import StoreWriter

    from .tracking import Tracking

PERIOD = 1.0
"""Seconds between two looks at the spools."""
PATIENCE = 5.0
"""Seconds that the end of a world may wait for the store. The next steward stores the rest."""

_log = logging.getLogger(__name__)


class Keeper:
    """Feeds the store. Methods may be called from any thread; none waits but :meth:`close`."""

    def __init__(self, request: WorldRequest, say: Callable[[str], None], number_run: Callable[[int], None]) -> None:
        """``say`` shows the user a notice; ``number_run`` gets the last number that earlier worlds have given."""
        self._request = request
        self._say = say
        self._number_run = number_run
        self._news: queue.SimpleQueue[Callable[[StoreWriter], None]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._wanted = 0
        """Counts the requests to store at once; ``_done``: those that are answered."""
        self._done = 0
        self._closing = False
        self._reason = ""
        self._store: StoreIntake | None = None
        self._tensorboard: TensorBoardIntake | None = None
        self._tracking: Tracking | None = None
        self._thread = threading.Thread(target=self._run, name="dtrain-keeper", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def followed(self, runs: list[Followed]) -> None:
        """Record that a client has followed these runs to their end."""
        for run in runs:
            self._news.put(lambda writer, run=run: writer.take_followed(run))  # type: ignore[misc]

    def driven(self, driver: Client) -> None:
        """Record that ``driver`` runs the cells from now on."""
        self._news.put(lambda writer: writer.set_driver(driver.pid, driver.created))

    def rank_died(self, rank: int, words: str) -> None:
        """Record that a rank has died: it sends no more events."""
        self._news.put(lambda writer: writer.rank_died(rank, words))

    def ranks_replaced(self, ranks: list[int], gone: Iterable[int]) -> None:
        """Record that other processes have the numbers ``ranks``, and that no process has those in ``gone``."""
        self._news.put(lambda writer: writer.ranks_replaced(ranks, gone))

    def happened(self, run: int, words: str) -> None:
        """Record that something has happened to ``run``, in words."""
        self._news.put(lambda writer: writer.happened(run, words))

    def ranks_ended(self, words: str) -> None:
        """Record that all present ranks have ended: they send no more events."""
        when = time.time()
        self._news.put(lambda writer: writer.ranks_ended(words, when))

    def senders(self) -> Collection[int]:
        """The processes that send runs to trackers, which may outlive the world."""
        return () if self._tracking is None else self._tracking.pids

    def store_soon(self) -> int:
        """Begin to store all that the ranks have said by now; returns a ticket for :meth:`stored`."""
        with self._lock:
            self._wanted += 1
            ticket = self._wanted
        self._wake.set()
        return ticket

    def stored(self, ticket: int) -> bool:
        """Whether that is done; also where nothing is stored any more."""
        return self._done >= ticket or not self._thread.is_alive()

    def close(self, words: str) -> None:
        """Store the rest at the end of the world; returns after at most :data:`PATIENCE` seconds."""
        self._reason = words
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    # The keeper's thread.

    def _run(self) -> None:
        try:
            self._begin()
            pause = 0.0
            while not self._closing:
                self._wake.wait(pause)
                self._wake.clear()
                wanted = self._wanted
                pause = self._round()
                if pause == PERIOD:
                    self._done = wanted
            self._take_news()
            assert self._store is not None
            self._store.close(self._reason)
            if self._tensorboard is not None:
                self._tensorboard.close()
            if self._tracking is not None:
                self._tracking.look(now=True)  # one that ended with the world's processes has the rest to send
        except Exception as error:  # noqa: BLE001 — the world goes on without it
            _log.exception("The keeper failed")
            self._say(f"Runs are no longer stored ({type(error).__name__}: {error}). Cells run as before.")

    def _begin(self) -> None:
        from jupyter_dtrain.store.file import last_number
        from jupyter_dtrain.store.intake import StoreIntake
        from jupyter_dtrain.store.source import SpoolFolder
        from jupyter_dtrain.store.tensorboard import UNWANTED, TensorBoardIntake
        from jupyter_dtrain.store.writer import SKIPPED, WorldOwner

        from .tracking import Tracking

        request = self._request
        # Ranks take seconds to start, and the first client asks for the number when they are ready.
        self._number_run(last_number(Path(request.store), Path(request.spool), request.name))
        owner = WorldOwner(
            request.id, request.name, request.size, socket.gethostname(), request.spool, time.time(), *own_process()
        )
        days, source = request.settings.store_days, SpoolFolder(request.spool, SKIPPED)
        self._store = StoreIntake(Path(request.store), owner, source, days, self._say, request.cwd)
        if request.options.tensorboard:
            folder = Path(request.options.tensorboard) / request.id
            self._tensorboard = TensorBoardIntake(folder, SpoolFolder(request.spool, UNWANTED), self._say)
        self._tracking = Tracking(request, self._say)

    def _round(self) -> float:
        """Look once; the seconds until the next look."""
        assert self._store is not None
        began = time.monotonic()
        self._take_news()
        more = self._store.poll()
        if self._tensorboard is not None:
            more |= self._tensorboard.poll()
        if self._tracking is not None:
            self._tracking.look()
        if more:
            # Never more than half of a core, also when ranks print faster than that.
            return time.monotonic() - began
        return PERIOD

    def _take_news(self) -> None:
        assert self._store is not None
        while not self._news.empty():
            self._news.get()(self._store.writer)
