"""The cell of one run on its way to the ranks: it is sent, and sent again to a rank that has not got it.

A rank begins no run twice, so a cell may be sent as often as it takes. :mod:`.missed_events` finds out where a quiet
rank stands, and reports here that it has not begun.

The scheduler's thread calls everything here, and nothing waits. Under failure: the client pings a rank that says that
it is idle and has not begun the cell, over the channel that carried the cell: first about a second after the cell was
sent, then after waits that double up to :data:`LONGEST`. The rank's main thread answers after all that came before. So
the answer means that the cell was lost, and the rank gets it again; while the main thread is busy, no copies of the
cell wait for it. With the third ping, the run shows where that thread is. A rank that works on a run that this client
does not know refuses the cell. The client then interrupts the cell on all ranks.

The values of the cell stay in memory until each rank has begun it, or never will.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jupyter_dtrain.core.stacks import Stacks, describe_stacks
from jupyter_dtrain.wire.agent_messages import RunCell
from jupyter_dtrain.wire.values import Parcel

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.wire.messages import Cell, Watching

    from .painting import Painting
    from .world_connection import WorldConnection

LONGEST = 8.0
"""The most seconds from one ping to the next, besides those that the cell's values travel (:data:`SPEED`)."""
SPEED = 20e6
"""Bytes a second: the slowest pace at which a cell's values travel. No rank is pinged while they travel."""
SHOWN_AT = 3
"""The ping with which the run shows where the rank is; or the look after which a rank's cell is taken back."""
LOOKING = 2.0
"""Seconds that the rank may take to say where it is."""

_log = logging.getLogger(__name__)


class OutgoingCell:
    """The cell of one run, and how often each rank was asked for it."""

    def __init__(
        self,
        run: Run,
        painting: Painting,
        connection: WorldConnection,
        interrupt: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``interrupt`` ends a run that a rank has refused."""
        self._run = run
        self._painting = painting
        self._connection = connection
        self._interrupt = interrupt
        self._clock = clock
        self._message: RunCell | None = None
        """The cell as it was sent; None for a run that another client has begun."""
        self._inputs = Parcel([], [])
        self._pings: dict[int, int] = {}
        """How often a rank was pinged, or looked at, that has not begun the cell, by rank."""
        self._next_ping: dict[int, float] = {}
        """When it may be pinged again, by rank."""

    def send(
        self,
        inputs: Parcel,
        watch: Watching,
        cell: Cell,
        joins: int | None = None,
        *,
        elastic: bool = False,
        unanswered: str = "",
    ) -> None:
        """Send the cell to the ranks of the run. ``inputs``: the values that they get first."""
        run = self._run
        self._inputs = inputs
        self._message = RunCell(
            run.number,
            run.source,
            run.ranks,
            self._connection.generation,
            watch,
            cell,
            inputs.values,
            inputs.place,
            joins,
            elastic,
            unanswered,
        )
        for rank in run.ranks:
            run.note_heard(rank)
            self._send(rank)

    def _send(self, rank: int) -> None:
        if (bound := self._connection.bound()) is None or self._message is None:
            return
        world, channel = bound
        self._next_ping[rank] = self._clock() + _pause(self._pings.get(rank, 0)) + travel(self._inputs)
        channel.run(world.ranks[rank].engine, self._message, self._inputs.frames)

    def let_go(self) -> None:
        """Give the memory of the values back if no rank will need them: each has begun, or never will."""
        if self._inputs.values and not any(self._is_unbegun(rank) for rank in self._run.ranks):
            self._inputs.close()
            self._inputs = Parcel([], [])

    def unbegun(self, rank: int) -> None:
        """``rank`` is idle and has not begun the run."""
        run = self._run
        # An interrupt takes back a cell that was not begun.
        if rank not in run.unfinished or run.interrupted or self._clock() < self._next_ping.get(rank, 0):
            return
        if self._message is None:
            self._await_sender(rank)
            return
        if not self._connection.steward.controls:
            # Another client drives now: a cell that no rank has begun is taken back, and no other is sent again.
            if all(run.next_seq(one) == 0 for one in run.ranks):
                self._interrupt()
            return
        pings = self._pings[rank] = self._pings.get(rank, 0) + 1
        self._next_ping[rank] = self._clock() + _pause(pings)
        # Once its main thread comes free, it answers all pings: only the newest is still waited for.
        self._connection.questions.greet(rank, _pause(pings), lambda: self._send_again(rank))
        if pings == SHOWN_AT:
            self._connection.questions.stacks([rank], LOOKING, lambda stacks: self._show_place(rank, stacks))

    def _send_again(self, rank: int) -> None:
        """``rank`` has had all that was sent to it, except what was lost."""
        if self._is_unbegun(rank) and not self._run.interrupted and self._connection.steward.controls:
            _log.info("Rank %s has not begun run %s: the cell is sent again", rank, self._run.number)
            self._send(rank)

    def _show_place(self, rank: int, stacks: Stacks) -> None:
        if self._is_unbegun(rank):
            self._painting.note(
                f"Rank {rank} is idle but has not started this cell after {self._run.elapsed:.0f} s. The session sends "
                f"the cell again whenever the rank's main thread answers. The rank is here:\n{describe_stacks(stacks)}"
            )

    def _is_unbegun(self, rank: int) -> bool:
        return rank in self._run.unfinished and self._run.next_seq(rank) == 0

    def _await_sender(self, rank: int) -> None:
        """Another client has sent the cell, and may send it again while it drives."""
        looks = self._pings[rank] = self._pings.get(rank, 0) + 1
        if looks < SHOWN_AT or not self._connection.steward.controls:
            return
        self._pings[rank] = 0
        if self._run.next_seq(rank) == 0:
            self._painting.note(f"Rank {rank} never began this cell, and the client that sent it is gone.")
        # From now on it never will.
        self._connection.questions.interrupt(self._run.number, [rank], LOOKING, lambda _: None)

    def refused(self, rank: int, other: int) -> None:
        """``rank`` has not begun the run, and works on the run ``other``, which this client does not know."""
        run = self._run
        if self._message is None or run.interrupted:
            return
        words = f"Rank {rank} is still working on run {other}, which this session does not follow. It refuses this cell"
        if all(run.next_seq(one) == 0 for one in run.ranks):
            run.not_sent = f"{words}. Run the cell again after that run; %distributed kill {rank} ends the rank."
        else:
            self._painting.note(f"{words}, which is interrupted on all ranks.")
        self._interrupt()


def travel(inputs: Parcel) -> float:
    """Seconds for which the values of a cell may be on their way to a rank; those in lent memory do not travel."""
    return sum(map(len, inputs.frames)) / SPEED


def _pause(pings: int) -> float:
    """Seconds until a rank that was pinged so often is pinged again."""
    return min(LONGEST, 0.5 * 2.0**pings)
