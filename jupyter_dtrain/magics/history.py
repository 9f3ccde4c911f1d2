"""The cells of this session, in the order in which a person ran them: what an export without a file reads.

IPython keeps the text of each cell under its number. This part adds what only the moment of the run shows: the cell's
id in the notebook, whether auto mode sent it to the ranks, and whether it ended well. A cell without an id (in a
terminal, and in some front ends) counts each time it runs.

Under failure: for cells that ran before the extension was loaded only IPython's text is known; they count as local
cells that ended well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .transform import CellTransform


class Ran(NamedTuple):
    """One cell that has run here."""

    number: int
    source: str
    id: str
    auto: bool
    """Whether it was a plain cell that auto mode sent to the ranks."""
    failed: bool


class SessionCells:
    """A part that joins a shell and remembers how its cells ended."""

    def __init__(self, transform: CellTransform) -> None:
        self._transform = transform
        self._shell: Any = None
        self._auto = False
        self._known: dict[int, Ran] = {}

    def install(self, shell: Any) -> None:
        """Follow the cells of ``shell`` from now on."""
        self._shell = shell
        shell.events.register("pre_run_cell", self._begins)
        shell.events.register("post_run_cell", self._ended)

    def uninstall(self, shell: Any) -> None:
        """Stop following them."""
        shell.events.unregister("pre_run_cell", self._begins)
        shell.events.unregister("post_run_cell", self._ended)

    def _begins(self, info: Any) -> None:
        self._auto = self._transform.sends(str(info.raw_cell or "").splitlines(keepends=True))

    def _ended(self, result: Any) -> None:
        number, info = result.execution_count, result.info
        if number is not None and info is not None:
            self._known[number] = Ran(
                number, str(info.raw_cell), str(info.cell_id or ""), self._auto, failed=not result.success
            )

    def cells(self) -> list[Ran]:
        """All cells so far: each once, with its last text, at the place of its first run."""
        texts = list(self._shell.history_manager.input_hist_raw)
        found: dict[Any, Ran] = {}
        for number, text in enumerate(texts):
            ran = self._known.get(number) or Ran(number, text, "", auto=False, failed=False)
            if text.strip():
                found[ran.id or number] = ran
        return list(found.values())
