"""The cells that save and load snapshots: what the client sends calls these functions on all ranks.

The user's key comes as a variable of the cell, which it takes away at once: a cell's text is kept in logs.

Under failure: what :mod:`.snapshots` raises ends the cell on all ranks.
"""

from __future__ import annotations

from pathlib import Path

from jupyter_dtrain.core.snapshots import ANSWER, KEY, SnapshotAnswer, SnapshotOrder

from .rank_context import answer, verb_cell
from .snapshots import load, save


def run_save(
    name: str, names: list[str], root: str, world: str, keep: int, *, run: int = 0, next_step: int = 0
) -> None:
    """In a cell: save ``names`` as the snapshot ``name`` below ``root``; returns when it is on disk.

    ``keep``: how many of that name stay. ``run``: the run that has trained them, whose ``next_step`` comes next.
    """
    home, namespace = verb_cell()
    order = SnapshotOrder(name, names, root, namespace.pop(KEY), world, keep, run, next_step)
    size, seconds, notes = save(order, namespace, home.plugins)
    _answer(SnapshotAnswer(names, notes=notes, bytes=size, seconds=seconds))


def run_load(folder: str, names: list[str], *, trust: bool, ready: bool) -> None:
    """In a cell: load ``names``, or all, from a snapshot's folder."""
    home, namespace = verb_cell()
    key = namespace.pop(KEY)
    loaded, waiting, notes = load(Path(folder), names, key, namespace, home.plugins, trust=trust, ready=ready)
    _answer(SnapshotAnswer(loaded, waiting, notes))


def run_order(name: str, names: list[str], root: str, world: str, keep: int, *, steps: int, seconds: float) -> None:
    """In a cell: save after every ``steps`` steps, or whenever ``seconds`` have passed, from the next cell on."""
    home, namespace = verb_cell()
    home.step_work.place(SnapshotOrder(name, names, root, namespace.pop(KEY), world, keep), steps, seconds)
    _answer(SnapshotAnswer(names))


def run_cancel(name: str) -> None:
    """In a cell: stop saving ``name`` automatically; an empty name stands for all snapshots."""
    home, _ = verb_cell()
    _answer(SnapshotAnswer(home.step_work.cancel(name)))


def _answer(found: SnapshotAnswer) -> None:
    answer(ANSWER, found, ", ".join(found.names))
