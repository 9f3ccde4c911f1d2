"""The output of a cell, as a list of notebook outputs, for a front end that asks again and again for what has changed.

A :class:`Transcript` is a :class:`~jupyter_dtrain.view.painter.Painter`. Text is only ever appended, and a display
keeps its place, so a reader that has everything up to a version needs only the outputs that were changed after it: the
bytes that it gets grow with what is shown, not with how often it asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import MimeBundle

    from .painter import StreamName


@dataclass
class _Output:
    content: dict[str, Any]
    changed: int


class Transcript:
    """The outputs of one cell so far."""

    live = True
    paced = False
    erases = True

    def __init__(self) -> None:
        self.version = 0
        """Increases with each change."""
        self._outputs: list[_Output] = []
        self._places: dict[str, int] = {}

    def since(self, version: int) -> list[tuple[int, dict[str, Any]]]:
        """The outputs that were added or changed after ``version``, each with its place."""
        return [(place, output.content) for place, output in enumerate(self._outputs) if output.changed > version]

    def stream(self, name: StreamName, text: str) -> None:
        """Append text."""
        self._add({"output_type": "stream", "name": name, "text": text})

    def display(
        self,
        data: MimeBundle,
        metadata: dict[str, Any],
        display_id: str | None = None,
        *,
        moving: bool = False,  # noqa: ARG002 — every display can change
    ) -> None:
        """Append a rich output."""
        if display_id is not None:
            self._places[display_id] = len(self._outputs)
        self._add({"output_type": "display_data", "data": data, "metadata": metadata})

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Replace the content of a display."""
        if (place := self._places.get(display_id)) is None:
            return
        self.version += 1
        content = {"output_type": "display_data", "data": data, "metadata": metadata}
        self._outputs[place] = _Output(content, self.version)

    def settle(self, display_id: str) -> None:
        """Do nothing: every update was taken."""

    def error(self, ename: str, evalue: str, traceback: list[str]) -> None:
        """Append the exception that ended the cell."""
        self._add({"output_type": "error", "ename": ename, "evalue": evalue, "traceback": traceback})

    def _add(self, content: dict[str, Any]) -> None:
        self.version += 1
        self._outputs.append(_Output(content, self.version))
