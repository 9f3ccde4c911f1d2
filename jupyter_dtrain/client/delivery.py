"""Cells on their way to the ranks: each is sent, and sent again to a rank that has not got it.

A rank begins no run twice, so a cell may be sent as often as it takes. :mod:`.missed_events` finds out where a quiet
rank stands, and reports here that it has not begun.

For the thread that folds the runs; nothing here waits. Under failure: a rank that says that it is idle and has not
begun a cell is greeted, on the way that the cell took: first about a second after the cell was sent, then after waits
that double up to :data:`LONGEST`. Its main thread answers after all that came before. So the answer means that the cell
was lost, and the rank gets it again; while the main thread is busy, no copies wait for it. The third time, the run
shows where that thread is. A rank that works on a run that this client does not know refuses the cell. The client then
interrupts the cell on all ranks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jupyter_dtrain.core.stacks import Stacks, describe_stacks
from jupyter_dtrain.wire.agent_messages import RunCell
from jupyter_dtrain.wire.values import digests

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import World
    from jupyter_dtrain.wire.channels import RanksChannel
    from jupyter_dtrain.wire.questions import Questions

    from .submitted_run import Entry

LONGEST = 8.0
"""The most seconds from one greeting to the next, besides those that the cell's values travel (:data:`SPEED`)."""
SPEED = 20e6
"""Bytes a second: the slowest pace at which a cell's values travel. No rank is greeted while they travel."""
TELLING = 3
"""How often a rank is greeted before the run shows where it is."""
LOOKING = 2.0
"""Seconds that the rank may take to say where it is."""

_log = logging.getLogger(__name__)


class Delivery:
    """The cells that one session has sent."""

    def __init__(
        self,
        bound: Callable[[], tuple[World, RanksChannel] | None],
        questions: Questions,
        drives: Callable[[], bool],
        interrupt: Callable[[Entry], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``drives``: whether this client may run cells; ``interrupt`` ends a run that a rank has refused."""
        self._bound = bound
        self._questions = questions
        self._drives = drives
        self._interrupt = interrupt
        self._clock = clock

    def send(self, entry: Entry, generation: int) -> None:
        """Send the cell of ``entry`` to its ranks."""
        run = entry.run
        names, pickles = list(entry.inputs), list(entry.inputs.values())
        entry.message = RunCell(
            run.number,
            run.source,
            run.ranks,
            generation,
            entry.watch,
            entry.cell,
            names,
            digests(pickles),
            entry.joins,
            entry.elastic,
        )
        for rank in run.ranks:
            run.note_heard(rank)
            self._send(entry, rank)

    def _send(self, entry: Entry, rank: int) -> None:
        if (bound := self._bound()) is None or entry.message is None:
            return
        world, channel = bound
        pickles = list(entry.inputs.values())
        entry.again[rank] = self._clock() + _pause(entry.tries.get(rank, 0)) + travel(entry)
        channel.run(world.ranks[rank].engine, entry.message, pickles)

    def unbegun(self, entry: Entry, rank: int) -> None:
        """``rank`` is idle and has not begun ``entry``."""
        if rank not in entry.run.unfinished or entry.ending is not None or self._clock() < entry.again.get(rank, 0):
            return  # an interrupt takes back a cell that was not begun
        if entry.message is None:
            self._await_sender(entry, rank)
            return
        if not self._drives():
            # Another client drives now: a cell that no rank has begun is taken back, and no other is sent again.
            if all(entry.run.next_seq(one) == 0 for one in entry.run.ranks):
                self._interrupt(entry)
            return
        tries = entry.tries[rank] = entry.tries.get(rank, 0) + 1
        entry.again[rank] = self._clock() + _pause(tries)
        # Once it comes free, it answers all greetings: only the newest is still waited for.
        self._questions.greet(rank, _pause(tries), lambda: self._send_again(entry, rank))
        if tries == TELLING:
            self._questions.stacks([rank], LOOKING, lambda stacks: self._tell(entry, rank, stacks))

    def _send_again(self, entry: Entry, rank: int) -> None:
        """``rank`` has had all that was sent to it, except what was lost."""
        if self._is_unbegun(entry, rank) and entry.ending is None and self._drives():
            _log.info("Rank %s has not begun run %s: the cell is sent again", rank, entry.run.number)
            self._send(entry, rank)

    def _tell(self, entry: Entry, rank: int, stacks: Stacks) -> None:
        if self._is_unbegun(entry, rank):
            entry.painting.note(
                f"Rank {rank} has not begun this cell {entry.run.elapsed:.0f} s after it was sent, though it reports "
                f"to be idle. The session sends the cell again whenever the rank's main thread answers. The rank is "
                f"here:\n{describe_stacks(stacks)}"
            )

    def _is_unbegun(self, entry: Entry, rank: int) -> bool:
        return rank in entry.run.unfinished and entry.run.next_seq(rank) == 0

    def _await_sender(self, entry: Entry, rank: int) -> None:
        """Another client has sent the cell, and may send it again while it drives."""
        tries = entry.tries[rank] = entry.tries.get(rank, 0) + 1
        if tries < TELLING or not self._drives():
            return
        entry.tries[rank] = 0
        if entry.run.next_seq(rank) == 0:
            entry.painting.note(f"Rank {rank} never began this cell, and the client that sent it is gone.")
        # From now on it never will.
        self._questions.interrupt(entry.run.number, [rank], LOOKING, lambda _: None)

    def refused(self, entry: Entry, rank: int, run: int) -> None:
        """``rank`` has not begun ``entry``, and works on ``run``, which this client does not know."""
        if entry.message is None or entry.ending is not None:
            return
        words = f"Rank {rank} is still working on run {run}, which this session does not follow. It refuses this cell"
        if all(entry.run.next_seq(one) == 0 for one in entry.run.ranks):
            entry.run.not_sent = f"{words}. Run the cell again after that run; %distributed kill {rank} ends the rank."
        else:
            entry.painting.note(f"{words}, which is interrupted on all ranks.")
        self._interrupt(entry)


def travel(entry: Entry) -> float:
    """Seconds for which the cell's values may be on their way to a rank."""
    return sum(map(len, entry.inputs.values())) / SPEED


def _pause(tries: int) -> float:
    """Seconds until a rank that was greeted so often is greeted again."""
    return min(LONGEST, 0.5 * 2.0**tries)
