"""The gate between two steps of a rank's loop: there it holds, does what a person has asked for, and goes on.

The control thread takes the orders of :mod:`jupyter_dtrain.wire.steering_messages`; :meth:`StepGate.step` is called
after each step, on the thread of the loop. A step is what the best of :data:`~jupyter_dtrain.core.steering.SOURCES`
counts. The steward sees to it that all ranks hold after the same step before any of them does anything.

Under failure: the loop goes on. A rank that nobody tells how to go on does so after :data:`FORGOTTEN` seconds. Stop
ends a loop that is held as any other call. What a person's own code raises becomes the answer.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Final

import msgspec

from jupyter_dtrain.core.events import Acted, Steered
from jupyter_dtrain.plugins.patches import meant
from jupyter_dtrain.wire.steering_messages import (
    AnySteeringRequest,
    CarryOut,
    HoldSteps,
    LeaveSteps,
    StepState,
)

from .interrupts import CellStopped
from .user_text import words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_dtrain.wire.messages import Watching

    from .interrupts import Interrupts
    from .loop_acts import LoopActs
    from .metrics import MetricBuffer
    from .recorder import Recorder
    from .step_time import StepTimer

FORGOTTEN: Final = 20.0
"""Seconds without a question of the steward after which a loop that is held goes on."""
LOOK: Final = 0.2
"""Seconds between two looks of a loop that is held whether it is still wanted."""
OLD: Final = 4
"""Orders that are remembered after their end, for the questions that ask for it."""


class _Order:
    """One hold of the loop."""

    def __init__(self, request: HoldSteps) -> None:
        self.request = request
        self.state = "armed"
        self.tasks: queue.SimpleQueue[CarryOut | LeaveSteps] = queue.SimpleQueue()
        self.given = self.done = 0
        """The newest stage that it was given, and the newest that it has carried out."""
        self.found: Acted | None = None
        self.unasked = 0
        """The looks of a loop that is held since the steward has asked for it last."""
        self.error: BaseException | None = None
        """What a person's code has raised."""


