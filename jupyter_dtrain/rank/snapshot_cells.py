"""The cells that save and load snapshots: what the client sends calls these functions on all ranks.

The user's key comes as a variable of the cell, which it takes away at once: a cell's text is kept in logs. Rank 0 sends
the answer as a display.

Under failure: what :mod:`.snapshots` raises ends the cell on all ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from jupyter_dtrain.core.snapshots import ANSWER, KEY, SnapshotAnswer

from .rank_context import rank_home
from .snapshots import Order, load, save


def run_save(name: str, names: list[str], root: str, world: str) -> None:
    """Save ``names`` as the snapshot ``name`` below ``root``; returns when it is on disk."""
    namespace, home = _here()
    size, seconds, notes = save(Order(name, names, root, namespace.pop(KEY), world), namespace, home.plugins)
    _answer(SnapshotAnswer(names, notes=notes, bytes=size, seconds=seconds))


def run_load(folder: str, names: list[str], *, trust: bool, ready: bool) -> None:
    """Load ``names``, or all, from a snapshot's folder."""
    namespace, home = _here()
    key = namespace.pop(KEY)
    loaded, waiting, notes = load(Path(folder), names, key, namespace, home.plugins, trust=trust, ready=ready)
    _answer(SnapshotAnswer(loaded, waiting, notes))


def run_order(name: str, names: list[str], root: str, world: str, *, steps: int, seconds: float) -> None:
    """Save ``names`` after every ``steps`` steps, or whenever ``seconds`` have passed, from the next cell on."""
    namespace, home = _here()
    key = namespace.pop(KEY)
    home.step_work.place(Order(name, names, root, key, world), steps, seconds)
    _answer(SnapshotAnswer(names))


def run_cancel(name: str) -> None:
    """Stop saving ``name`` automatically; an empty name stands for all snapshots."""
    _, home = _here()
    _answer(SnapshotAnswer(home.step_work.cancel(name)))


def _here() -> tuple[dict[str, Any], Any]:
    from IPython.core.getipython import get_ipython

    home, shell = rank_home(), get_ipython()
    assert home is not None
    assert shell is not None
    return shell.user_ns, home


def _answer(answer: SnapshotAnswer) -> None:
    from IPython.core import display_functions

    home = rank_home()
    if home is None or home.place.rank:
        return
    show: Any = display_functions.publish_display_data
    show({ANSWER: msgspec.json.encode(answer).decode(), "text/plain": ", ".join(answer.names)})
