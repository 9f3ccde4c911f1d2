"""What clients that have no way to the ranks ask them through the steward: where they are, and what they wait for.

A question is put by any thread and gets a ticket; the supervisor's thread asks, and whoever has the ticket looks later
whether there is an answer. So no request to the steward waits for a rank.

Under failure: ranks that do not answer within :data:`PATIENCE` seconds have answered None, and where the question is a
stack, their watches are asked. An answer that nobody fetches is forgotten after :data:`KEPT` seconds.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_dtrain.wire.questions import Questions

PATIENCE = 1.0
KEPT = 30.0

_KINDS = ("state", "stacks")


class RelayedQuestions:
    """Open questions, and answers that wait to be fetched."""

    def __init__(self, questions: Questions, post: Callable[[Callable[[], None]], None]) -> None:
        """``questions`` is the supervisor's thread's; ``post`` makes that thread run something."""
        self._questions = questions
        self._post = post
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, tuple[float, Any]] = {}
        """Since when it is known, and the answers by rank as text; None while they are awaited."""

    def put(self, content: dict[str, Any]) -> dict[str, Any]:
        """``kind`` is ``state`` or ``stacks``, ``ranks`` are asked. Any thread."""
        kind, ranks = content.get("kind"), [int(rank) for rank in content["ranks"]]
        if kind not in _KINDS:
            return {"status": "error", "words": f"unknown question {kind!r}"}
        with self._lock:
            ticket, now = next(self._numbers), time.monotonic()
            self._answers = {number: (at, said) for number, (at, said) in self._answers.items() if now - at < KEPT}
            self._answers[ticket] = (now, None)
        self._post(lambda: self._ask(ticket, kind, ranks))
        return {"ticket": ticket}

    def fetch(self, content: dict[str, Any]) -> dict[str, Any]:
        """The answers that a ticket stands for, by rank, or None while they are awaited. Any thread."""
        ticket = int(content["ticket"])
        with self._lock:
            if ticket not in self._answers:
                return {"status": "error", "words": "nobody waited for that answer"}
            _, said = self._answers[ticket]
            if said is not None:
                del self._answers[ticket]
        return {"answers": said}

    def _ask(self, ticket: int, kind: str, ranks: list[int]) -> None:
        def said(answers: Any) -> None:
            with self._lock:
                if ticket in self._answers:
                    self._answers[ticket] = (time.monotonic(), {str(rank): one for rank, one in answers.items()})

        if kind == "stacks":
            self._questions.stacks(ranks, PATIENCE, said)
        else:
            self._questions.ask(ranks, PATIENCE, said, op="state", waits=True)
