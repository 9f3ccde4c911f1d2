"""A run on its way through a session: its cell, the view that shows it, and how far it has come.

Nothing but a :class:`SubmittedRun` changes its state, on the scheduler's thread. The sending of its cell and the events
that were missed are objects of their own: :class:`.OutgoingCell`, :class:`.MissedEvents`.

Under failure: every run ends. A press of Stop and the run's own time limit interrupt it by steps with deadlines (see
:mod:`~jupyter_dtrain.core.interruption`). A run whose ranks were asked to end waits :data:`CAUSE` seconds to learn by
whom and why, and then ends without.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jupyter_dtrain.core.events import Batch, Event, Finished, PromptClosed, PromptOpened, Steered
from jupyter_dtrain.core.hangs import HangDetector
from jupyter_dtrain.core.interruption import Interruption
from jupyter_dtrain.core.processes import describe_process
from jupyter_dtrain.core.stacks import describe_stuck
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.wire.messages import Cell, Done, Watching
from jupyter_dtrain.wire.prompt_messages import NotePrompts
from jupyter_dtrain.wire.questions import Answers, silent
from jupyter_dtrain.wire.values import Parcel

from .missed_events import MissedEvents
from .outgoing_cell import OutgoingCell, travel
from .painting import Painting

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.stacks import Stacks
    from jupyter_dtrain.view import RunView

    from .world_connection import WorldConnection

CAUSE = 2.0
"""Seconds that a run whose ranks were asked to end waits for the reason; a missing steward is noticed in half."""
ASKING = 1.0
"""Seconds that the ranks of a run that seems to hang may take to say where they are, and all to take a note."""
PAUSE = 3.0
"""Seconds without a prompt after which the next one is told again, of a run for which no cell waits."""
GATHER = 0.3
"""Seconds in which several ranks that ask are told of together."""
TELLING = 10
"""How often ranks get a note that some of them do not confirm."""
HOLDING = (PromptOpened, PromptClosed, Steered, Finished)
"""The events by which ranks come to wait for a person, or cease to. To look at all ranks for each event costs much."""
READING = 2.0
"""Seconds that a world which is stopped may wait while its ranks' last words are read."""


_log = logging.getLogger(__name__)


def at_prompts(run: Run) -> str:
    """The ranks of ``run`` that are at a prompt, and what ends that, as a clause."""
    ranks = sorted(run.fold.prompts)
    return (
        f"{count_ranks(ranks).capitalize()} of run {run.number} {'is' if len(ranks) == 1 else 'are'} at a prompt: "
        "%distributed prompt answers it, %distributed interrupt ends the cell"
    )


