"""A hint below a plain cell that fails: for a name that lives on the ranks, or for a magic of nbdistributed."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from IPython.core.error import UsageError

from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.core.world import count_ranks, format_ranks
from jupyter_dtrain.session import current

BRIEF: Final = 1.5
"""Seconds for what ranks know of a name."""


COUNTERPARTS: Final = {
    "dist_init": "%distributed start -n N starts a world of N ranks. Your own cells call init_process_group().",
    "dist_status": "%distributed status shows the ranks, where they are and what they do.",
    "dist_mode": "%distributed auto on sends every plain cell to the ranks, and %distributed auto off ends that.",
    "dist_shutdown": "%distributed stop ends the world and all its processes.",
    "dist_reset": "%distributed restart starts fresh ranks. It touches no processes but those of this world.",
    "dist_debug": "%distributed status and %distributed stacks show what the ranks do and where they are.",
    "dist_sync_ide": "Tab and Shift-Tab know the names on the ranks, so nothing has to be copied for them.",
    "sync": "A %%distributed cell ends when all its ranks have ended it, so cells need no barrier between them. Inside "
    "a cell, jupyter_dtrain.comm.Barrier() or your framework's own barrier waits for all ranks.",
}
"""The line magics of nbdistributed, and what does the same here."""

_NOT_FOUND: Final = re.compile(r"Line magic function `%(\w+)` not found")


class Hints:
    """Prints the hints for one shell."""

    def install(self, shell: Any) -> None:
        """Follow the ends of cells."""
        shell.events.register("post_run_cell", self._after_cell)

    def uninstall(self, shell: Any) -> None:
        """Stop following them."""
        shell.events.unregister("post_run_cell", self._after_cell)

    def _after_cell(self, result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
        if isinstance(error, UsageError) and (found := _NOT_FOUND.search(str(error))) and found[1] in COUNTERPARTS:
            print(f"%{found[1]} belongs to nbdistributed. {COUNTERPARTS[found[1]]}", file=sys.stderr)
        if not isinstance(error, NameError) or isinstance(error, UnboundLocalError) or not error.name:
            return
        try:
            session = current()
            ranks = session.names.defined_on(error.name)
            everywhere = len(ranks) == session.world.size
            # Briefly: a big model is not read to the end.
            spread = ranks and any(
                one.placement for one in session.vars([error.name], ranks, BRIEF)[error.name].values()
            )
        except DtrainError:
            return
        if not ranks:
            return
        name = error.name
        there = "%%distributed" if everywhere else f"%%distributed -r {format_ranks(ranks)}"
        hint = f"{name!r} is not defined in the notebook, but it is on {count_ranks(ranks)}"
        if spread:
            hint += f", each with a part of it. Run this cell there with {there} on its first line."
        else:
            hint += (
                f". Run this cell there with {there} on its first line, or bring the values here as {{rank: value}} "
                f"with\n    {there} --pull {name}\n    {name}"
            )
        print(hint, file=sys.stderr)
