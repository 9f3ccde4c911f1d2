"""The notice for text that a cell does not show: how much there is, where all of it is, and its last lines.

There is one display for the whole run, redrawn at most twice a second; its size is bounded.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.world import count_ranks, quantity

from .labels import human, label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyter_dtrain.core.events import Totals

    from .outbox import Outbox

REDRAW: Final = 0.5
"""Seconds between two updates of the notice."""

TAIL: Final = 20
"""How many last lines are shown, over all ranks."""

WIDTH: Final = 400
"""Characters of one of these lines, at most."""

LISTED: Final = 4
"""How many ranks' logs are named, and how many ranks' last lines are listed."""


class Tally:
    """How much one rank has printed, and its last lines."""

    def __init__(self) -> None:
        self.bytes = 0
        self.lines = 0
        self._tail: deque[str] = deque(maxlen=TAIL)

    def count(self, text: str) -> None:
        """Count text that the rank printed."""
        self.bytes += len(text) if text.isascii() else len(text.encode(errors="replace"))
        self.lines += text.count("\n")

    def add(self, lines: list[str]) -> None:
        """Add finished lines to the tail."""
        self._tail.extend(lines[-TAIL:])

    def adopt(self, totals: Totals) -> None:
        """Take over the rank's own count, unless the count here is newer."""
        if totals.bytes < self.bytes:
            return
        self.bytes, self.lines = totals.bytes, totals.lines
        self._tail = deque(totals.tail, maxlen=TAIL)

    def tail(self, partial: str = "") -> tuple[str, ...]:
        """The last lines, shortened; ``partial`` is an unfinished one."""
        lines = [*self._tail, partial] if partial else [*self._tail]
        return tuple(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines[-TAIL:])


class Overflow:
    """Shows and redraws the notice for one run."""

    def __init__(self, outbox: Outbox, size: int, name: str, *, live: bool) -> None:
        self._outbox = outbox
        self._size = size
        self._id = f"{name}-more"
        self._live = live
        self._begun = False
        self._shown = ""
        self._at = float("-inf")

    def due(self, now: float) -> bool:
        """Whether the notice may be redrawn at ``now``."""
        return self._live and now >= self._at + REDRAW

    @property
    def next(self) -> float | None:
        """When the notice may be redrawn; ``None`` if only at the end of the run."""
        return self._at + REDRAW if self._live else None

    def show(self, text: str, now: float) -> None:
        """Show ``text`` in place of the notice's earlier text."""
        if text == self._shown:
            return
        self._shown, self._at = text, now
        data = {"text/plain": text}
        if self._begun:
            self._outbox.update(data, {}, self._id)
        else:
            self._begun = True
            self._outbox.display(data, {}, self._id)

    def close(self) -> None:
        """Note that the last text was shown."""
        if self._begun:
            self._outbox.settle(self._id)

    def words(
        self,
        tallies: Mapping[int, Tally],
        partials: Mapping[int, str],
        logs: Mapping[int, str],
        *,
        shown: int,
        over: bool,
    ) -> str:
        """The notice for ranks that printed as ``tallies`` say; ``shown`` bytes of it are in the cell."""
        ranks = sorted(rank for rank, tally in tallies.items() if tally.bytes)
        size = sum(tally.bytes for tally in tallies.values())
        lines = sum(tally.lines for tally in tallies.values())
        who = f"{count_ranks(ranks)} printed" if self._size > 1 and ranks else "Printed"
        much = f"{human(size)} in {quantity(lines, 'line')}{'' if over else ' so far'}"
        above = f"{human(shown)} of it are shown above" if shown else "none of it is shown above"
        text = [f"{who[0].upper()}{who[1:]} {much}; {above}."]
        named = [rank for rank in ranks if rank in logs][:LISTED]
        text += [f"rank {rank}: {logs[rank]}" for rank in named]
        if len(ranks) > len(named) and named:
            text.append("…")
        text.append(f"Run.text({ranks[0] if ranks else 0}) gives the whole text of a rank. The last lines:")
        return "\n".join([*text, *self._tails(tallies, partials, ranks)])

    def _tails(self, tallies: Mapping[int, Tally], partials: Mapping[int, str], ranks: list[int]) -> list[str]:
        alike: dict[tuple[str, ...], list[int]] = {}
        for rank in ranks:
            alike.setdefault(tallies[rank].tail(partials.get(rank, "")), []).append(rank)
        groups = [(group, tail) for tail, group in alike.items() if tail][:LISTED]
        room = TAIL // max(1, len(groups))
        text = [label(group, self._size) + line for group, tail in groups for line in tail[-room:]]
        left = sorted(set(ranks).difference(*(group for group, _ in groups))) if groups else []
        return [*text, f"… and those of {count_ranks(left)}"] if left else text
