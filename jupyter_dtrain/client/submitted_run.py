"""A session's record of one run: what to send, the view that shows it, and how far it has come.

Only the fold thread changes an entry once it was submitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_dtrain.wire.messages import Cell, Watching

from .painting import Painting

if TYPE_CHECKING:
    from jupyter_dtrain.core.hangs import HangDetector
    from jupyter_dtrain.core.interruption import Interruption
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.view import RunView
    from jupyter_dtrain.wire.agent_messages import RunCell


class Entry:
    """A run on its way: queued, sent, or left behind."""

    def __init__(
        self,
        run: Run,
        view: RunView | None = None,
        *,
        inputs: dict[str, bytes] | None = None,
        timeout: float | None = None,
        watch: Watching | None = None,
        cell: Cell | None = None,
        joins: int | None = None,
        elastic: bool = False,
    ) -> None:
        """``view`` shows the run; ``timeout``: seconds; ``cell``: the notebook's cell that it comes from.

        ``joins``: the run that goes on in other ranks, and that this one's ranks join. ``elastic``: the cell goes on
        without ranks that die.
        """
        self.run = run
        self.watch = watch or Watching()
        self.painting = Painting(view, run.number)
        self.inputs = inputs or {}
        self.cell = cell or Cell()
        self.joins = joins
        self.elastic = elastic
        self.timeout = timeout
        self.sent = False
        self.adopted = False
        """Whether another client has begun the run."""
        self.deadline: float | None = None
        """When the run's own ``timeout`` interrupts it."""
        self.ending: Interruption | None = None
        """Set once the run was interrupted."""
        self.hang_detector: HangDetector | None = None
        """Set once the run was sent."""
        self.stuck: dict[int, str] = {}
        """The calls in which ranks wait that cannot be released, as the steward reported."""
        self.cause_by: float | None = None
        """When the run ends in any case; set once ranks said that they must end, and not why."""
        self.reading: set[int] = set()
        self.asked: dict[int, float] = {}
        self.message: RunCell | None = None
        """The cell as it was sent; None before that, and for a run that another client has begun."""
        self.tries: dict[int, int] = {}
        """How often a rank was greeted that has not begun the cell, by rank."""
        self.again: dict[int, float] = {}
        """When it may be greeted again, by rank."""
