"""The watches of a launch, one a host: their processes, their pipes, their reports, and copies of their spools.

Under failure: a watch that ends is reported with its exit code, after all that it has said. An order to a watch that is
gone goes nowhere. :meth:`Watches.end` leaves no process here, and asks those on other hosts to leave none there. The
rest of a spool whose piece the disk does not take is lost for the store; clients that are attached have it by other
ways. The first such failure is logged.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jupyter_dtrain.wire.orders import Connect, End, Order, to_line
from jupyter_dtrain.wire.reports import Report, Spooled, WatchReady, read_report
from jupyter_dtrain.wire.requests import RankSpec
from jupyter_dtrain.wire.spool import spool_path

from .processes import await_process, end_processes

PATIENCE = 9.0
"""Seconds that a watch has to end after its ranks: their own processes have two, its last reports five."""
LAST_WORDS = 2.0
"""Seconds in which the reports of a watch that has ended are read."""

_log = logging.getLogger(__name__)


class WatchEnd(NamedTuple):
    """The end of a watch."""

    host: str
    """The host's name for people; empty for this machine."""
    identity: str
    """The watch's routing identity; empty where it has reported nothing."""
    code: int
    """The exit code of its process here."""


class Watches:
    """All watches of one launch."""

    def __init__(self, spool: str, report: Callable[[Report], None], ended: Callable[[WatchEnd], None]) -> None:
        """``report`` gets every report but pieces of spools; both are called on threads of this object."""
        self.begun: dict[str, WatchReady] = {}
        """The first report of each watch, by its host's name."""
        self._mirror = Mirror(spool)
        self._report = report
        self._ended = ended
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._first_lines: dict[str, bytes] = {}
        self._threads: list[threading.Thread] = []
        self._sending = threading.Lock()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The watches' processes on this machine; for a watch on another host that is its ssh."""
        return list(self._processes.values())

    @property
    def living(self) -> dict[str, str]:
        """The routing identities of the watches that have begun and not ended, by host. Any thread may call it."""
        begun = self.begun.copy()
        return {host: one.identity for host, one in begun.items() if self._processes[host].poll() is None}

    def add(self, host: str, process: subprocess.Popen[bytes], first_line: bytes) -> None:
        """A watch has just been started; it waits for :meth:`begin`."""
        self._processes[host], self._first_lines[host] = process, first_line

    def begin(self, spec: RankSpec) -> None:
        """Send all watches what they need to begin, and follow them."""
        for host, process in self._processes.items():
            told = self._first_lines[host] + spec.to_line()
            follow = threading.Thread(
                target=self._follow, args=(host, process, told), name=f"watch-{host}", daemon=True
            )
            self._threads.append(follow)
            follow.start()

    def connect(self, info: str) -> None:
        """Tell the watches how their ranks reach the controller."""
        self._order(Connect(info))

    def _order(self, order: Order) -> None:
        for process in self.processes:
            self._send(process, to_line(order))

    def _send(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        assert process.stdin is not None
        # ValueError: another thread has closed the pipe.
        with contextlib.suppress(OSError, ValueError), self._sending:
            process.stdin.write(data)
            process.stdin.flush()

    def _follow(self, host: str, process: subprocess.Popen[bytes], told: bytes) -> None:
        assert process.stdout is not None
        self._send(process, told)
        with process.stdout:
            for line in process.stdout:
                match read_report(line):
                    case None:
                        pass
                    case Spooled() as piece:
                        self._mirror.keep(piece)
                    case WatchReady() as begun:
                        self.begun[host] = begun
                        self._report(begun)
                    case report:
                        self._report(report)
        code = process.wait()
        begun_here = self.begun.get(host)
        self._ended(WatchEnd(host, begun_here.identity if begun_here is not None else "", code))

    def end(self, seconds: float) -> None:
        """End all ranks, which have these ``seconds`` to end by themselves, and then the watches."""
        if self._threads:
            self._order(End(seconds))
        else:  # they wait for begin(), and end with the pipe
            self._close_pipes()
        deadline = time.monotonic() + seconds + PATIENCE
        for process in self.processes:
            await_process(process, deadline - time.monotonic())
        end_processes(self.processes, 1.0)
        self._close_pipes()
        deadline = time.monotonic() + LAST_WORDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _close_pipes(self) -> None:
        for process in self.processes:
            with contextlib.suppress(OSError, ValueError):
                if process.stdin is not None:
                    process.stdin.close()


class Mirror:
    """Copies the spools of other hosts, byte for byte, to where the spools of local ranks are.

    So the store, the sidebar and a client that attaches read the spools of all ranks in the same way. The pieces of one
    rank come from one thread, in order.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._failed = False

    def keep(self, piece: Spooled) -> None:
        """Write ``piece`` at its place in the copy of its spool, whose end it becomes."""
        path = spool_path(self._folder, piece.run, piece.rank)
        try:
            if piece.at == 0:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(path, piece)
        except OSError as error:
            if not self._failed:
                self._failed = True
                _log.error("Output of other hosts cannot be kept: %s", error)

    def _write(self, path: Path, piece: Spooled) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            if os.fstat(file.fileno()).st_size < piece.at:
                raise OSError(errno.ENODATA, "An earlier piece is missing", str(path))
            file.truncate(piece.at)
            file.seek(piece.at)
            file.write(piece.data)
