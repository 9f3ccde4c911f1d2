"""Relays questions of clients that cannot reach the ranks: where ranks are, and what they wait for.

Any thread puts a question and gets a ticket. The supervisor's thread asks the ranks, and the client that has the
ticket looks later whether there is an answer. So no request to the steward waits for a rank.

Under failure: the answer of a rank that is silent for :data:`PATIENCE` seconds is None; for a stack the steward first
asks the rank's watch. The steward forgets an unfetched answer after :data:`KEPT` seconds.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.wire.agent_messages import ReadPosition, ReadVariables
from jupyter_dtrain.wire.steward_messages import FetchAnswers, Relayed, RelayQuestion, Ticket

if TYPE_CHECKING:
    from jupyter_dtrain.wire.questions import Questions

PATIENCE = 1.0
READING = 6.0
"""Seconds for a rank that reads its variables' values."""
KEPT = 30.0


class RelayedQuestions:
    """Open questions, and answers that wait to be fetched."""

    def __init__(self, questions: Questions, post: Callable[[Callable[[], None]], None]) -> None:
        """``questions`` belongs to the supervisor's thread; ``post`` runs a function on that thread."""
        self._questions = questions
        self._post = post
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, tuple[float, Relayed | None]] = {}
        """By ticket: its time, and the answers by rank; None while they are pending."""

    def put(self, question: RelayQuestion) -> Ticket:
        """Ask ranks. Any thread may call it."""
        with self._lock:
            ticket, now = next(self._numbers), time.monotonic()
            self._answers = {number: (at, said) for number, (at, said) in self._answers.items() if now - at < KEPT}
            self._answers[ticket] = (now, None)
        self._post(lambda: self._ask(ticket, question.kind, question.ranks))
        return Ticket(ticket)

    def fetch(self, request: FetchAnswers) -> Relayed:
        """The answers for a ticket. Any thread may call it. Raises :class:`Refused` for a forgotten ticket."""
        ticket = request.ticket
        with self._lock:
            if ticket not in self._answers:
                raise Refused("That answer is no longer kept: it was fetched before, or not in time. Ask again.")
            _, said = self._answers[ticket]
            if said is not None:
                del self._answers[ticket]
        return said or Relayed()

    def _ask(self, ticket: int, kind: Literal["state", "stacks", "variables"], ranks: list[int]) -> None:
        def said(answers: Relayed) -> None:
            with self._lock:
                if ticket in self._answers:
                    self._answers[ticket] = (time.monotonic(), answers)

        if kind == "stacks":
            self._questions.stacks(ranks, PATIENCE, lambda found: said(Relayed(stacks=dict(found))))
        elif kind == "variables":
            asked = ReadVariables([], READING - PATIENCE)
            self._questions.ask(ranks, READING, lambda found: said(Relayed(variables=found)), asked)
        else:
            question = ReadPosition(waits=True)
            self._questions.ask(ranks, PATIENCE, lambda found: said(Relayed(positions=found)), question)
