"""Work that a rank does after steps of its training loop: a check of a model, standing snapshots, and a profile.

A framework calls after each step of the optimizer that steps first (``Cells.follow_steps``). Where no optimizer steps
in a cell, a profile counts the points that the loop logs. A check digests the model's parameters here, reports the
digests as an event, and waits for no other rank: readers of the events compare them. So a check cannot hang, and a rank
that makes fewer steps holds nobody up.

A snapshot needs all ranks at the same step. They meet there first, and rank 0 decides at which step to meet next: a
meeting every few seconds, so that rank 0's clock alone decides. Then all stage their state, and the training goes on
while threads write it.

Under failure: what a check or a snapshot raises is said once, the training goes on, and this cell checks, or saves, no
more. A rank that does not come to a meeting within :data:`PATIENCE` seconds ends them for this cell; the time in which
ranks ask a person does not count. Where no framework in use shows its steps, an order that counts steps is refused, or
says so after a cell; one that goes by time is then the session's, between cells.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from jupyter_dtrain.core.dotted_paths import resolve
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Body, Checked
from jupyter_dtrain.core.snapshots import SnapshotOrder
from jupyter_dtrain.wire.messages import Done
from jupyter_dtrain.wire.prompt_messages import NotePrompts

from .contents import parts_of
from .profiling import RankProfile
from .snapshots import PATIENCE as WRITTEN
from .snapshots import Saving, stage
from .user_text import words_of

if TYPE_CHECKING:
    from jupyter_dtrain.plugins.framework import Part
    from jupyter_dtrain.wire.messages import Watching
    from jupyter_dtrain.wire.profile_messages import AnyProfileRequest

    from .metrics import MetricBuffer
    from .plugins import Plugins
    from .steering import StepGate
    from .weights import WeightLog

MOST: Final = 4096
"""Parts of a model in a report."""
PATIENCE: Final = 60.0
"""Seconds for a meeting of the ranks between two steps."""
MEETING: Final = 2.0
"""Seconds between two meetings that ask whether it is time, at most; also a tenth of the time between snapshots."""
_KINDS: Final = ("value", "parameter")
"""The parts that must be alike after a step. Gradients may be cleared, and DDP makes buffers alike in each forward."""


class _Standing:
    """A standing order to save a snapshot, by steps or by time."""

    def __init__(self, order: SnapshotOrder, steps: int, seconds: float) -> None:
        self.order, self.steps, self.seconds = order, steps, seconds
        self.saved = time.monotonic()
        self.saving: Saving | None = None
        self.meet_at = 1
        """The step of the next meeting, where time decides; the same on all ranks."""
        self.met: tuple[int, float] | None = None
        self.warned = False
        """Whether a cell has said that no steps are seen."""
        self.noted: set[str] = set()
        """Notes on its snapshots that were shown."""

    def begin(self) -> None:
        self.meet_at, self.met = 1, None

    def meets(self, step: int) -> bool:
        return step % self.steps == 0 if self.steps else step == self.meet_at

    def next_meeting(self, step: int) -> int:
        """The step of the next meeting, by this rank's pace. Rank 0's answer counts for all."""
        now, wanted = time.monotonic(), min(MEETING, self.seconds / 10)
        before, self.met = self.met, (step, now)
        if before is None or now <= before[1]:
            return step + 1
        return step + max(1, min(10 * (step - before[0]), int((step - before[0]) * wanted / (now - before[1]))))


class StepWork:
    """Does the work after steps in one rank, cell by cell."""

    def __init__(
        self,
        namespace: Mapping[str, Any],
        plugins: Plugins,
        metrics: MetricBuffer,
        emit: Callable[[Body], object],
        say: Callable[[str], object],
    ) -> None:
        """``emit`` records an event; ``say`` shows a sentence in the cell."""
        self._namespace = namespace
        self._plugins = plugins
        self._metrics = metrics
        self._emit = emit
        self.say = say
        self.profile = RankProfile(plugins, metrics.shield)
        """The profile of some of the steps."""
        self.weights: WeightLog | None = None
        """The models whose weights are shown, once the rank has a place for them."""
        self.gate: StepGate | None = None
        """Where the loop is held between two steps, once the rank's agent is there."""
        self._made: dict[str, int] = {}
        """The steps of this cell by what counts them, apart from those of an optimizer."""
        self._main = threading.get_ident()
        self._check, self._every = "", 1
        self._named: list[str] = []
        self._stepped = False
        self._orders: dict[str, _Standing] = {}
        self._active: list[_Standing] = []
        self._run = 0
        """The run whose cell has begun last."""
        self._asking: int | None = None
        """The run of which ranks ask a person, as far as is known; a rank may hear of it before its cell begins."""

    @property
    def prompts_open(self) -> bool:
        """Whether ranks of the run ask a person, as far as is known: they come to a meeting after the answer."""
        return self._asking == self._run

    def place(self, order: SnapshotOrder, steps: int, seconds: float) -> None:
        """Save after every ``steps`` steps, or where that is 0 whenever ``seconds`` have passed. Main thread.

        Raises :class:`BadRequest` where steps are to be counted, and no framework in use shows its own.
        """
        if steps and (titles := self._plugins.without_steps()):
            raise BadRequest(_unseen(titles, order, steps))
        self._orders[order.name] = _Standing(order, steps, seconds)

    def cancel(self, name: str) -> list[str]:
        """Forget a standing order, or all for an empty name; the names of those that were forgotten. Main thread.

        It first waits for the snapshots of theirs that are being written, :data:`WRITTEN` seconds at most.
        """
        gone = {one: order for one, order in self._orders.items() if name in ("", one)}
        self._orders = {one: order for one, order in self._orders.items() if one not in gone}
        deadline = time.monotonic() + WRITTEN
        for order in gone.values():
            if order.saving is not None:
                order.saving.done.wait(max(0.0, deadline - time.monotonic()))
        return list(gone)

    def answer(self, request: NotePrompts | AnyProfileRequest, running: int | None) -> msgspec.Struct:
        """Answer a request about the work of ``running``, the run whose cell the rank runs. Control thread."""
        if isinstance(request, NotePrompts):
            if request.open or request.run == self._asking:
                self._asking = request.run if request.open else None
            return Done()
        return self.profile.answer(request, running)

    def begin(self, run: int, watch: Watching, *, whole: bool, elastic: bool = False) -> None:
        """Begin the cell of ``run``. Main thread.

        ``whole``: it runs on all ranks; ``elastic``: it goes on without some.
        """
        self._check, self._every = watch.check, max(1, watch.check_every)
        self._run, self._named, self._stepped = run, [], False
        self._made = {}
        self._active = list(self._orders.values()) if whole and not elastic else []
        if self._orders and elastic:
            self.say("No snapshots are saved while this cell runs: they need all ranks, and an elastic cell does not.")
        for one in self._active:
            one.begin()
        self.profile.begin()
        # In each cell: a profile that begins later needs the same number on all.
        self._plugins.follow_steps(self._step)
        self._metrics.follow = self.profile.point

    def end(self, *, failed: bool = False) -> None:
        """End the cell's work. ``failed``: it was interrupted or has failed. Main thread."""
        self._plugins.follow_steps(None)
        self._metrics.follow = None
        self.profile.end(failed=failed)
        if not self._check and not self._active:
            return
        titles = [] if self._stepped else self._plugins.without_steps()
        for one in self._active if titles else ():
            if one.steps and not one.warned:
                one.warned = True
                self.say(_unseen(titles, one.order, one.steps))
        if self._check and not self._stepped:
            self.say(
                "--check has seen no step of an optimizer in this cell; %distributed diff compares a model at once."
            )
        self._check, self._active = "", []

    @property
    def items(self) -> int:
        """The items of bars that were counted in this cell."""
        return self._made.get("loop", 0)

    def count(self, source: Literal["step()", "loop"]) -> None:
        """Count a step of a loop that shows itself. Any thread may call it; those of the main thread count."""
        if threading.get_ident() == self._main and self.gate is not None:
            self._made[source] = self._made.get(source, 0) + 1
            self.gate.step(source)

    def _step(self, step: int) -> None:
        self._stepped, self._metrics.follow = True, None
        self.profile.step(step)
        if self.weights is not None:
            self.weights.stepped(step, self._metrics.first_step + step - 1)
        if self._check and step % self._every == 0:
            try:
                self._report(step)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self.say(f"--check {self._check} has ended: {words_of(error)}")
                self._check = ""
        for one in self._active:
            if one.meets(step):
                self._save(one, step)
        if self.gate is not None:
            self.gate.step("optimizer")

    def _report(self, step: int) -> None:
        name = self._check
        try:
            value = resolve(self._namespace, name)
        except LookupError:
            raise LookupError(f"{name!r} is no variable of this rank; check a top-level variable") from None
        parts = [part for part in parts_of(name, value, self._namespace, self._plugins) if part.kind in _KINDS][:MOST]
        labels = [_label(part) for part in parts]
        digests = b"".join(bytes.fromhex(part.digest()) or bytes(8) for part in parts)
        self._emit(Checked(name, step, digests, [] if labels == self._named else labels))
        self._named = labels

    def _save(self, one: _Standing, step: int) -> None:
        try:
            due, one.meet_at = self._meet(one, step)
            if due:
                one.saved = time.monotonic()
                one.saving = stage(one.order, self._namespace, self._plugins, step)
                one.saving.go_on(self.say)
                for note in one.saving.notes:
                    if note not in one.noted:
                        one.noted.add(note)
                        self.say(f"Snapshot {one.order.name!r}: {note}")
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._active = [other for other in self._active if other is not one]
            self.say(f"Snapshot {one.order.name!r} is not saved in this cell any more: {words_of(error)}")

    def _meet(self, one: _Standing, step: int) -> tuple[bool, int]:
        """Whether all ranks save now, and at which step they meet next. Raises :class:`TimeoutError`."""
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        ready = one.saving is None or one.saving.done.is_set()
        ready = ready and all(name in self._namespace for name in one.order.names)
        lead = comm.Get_rank() == 0
        due = ready and (bool(one.steps) or not lead or time.monotonic() - one.saved >= one.seconds)
        mine, all_of_them = array("q", [int(due), one.next_meeting(step) if lead else 1 << 62]), array("q", [0, 0])
        request = comm.Iallreduce(mine, all_of_them, op=MPI.MIN)
        deadline, pause = time.monotonic() + PATIENCE, 0.0
        while not request.Test():
            if self.prompts_open:
                deadline = time.monotonic() + PATIENCE
            elif time.monotonic() > deadline:
                raise TimeoutError(f"not all ranks came to step {step} within {PATIENCE:g} s")
            time.sleep(pause)
            pause = min(0.005, pause + 0.0001)
        return bool(all_of_them[0]), int(all_of_them[1])


def _unseen(titles: list[str], order: SnapshotOrder, steps: int) -> str:
    line = f"%distributed save {order.name} {' '.join(order.names)}"
    return (
        f"The steps of {' and '.join(titles)} cannot be seen, so no snapshot {order.name!r} would be saved after every "
        f"{steps}. {line} --every 10m saves at the end of a cell, whenever 10 minutes have passed; without --every, it "
        f"saves at once."
    )


def _label(part: Part) -> str:
    facts = part.facts()
    return f"{facts.name} {facts.piece}" if facts.piece else facts.name
