"""The steward's side of trackers: it starts one process for each target, and starts it again when it was killed.

The processes read the store, and need nothing of the steward: it only passes on, once, the words of a tracker that does
not go on. They outlive the world until all is sent, or for ten minutes.

Under failure: a process that ends too early is started again, after 1 to :data:`LONGEST` seconds. A store that cannot
be read is the keeper's to report.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jupyter_dtrain.core.errors import StoreFailed
from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.launch.leftovers import MARK
from jupyter_dtrain.store.file import StoreFile
from jupyter_dtrain.trackers.sender import SendJob
from jupyter_dtrain.trackers.starting import start_sender, targets_of
from jupyter_dtrain.trackers.state import pending
from jupyter_dtrain.trackers.target import TrackerTarget, read_target
from jupyter_dtrain.wire.requests import WorldRequest

PERIOD: Final = 3.0
"""Seconds between two looks."""
LONGEST: Final = 60.0
"""The most seconds from the end of a process to the next one."""
SOUND: Final = 120.0
"""A process that has lived for so many seconds was no failed start."""

_log = logging.getLogger(__name__)


class _Sending:
    """One target, and the process that sends there."""

    def __init__(self, target: TrackerTarget, world: str) -> None:
        self.target = target
        self.world = world
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0.0
        self.failures = 0
        self.next = 0.0


class Tracking:
    """All processes that send for one world. Use it from one thread, but for :attr:`pids`."""

    def __init__(self, request: WorldRequest, say: Callable[[str], None]) -> None:
        """``say`` shows the user a notice."""
        self._request = request
        self._say = say
        self._store = StoreFile(Path(request.store))
        self._sending = [_Sending(target, request.id) for target in targets_of(request.options.track)]
        self._log = Path(request.folder) / "trackers.log"
        self._said: set[str] = set()
        self._next = 0.0
        self._looked = False

    @property
    def pids(self) -> set[int]:
        """The processes, which stay when the world ends."""
        return {process.pid for one in self._sending if (process := one.process) is not None}

    def look(self, *, now: bool = False) -> None:
        """Start what does not run, and pass on words; at once, or if it is time. Never raises."""
        moment = time.monotonic()
        if moment < self._next and not now:
            return
        self._next = moment + PERIOD
        if not self._looked:
            self._looked = True
            self._add_rests()
        for one in self._sending:
            self._keep_going(one, moment, at_once=now)
        if self._sending:
            self._pass_on()

    def _add_rests(self) -> None:
        """Have sent what processes of earlier worlds have left."""
        with contextlib.suppress(StoreFailed):
            mine = {(one.target.tracker, one.target.rest) for one in self._sending}
            for tracker, rest in self._store.ask(pending) or []:
                if (tracker, rest) not in mine:
                    target = read_target(f"{tracker}:{rest}" if rest else tracker)
                    self._sending.append(_Sending(target, ""))

    def _keep_going(self, one: _Sending, now: float, *, at_once: bool) -> None:
        if one.process is not None:
            code = one.process.poll()
            if code is None:
                return
            one.process = None
            if not one.world and code == 0:
                one.next = float("inf")  # the rests are sent
                return
            one.failures = 0 if now - one.began > SOUND else one.failures + 1
            one.next = now + min(LONGEST, 2.0 ** min(one.failures - 1, 10))
        # At the world's end nobody starts it later: only it has rows made for runs that are new.
        if now < one.next and not (at_once and one.world):
            return
        try:
            one.process = start_sender(
                SendJob(self._request.store, one.target.text, one.world, own_process()),
                self._log,
                # The steward's own folder ends with the world.
                self._request.cwd or str(Path.home()),
                without=[MARK],
            )
            one.began = now
        except OSError as error:
            one.next = now + LONGEST
            self._tell(f"Runs are not sent to {one.target.tracker}: no process can be started ({error.strerror}).")

    def _pass_on(self) -> None:
        query = (
            "SELECT DISTINCT tracked.words FROM tracked JOIN runs ON runs.id = tracked.run "
            "JOIN worlds ON worlds.id = runs.world WHERE worlds.key = ? AND tracked.words != '' AND NOT done"
        )
        with contextlib.suppress(StoreFailed):
            rows = self._store.ask(lambda db: db.execute(query, (self._request.id,)).fetchall())
            for (words,) in rows or []:
                self._tell(f"{words} It is tried again while the world runs, and for ten minutes after its end.")

    def _tell(self, words: str) -> None:
        # The words of each run have its name: one run tells of its tracker for all.
        kind = words.partition(" does not take run ")[0]
        if kind not in self._said:
            self._said.add(kind)
            _log.warning("%s", words)
            self._say(words)
