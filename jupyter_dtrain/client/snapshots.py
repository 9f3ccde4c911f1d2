"""Snapshots: the variables of all ranks on disk, saved and loaded by runs of their own, and listed from their manifests.

A snapshot lies below ``DTRAIN_SNAPSHOTS``, or else in Jupyter's data folder; with ranks on other hosts that must be a
folder that all of them share. The key that signs it stays in Jupyter's data folder, and goes to ranks with each order,
on the way that values take.

Under failure: a save that fails raises, and the snapshot before it is still there. A load that does not fit raises
before anything has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jupyter_core.paths import jupyter_data_dir

from jupyter_dtrain.core.errors import BadRequest, TransferFailed
from jupyter_dtrain.core.snapshots import (
    ANSWER,
    KEY,
    Answer,
    Snapshot,
    check_snapshot_name,
    list_snapshots,
    newest,
    snapshot_key,
)
from jupyter_dtrain.wire.values import check_variable

from .compare import CALL

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.wire.requests import WorldRequest

FOLDER_VARIABLE: Final = "DTRAIN_SNAPSHOTS"
"""Environment variable: the folder of all snapshots."""
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def data_folder() -> Path:
    """Our folder in Jupyter's data folder."""
    return Path(jupyter_data_dir()) / "dtrain"


def snapshots_folder() -> Path:
    """The folder of all snapshots."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else data_folder() / "snapshots"


def key() -> bytes:
    """This user's key."""
    return snapshot_key(data_folder())


def all_snapshots() -> list[Snapshot]:
    """This user's snapshots, newest first; of each name the newest."""
    return list_snapshots(snapshots_folder(), key())


def parse_every(every: str | int | float) -> tuple[int, float]:
    """``100`` as steps, ``10m`` as seconds: (steps, seconds), one of which is 0. Raises :class:`BadRequest`."""
    text = str(every).strip()
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf") or (not unit and value != int(value)):
        raise BadRequest(
            f"{text!r} is no distance between snapshots: write steps, such as 100, or a time, such as 10m."
        )
    return (0, value * UNITS[unit]) if unit else (int(value), 0.0)


class Snapshots:
    """A session's way to snapshots."""

    request: WorldRequest
    run: Callable[..., Run]

    def save(self, name: str, names: Sequence[str], *, every: str | int | None = None) -> Answer:
        """Save the variables ``names`` of all ranks as the snapshot ``name``; it replaces an older one of that name.

        PyTorch's models and optimizers are saved so that a world of any size can load them. Anything else is pickled on
        each rank; an object with ``state_dict`` as its state. ``every``: save after so many steps of the optimizer, or
        whenever a time such as ``"10m"`` has passed, between two steps of the cells from now on, instead of now.

        Raises :class:`BadRequest`, and as :meth:`run`: ranks raise :class:`TransferFailed` with the reason.
        """
        check_snapshot_name(name)
        names = list(dict.fromkeys(names))
        if not names:
            raise BadRequest("Name the variables to save: %distributed save NAME model opt")
        for one in names:
            check_variable(one)
        place = (name, names, str(snapshots_folder()), self.request.name)
        if every is None:
            return self._order("run_save", place, {}, f"save {name}")
        steps, seconds = parse_every(every)
        return self._order("run_order", place, {"steps": steps, "seconds": seconds}, f"save {name} --every {every}")

    def stop_saving(self, name: str = "") -> list[str]:
        """Save ``name`` (default: all) by itself no more; the names of the snapshots that were saved so."""
        return self._order("run_cancel", (name,), {}, "save --stop").names

    def load(self, name: str, names: Sequence[str] = (), *, trust: bool = False, ready: bool = False) -> Answer:
        """Load variables (default: all) from the newest snapshot ``name``, in a world of any size.

        Models, optimizers and other objects with a state must be there, and get their state; anything else is bound.
        ``ready``: load what can be loaded, and tell which objects must be made first. ``trust``: also load a snapshot
        that is not signed with your key; to load it can run its code.

        Raises :class:`BadRequest` where there is none, and as :meth:`run`: ranks raise :class:`SnapshotRefused` for a
        snapshot that was changed, and :class:`TransferFailed` for one that does not fit. Then nothing has changed.
        """
        check_snapshot_name(name)
        for one in names:
            check_variable(one)
        place = (str(newest(snapshots_folder(), name)), list(names))
        return self._order("run_load", place, {"trust": trust, "ready": ready}, f"load {name}")

    @property
    def snapshots(self) -> list[Snapshot]:
        """All snapshots of this user, newest first."""
        return all_snapshots()

    def _order(self, function: str, values: tuple[Any, ...], options: Mapping[str, Any], label: str) -> Answer:
        code = CALL.format("snapshot_cells", function, values, dict(options))
        inputs = {} if function == "run_cancel" else {KEY: key()}
        run = self.run(code, view=None, inputs=inputs, metrics=False, name=label)
        for displays in run.outputs.values():
            for display in displays:
                if ANSWER in display.data:
                    return msgspec.json.decode(str(display.data[ANSWER]), type=Answer)
        raise TransferFailed("The ranks have sent no answer.")
