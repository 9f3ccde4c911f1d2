"""Which run's training the ranks hold, and with which run the next training goes on.

A run that has logged metrics has trained what the ranks hold. A snapshot says which run has trained what it has, and
the first training after it was loaded goes on with that run, unless a person says otherwise. Where no cell follows that
trains, nothing goes on: a run without metrics continues none.

Under failure: a run that a person names and that is not there raises :class:`~jupyter_dtrain.core.errors.BadRequest`.
A snapshot whose run the store does not have, or cannot be asked for, continues nothing.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.events import RunContext
from jupyter_dtrain.core.metrics import last_step, newest_points
from jupyter_dtrain.core.run_names import check_run_name
from jupyter_dtrain.store.runs import Store

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.snapshots import Manifest
    from jupyter_dtrain.store.stored_run import StoredRun
    from jupyter_dtrain.wire.requests import WorldRequest

NONE: Final = "none"
"""What a person says for a training that goes on with no other."""


class Trained(NamedTuple):
    """A run that has trained something, and the step that comes next."""

    world: str
    """The name of its world."""
    number: int
    next_step: int


class Resuming:
    """The trainings of one session. Thread-safe."""

    def __init__(self, request: WorldRequest) -> None:
        self._id, self._name = request.id, request.name
        self._lock = threading.Lock()
        self._held: Trained | None = None
        self._is_loaded = False
        """Whether what the ranks hold was loaded, and nothing has trained it since."""

    @property
    def held(self) -> Trained | None:
        """The run that has trained what the ranks hold; None where none has."""
        return self._held

    def ended(self, run: Run) -> None:
        """Note that ``run`` has ended: if it has logged metrics, it has trained."""
        newest = {name: newest_points(run.metrics[name]) for name in run.metrics}
        last = last_step({name: max(step for step, _ in points.values()) for name, points in newest.items() if points})
        if last is not None:
            with self._lock:
                self._held, self._is_loaded = Trained(self._name, run.number, last + 1), False

    def loaded(self, manifest: Manifest) -> None:
        """Note that the ranks have loaded the snapshot of ``manifest``."""
        with self._lock:
            self._held = Trained(manifest.world, manifest.run, manifest.next_step) if manifest.run else None
            self._is_loaded = self._held is not None

    def forget(self) -> None:
        """Note that the ranks hold nothing any more."""
        with self._lock:
            self._held, self._is_loaded = None, False

    def context(self, context: RunContext, group: str, resume: str | int) -> RunContext:
        """``context`` with a ``group``, and with the run that it resumes: the one named, or the one found.

        Raises :class:`BadRequest` for a run that is not there, and for what cannot be the name of a group.
        """
        context = msgspec.structs.replace(context, group=check_run_name(group))
        wanted = str(resume).strip()
        if wanted.lower() == NONE:
            return context
        if wanted:
            return _resumed(context, Store.open().run(wanted, self._id), None)
        with self._lock:
            held = self._held if self._is_loaded else None
        if held is None:
            return context
        with contextlib.suppress(DtrainError):
            return _resumed(context, Store.open().run(f"{held.world}/{held.number}"), held.next_step)
        return context


def _resumed(context: RunContext, run: StoredRun, step: int | None) -> RunContext:
    """``context`` of a run that goes on with ``run``, from ``step`` on; None: after its last one."""
    if step is None:
        last = run.last_step
        if last is None:
            raise BadRequest(
                f"Run {run.label} has logged no metric, so nothing can go on with its training. %distributed runs "
                f"lists the runs that have; --resume none begins anew."
            )
        step = last + 1
    return msgspec.structs.replace(
        context, resumes=f"{run.world_id}/{run.number}", resumed=run.label, first_step=max(0, step)
    )
