"""Rich outputs of ranks in one cell: their ranks, the displays that show them, and the effect of clearing.

Every display of a rank gets a slot: a display id of ours, so that ids of different ranks and runs cannot collide.
After ``clear_output`` a rank uses its slots again in their order, so a plot that is redrawn in a loop stays one output
for each rank. Equal displays of several ranks share one slot until one of the ranks clears; its label then names those
that are left. Nothing here fails; an id that a rank never displayed is displayed at its first update.

Text of a stream can only be added. So what a rank prints after ``clear_output`` goes to one display of the cell, its
page, which is redrawn; see :class:`_Page`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.events import ClearOutput, Display, MimeBundle, Result

from .labels import is_line, label, metadata_of, without_widget
from .rank_summary import MANY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .lines import LineMerger, Merged
    from .outbox import Outbox

RICH: Final = "display"
"""The stream by which rich outputs pass through the merger, so that they keep their place among the lines."""

MOST_RESULTS: Final = 64
"""Results that differ from each other and are shown at the end of a cell."""

KEPT_IDS: Final = 4096
"""Displays with an id that later cells of a session may update."""

PAGE_LINES: Final = 100
PAGE_SIZE: Final = 8000
"""Lines and characters of a page: each redraw sends all of it."""

PAGE_REDRAW: Final = 0.1
"""Seconds between two redraws of the page."""

_EMPTY: Final[MimeBundle] = {"text/plain": ""}
_TEXTS: Final = ("text/html", "text/markdown", "text/latex", "text/plain")
_UNSEEN = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_PLAIN_TAG = re.compile(r"</?(?:pre|code|span|p|br|b|i|em|strong)(?:\s[^>]*)?/?>|</?div>", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(eq=False)
class _Slot:
    display_id: str
    owners: set[int]
    inline: bool
    """Whether the label is part of the content rather than on a line above."""
    line: Display | None = None
    """The content, if it is :attr:`inline`."""
    caption: str | None = None
    """The id of the display above, which names the owners; None if there is none."""
    captioned: bool = False
    """Whether that display shows them now."""


Known = dict[tuple[int, str], _Slot]
"""The slots of the displays to which ranks gave an id, by rank and id: those of all cells of a session."""


@dataclass
class _OfRank:
    slots: list[_Slot] = field(default_factory=list)
    next: int = 0
    """The first of the slots that a ``clear_output`` freed."""
    stale: bool = False
    """Whether the freed slots still show old content, because the clearing waits for the next display."""
    outdated: bool = False
    """Whether a line has come since, so that they go even if no display comes."""
    cleared: bool = False
    ids: set[str] = field(default_factory=set)


class RichOutputs:
    """The rich outputs of one run; ``name`` begins their display ids. ``widgets``: whether ranks' widgets can show.

    ``captions``: see :func:`paint_caption`. ``known``: the displays that have an id, earlier cells' included, which
    painters of later cells can still update. ``page``: whether lines that ranks print after clearing can be redrawn;
    ``paged``: whether those that come before are, too.
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
        known: Known | None = None,
        page: bool = False,
        paged: bool = False,
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
        self._known: Known = {} if known is None else known
        self._page = _Page(outbox, size, f"{name}-page", every=paged) if page else None

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

    def line(self, merged: Merged, now: float) -> bool:
        """Show a printed line, if it may be cleared again; false if it belongs to a stream."""
        for rank in merged.ranks:
            if (mine := self._ranks.get(rank)) is not None:
                mine.outdated = mine.stale
        return self._page is not None and self._page.take(merged, now)

    def tick(self, now: float) -> float | None:
        """Redraw the page if that is due; returns when it is due next."""
        return None if self._page is None else self._page.tick(now)

    def close(self) -> None:
        """Note that every display has its last content."""
        for mine in self._ranks.values():
            self._end_clearing(mine)
        if self._page is not None:
            self._page.close()
        for display_id in self._updated:
            self._outbox.settle(display_id)
        self._updated.clear()

    def _display(self, ranks: tuple[int, ...], event: Display) -> None:
        mine = self._ranks[ranks[0]]
        if self._page is not None:
            self._page.renew(ranks)
        if event.update and event.display_id is not None:
            slot = self._known.get((ranks[0], event.display_id))
            if slot is not None:
                self._fill(slot, ranks, event)
                return
        slot = self._freed_slot(mine, event)
        if slot is not None:
            self._fill(slot, ranks, event)
        else:
            slot = self._new_slot(ranks, event)
            for rank in ranks:
                other = self._ranks[rank]
                other.slots.append(slot)
                other.next = len(other.slots)
        if mine.stale:
            for freed in mine.slots[mine.next :]:
                self._blank(freed)
        mine.stale = mine.outdated = False
        if event.display_id is not None:
            mine.ids.add(event.display_id)
            self._known.pop((ranks[0], event.display_id), None)
            self._known[ranks[0], event.display_id] = slot
            while len(self._known) > KEPT_IDS:
                del self._known[next(iter(self._known))]

    def _freed_slot(self, mine: _OfRank, event: Display) -> _Slot | None:
        """The next slot that a clearing has freed and that can show ``event`` with its label."""
        above = self._size > 1 and not is_line(event.data) and _is_visible(event.data)
        while mine.next < len(mine.slots):
            slot = mine.slots[mine.next]
            mine.next += 1
            if slot.caption is not None or not above or not self._captions:
                return slot
            self._blank(slot)
        return None

    def _new_slot(self, ranks: tuple[int, ...], event: Display) -> _Slot:
        self._count += 1
        visible = _is_visible(event.data)
        inline = self._size > 1 and visible and is_line(event.data)
        slot = _Slot(f"{self._name}-{ranks[0]}-{self._count}", set(ranks), inline)
        # What can be seen only later has its label's place above it already.
        if self._size > 1 and not inline and (visible or (event.display_id is not None and self._captions)):
            slot.caption = f"{slot.display_id}-ranks" if self._captions else None
            slot.captioned = visible
            shown = ranks if visible else ()
            paint_caption(shown, self._outbox, self._size, displayed=self._captions, display_id=slot.caption)
        self._outbox.display(self._labelled(slot, event), metadata_of(ranks, event.metadata), slot.display_id)
        return slot

    def _fill(self, slot: _Slot, ranks: tuple[int, ...], event: Display) -> None:
        self._updated[slot.display_id] = None
        if (visible := _is_visible(event.data)) != slot.captioned:
            self._caption(slot, shown=visible)
        self._outbox.update(self._labelled(slot, event), metadata_of(ranks, event.metadata), slot.display_id)

    def _caption(self, slot: _Slot, *, shown: bool) -> None:
        """Show the ranks of a slot on the line above it, or nothing."""
        if slot.caption is not None:
            slot.captioned = shown
            data, metadata = _caption_of(tuple(sorted(slot.owners)) if shown else (), self._size)
            self._outbox.update(data, metadata, slot.caption)

    def _labelled(self, slot: _Slot, event: Display) -> MimeBundle:
        data = event.data
        text = data.get("text/plain")
        if not slot.inline or not isinstance(text, str) or not _is_visible(data):
            return data
        slot.line = event
        mark = label(slot.owners, self._size)
        return {**data, "text/plain": mark + ("\n" if "\n" in text.rstrip("\n") else "") + text}

    def _clear(self, rank: int, event: ClearOutput) -> None:
        mine = self._ranks[rank]
        self._end_clearing(mine)
        own = []
        for slot in mine.slots:
            if slot.owners == {rank}:
                own.append(slot)
                continue
            slot.owners.discard(rank)
            self._relabel(slot)
        mine.slots, mine.next, mine.stale = own, 0, event.wait
        for display_id in mine.ids:
            self._known.pop((rank, display_id), None)
        mine.ids.clear()
        if not event.wait:
            for slot in own:
                self._blank(slot)
        if self._page is not None:
            self._page.clear(rank, wait=event.wait)

    def _end_clearing(self, mine: _OfRank) -> None:
        """Blank what a clearing has freed, if lines stand in its place."""
        if mine.stale and mine.outdated:
            for freed in mine.slots[mine.next :]:
                self._blank(freed)
        mine.outdated = False

    def _relabel(self, slot: _Slot) -> None:
        """Name the ranks that still show the content of a slot."""
        owners = tuple(sorted(slot.owners))
        if slot.captioned:
            self._caption(slot, shown=True)
        elif slot.line is not None:
            self._updated[slot.display_id] = None
            data = self._labelled(slot, slot.line)
            self._outbox.update(data, metadata_of(owners, slot.line.metadata), slot.display_id)

    def _blank(self, slot: _Slot) -> None:
        self._updated[slot.display_id] = None
        slot.line = None
        if slot.captioned:
            self._caption(slot, shown=False)
        self._outbox.update(dict(_EMPTY), {}, slot.display_id)


