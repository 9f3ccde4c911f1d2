"""Runs of other tools, brought into the store: W&B's offline folders, MLflow's stores, TensorBoard's event files.

Each reader (:mod:`.wandb`, :mod:`.mlflow`, :mod:`.tensorboard`) finds runs below a path and says of each what one of
our ranks would have said, as events. :mod:`.intake` gives these to the writer of all runs, so that an imported run has
all that others have. W&B's and MLflow's files are read as they are, without these packages; TensorBoard's need its own.

The identity of a run comes from the tool and not from the path. So a second import of a run is the same run: it changes
nothing, or adds what the run has logged since. The name, note and tags that a person has given it here stay.

Under failure: what cannot be read is left out with a remark; where nothing can be read, the error says what was looked
for. The files themselves are never changed.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import quantity

from ..run_list import RunList
from ..runs import Store
from . import mlflow, tensorboard, wandb
from .foreign import ForeignRun, Found
from .intake import take

ImportKind = Literal["wandb", "mlflow", "tensorboard"]
"""The tool whose runs are imported."""
TITLES: Final[Mapping[ImportKind, str]] = {"wandb": "W&B", "mlflow": "MLflow", "tensorboard": "TensorBoard"}
_READERS: Final[Mapping[ImportKind, Callable[[Path], Found]]] = {
    "wandb": wandb.find,
    "mlflow": mlflow.find,
    "tensorboard": tensorboard.find,
}
_LOOKED: Final[Mapping[ImportKind, str]] = {
    "wandb": "folders of W&B (wandb/offline-run-…)",
    "mlflow": "an MLflow store (a folder mlruns, a file mlflow.db)",
    "tensorboard": "event files of TensorBoard (events.out.tfevents.…)",
}
_MOST_REMARKS: Final = 20


class Import(NamedTuple):
    """What an import has found."""

    runs: RunList
    """All runs of the path, the newest first, whether they were new or not."""
    remarks: list[str]
    """Sentences: how many are new, and what was left out and why."""
    left_out: list[str]
    """The remarks on what was left out."""


def import_runs(path: str | os.PathLike[str], kind: ImportKind | None = None) -> RunList:
    """Bring runs of W&B, MLflow or TensorBoard into the store, and return them, newest first.

    ``path``: a folder ``wandb`` or one run's folder in it; a folder ``mlruns`` or an SQLite file of MLflow; a folder
    with event files of TensorBoard, however deep; or a folder that has one of these. ``kind``: ``wandb``, ``mlflow`` or
    ``tensorboard``, where it has several.

    A run that was imported before stays as it is, or gets what it has logged since. Imported runs are kept: their age
    does not remove them. A warning tells what could not be read. Raises :class:`BadRequest` for a path without runs.
    """
    found = bring_in(path, kind)
    for words in found.left_out:
        warnings.warn(words, stacklevel=2)
    return found.runs


def bring_in(path: str | os.PathLike[str], kind: str | None = None) -> Import:
    """As :func:`import_runs`, with what is to be said about it. Raises :class:`BadRequest`."""
    place = Path(path[len("sqlite:///") :] if isinstance(path, str) and path.startswith("sqlite:///") else path)
    place = place.expanduser()
    if kind is not None and kind not in get_args(ImportKind):
        raise BadRequest(f"{kind!r} is no tool whose runs can be imported: choose wandb, mlflow or tensorboard.")
    if not place.exists():
        raise BadRequest(f"{place} does not exist: name a folder of W&B or TensorBoard, or an MLflow store.")
    found = _find(place, kind)
    store = Store.open()
    left_out = list(found.left_out)
    ids: list[int] = []
    counts = {"new": 0, "changed": 0, "same": 0}
    for one in sorted(found.runs, key=lambda run: run.started):
        try:
            row, state = take(store, one)
        except (OSError, sqlite3.Error) as error:
            left_out.append(f"{one.title} could not be stored ({error}).")
            continue
        ids.append(row)
        counts[state] += 1
    runs = RunList(store.run_with_id(row) for row in dict.fromkeys(reversed(ids)))
    if len(left_out) > _MOST_REMARKS:
        left_out = [*left_out[:_MOST_REMARKS], f"{len(left_out) - _MOST_REMARKS} more could not be imported."]
    parts = [f"{quantity(counts['new'], 'run')} imported"] if counts["new"] or not ids else []
    if counts["changed"]:
        parts.append(f"{quantity(counts['changed'], 'run')} brought up to date")
    if counts["same"]:
        parts.append(f"{quantity(counts['same'], 'run')} {'was' if counts['same'] == 1 else 'were'} there already")
    words = ", ".join(parts)
    return Import(runs, [f"{words[:1].upper()}{words[1:]}.", *left_out], left_out)


def _find(place: Path, kind: str | None) -> Found:
    """The runs below a path. Raises :class:`BadRequest` where there are none, or of several tools."""
    chosen: dict[ImportKind, Callable[[Path], Found]] = {
        name: read for name, read in _READERS.items() if kind in (None, name)
    }
    found: dict[ImportKind, Found] = {}
    for name, read in chosen.items():
        there = read(place)
        if there.runs or there.left_out:
            found[name] = there
    with_runs = [name for name, there in found.items() if there.runs]
    if len(with_runs) > 1:
        tools = " and of ".join(TITLES[name] for name in _READERS if name in with_runs)
        raise BadRequest(f"{place} has runs of {tools}: choose one with kind= (--kind in a magic).")
    if with_runs:
        return found[with_runs[0]]
    if found:
        raise BadRequest("\n".join(words for there in found.values() for words in there.left_out[:_MOST_REMARKS]))
    looked = "; ".join(_LOOKED[name] for name in _READERS if name in chosen)
    raise BadRequest(f"{place} has no runs that can be imported. It was looked through for {looked}.")


__all__ = ["ForeignRun", "Import", "ImportKind", "bring_in", "import_runs"]
