"""How far the ranks of one launch have come, and whether they still make progress.

A busy machine makes a start slow, and that is no failure. So a start may go on while its processes work, unless one of
them uses more processor time for one step than a whole start may take on an idle machine.

Under failure: a start in which nothing works ends after ``start_timeout``. A start that works in vain ends after
``start_timeout`` of processor time, and any start when a step takes ``longest_step``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from jupyter_dtrain.core.processes import describe_load
from jupyter_dtrain.core.world import count_ranks

if TYPE_CHECKING:
    from jupyter_dtrain.core.processes import Work
    from jupyter_dtrain.core.settings import Settings

STILL = 6.0
"""Seconds without any work after which a launch is over whose ranks are not ready."""

REPORT_PATIENCE = 4.0
"""Seconds that a watch may take to report the end of its rank before the steward does so itself."""

_STEPS: Final = {"started": "have started", "mpi": "have imported MPI", "ready": "ready"}
"""The steps of a rank, in this order, and in words."""


class StartProgress:
    """The progress of one launch. The supervisor's thread changes it, any thread may read :attr:`words`."""

    def __init__(self, size: int, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._settings = settings
        self._reached: dict[str, set[int]] = {step: set() for step in _STEPS}
        self._clock = clock
        self._since = clock()
        self._work: Work | None = None
        self._lost_at = math.inf
        """Since when a rank that has started has no process."""
        self.waiting = ""
        """Why nothing has begun, in words; empty once it has."""

    def begin(self, work: Work) -> None:
        """Note that the processes run; ``work`` measures what they do."""
        self._work = work

    def reach(self, rank: int, step: Literal["started", "mpi", "ready"]) -> None:
        """Note that ``rank`` has come to ``step``."""
        self._reached[step].add(rank)
        self._since = self._clock()
        if self._work is not None:
            self._work.step()

    @property
    def started(self) -> set[int]:
        """The ranks of which a process is known to have started."""
        return self._reached["started"]

    def lost(self, here: Callable[[], set[int]]) -> int | None:
        """A rank whose process is gone without a report, since its watch was killed; None where there is none.

        ``here``: the ranks that have a process; empty where ``mpiexec`` tells no numbers.
        """
        lost = set(range(self._size)) - here() if self.started else set()
        if not lost or len(lost) == self._size:
            self._lost_at = math.inf
            return None
        self._lost_at = min(self._lost_at, self._clock())
        return min(lost) if self._clock() - self._lost_at > REPORT_PATIENCE else None

    @property
    def words(self) -> str:
        """The first step that not all ranks have made, how many have, and which are awaited."""
        if self.waiting:
            return self.waiting
        step, done = self._step()
        missing = sorted(set(range(self._size)) - done)
        return _count(step, done, self._size) + (f", waiting for {count_ranks(missing)}" if done and missing else "")

    def _step(self) -> tuple[str, set[int]]:
        """The first step that not all ranks have made, and the ranks that have."""
        # A rank that is ready has made the steps before, even where nobody knew its number then.
        made = {step: self._reached[step] | self._reached["ready"] for step in _STEPS}
        return next(((step, done) for step, done in made.items() if len(done) < self._size), ("ready", made["ready"]))

    @property
    def rests(self) -> bool:
        """Whether nothing has worked for some time."""
        return self._work is not None and self._work.rest() > STILL

    def explain_end(self) -> str:
        """Why the start is over; empty while it may go on."""
        patience = self._settings.start_timeout
        seconds = self._clock() - self._since
        if seconds < patience:
            return ""
        if self._work is None or self._work.rest() > min(STILL, patience / 2):
            why = f"nothing has happened for {seconds:.0f} s"
        elif self._work.spent() > patience:
            why = f"a process has worked at one step for {patience:g} s"
        elif seconds > self._settings.longest_step:
            why = f"the next step took more than {self._settings.longest_step:g} s"
        else:
            return ""
        load = describe_load()
        return f"{_count(*self._step(), self._size)}, and {why}" + (f"; {load}" if load else "") + "."


def _count(step: str, done: set[int], size: int) -> str:
    return f"{len(done)} of {size} ranks {_STEPS[step]}"
