"""What the steward does to ranks in the middle of a run, for itself and for clients: release, interrupt, kill, ask.

All of it is done on the supervisor's thread; requests come from any thread and are posted there, so that no client
waits for a rank. What becomes of the ranks they say themselves, as events.

Under failure: every question to ranks has a deadline; see :mod:`.release`, :mod:`.interrupts`,
:mod:`.relayed_questions`.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.wire.questions import Questions
from jupyter_dtrain.wire.spool import last_run

from .interrupts import Interrupts
from .relayed_questions import RelayedQuestions
from .release import Release, Waiting

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import World
    from jupyter_dtrain.wire.channels import RanksChannel
    from jupyter_dtrain.wire.requests import WorldRequest

_log = logging.getLogger(__name__)

Bound = Callable[[], "tuple[World, RanksChannel] | None"]


class Actions:
    """In one world."""

    def __init__(
        self,
        request: WorldRequest,
        bound: Bound,
        post: Callable[[Callable[[], None]], None],
        tell: Callable[..., None],
        released: Callable[[int, dict[int, Waiting]], None],
        driven: Callable[[], bool],
    ) -> None:
        """``bound``: the world that runs and the way to its ranks; ``post`` has the supervisor's thread do something.

        ``tell`` broadcasts to clients; ``released`` is told the run, and who waited in what; ``driven``: whether a
        driver is there.
        """
        self._spool = request.spool
        self._bound = bound
        self._post = post
        self._driven = driven
        self._questions = Questions(bound, lambda: post(lambda: None))
        self._release = Release(self._ask_all, released, request.settings.release_grace)
        self._interrupts = Interrupts(self._questions, request.settings, tell, self._act)
        self._relayed = RelayedQuestions(self._questions, post)
        self.answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "release": self._release_asked,
            "kill": self._kill_asked,
            "interrupt": self._interrupt_asked,
            "interrupting": self._interrupting,
            "ask": self._relayed.put,
            "fetch": self._relayed.fetch,
        }
        """What clients may ask for. Any thread."""

    # What clients ask for.

    def _release_asked(self, content: dict[str, Any]) -> dict[str, Any]:
        run = int(content["run"])
        self._post(lambda: self._release.look_now(run))
        return {}

    def _kill_asked(self, content: dict[str, Any]) -> dict[str, Any]:
        self._post(lambda: self._kill(content["ranks"], content["reason"]))
        return {}

    def _interrupt_asked(self, content: dict[str, Any]) -> dict[str, Any]:
        """``ranks``: these alone, or None for the whole run; ``force``: kill what does not end; ``by``: who asks."""
        ranks, force, by = content.get("ranks"), bool(content.get("force")), str(content["by"])
        began = last_run(self._spool)
        if began is None:
            return {}
        if ranks is not None:
            some = [int(rank) for rank in ranks]
            self._post(lambda: self._interrupt_some(began.number, some))
        else:
            self._post(
                lambda: self._interrupts.ask(began.number, began.ranks, force=force, by=by, driven=self._driven())
            )
        return {"run": began.number}

    def _interrupting(self, _content: dict[str, Any]) -> dict[str, Any]:
        self._post(self._interrupts.taken_up)
        return {}

    # The supervisor's thread.

    def failed(self, run: int) -> None:
        """A rank will not go on with ``run``."""
        self._release.failed(run)

    def given_up(self, run: int) -> None:
        """``run`` has ended without the ranks that still work on it."""
        self._release.given_up(run)

    def rank_died(self, rank: int, run: int | None) -> None:
        """``rank`` has died, in ``run``."""
        self._interrupts.rank_died(rank)
        if run is not None:
            self._release.failed(run)

    def forget(self) -> None:
        """These ranks are gone."""
        self._release.forget()
        self._interrupts.forget()

    def tick(self, now: float) -> float:
        """Do what is due; when there is more to do."""
        wake, due = self._questions.tick(now)
        for task in due:
            try:
                task()
            except Exception:  # noqa: BLE001 — an answer of a rank that cannot be used must not end the one thread
                _log.exception("An answer could not be used")
        return min(wake, self._release.tick(now) or math.inf, self._interrupts.tick(now))

    def _ask_all(self, **question: Any) -> dict[int, Future[dict[str, Any]]]:
        if (bound := self._bound()) is None:
            return {}
        world, channel = bound
        living = [rank for rank in world.ranks if rank.state != "dead"]
        return {rank.rank: channel.ask(rank.engine, generation=world.generation, **question) for rank in living}

    def _interrupt_some(self, run: int, ranks: list[int]) -> None:
        self._interrupts.ask_some(run, ranks)
        self._release.failed(run)

    def _act(self, op: str, **content: Any) -> dict[str, Any]:
        """What an interruption asks the steward for; ``timeout`` is for clients, who have to wait."""
        if op == "release":
            self._release.look_now(content["run"])
        elif op == "kill":
            self._kill(content["ranks"], content["reason"])
        return {}

    def _kill(self, ranks: list[int], reason: str) -> None:
        if (bound := self._bound()) is None:
            return
        world, channel = bound
        for rank in world.ranks:
            if rank.rank in ranks and rank.state != "dead":
                channel.ask_watch(rank.engine, op="signal", signal=int(signal.SIGKILL), reason=reason)
