"""The line magics of nbdistributed, for people who come from there: each names what does the same here.

They are added only where no other extension owns the name. Each fails, so Run All stops at the line, and does nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from IPython.core.error import UsageError

COUNTERPARTS = {
    "dist_init": "%distributed start -n N starts a world of N ranks. Your own cells call init_process_group().",
    "dist_status": "%distributed status shows the ranks, where they are and what they do.",
    "dist_mode": "%distributed auto on sends every plain cell to the ranks, and %distributed auto off ends that.",
    "dist_shutdown": "%distributed stop ends the world and all its processes.",
    "dist_reset": "%distributed restart starts fresh ranks. It touches no processes but those of this world.",
    "dist_debug": "%distributed status and %distributed stacks show what the ranks do and where they are.",
    "dist_sync_ide": "Tab and Shift-Tab know the names on the ranks, so nothing has to be copied for them.",
    "sync": (
        "A %%distributed cell ends when all its ranks have ended it, so cells need no barrier between them. Inside a "
        "cell, jupyter_dtrain.comm.Barrier() or your framework's own barrier waits for all ranks."
    ),
}
"""The names, and the sentence for each."""


def name_counterpart(name: str, line: str) -> None:
    """Raise :class:`UsageError` with the counterpart of ``%name``."""
    del line  # whatever its options were, they mean nothing here
    raise UsageError(f"%{name} belongs to nbdistributed. {COUNTERPARTS[name]}")


class Counterparts:
    """Adds the magics to one shell, and takes them away."""

    def __init__(self) -> None:
        self._added: dict[str, Callable[[str], None]] = {}

    def install(self, shell: Any) -> None:
        """Add those whose names are free."""
        magics = shell.magics_manager.magics["line"]
        for name in COUNTERPARTS:
            if name not in magics:
                self._added[name] = magics[name] = partial(name_counterpart, name)

    def uninstall(self, shell: Any) -> None:
        """Remove those that are still ours."""
        magics = shell.magics_manager.magics["line"]
        for name, function in self._added.items():
            if magics.get(name) is function:
                del magics[name]
        self._added.clear()