@dataclass
class _PageLine:
    ranks: set[int]
    text: str


class _Page:
    """The lines that ranks have printed since each of them cleared, in one display that is redrawn.

    A line that ranks print alike is there once, however far apart in time they print it. A rank that prints much more
    than fits goes on in the streams, until it clears again. ``every``: ranks that have not cleared print to it, too.
    """

    def __init__(self, outbox: Outbox, size: int, display_id: str, *, every: bool) -> None:
        self._outbox = outbox
        self._size = size
        self._id = display_id
        self._every = every
        self._lines: list[_PageLine] = []
        self._clearing: set[int] = set()  # ranks whose lines go once they show something new
        self._on: set[int] = set()  # ranks that have cleared
        self._over: set[int] = set()  # ranks that have printed too much since
        self._begun = False
        self._shown = ""
        self._at = float("-inf")

    def take(self, merged: Merged, now: float) -> bool:
        """Add a line; false if it belongs to a stream."""
        ranks = set(merged.ranks)
        self.renew(merged.ranks)
        if ranks & self._over or not (self._every or ranks <= self._on):
            return False
        for rank in merged.ranks:
            if (line := self._equal(rank, merged.text)) is not None:
                line.ranks.add(rank)
                ranks.discard(rank)
        if ranks:
            self._lines.append(_PageLine(ranks, merged.text))
        if len(self._lines) > PAGE_LINES or sum(len(line.text) for line in self._lines) > PAGE_SIZE:
            self._over.update(*(line.ranks for line in self._lines))
        if not self._begun:
            self.tick(now)
        return True

    def clear(self, rank: int, *, wait: bool) -> None:
        """Note that ``rank`` has cleared its output; with ``wait``, once it shows something new."""
        self._on.add(rank)
        self._over.discard(rank)
        self._clearing.add(rank)
        if not wait:
            self.renew((rank,))

    def renew(self, ranks: tuple[int, ...]) -> None:
        """Note that ``ranks`` show something new: what they have cleared goes."""
        cleared = self._clearing.intersection(ranks)
        if cleared:
            self._clearing -= cleared
            for line in self._lines:
                line.ranks -= cleared
            self._lines = [line for line in self._lines if line.ranks]

    def tick(self, now: float) -> float | None:
        """Redraw the page if that is due; return when it is due next."""
        text = "\n".join(label(line.ranks, self._size) + line.text for line in self._lines)
        if text == self._shown:
            return None
        if now < self._at + PAGE_REDRAW:
            return self._at + PAGE_REDRAW
        self._draw(text, now)
        return None

    def close(self) -> None:
        """Show the lines that were not drawn yet: the page changes no more."""
        self.tick(float("inf"))
        if self._begun:
            self._outbox.settle(self._id)

    def _equal(self, rank: int, text: str) -> _PageLine | None:
        """The line of other ranks that ``rank`` prints next, if it is the same."""
        last = max((at for at, line in enumerate(self._lines) if rank in line.ranks), default=-1)
        return next((line for line in self._lines[last + 1 :] if line.text == text), None)

    def _draw(self, text: str, now: float) -> None:
        self._shown, self._at = text, now
        ranks = tuple(sorted(set[int]().union(*(line.ranks for line in self._lines))))
        metadata = metadata_of(ranks, {}) if ranks else {"dtrain": {}}
        metadata["dtrain"]["line"] = True  # JupyterLab's view of the output counts this display as printed lines
        if self._begun:
            self._outbox.update({"text/plain": text}, metadata, self._id)
        else:
            self._begun = True
            self._outbox.display({"text/plain": text}, metadata, self._id)


