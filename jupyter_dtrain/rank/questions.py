"""Questions that a rank answers while its cell runs: about names, variables, memory and surroundings.

The control thread has more to do than wait for such an answer, so each kind of question has a thread of its own. The
answers import nothing and run hardly any user code, see :mod:`.inspection`, :mod:`.inventory` and :mod:`.holdings`; but
for a debugger's command, which runs what the person has typed.

Under failure: an exception becomes the answer. A question that waits holds up only its own kind: while the thread
works on one question, it takes no other. A framework that cannot say what it sees is named, with the reason.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.processors import Processors, read_processors
from jupyter_dtrain.core.variables import given
from jupyter_dtrain.wire.agent_messages import (
    Complete,
    Completions,
    Describe,
    Described,
    MemoryRead,
    ReadMemory,
    ReadSurroundings,
    ReadVariables,
    Surroundings,
    SurroundingsRead,
)
from jupyter_dtrain.wire.messages import accepted, refused
from jupyter_dtrain.wire.prompt_messages import Evaluate, Evaluated, LastError, ReadLastError

from .holdings import Holdings
from .inspection import complete, describe
from .inventory import RankInventory
from .tcp_guard import keeps_others_out

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import msgspec

    from jupyter_dtrain.core.world import Placement

    from .plugins import Plugins

Question = Complete | Describe | ReadSurroundings | ReadVariables | ReadMemory | Evaluate | ReadLastError

_KINDS: Final[dict[type, str]] = {
    Complete: "inspection",
    Describe: "inspection",
    ReadSurroundings: "surroundings",
    ReadVariables: "inventory",
    ReadMemory: "holdings",
    Evaluate: "evaluation",
    ReadLastError: "evaluation",
}


class RankQuestions:
    """Answers such questions for one rank. A caller never waits."""

    def __init__(
        self,
        namespace: Mapping[str, Any],
        hidden: Collection[str],
        plugins: Plugins,
        place: Placement,
        debug: Callable[[Evaluate | ReadLastError], Evaluated | LastError],
        alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """``hidden``: names of the namespace that are not the user's; ``alone``: whether no thread of a cell runs.

        ``debug`` answers the questions of a debugger.
        """
        self._namespace = namespace
        self._hidden = hidden
        self._plugins = plugins
        self._place = place
        self._debug = debug
        self.inventory = RankInventory(namespace, hidden, plugins)
        self.holdings = Holdings(namespace, hidden, plugins, self.inventory, alone)
        self._free = {kind: threading.Semaphore(1) for kind in _KINDS.values()}

    def ask(self, question: Question, answer: Callable[[dict[str, Any]], object]) -> bool:
        """Pass the reply to ``answer``, on another thread; False while an earlier question of its kind is at work."""
        kind = _KINDS[type(question)]
        free = self._free[kind]
        if not free.acquire(blocking=False):
            return False

        def work() -> None:
            try:
                found = accepted(self._find(question))
            except BaseException as error:  # noqa: BLE001 — user code may raise anything, SystemExit too
                found = refused(error)
            finally:
                free.release()
            answer(found)

        threading.Thread(target=work, name=f"dtrain-{kind}", daemon=True).start()
        return True

    def _find(self, question: Question) -> msgspec.Struct:
        match question:
            case Complete(text=text):
                return Completions(complete(self._namespace, self._hidden, text))
            case Describe(name=name, source=source):
                return Described(describe(self._namespace, name, source=source))
            case ReadVariables():
                return self.inventory.read(question)
            case ReadMemory(most=most, seconds=seconds):
                return MemoryRead(self.holdings.read(most, seconds))
            case Evaluate() | ReadLastError():
                return self._debug(question)
            case ReadSurroundings():
                return SurroundingsRead(self._look_around())

    def _look_around(self) -> Surroundings:
        """The rank's variables, the processors that it may use, and what each framework sees."""
        shows = self._place.local_rank == 0 and not keeps_others_out()
        return Surroundings(given.seen(), self._plugins.describe(), open=shows, processors=_processors())


def _processors() -> Processors | None:
    """The processors of the main thread, which runs the cells: a cell may have bound it to some."""
    try:
        return read_processors(os.getpid())
    except OSError:
        return None
