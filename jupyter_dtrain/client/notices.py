"""News between one session, its steward and its user.

With each renewal of the lease the session reports which runs it has followed to their end; the steward need not report
these again. News for the user waits here until a cell can show it. Thread-safe; nothing here fails or waits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.notices import anchors_in, pointer
from jupyter_dtrain.wire.steward_messages import Followed

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Outcome
    from jupyter_dtrain.core.run import Run

_NEWLINE: Final = "\n"


class Notices:
    """The news of one session, in both directions."""

    def __init__(self) -> None:
        self.waiting = False
        """Whether there is a report that should not wait for the next renewal of the lease."""
        self._lock = threading.Lock()
        self._followed: list[Followed] = []
        self._notices: list[str] = []
        self._shown: set[str] = set()

    # To the steward.

    def ended(self, run: Run) -> None:
        """``run`` was followed to its end."""
        outcomes: dict[str, Outcome] = {
            str(rank): outcome for rank, outcome in run.outcomes.items() if outcome != "lost"
        }
        with self._lock:
            interrupted = run.interrupted or bool(run.busy)
            self._followed.append(Followed(run.number, interrupted, outcomes, run.why_interrupted))
            self.waiting = True

    def to_tell(self, given_up: Iterable[int] = ()) -> list[Followed]:
        """The report that goes along with a request. ``given_up``: runs that end with their world."""
        with self._lock:
            self.waiting = False
            return [*self._followed, *(Followed(number) for number in sorted(set(given_up)))]

    def was_told(self, followed: list[Followed]) -> None:
        """The steward has received the report ``followed``."""
        with self._lock:
            self._followed = [one for one in self._followed if one not in followed]

    # To the user.

    def hear(self, words: str) -> None:
        """Keep ``words`` for the user; the same words are shown once."""
        with self._lock:
            if words not in self._shown:
                self._shown.add(words)
                self._notices.append(words)

    def show(self) -> None:
        """Write everything that was not shown yet to stderr, which in a notebook is the current cell's."""
        with self._lock:
            notices, self._notices = self._notices, []
        for words in notices:
            where = pointer(anchors_in(words))
            sys.stderr.write(f"[jupyter-dtrain] {words}\n{where}{where and _NEWLINE}")
