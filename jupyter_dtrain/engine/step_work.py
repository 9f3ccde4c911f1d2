"""Work that a rank does after some steps of its training loop: a standing check of a model.

A framework calls after each step of the optimizer that steps first (``Cells.follow_steps``). A check digests the
model's parameters here, reports the digests as an event, and waits for no other rank: readers of the events compare
them. So a check cannot hang, and a rank that makes fewer steps holds nobody up.

Under failure: what a check raises is said once, the training goes on, and this cell checks no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.dotted_paths import resolve
from jupyter_dtrain.core.events import Body, Checked

from .contents import parts_of
from .words import words_of

if TYPE_CHECKING:
    from jupyter_dtrain.wire.messages import Watching

    from .contents import Part
    from .plugins import Plugins

MOST: Final = 4096
"""Parts of a model in a report."""
_KINDS: Final = ("value", "parameter")
"""What must be alike after a step. Gradients may have been cleared, and DDP makes buffers alike in the next forward."""


class StepWork:
    """The work of one rank, cell by cell."""

    def __init__(
        self,
        namespace: Mapping[str, Any],
        plugins: Plugins,
        emit: Callable[[Body], object],
        say: Callable[[str], object],
    ) -> None:
        """``emit`` records an event; ``say`` shows a sentence in the cell."""
        self._namespace = namespace
        self._plugins = plugins
        self._emit = emit
        self._say = say
        self._check, self._every = "", 1
        self._named: list[str] = []
        self._stepped = False

    def begin(self, watch: Watching) -> None:
        """A cell begins. Main thread."""
        self._check, self._every = watch.check, max(1, watch.check_every)
        self._named, self._stepped = [], False
        if self._check:
            self._plugins.follow_steps(self._step)

    def end(self) -> None:
        """The cell has ended. Main thread."""
        if not self._check:
            return
        self._plugins.follow_steps(None)
        if not self._stepped:
            self._say(
                "--check has seen no step of an optimizer in this cell; %distributed check compares a model at once."
            )
        self._check = ""

    def _step(self, step: int) -> None:
        self._stepped = True
        if not self._check or step % self._every:
            return
        try:
            self._report(step)
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._say(f"--check {self._check} has ended: {words_of(error)}")
            self._check, self._stepped = "", True
            self._plugins.follow_steps(None)

    def _report(self, step: int) -> None:
        name = self._check
        try:
            value = resolve(self._namespace, name)
        except LookupError:
            raise LookupError(f"{name!r} is no variable of this rank; check a top-level variable") from None
        parts = [part for part in parts_of(name, value, self._namespace, self._plugins) if part.kind in _KINDS][:MOST]
        labels = [_label(part) for part in parts]
        digests = b"".join(bytes.fromhex(part.digest()) or bytes(8) for part in parts)
        self._emit(Checked(name, step, digests, [] if labels == self._named else labels))
        self._named = labels


def _label(part: Part) -> str:
    facts = part.facts()
    return f"{facts.name} {facts.piece}" if facts.piece else facts.name