class SubmittedRun:
    """A run that is queued, sent, or left behind. Once it was submitted, only the scheduler's thread calls it."""

    def __init__(
        self,
        run: Run,
        view: RunView | None = None,
        *,
        inputs: Parcel | None = None,
        timeout: float | None = None,
        watch: Watching | None = None,
        cell: Cell | None = None,
        joins: int | None = None,
        elastic: bool = False,
        unanswered: str = "",
        adopted: bool = False,
    ) -> None:
        """``view`` shows the run; ``timeout``: seconds; ``cell``: the notebook's cell that it comes from.

        ``joins``: the run that goes on in other ranks, and that this one's ranks join. ``elastic``: the cell goes on
        without ranks that die. ``unanswered``: why nobody can answer its prompts. ``adopted``: another client has begun
        the run.
        """
        self.run = run
        self.painting = Painting(view, run.number)
        self.adopted = adopted
        self.sent = False
        """Whether the run is on its way to its ranks, or was; a queued run is not."""
        self.over = False
        """Whether the run ends now: its ranks have had their time, or nobody has said why they ended."""
        self._inputs = inputs or Parcel([], [])
        self._timeout = timeout
        self._watch = watch or Watching()
        self._cell = cell or Cell()
        self._joins = joins
        self._elastic = elastic
        self._unanswered = unanswered
        self._deadline = math.inf
        """When the run's own ``timeout`` interrupts it, if no rank waits for a person until then."""
        self._asked_since: float | None = None
        """Since when ranks wait for a person; None while they do not."""
        self._told_open = False
        """Whether the ranks were told that some of them ask a person."""
        self._say_at = math.inf
        """When the person at this process learns of them: no cell of this process waits for the run."""
        self._answered = -math.inf
        """When the last of them was answered."""
        self._interruption: Interruption | None = None
        self._stuck: dict[int, str] = {}
        """The calls in which ranks wait that cannot be released, as the steward reported."""
        self._cause_by = math.inf
        """When the run ends in any case; set once ranks said that they must end, and not why."""

    def begin(self, connection: WorldConnection, changed: Callable[[SubmittedRun], None]) -> None:
        """Follow the run from now on; calls ``changed`` when a rank has ended it, or has joined another run with it."""
        self.sent = True
        self._connection = connection
        self._changed = changed
        self._outgoing = OutgoingCell(self.run, self.painting, connection, lambda: self.interrupt(time.monotonic()))
        self._missed = MissedEvents(self.run, connection, self._outgoing, self.apply)
        now = time.monotonic()
        if self._timeout is not None:
            self._deadline = now + self._timeout
        limit, values = connection.settings.hang_notice, travel(self._inputs)
        fold, size = self.run.fold, self.run.size
        self._hangs = HangDetector(fold, size, limit, self._ask_stacks, self._show_hang, now, values)
        # The last: it starts a thread, which may fail, and the run must end all the same.
        self.painting.begin()

    def send(self) -> None:
        """Send the cell to its ranks; it was :meth:`begin` before."""
        inputs, self._inputs = self._inputs, Parcel([], [])
        self._outgoing.send(
            inputs, self._watch, self._cell, self._joins, elastic=self._elastic, unanswered=self._unanswered
        )

    def read_from_start(self, rank: int) -> None:
        """Read what ``rank`` has said so far, in a run that another client has begun."""
        # The rank itself remembers its newest runs only.
        self._missed.read_spool(rank)
        if rank in self.run.unfinished:
            self._missed.read(rank)

    def hear(self, batch: Batch) -> None:
        """Take an announcement of a rank, or read first what was missed before it."""
        if batch.first > self.run.next_seq(batch.rank):
            self._missed.read(batch.rank)
        else:
            self.apply(batch)

    def apply(self, batch: Batch) -> None:
        """Take events that follow those which the run has."""
        before = self.run.divergence
        fresh = self.run.apply(batch)
        if fresh is None:
            return
        now = time.monotonic()
        if any(isinstance(event.body, HOLDING) for event in fresh.events):
            self._hold_deadline(now)
        self._outgoing.let_go()
        if before is None and (found := self.run.divergence) is not None:
            self.painting.note(f"{found.words}. %distributed diff {found.name} says by how much.")
        self._hangs.hear(fresh.events, now)
        self.painting.feed(fresh, self.run.totals[fresh.rank])
        finished = bool(fresh.events) and isinstance(fresh.events[-1].body, Finished)
        if finished:
            self.painting.idle(fresh.rank)
        # After the painting: the view of a run that has ended takes nothing more.
        if finished or self.run.joins is not None:
            self._changed(self)

    def read_spools(self) -> None:
        """Read what this host's ranks have said until now: nothing will be heard of them any more.

        A million events take about a second. After :data:`READING` seconds the other ranks are left as they are.
        """
        until = time.monotonic() + READING
        for rank in list(self.run.unfinished):
            if time.monotonic() < until:
                self._missed.read_spool(rank)

    def lose_rank(self, rank: int, words: str, events: list[Event]) -> None:
        """``rank`` is gone, as ``words`` say; ``events`` are its last."""
        self._missed.read_end(rank, events)
        if rank in self.run.unfinished:
            self.run.mark_lost(rank, words)
            self._hold_deadline(time.monotonic())
            self._outgoing.let_go()
            self.painting.idle(rank)
            self._changed(self)

    def note_death(self, rank: int, words: str) -> None:
        """``rank`` is gone. It has no part in the run, or had ended it before."""
        if self._interruption is None and self.run.unfinished and rank not in self.run.lost:
            self.painting.note(f"{words[:1].upper()}{words[1:]}. This cell goes on without it.")

    def note_stuck(self, waiting: dict[int, str]) -> None:
        """The steward cannot release the ranks ``waiting``, each of which waits in a call."""
        if self.run.outcome == "running" and waiting.items() - self._stuck.items():
            self._stuck = waiting
            self.painting.note(describe_stuck(waiting))

    def await_cause(self) -> None:
        """Wait a moment for the steward's news: all ranks have ended the run, and some have not said why."""
        if self._cause_by == math.inf:
            self._cause_by = time.monotonic() + CAUSE
            self._connection.steward.renew_soon()

    def interrupt(self, now: float, *, force: bool = False, by: str = "") -> None:
        """Interrupt the run, or hurry its end. ``force``: ranks that do not end are killed.

        ``by``: the client that asked for it, if that is not this one.
        """
        if self._interruption is not None:
            self._interruption.press(now)
        else:
            if by:
                self.painting.note(f"Interrupted by {by}.")
            self.run.interrupted = True
            if not by:
                self.run.why_interrupted = "its timeout" if self.run.timed_out else describe_process()
            connection = self._connection
            self._interruption = Interruption(
                self.run, connection.settings, connection.questions, connection.steward, self.painting.note, now
            )
            self._hangs.withdraw()
            self._interruption.tick(now)
        self._interruption.force = self._interruption.force or force

    def tick(self, now: float) -> float:
        """Do everything that is due, and give the time at which more is; :attr:`over` says whether the run ends."""
        try:
            self._missed.ask_quiet(now)
        except Exception:  # noqa: BLE001 — the deadlines below end the run, whether or not ranks can be asked
            _log.exception("The quiet ranks of run %s could not be asked", self.run.number)
        deadline = math.inf if self._asked_since is not None else self._deadline
        if now >= deadline and self._interruption is None:
            self.run.timed_out = True
            self.interrupt(now)
        if self._cause_by != math.inf:
            self.over = now >= self._cause_by
            return self._cause_by
        if self._interruption is not None:
            wake = self._interruption.tick(now)
            self.over = self._interruption.over
            return wake
        if now >= self._say_at:
            self._say_at = math.inf
            if self.run.fold.prompts:
                self.painting.note(f"{at_prompts(self.run)}.")
        return min(self._hangs.tick(now), deadline, self._say_at)

    def _hold_deadline(self, now: float) -> None:
        """Leave the time for which ranks wait for a person out of the run's own ``timeout``."""
        stands, asks = self.run.fold.stands, bool(self.run.fold.prompts)
        if stands and self._asked_since is None:
            self._asked_since = now
        elif not stands and self._asked_since is not None:
            self._deadline += now - self._asked_since
            self._asked_since = None
        if asks is self._told_open:
            return
        self._told_open = asks
        self._tell_of_prompts()
        if not asks:
            self._answered = now
        elif self.adopted and self._connection.steward.controls and now > self._answered + PAUSE:
            self._say_at = now + GATHER

    def _tell_of_prompts(self, tries: int = TELLING) -> None:
        """Tell the ranks whether some of them ask a person: they have deadlines of their own."""
        if not self._connection.steward.controls:
            return

        def said(answers: Answers[Done]) -> None:
            if silent(answers) and tries > 1:
                self._tell_of_prompts(tries - 1)

        note = NotePrompts(self.run.number, bool(self.run.fold.prompts))
        self._connection.questions.ask(list(self.run.unfinished), ASKING, said, note)

    def _ask_stacks(self, ranks: list[int], then: Callable[[Stacks], None]) -> None:
        self._connection.questions.stacks(ranks, ASKING, then)

    def _show_hang(self, words: str) -> None:
        # An interruption says by itself where ranks are.
        if self._interruption is None or not words:
            over = "" if words or self._interruption is not None else "The cell moves again."
            self.painting.stand("hang", words, over)
