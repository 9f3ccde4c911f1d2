"""The loop that runs now, as a person steers it from a session: pause, values, code between two steps, its end.

The steward has all ranks stand after the same step; :mod:`jupyter_dtrain.steward.steering` says how. Here the caller
waits for what becomes of an act.

Under failure: an act that cannot be done raises :class:`~jupyter_dtrain.core.errors.NotSteered` with the reason, and
nothing has changed unless the words say so. A caller that is interrupted withdraws its act, unless the ranks are at it
already.
"""

from __future__ import annotations

import ast
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from IPython.core.inputtransformer2 import TransformerManager

from jupyter_dtrain.core.errors import BadRequest, DtrainError, NotSteered, Refused
from jupyter_dtrain.core.steering import LoopAct, parse_settings, settings_of
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.wire.steering_messages import ReadSteer, Steer, SteerState, WithdrawSteer

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Acted
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.snapshots import SnapshotOrder

    from .link import Link

PATIENCE: Final = 60.0
"""Seconds in which the ranks make a step, by default."""
POLL: Final = 0.05
"""Seconds between two looks at an act."""


class ActOutcome:
    """What became of an act on the running loop. Shows itself as words, and the output of the ranks below them."""

    def __init__(self, act: LoopAct, found: SteerState) -> None:
        self.asked = act.words
        """What was asked for, such as ``set opt.lr=1e-4``."""
        self.words = found.words
        """What became of it, as a sentence or several."""
        self.run = found.run
        """The number of the run."""
        self.step = found.step
        """The step after which it was done, on all ranks, counted from the beginning of the cell."""
        self.ranks: dict[int, Acted] = found.ranks
        """What became of it on each rank: ``ok``, ``text``, ``error`` and ``seconds``."""
        self._shows = act.kind == "between"

    @property
    def failed(self) -> list[int]:
        """The ranks on which the code has raised."""
        return sorted(rank for rank, one in self.ranks.items() if not one.ok)

    def __repr__(self) -> str:
        groups: dict[str, list[int]] = {}
        for rank, one in sorted(self.ranks.items()) if self._shows else ():
            if one.text.strip():
                groups.setdefault(one.text.rstrip("\n"), []).append(rank)
        parts = [self.words, *(f"{count_ranks(ranks)}:\n{text}" for text, ranks in groups.items())]
        return "\n".join(parts)


