"""The runs that go on in one world, read from the ranks' spools.

A run goes on while some rank has begun it and has not ended it. A rank works only on the newest run that it has begun.
Any thread may look. Under failure: a spool that cannot be read now is read at the next look. Where a full disk cut a
spool short, the client that followed the run says how its ranks ended.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Collection

from jupyter_dtrain.core.events import Finished
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.wire.spool import file_ends, read_beginning, spool_path
from jupyter_dtrain.wire.steward_messages import Followed, OpenRun


class OpenRuns:
    """The runs of one world."""

    def __init__(self, folder: str) -> None:
        """``folder`` holds the ranks' spools."""
        self._folder = folder
        self._spools = SpoolFolder(folder)
        self._ranks: dict[int, list[int]] = {}
        """The ranks that each run was sent to, where that is known."""
        self._ended: dict[int, set[int]] = {}
        """The ranks that have ended each run, by its number."""
        self._sizes: dict[tuple[int, int], int] = {}
        """How long the spool of a run and rank was at the last look, when it had not ended."""
        self._withdrawn: set[tuple[int, int]] = set()
        """Runs and ranks that were interrupted before they began: such a rank may work on an earlier run."""
        self._over: set[int] = set()
        self._floor = 0
        """The newest run of earlier ranks, which are gone: only later runs can go on."""
        self._found: list[OpenRun] = []
        """The result of the last look, and when that was."""
        self._looked = -math.inf
        self._lock = threading.Lock()

    def look(self, dead: Collection[int] = (), age: float = 0.0) -> list[OpenRun]:
        """The runs that go on, oldest first; ``dead``: the ranks that work on none.

        ``age``: how many seconds old the answer may be. A look at a world with thousands of runs takes some
        milliseconds.
        """
        with self._lock:
            if time.monotonic() - self._looked < age:
                return self._found
            found = []
            later = set(dead)
            """Ranks that have begun a later run, or are dead."""
            for number in sorted(self._spools.runs() - self._over, reverse=True):
                begun = self._spools.ranks(number)
                working = [rank for rank in begun if rank not in later and not self._has_ended(number, rank)]
                ranks = self._sent_to(number, begun)
                if working:
                    found.append(OpenRun(number, ranks, working))
                elif ranks and all(rank in later or self._is_over(number, rank) for rank in ranks):
                    self._forget(number)
                later.update(rank for rank in begun if (number, rank) not in self._withdrawn)
            self._found, self._looked = found[::-1], time.monotonic()
            return self._found

    def missing(self, dead: Collection[int]) -> list[int]:
        """The runs that go on and that one of the ``dead`` ranks will never begin: others may wait for it."""
        return [run.run for run in self.look(dead) if set(dead) & (set(run.ranks) - set(self._spools.ranks(run.run)))]

    def newest(self) -> OpenRun | None:
        """The newest run that these ranks have begun, though it may have ended; None before the first."""
        with self._lock:
            number = max(self._spools.runs(), default=self._floor)
            return (
                None
                if number <= self._floor
                else OpenRun(number, self._sent_to(number, self._spools.ranks(number)), [])
            )

    def followed(self, runs: Collection[Followed]) -> None:
        """Clients have followed ``runs`` to the end."""
        with self._lock:
            for run in runs:
                if run.run not in self._over:
                    self._ended.setdefault(run.run, set()).update(map(int, run.ranks))

    def forget(self) -> None:
        """Forget the runs so far: their ranks are gone."""
        with self._lock:
            for number in self._spools.runs():
                self._forget(number)
                self._floor = max(self._floor, number)
            self._looked = -math.inf

    def _is_over(self, number: int, rank: int) -> bool:
        # Where no rank has said which ranks there are, another one may still begin.
        return number in self._ranks and rank in self._ended.get(number, ())

    def _forget(self, number: int) -> None:
        self._over.add(number)
        for rank in self._ranks.pop(number, []):
            self._sizes.pop((number, rank), None)
        self._ended.pop(number, None)

    def _sent_to(self, number: int, begun: list[int]) -> list[int]:
        """The ranks of the run, which each of them names as it begins."""
        if number not in self._ranks and (found := read_beginning(self._folder, number)) is not None:
            self._ranks[number] = found.ranks
        return self._ranks.get(number, begun)

    def _has_ended(self, number: int, rank: int) -> bool:
        ended = self._ended.setdefault(number, set())
        if rank not in ended:
            path = spool_path(self._folder, number, rank)
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size != self._sizes.get((number, rank)):
                    ends = file_ends(path)
                    if ends is not None and isinstance(ends[1].body, Finished):
                        ended.add(rank)
                        if ends[1].body.outcome == "interrupted" and not ends[1].body.elapsed:
                            self._withdrawn.add((number, rank))
                        self._sizes.pop((number, rank), None)
                    else:
                        self._sizes[number, rank] = size
        return rank in ended