class StepGate:
    """Holds the loop of one rank between two steps, and has acts carried out there."""

    def __init__(
        self,
        recorder: Recorder,
        metrics: MetricBuffer,
        acts: LoopActs,
        interrupts: Interrupts,
        timer: StepTimer,
    ) -> None:
        """``timer`` does not count the time of a hold as the loop's."""
        self._recorder = recorder
        self._metrics = metrics
        self._acts = acts
        self._interrupts = interrupts
        self._timer = timer
        self._run: int | None = None
        self._newest = 0
        self._unfit = ""
        self._counts: dict[str, int] = {}
        self._armed: _Order | None = None
        """The order for which the loop is yet to come to its step."""
        self._orders: dict[str, _Order] = {}
        """The newest orders, by key."""
        self._after: list[tuple[str, Callable[[int, FrameType], bool]]] = []
        """What is done after each step from now on, until it says that it is over, and what counts these steps."""
        self._acting = False
        """Whether an act is being done: the steps of its own loops are none of this one's."""
        self._deciding = threading.Lock()
        """Held for a moment: the loop has come to a step, or the control thread finds that it had passed it."""
        # A child process would wait for an answer that never comes to it.
        os.register_at_fork(after_in_child=self.end)

    # The thread of the loop.

    def begin(self, run: int, unfit: str, watch: Watching, *, whole: bool) -> None:
        """Begin a cell. Main thread.

        ``unfit``: why it cannot be steered, as a clause; empty where it can. ``whole``: it runs on all ranks.
        """
        self._acts.begin(watch.ring, watch.ring_every, whole=whole)
        self._run, self._newest, self._unfit = run, run, unfit
        self._counts, self._armed = {}, None

    def end(self) -> None:
        """End the cell. Main thread."""
        self._run = self._armed = None
        # Also those of a loop that is held: an interrupt may have fallen into the moment in which it came to stand.
        for order in self._orders.values():
            order.state = "left"
        self._after.clear()
        self._acts.end()

    def step(self, source: str) -> None:
        """Count a step of ``source`` in this cell, and hold if that was asked for."""
        if self._acting:
            return
        count = self._counts[source] = self._counts.get(source, 0) + 1
        if self._acts.keeps and source == "optimizer":
            self._acts.stepped(count, sys._getframe(1))  # noqa: SLF001
        armed = self._armed
        if armed is not None and count >= armed.request.at and source == armed.request.source:
            self._come(armed, count, sys._getframe(1))  # noqa: SLF001 — documented in spite of its name
        if self._after and any(one == source for one, _ in self._after):
            self._do_after(source, count, sys._getframe(1))  # noqa: SLF001

    def _do_after(self, source: str, count: int, frame: FrameType) -> None:
        for one in [one for one in self._after if one[0] == source]:
            if not one[1](count, frame):
                self._after.remove(one)
        self._acts.go_on()

    def _come(self, order: _Order, count: int, frame: FrameType) -> None:
        with self._deciding:
            if order.state != "armed":
                return
            order.state = "held" if count == order.request.at else "late"
            self._armed = None
        if order.state == "held":
            self._hold(order, frame)

    def _hold(self, order: _Order, frame: FrameType) -> None:
        request, run = order.request, self._run
        main = threading.current_thread() is threading.main_thread()
        words = request.words
        kind = words.partition(" ")[0]
        try:
            self._timer.resting = main
            self._emit(run, Steered(request.number, "held", request.at, self._metrics.step, kind, words, request.by))
            while not isinstance(task := self._next(order, run, main=main), LeaveSteps):
                self._carry_out(order, task, frame)
        finally:
            order.state = "left"
            self._timer.resting = False
            self._emit(run, Steered(request.number, "left", request.at))
        error, order.error = order.error, None
        if task.failed:
            raise meant(error or RuntimeError(task.failed))
        self._acts.go_on()

    def _next(self, order: _Order, run: int | None, *, main: bool) -> CarryOut | LeaveSteps:
        order.unasked = 0
        while True:
            # Not an Event or a Condition: a thread that waits in one counts as one that waits for other threads.
            with contextlib.suppress(queue.Empty):
                return order.tasks.get(timeout=LOOK)
            # Looks and not the clock: a process that was stopped goes on before it hears what came meanwhile.
            order.unasked += 1
            if order.unasked * LOOK > FORGOTTEN:
                self._recorder.write(
                    "stderr", "[jupyter-dtrain] This rank was not told how to go on after its step, and goes on.\n"
                )
                return LeaveSteps(order.request.key)
            # A signal ends the main thread's wait; no signal reaches another thread.
            if not main and (self._run != run or self._interrupts.requested):
                raise CellStopped("its cell has ended")

    def _carry_out(self, order: _Order, task: CarryOut, frame: FrameType) -> None:
        if task.check:
            try:
                order.found = self._acts.check(task.act, frame, order.request.at)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                order.found = Acted(ok=False, text=words_of(error))
            order.done = task.stage
            return
        number, step, act = task.number, order.request.at, task.act
        self._emit(self._run, Steered(number, "begun", step, self._metrics.step, act.kind, act.words, task.by))
        order.state = "working"
        self._timer.resting = False
        began = time.monotonic()
        with self._recorder.copied() as printed:
            self._acting = True
            try:
                found = self._acts.apply(act, number, frame, step)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                found = Acted(ok=False, text=words_of(error))
            finally:
                self._acting = False
        found = msgspec.structs.replace(found, seconds=time.monotonic() - began)
        # Its frames hold what the loop has in memory.
        order.error, self._acts.raised = self._acts.raised if act.strict else None, None
        self._after += [(order.request.source, call) for call in self._acts.afterwards]
        self._acts.afterwards.clear()
        self._emit(self._run, Steered(number, "done", step, found=found))
        self._timer.resting = threading.current_thread() is threading.main_thread()
        order.found = msgspec.structs.replace(found, text="".join(printed) + found.text)
        order.state = "held"
        order.done = task.stage  # last: whoever reads it reads the others next

    def _emit(self, run: int | None, event: Steered) -> None:
        if self._run == run and run is not None:
            self._recorder.append(event)

    # The control thread.

    def answer(self, request: AnySteeringRequest) -> StepState:
        """Take an order, and say where the loop is."""
        order = self._orders.get(request.key)
        match request:
            case HoldSteps() if order is None:
                order = self._take(request)
            case CarryOut(stage=stage) if order is not None and order.state != "armed" and stage > order.given:
                order.given = stage
                order.tasks.put(request)
            case LeaveSteps() if order is not None:
                self._leave(order, request)
            case _:
                pass
        found = StepState(self._run, self._newest, dict(self._counts), unfit=self._unfit)
        if order is None:
            return found
        order.unasked = 0
        done = order.done
        return msgspec.structs.replace(found, state=order.state, done=done, found=order.found if done else None)

    def _take(self, request: HoldSteps) -> _Order | None:
        if self._run != request.run or self._unfit:
            return None
        order = _Order(request)
        self._orders = {**dict(list(self._orders.items())[-OLD:]), request.key: order}
        self._armed = order
        # The loop notes its count first and looks then for an order, so that one of the two sees the other.
        if self._counts.get(request.source, 0) >= request.at:
            with self._deciding:
                if order.state == "armed":
                    order.state, self._armed = "late", None
        return order

    def _leave(self, order: _Order, request: LeaveSteps) -> None:
        with self._deciding:
            if order.state == "armed":
                order.state = "left"
                if self._armed is order:
                    self._armed = None
                return
        if order.state in ("held", "working"):
            order.tasks.put(request)
