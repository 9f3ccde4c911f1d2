"""Rich outputs of ranks in one cell: their ranks, the displays that show them, and the effect of clearing.

Every display of a rank gets a slot: a display id of ours, so that ids of different ranks and runs cannot collide.
After ``clear_output`` a rank uses its slots again in their order, so a plot that is redrawn in a loop stays one output
for each rank. Equal displays of several ranks share one slot until one of the ranks clears. Nothing here fails; an id
that a rank never displayed is displayed at its first update.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.events import ClearOutput, Display, MimeBundle, Result

from .labels import is_line, label, metadata_of, without_widget
from .standing import MANY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .lines import LineMerger, Merged
    from .outbox import Outbox

RICH: Final = "display"
"""The stream by which rich outputs pass through the merger, so that they keep their place among the lines."""

MOST_RESULTS: Final = 64
"""Results that differ from each other and are shown at the end of a cell."""

_EMPTY: Final[MimeBundle] = {"text/plain": ""}


@dataclass(eq=False)
class _Slot:
    display_id: str
    owners: set[int]
    inline: bool
    """Whether the label is part of the content rather than on a line above."""


@dataclass
class _OfRank:
    slots: list[_Slot] = field(default_factory=list)
    next: int = 0
    """The first of the slots that a ``clear_output`` freed."""
    stale: bool = False
    """Whether the freed slots still show old content, because the clearing waits for the next display."""
    cleared: bool = False
    ids: dict[str, _Slot] = field(default_factory=dict)


class RichOutputs:
    """The rich outputs of one run; ``name`` begins their display ids. ``widgets``: whether ranks' widgets can show.

    ``captions``: see :func:`paint_caption`.
    """

    def __init__(
        self,
        outbox: Outbox,
        merger: LineMerger,
        size: int,
        name: str,
        *,
        widgets: bool = False,
        captions: bool = False,
    ) -> None:
        self._widgets = widgets
        self._captions = captions
        self._outbox = outbox
        self._merger = merger
        self._size = size
        self._name = name
        self._count = 0
        self._held: dict[str, list[Any]] = {}  # token -> [event, how many ranks' copies are in the merger]
        self._ranks: dict[int, _OfRank] = {}
        self._updated: dict[str, None] = {}

    def push(self, rank: int, event: Display | ClearOutput, now: float) -> None:
        """Take an event of ``rank``; it is painted when the merger returns it."""
        mine = self._ranks.setdefault(rank, _OfRank())
        self._count += 1
        token = f"{rank}:{self._count}"
        alone = True
        if isinstance(event, ClearOutput):
            mine.cleared = True
        else:
            data = event.data if self._widgets else without_widget(event.data)
            if not data:
                return
            event = Display(data, event.metadata, event.display_id, event.update)
            # A rank that redraws must keep slots of its own: only chance decides whether others are in time to share.
            if event.display_id is None and not mine.cleared:
                token, alone = _digest(event), False
        held = self._held.setdefault(token, [event, 0])
        held[1] += 1
        self._merger.push(rank, RICH, token, now, alone=alone)

    def paint(self, merged: Merged) -> None:
        """Show what the merger returned."""
        held = self._held[merged.text]
        held[1] -= len(merged.ranks)
        if held[1] <= 0:
            del self._held[merged.text]
        event = held[0]
        if isinstance(event, ClearOutput):
            self._clear(merged.ranks[0], event)
        elif merged.same:
            self._outbox.text("stdout", label(merged.ranks, self._size) + "(the same output as above)\n")
        else:
            self._display(merged.ranks, event)

    def close(self) -> None:
        """Note that every display has its last content."""
        for display_id in self._updated:
            self._outbox.settle(display_id)
        self._updated.clear()

    def _display(self, ranks: tuple[int, ...], event: Display) -> None:
        mine = self._ranks[ranks[0]]
        if event.update and event.display_id in mine.ids:
            self._fill(mine.ids[event.display_id], ranks, event)
            return
        if mine.next < len(mine.slots):
            slot = mine.slots[mine.next]
            mine.next += 1
            self._fill(slot, ranks, event)
            if mine.stale:
                for freed in mine.slots[mine.next :]:
                    self._blank(freed)
        else:
            slot = self._new_slot(ranks, event)
            for rank in ranks:
                other = self._ranks[rank]
                other.slots.append(slot)
                other.next = len(other.slots)
        mine.stale = False
        if event.display_id is not None:
            mine.ids[event.display_id] = slot

    def _new_slot(self, ranks: tuple[int, ...], event: Display) -> _Slot:
        self._count += 1
        inline = self._size > 1 and is_line(event.data)
        slot = _Slot(f"{self._name}-{ranks[0]}-{self._count}", set(ranks), inline)
        if self._size > 1 and not inline:
            paint_caption(ranks, self._outbox, self._size, displayed=self._captions)
        self._outbox.display(
            self._labelled(slot, ranks, event.data), metadata_of(ranks, event.metadata), slot.display_id
        )
        return slot

    def _fill(self, slot: _Slot, ranks: tuple[int, ...], event: Display) -> None:
        self._updated[slot.display_id] = None
        data = self._labelled(slot, ranks, event.data)
        self._outbox.update(data, metadata_of(ranks, event.metadata), slot.display_id)

    def _labelled(self, slot: _Slot, ranks: tuple[int, ...], data: MimeBundle) -> MimeBundle:
        text = data.get("text/plain")
        if not slot.inline or not isinstance(text, str):
            return data
        return {**data, "text/plain": label(ranks, self._size) + ("\n" if "\n" in text.rstrip("\n") else "") + text}

    def _clear(self, rank: int, event: ClearOutput) -> None:
        mine = self._ranks[rank]
        own = []
        for slot in mine.slots:
            if slot.owners == {rank}:
                own.append(slot)
                continue
            # Its label names all ranks that share it: it goes when the last of them has cleared.
            slot.owners.discard(rank)
            if not slot.owners:
                self._blank(slot)
        mine.slots, mine.next, mine.stale = own, 0, event.wait
        mine.ids.clear()
        if not event.wait:
            for slot in own:
                self._blank(slot)

    def _blank(self, slot: _Slot) -> None:
        self._updated[slot.display_id] = None
        self._outbox.update(dict(_EMPTY), {}, slot.display_id)


def paint_caption(ranks: tuple[int, ...], outbox: Outbox, size: int, *, displayed: bool) -> None:
    """Show the ranks of the next output on a line of its own.

    ``displayed``: as a display of its own, whose metadata say that it is a caption. A front end that knows this puts
    the outputs of ranks side by side, each with its ranks; any other shows the line.
    """
    line = label(ranks, size).rstrip()
    if not displayed:
        outbox.text("stdout", line + "\n")
        return
    metadata = metadata_of(ranks, {})
    metadata["dtrain"]["caption"] = True
    outbox.display({"text/plain": line}, metadata, None)


def paint_results(results: Mapping[int, Result], outbox: Outbox, size: int, *, captions: bool = False) -> None:
    """Show the values of the cell's last expression: equal results once, in the order of their lowest ranks.

    With more than :data:`.MANY` ranks, results that fewer ranks share come first, and at most :data:`MOST_RESULTS` are
    shown. ``captions``: see :func:`paint_caption`.
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(results):
        if without_widget(results[rank].data):
            groups.setdefault(_digest(results[rank]), []).append(rank)
    ordered = list(groups.values())
    if len(results) > MANY:
        ordered.sort(key=len)
    for group in ordered[:MOST_RESULTS]:
        ranks = tuple(group)
        result = results[ranks[0]]
        data = without_widget(result.data)
        text = data.get("text/plain")
        mark = label(ranks, size)
        if mark and len(data) == 1 and isinstance(text, str):
            data = {"text/plain": mark + text if is_line(data) else f"{mark.rstrip()}\n{text}"}
        elif mark:
            paint_caption(ranks, outbox, size, displayed=captions)
        outbox.display(data, metadata_of(ranks, result.metadata), None)
    if len(ordered) > MOST_RESULTS:
        hidden = sum(map(len, ordered[MOST_RESULTS:]))
        outbox.text("stdout", f"… and the results of {hidden} more ranks: Run.results has them\n")


def _digest(event: Display | Result) -> str:
    content = json.dumps([without_widget(event.data), event.metadata], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(errors="replace"), digest_size=16).hexdigest()
