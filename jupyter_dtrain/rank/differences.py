"""A comparison of one value over all ranks after each step of a loop, which stops them where it first differs.

The ranks begin it while they stand after the same step, so that each gathers the values of the same steps. Where they
differ, a debugger opens on all of them, in the frame of the loop.

Under failure: the training goes on. A comparison to which a rank does not come within :data:`PATIENCE` seconds ends,
and says so, and so does one whose value is no number any more.
"""

from __future__ import annotations

import math
import time
from array import array
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.world import count_ranks

from .user_text import words_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from .loop_values import LoopNames

PATIENCE: Final = 60.0
"""Seconds for the values of a step to come together."""

_left: Final[list[object]] = []
"""Requests that have not ended, with their memory, into which MPI may still write."""


class StepComparison:
    """Compares an expression after each step, until it differs."""

    def __init__(
        self,
        text: str,
        tolerance: float,
        names: Callable[[FrameType], LoopNames],
        say: Callable[[str], object],
        stop: Callable[[FrameType, str], object],
        asks: Callable[[], bool],
    ) -> None:
        """``names``: what the loop's code sees; ``say`` shows a sentence in the cell.

        ``stop`` gets the frame and the sentence on a difference. ``asks``: whether another rank asks a person, so that
        it may be long in coming.
        """
        self.text = text
        self._tolerance = tolerance
        self._names = names
        self._say = say
        self._stop = stop
        self._asks = asks
        self._comm: Any = None

    def begun(self) -> StepComparison:
        """Begin, on all ranks together. Raises :class:`TimeoutError` where one does not come.

        The values travel apart from the user's own messages: a rank that makes one step more than the others, or is
        stopped while it waits for them, would take one of theirs for its own.
        """
        from mpi4py import MPI

        self._comm, request = MPI.COMM_WORLD.Idup()
        if not self._wait(request, self._comm):
            raise TimeoutError(f"not all ranks began it within {PATIENCE:g} s")
        return self

    def value(self, frame: FrameType) -> float:
        """The value on this rank. Raises whatever the expression raises, and for what is no number."""
        return float(eval(self.text, {**self._names(frame).read()}))  # noqa: S307 — a person's own expression

    def passed(self, step: int, frame: FrameType) -> bool:
        """Compare after ``step``; whether to go on with that."""
        problem = ""
        try:
            value = self.value(frame)
        except Exception as error:  # noqa: BLE001 — the user's training goes on, and all ranks gather the same
            value, problem = 0.0, words_of(error)
        found = self._gathered(step, value, bad=bool(problem))
        if found is None:
            self._say(f"{self.text} is compared no more: not all ranks came to step {step} within {PATIENCE:g} s.")
            return False
        steps, bad, values = found
        if len(steps) > 1:
            self._say(f"{self.text} is compared no more: the ranks' loops are not at the same step.")
            return False
        if bad:
            why = f" ({problem})" if problem else ""
            self._say(f"{self.text} is compared no more: it is no number on {count_ranks(bad)}{why}.")
            return False
        if not differ(values, self._tolerance):
            return True
        self._stop(frame, difference(self.text, step, values, self._tolerance))
        return False

    def _gathered(self, step: int, value: float, *, bad: bool) -> tuple[set[int], list[int], list[float]] | None:
        """The steps of all ranks, those that have no number, and their numbers; None where one does not come."""
        mine = array("d", [float(step), float(bad), value])
        found = array("d", bytes(8 * 3 * self._comm.Get_size()))
        if not self._wait(self._comm.Iallgather(mine, found), mine, found):
            return None
        return set(map(int, found[0::3])), [rank for rank, one in enumerate(found[1::3]) if one], list(found[2::3])

    def _wait(self, request: Any, *memory: object) -> bool:
        """Whether a request has come to its end, with the ``memory`` into which it writes; it stays, if it has not."""
        deadline, pause = time.monotonic() + PATIENCE, 0.0
        over = False
        try:
            while not (over := request.Test()) and time.monotonic() <= deadline:
                if self._asks():
                    deadline = time.monotonic() + PATIENCE
                time.sleep(pause)
                pause = min(0.005, pause + 0.0001)
        finally:
            if not over:
                _left.append((request, memory))
        return over


def differ(values: list[float], tolerance: float) -> bool:
    """Whether values lie further apart than ``tolerance``; NaN is equal to NaN alone."""
    strange = [value for value in values if not math.isfinite(value)]
    if strange:
        return len({repr(value) for value in values}) > 1
    return max(values) - min(values) > tolerance


def difference(text: str, step: int, values: list[float], tolerance: float) -> str:
    """A sentence on values that differ."""
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(f"{value:.6g}", []).append(rank)
    if len(groups) == 1:
        groups = {}
        for rank, value in enumerate(values):
            groups.setdefault(repr(value), []).append(rank)
    told = "; ".join(f"{value} on {count_ranks(ranks)}" for value, ranks in groups.items())
    more = f" (more than {tolerance:g})" if tolerance else ""
    return f"{text} differs after step {step}: {told}{more}."
