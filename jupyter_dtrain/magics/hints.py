"""A hint below a plain cell that fails with NameError for a name that lives on the ranks."""

from __future__ import annotations

import sys
from typing import Any, Final

from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.core.world import count_ranks, format_ranks
from jupyter_dtrain.session import current

BRIEF: Final = 1.5
"""Seconds for what ranks know of a name."""


class NameHints:
    """Prints the hint for one shell."""

    def install(self, shell: Any) -> None:
        """Follow the ends of cells."""
        shell.events.register("post_run_cell", self._after_cell)

    def uninstall(self, shell: Any) -> None:
        """Stop following them."""
        shell.events.unregister("post_run_cell", self._after_cell)

    def _after_cell(self, result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
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
