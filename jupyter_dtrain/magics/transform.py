"""The change of a cell's text before IPython sees it: ``%%local``, auto mode, and brackets around ranks."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

from IPython.core.getipython import get_ipython

from jupyter_dtrain.session import open_sessions

if TYPE_CHECKING:
    from jupyter_dtrain.session import Session

VERB_NAMES: Final = ("distributed", "dist")
"""The names of the magic whose first word is a verb."""
RANK_NAMES: Final = (*VERB_NAMES, "rank")
"""The names of the magics whose cells go to the ranks."""
NAMES: Final = (*RANK_NAMES, "speedup", "between", "local")
"""The names of all our magics for cells."""

_VERBS, _RANKS, _ALL = map("|".join, (VERB_NAMES, RANK_NAMES, NAMES))
_STAYS = re.compile(rf"\s*(%%|%({_VERBS}|load_ext|reload_ext|unload_ext|local)\b|(exit|quit)\s*(\(\s*\))?\s*$)")
"""The beginnings of cells that auto mode never sends to the ranks; ``exit`` leaves a terminal."""
_COMMENT = re.compile(r"\s*#")
_LOCAL = re.compile(r"\s*%%local\s*\n?\Z")
VERB_LINE: Final = re.compile(rf"\s*%({_VERBS})\s+(.*)")
"""A line with a verb, and the rest of it."""
CELLS: Final = re.compile(rf"\s*%%({_ALL})\b")
"""The beginnings of cells with a magic of ours."""
ON_RANKS: Final = re.compile(rf"\s*%%({_RANKS})\b")
"""The beginnings of cells that go to the ranks."""
_BRACKETS = re.compile(r"(\s*%%rank)\s*\[([^\]\n]*)\]")
"""``%%rank[0, 1]``, as nbdistributed writes ranks; IPython would look for a magic of that name."""


class CellTransform:
    """An IPython input transformer."""

    has_side_effects = True
    """IPython skips the transform when it asks whether a cell is complete: a plain line is, even in auto mode."""

    def __init__(self) -> None:
        self._shell: Any = None
        self.auto = False
        """Whether plain cells go to the ranks."""

    def __call__(self, lines: list[str]) -> list[str]:
        """The lines of the cell for IPython."""
        first = next((index for index, line in enumerate(lines) if line.strip()), None)
        if first is None:
            return lines
        if _LOCAL.match(lines[first]):
            # The rest is a plain cell: it fails, echoes and completes like any other.
            return lines[first + 1 :]
        if bracketed := _BRACKETS.match(lines[first]):
            ranks = "".join(bracketed[2].split())
            lines = [*lines[:first], f"{bracketed[1]} {ranks}{lines[first][bracketed.end() :]}", *lines[first + 1 :]]
        if CELLS.match(lines[first]) and not any(line.strip() for line in lines[first + 1 :]):
            # IPython refuses a cell magic without a body before the magic can answer -h.
            return [*lines[: first + 1], "#\n"]
        return ["%%distributed\n", *lines] if self.sends(lines) and not self._is_silent() else lines

    def sends(self, lines: list[str]) -> bool:
        """Whether a plain cell of these lines goes to the ranks."""
        if not self.auto:
            return False
        first = next((line for line in lines if line.strip()), "%%")
        code = next((line for line in lines if line.strip() and not _COMMENT.match(line)), "")
        return bool(code) and not _STAYS.match(first) and not _STAYS.match(code)

    def _is_silent(self) -> bool:
        """Whether a front end runs the cell for its own use, such as a list of variables."""
        kernel = getattr(self._shell, "kernel", None)
        if kernel is None:
            return False
        request = kernel.get_parent("shell")
        return bool(request.get("content", {}).get("silent", False))

    def install(self, shell: Any) -> None:
        """Add the transform to ``shell``."""
        self._shell = shell
        shell.input_transformers_cleanup.append(self)

    def uninstall(self, shell: Any) -> None:
        """Remove the transform."""
        if self.auto:
            self.auto = False
            for session in open_sessions:
                session._tell_auto(auto=False)  # noqa: SLF001 — for the magics alone
        if self in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.remove(self)


def publish_auto(session: Session) -> None:
    """Show the other clients of the world that plain cells go to its ranks, if they do."""
    with contextlib.suppress(LookupError):
        if transform_of(get_ipython()).auto:
            session._tell_auto(auto=True)  # noqa: SLF001 — for the magics alone


def transform_of(shell: Any) -> CellTransform:
    """The transform of ``shell``. Raises :class:`LookupError` when the extension is not loaded."""
    for transform in getattr(shell, "input_transformers_cleanup", ()):
        if isinstance(transform, CellTransform):
            return transform
    raise LookupError("jupyter_dtrain is not loaded: %load_ext jupyter_dtrain")
