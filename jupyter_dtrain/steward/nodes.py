"""The nodes that a scheduler lends to a world: a thread asks for them, then looks at them until the world ends.

Under failure: a place in a queue has no deadline, and a person, or the steward's end, can give it up at any moment. A
world whose nodes are taken away ends, with the scheduler's reason. After :meth:`Nodes.give_back` the world has neither
nodes nor a place in the queue, as far as the scheduler answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.errors import DtrainError, StartFailed
from jupyter_dtrain.core.start_failures import AGAIN, StartFailure
from jupyter_dtrain.core.world import time_left
from jupyter_dtrain.wire.steward_messages import Lent

if TYPE_CHECKING:
    from jupyter_dtrain.launch.launcher import Allocation, NodesLook

    from .state import State

EVERY: Final = 20.0
"""Seconds between two looks: a person may shorten or prolong the time."""
WARNING: Final = 300.0
"""Seconds before the end of the time, at which the user is warned."""
PATIENCE: Final = 25.0
"""Seconds that a look which is under way may take."""

_log = logging.getLogger(__name__)


class Nodes:
    """The supervisor's thread calls the methods; all but :meth:`give_back` return at once."""

    def __init__(
        self,
        allocation: Allocation,
        state: State,
        post: Callable[[Callable[[], None]], None],
        got: Callable[[], None],
        failed: Callable[[StartFailure], None],
        over: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> None:
        """``post`` has the supervisor's thread call a function; that thread also calls the other four.

        ``got`` and ``failed`` tell how the wait has ended, ``over`` that the nodes were taken away, ``notice`` is for
        the user.
        """
        self._allocation = allocation
        self._state = state
        self._post = post
        self._got, self._failed, self._over, self._notice = got, failed, over, notice
        self._warned = False
        self._asked: list[Callable[[], None]] = []
        """The tasks that wait for the next look."""
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        """Set where the next look should come at once."""
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="dtrain-nodes", daemon=True)

    def start(self) -> None:
        """Begin to ask for the nodes."""
        self._say("asking for nodes")
        self._thread.start()

    def ask(self, then: Callable[[], None]) -> None:
        """Ask the scheduler whether it took the nodes away, as a process on them ended. If not, ``then`` is called."""
        self._asked.append(then)
        self._ending = True
        self._wanted.set()

    def give_back(self) -> None:
        """Return the nodes, or the place in the queue, to the scheduler. This takes seconds."""
        self._stopped.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        self._allocation.give_back()

    def _seen(self, look: NodesLook, *, ending: bool) -> None:
        """Take what the scheduler says about the nodes; ``ending``: whether :meth:`ask` wanted to know."""
        self._state.ends = look.ends
        if look.hosts:
            self._state.lent = Lent(look.job, list(look.hosts))
        left = look.ends - time.time()
        if look.over and self._state.phase == "starting":
            self._failed(StartFailure(f"{look.over}.", "Start the world again."))
        elif look.over and self._state.phase == "running":
            self._over(look.over)
        elif not look.ends or left > WARNING:
            self._warned = False  # a person has prolonged it
        elif not self._warned:
            self._warned = True
            self._notice(f"This world ends soon: its nodes have {time_left(look.ends)}. Save what you need.")
        if ending:
            tasks, self._asked = self._asked, []
            for task in tasks:
                task()

    # Below: on the thread of this object.

    def _say(self, words: str) -> None:
        self._state.progress.waiting = words

    def _run(self) -> None:
        failure: StartFailure | None = None
        try:
            self._allocation.get(self._say, self._stopped)
            if not self._stopped.is_set():
                self._say("examining the nodes")
                self._allocation.examine(self._stopped)
        except StartFailed as error:
            failure = StartFailure(error.reason, error.fix, error.log)
        except Exception as error:  # noqa: BLE001 — a start that fails must say so, whatever it was
            _log.exception("The world gets no nodes")
            failure = StartFailure(str(error) if isinstance(error, DtrainError) else repr(error), AGAIN)
        if failure is not None:
            self._post(lambda: self._failed(failure))
            return
        if not self._stopped.is_set():
            self._post(self._got)
        while not self._stopped.is_set():
            self._wanted.clear()
            ending, self._ending = self._ending, False
            self._look(ending=ending)
            self._wanted.wait(EVERY)

    def _look(self, *, ending: bool) -> None:
        try:
            found = self._allocation.look(ending=ending)
        except Exception:  # noqa: BLE001 — the next look may tell
            _log.exception("The scheduler cannot be asked")
        else:
            self._post(lambda: self._seen(found, ending=ending))
