"""The last states of a training in a rank's memory, one every so many steps, for a way back from a bad step.

Each rank keeps and loads its own part, and waits for no other. The loop's counter and its data go on after a way back.

Under failure: a state with a number that is not finite is not kept, and the last good ones stay. Where a state cannot
be copied, or would take too much memory, a sentence says so, and this cell keeps no more; the training goes on.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from .user_text import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jupyter_dtrain.plugins.framework import HeldState

    from .plugins import Plugins

SHARE: Final = 0.5
"""The part of the free memory that all states of a rank may take; the ranks of a host share what is free."""
_GB: Final = 1e9


class _Kept(NamedTuple):
    step: int
    states: Sequence[HeldState]


class Ring:
    """Keeps the states of one rank. The thread of the loop calls it."""

    def __init__(self, plugins: Plugins, say: Callable[[str], object]) -> None:
        """``say`` shows a sentence in the cell."""
        self._plugins = plugins
        self._say = say
        self._every = 0
        self._kept: deque[_Kept] = deque()
        self._newest = 0
        """The newest step of this cell."""
        self._said = self._is_missed = self._is_still = False

    def begin(self, count: int, every: int) -> None:
        """Begin a cell: keep the last ``count`` states, one every ``every`` steps; 0 keeps none."""
        self._kept = deque(maxlen=count)
        self._every = every if count else 0
        self._newest = 0
        self._said = self._is_missed = self._is_still = False

    def end(self) -> None:
        """End the cell, and let go of all states."""
        if self._every and not self._newest:
            self._say("--ring has seen no step of an optimizer in this cell, and has kept no state.")
        elif self._newest < self._every:
            steps = f"{self._newest} step{'s' * (self._newest > 1)}"
            self._say(f"--ring has kept no state: the optimizer has made {steps}, fewer than {self._every}.")
        self.begin(0, 0)

    def step(self, step: int, read: Callable[[], Mapping[str, Any]]) -> None:
        """Keep the state after ``step`` of the optimizer, where one is due. ``read`` gives the names of the loop."""
        self._newest = step
        if not self._every or step % self._every:
            return
        try:
            self._keep(step, read())
        except Exception as error:
            if self._plugins.is_interrupt(error):
                raise
            self._say(f"The ring keeps no more states in this cell: {words_of(error)}")
            self._every = 0

    def _keep(self, step: int, namespace: Mapping[str, Any]) -> None:
        count = self._kept.maxlen or 1
        # The other ranks of this host keep as much.
        free = psutil.virtual_memory().available / int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        room = int(free * SHARE / max(1, count - len(self._kept)))
        try:
            states = self._plugins.hold(namespace, room)
        except MemoryError:
            self._say(
                f"The ring keeps no states in this cell: {count} would take more than half of the {free / _GB:.1f} GB "
                f"of memory that are free for this rank. --ring with fewer states takes less."
            )
            self._every = 0
            return
        if not states:
            if not self._is_missed:
                self._is_missed = True
                self._say(
                    f"The ring has nothing to keep after step {step}: it finds no model and no optimizer in the "
                    f"variables that the loop sees and in their attributes."
                )
            return
        if not all(one.finite for one in states):
            if not self._is_still:
                last = f"since step {self._kept[-1].step}" if self._kept else "from the beginning"
                self._say(f"The ring has stood still {last}: the state after step {step} is not finite.")
            self._is_still = True
            return
        self._is_still = False
        self._kept.append(_Kept(step, states))
        if not self._said:
            self._said = True
            names = ", ".join(name for one in states for name in one.names)
            size = count * sum(one.size for one in states) / _GB
            self._say(f"The ring keeps {count} states of {names}: {size:.1g} GB on each rank.")

    @property
    def steps(self) -> list[int]:
        """The steps of the states that are kept, newest first."""
        return [one.step for one in reversed(self._kept)]

    def lacks(self) -> str:
        """Why there is no such state, as a clause."""
        if not self._kept.maxlen:
            return "this cell keeps no states: --ring 3/100 keeps the last three, one every hundred steps"
        return "its ring has no state yet"

    def rewind(self, step: int) -> None:
        """Load the state after ``step`` and forget those after it. Raises what goes wrong."""
        while self._kept[-1].step > step:
            self._kept.pop()
        for one in self._kept[-1].states:
            one.put_back()
        self._is_still = False