class RunningLoop:
    """Steers the loop of the cell that runs now, between two of its steps. Made by :attr:`.Session.loop`; thread-safe.

    A step is one of ``jupyter_dtrain.step()``, of the optimizer that steps first, or an item of ``progress()`` or tqdm:
    the first of these that all ranks have. Steps count from the beginning of the cell. ``run`` names the run where
    several go on; ``timeout`` are the seconds in which the ranks must make a step. Each method raises
    :class:`NotSteered` with the reason where nothing could be done, :class:`BadRequest` for what is wrong with the
    request, and :class:`ReadOnly` where another client controls the world.
    """

    def __init__(self, link: Link, running: Callable[[], list[Run]]) -> None:
        """``running``: the runs that have not ended."""
        self._link = link
        self._running = running

    def between(
        self, code: str, *, strict: bool = False, run: int | None = None, timeout: float = PATIENCE
    ) -> ActOutcome:
        """Run ``code`` on all ranks between two steps, with the names of the loop's function; the loop goes on.

        What it raises on a rank is in the outcome, and the loop goes on all the same; with ``strict`` the cell fails.
        """
        try:
            manager: Any = TransformerManager  # it has no types
            ast.parse(manager().transform_cell(code))
        except (SyntaxError, ValueError) as error:
            raise BadRequest(f"The code cannot be read: {error}") from None
        if not code.strip():
            raise BadRequest("There is no code to run between two steps.")
        return self._act(LoopAct("between", code=code, strict=strict), run, timeout)

    def set(self, settings: str | dict[str, Any], *, run: int | None = None, timeout: float = PATIENCE) -> ActOutcome:
        """Set values on all ranks, all of them or none: ``"opt.lr=1e-4 model.dropout.p=0.1"``, or a dict by path."""
        values = parse_settings(settings) if isinstance(settings, str) else settings_of(settings)
        return self._act(LoopAct("set", settings=values), run, timeout)

    def undo(self, *, run: int | None = None, timeout: float = PATIENCE) -> ActOutcome:
        """Put back the values that the newest ``set`` has replaced and that were not put back yet."""
        return self._act(LoopAct("undo"), run, timeout)

    def pause(self, *, run: int | None = None, timeout: float = PATIENCE) -> ActOutcome:
        """Hold all ranks after the same step, until :meth:`resume`. No time limit of the cell runs meanwhile."""
        return self._act(LoopAct("pause"), run, timeout)

    def resume(self, *, run: int | None = None) -> ActOutcome:
        """Let ranks that are paused go on."""
        return self._act(LoopAct("resume"), run, PATIENCE)

    def step(self, count: int = 1, *, run: int | None = None, timeout: float = PATIENCE) -> ActOutcome:
        """Let ranks that are paused make ``count`` steps, and pause again."""
        if count < 1:
            raise BadRequest(f"{count} is no number of steps: at least 1.")
        return self._act(LoopAct("step", count=count), run, timeout)

    def stop_after(self, step: int = 0, *, run: int | None = None, timeout: float = PATIENCE) -> ActOutcome:
        """End the loop after ``step``, as if it had finished; the cell goes on below it. 0: after its next step.

        A loop that no cell and no script has itself, such as a library's, is not ended: :class:`.NotSteered` says why.
        """
        if step < 0:
            raise BadRequest(f"{step} is no step: steps count from 1.")
        return self._act(LoopAct("stop-after", count=step), run, timeout)

    def until_differs(
        self, expression: str, tolerance: float = 0.0, *, run: int | None = None, timeout: float = PATIENCE
    ) -> ActOutcome:
        """Compare a number over all ranks after each step from now on, and stop all of them where it differs.

        ``expression``: such as ``loss.item()``, with the names of the loop's function; ``tolerance``: how far apart
        the numbers may lie. A debugger opens on all ranks then, in the loop; where nobody can answer it, the cell says
        what differs, and goes on.
        """
        try:
            ast.parse(expression.strip(), mode="eval")
        except (SyntaxError, ValueError):
            raise BadRequest(f"{expression!r} is no expression, such as loss.item().") from None
        if not tolerance >= 0:
            raise BadRequest(f"{tolerance!r} is no distance: 0 or more.")
        return self._act(LoopAct("until-differs", code=expression.strip(), tolerance=tolerance), run, timeout)

    def rewind(self, number: int = 1, *, run: int | None = None, timeout: float = PATIENCE) -> ActOutcome:
        """Load the ``number``-th newest state that a cell with ``ring`` has kept, on all ranks; newer ones are dropped.

        Parameters, buffers, optimizers, schedulers and random states are as they were; the loop's counter and its data
        go on.
        """
        if number < 1:
            raise BadRequest(f"{number} is no state: 1 is the newest.")
        return self._act(LoopAct("rewind", count=number), run, timeout)

    def save(self, order: SnapshotOrder, *, run: int | None = None, timeout: float = PATIENCE) -> ActOutcome:
        """As :meth:`.Session.save` with ``now``."""
        return self._act(LoopAct("save", order=order), run, timeout)

    def begin(self, act: LoopAct, run: int, timeout: float = PATIENCE) -> Callable[[], SteerState]:
        """Ask for an act, and return at once: a function that says how it stands. Raises as the others."""
        self._link.check_drives()
        number = self._ask(Steer(self._link.me.id, self._link.me.words, act, timeout, run))
        return lambda: self._link.ask(ReadSteer(number))

    def _act(self, act: LoopAct, run: int | None, timeout: float) -> ActOutcome:
        link = self._link
        link.check_drives()
        number = self._ask(Steer(link.me.id, link.me.words, act, timeout, run))
        try:
            while (found := link.ask(ReadSteer(number))).phase == "going on":
                time.sleep(POLL)
        except KeyboardInterrupt:
            with contextlib.suppress(DtrainError, Refused):
                link.ask(WithdrawSteer(link.me.id, number))
            raise
        if found.phase == "failed":
            raise NotSteered(found.words)
        return ActOutcome(act, found)

    def _ask(self, request: Steer) -> int:
        """Ask for an act, and return its number. A cell that is on its way to the ranks is awaited."""
        deadline = time.monotonic() + request.patience
        while True:
            try:
                return self._link.ask(request).number
            except Refused:
                sent = self._running()
                if not sent or any(one.fold.started for one in sent) or time.monotonic() > deadline:
                    raise
            time.sleep(POLL)