def _is_visible(data: MimeBundle) -> bool:
    """Whether there is anything to see: tags and colours without text, scripts and styles are not."""
    if any(kind not in _TEXTS for kind in data):
        return True
    text = next((data[kind] for kind in _TEXTS if kind in data), "")
    if not isinstance(text, str):
        return True
    if "text/html" in data:
        text = _PLAIN_TAG.sub("", _UNSEEN.sub("", text))
    return bool(_COLOUR.sub("", text).strip())


def _caption_of(ranks: tuple[int, ...], size: int) -> tuple[MimeBundle, dict[str, Any]]:
    if not ranks:
        return dict(_EMPTY), {}
    metadata = metadata_of(ranks, {})
    metadata["dtrain"]["caption"] = True
    return {"text/plain": label(ranks, size).rstrip()}, metadata


def paint_caption(
    ranks: tuple[int, ...], outbox: Outbox, size: int, *, displayed: bool, display_id: str | None = None
) -> None:
    """Show the ranks of the next output on a line of its own.

    ``displayed``: as a display of its own, ``display_id``, whose metadata say that it is a caption. A front end that
    knows this puts the outputs of ranks side by side, each with its ranks; any other shows the line.
    """
    data, metadata = _caption_of(ranks, size)
    if displayed:
        outbox.display(data, metadata, display_id)
    else:
        outbox.text("stdout", f"{data['text/plain']}\n")


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
