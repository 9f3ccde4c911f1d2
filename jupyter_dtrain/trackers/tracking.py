"""``track(run, "mlflow:http://host:5000")``: send a run of the store to a tracker, in a process of its own.

Under failure: :class:`~jupyter_dtrain.core.errors.TrackFailed` with the tracker's words. What had arrived stays there,
and a later call goes on from it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from jupyter_dtrain.core.errors import BadRequest, TrackFailed
from jupyter_dtrain.core.events import RUNNING
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.store.runs import Store
from jupyter_dtrain.store.stored_run import StoredRun

from .sender import SendJob
from .starting import start_sender
from .state import Row, add_row, read_state
from .target import TrackerTarget, check_target

PERIOD: Final = 0.1
"""Seconds between two looks at whether it is done."""


def track(run: StoredRun | Run | str, target: str, *, timeout: float = 600.0) -> None:
    """Send a run of the store to a tracker: its points, media, configuration, tags, notes and outcome.

    ``run``: a run, or its name in the store such as ``"world/3"``. ``target``: ``wandb:PROJECT``,
    ``mlflow:ADDRESS``, ``trackio:PROJECT`` or ``tensorboard:DIR``; with ``?ranks`` also the points of each rank.
    Called again for the same target, it sends what has been added since. Returns when the tracker has all; for a run
    that goes on, when its first points are there: the rest follows in the background until its end. ``timeout``:
    seconds.

    Raises :class:`BadRequest` for a target that cannot be used, and :class:`TrackFailed` where the tracker does not
    take the run in time.
    """
    store = Store.open()
    found = store.run_of(run) if isinstance(run, Run) else store.run(run) if isinstance(run, str) else run
    if timeout <= 0:
        raise BadRequest(f"timeout must be a number of seconds above 0, not {timeout!r}.")
    checked = check_target(target)
    row = Row(found.id, checked.tracker, checked.rest)
    with store.writing() as db:
        add_row(db, row)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        process = start_sender(SendJob(str(store.path), checked.text, runs=[found.id]), log)
        deadline = time.monotonic() + timeout
        words = ""
        while time.monotonic() < deadline:
            over = process.poll() is not None  # before the look: it may write, and end
            done, words, text = _look(store, row)
            state = read_state(text)
            if done or (not words and found.outcome == RUNNING and state.sent):
                return
            # Its world's own process may have been faster, and sends it now.
            if words or (over and not (state.claim is not None and state.claim.holds)):
                break
            time.sleep(PERIOD)
        if process.poll() is None:
            process.terminate()
            process.wait()
        _forget(store, row)
        raise TrackFailed(_explain(found, checked, words, log))


def _look(store: Store, row: Row) -> tuple[bool, str, str]:
    query = "SELECT done, words, state FROM tracked WHERE run = ? AND tracker = ? AND target = ?"
    found = store.ask(lambda db: db.execute(query, row).fetchone())
    if found is None:
        raise BadRequest("This run is no longer in the store.")
    return bool(found[0]), found[1], found[2]


def _forget(store: Store, row: Row) -> None:
    """Drop the row of a run of which the tracker has nothing: no later process is to try it."""
    state = read_state(_look(store, row)[2])
    if not state.sent and not state.medium:
        with store.writing() as db:
            db.execute("DELETE FROM tracked WHERE run = ? AND tracker = ? AND target = ? AND NOT done", row)


def _explain(run: StoredRun, target: TrackerTarget, words: str, log: Path) -> str:
    if words:
        return f"{words} %distributed track {run.label} {target.text} tries again."
    said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    why = f" ({said[0][:300]})" if said else ""
    return f"Run {run.label} did not reach {target.kind.title}{why}."
