"""Equal lines of several ranks, shown once with the ranks that printed them.

A :class:`LineMerger` takes the finished lines of all ranks of a run and returns them in the order in which to show
them. It has no clock and does no input or output; its caller passes times in ``time.monotonic()`` seconds.

Its promises hold for ranks of all kinds (slow, silent, dead, out of step):

* the lines of one rank come out in the order in which they went in, none lost and none twice;
* no line waits longer than ``hold`` for another rank;
* a line does not wait at all when no rank is left that could still join it.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

HOLD: Final = 0.030
"""The default for the most seconds that a line waits for other ranks to print the same."""

LOOK: Final = 64
"""How many waiting lines of another rank to search for a line's equal."""

REMEMBERED: Final = 512
"""How many recently shown lines to remember, to know which rank runs ahead of which."""

_DEPTH: Final = 8
"""How far to follow chains of the kind "A's line is in B's queue behind a line that is in C's queue"."""

_Key = tuple[str, str]


@dataclass(frozen=True)
class Merged:
    """One line to show, with the ranks that printed it, ascending."""

    ranks: tuple[int, ...]
    stream: str
    text: str
    same: bool
    """Whether the line equals the one shown just before, which these ranks had not joined in time."""


@dataclass(frozen=True)
class _Waiting:
    key: _Key
    since: float
    order: int
    """Position among all lines of all ranks, by arrival."""
    alone: bool


class LineMerger:
    """Merges the lines of ``ranks``. A line waits ``hold`` seconds, at most, for other ranks to print the same.

    Call :meth:`push` for every line, then :meth:`ready`; call :meth:`ready` again at :meth:`deadline`.
    """

    def __init__(self, ranks: Iterable[int], hold: float = HOLD) -> None:
        self._hold = hold
        self._queues: dict[int, deque[_Waiting]] = {rank: deque() for rank in ranks}
        self._silent = set(self._queues)  # ranks with nothing waiting that may still print
        self._idle: set[int] = set()
        self._speaking: set[int] = set()  # ranks with something waiting
        # Ranks whose first line is not known to have to wait: without this list, each line would cost a look at all.
        self._doubtful: set[int] = set()
        self._ages: deque[tuple[int, int, float]] = deque()  # all lines by age: order, rank, time; shown ones go late
        # For each line, how often it occurs among the first LOOK waiting lines of each rank.
        self._near: dict[_Key, dict[int, int]] = {}
        # For each recently shown line, how often each rank has printed it beyond the rank that printed it least.
        # Hashes stand for the lines: a collision costs a needless wait or a needless label, and long lines no memory.
        self._shown: OrderedDict[int, dict[int, int]] = OrderedDict()
        self._last: tuple[_Key, set[int]] | None = None
        self._order = 0

    def push(self, rank: int, stream: str, line: str, now: float, *, alone: bool = False) -> None:
        """Add a line (without its newline) that ``rank`` finished. With ``alone`` no other rank can join it.

        Raises :class:`KeyError` for a rank that the merger was not made for.
        """
        queue = self._queues[rank]
        self._order += 1
        waiting = _Waiting((stream, line), now, self._order, alone)
        queue.append(waiting)
        self._ages.append((self._order, rank, now))
        self._silent.discard(rank)
        if len(queue) == 1:
            self._speaking.add(rank)
            self._doubtful.add(rank)
        if len(queue) <= LOOK:
            self._see(rank, waiting.key)

    def idle(self, rank: int) -> None:
        """Note that ``rank`` will print no more: no line waits for it from now on."""
        self._idle.add(rank)
        self._silent.discard(rank)

    def waiting(self, rank: int) -> int:
        """How many lines of ``rank`` have not come out yet."""
        return len(self._queues[rank])

    def deadline(self) -> float | None:
        """When :meth:`ready` will return the next line if nothing is pushed until then; ``None`` if nothing waits."""
        self._forget_shown()
        return self._ages[0][2] + self._hold if self._ages else None

    def flush(self) -> list[Merged]:
        """All lines that still wait, joined where possible."""
        return self.ready(math.inf)

    def ready(self, now: float) -> list[Merged]:
        """The lines to show at ``now``, in order."""
        heads = [(self._queues[rank][0].order, rank) for rank in self._candidates(now)]
        heapq.heapify(heads)
        shown: list[Merged] = []
        while heads:
            order, rank = heapq.heappop(heads)
            queue = self._queues[rank]
            if not queue or queue[0].order != order:
                continue  # another rank's copy took this line along, and the rank's new head is in the heap now
            if self._must_wait(rank, queue[0], now):
                # Nothing in this call can change that: silent ranks only grow in number. A line that was never shown
                # waits for all silent ranks, or for its time; one that was shown waits for some of them.
                if hash(queue[0].key) in self._shown:
                    self._doubtful.add(rank)
                continue
            moved: set[int] = set()
            self._bring_up(rank, shown, moved, frozenset())
            for other in moved:
                if self._queues[other]:
                    heapq.heappush(heads, (self._queues[other][0].order, other))
        return shown

    def _candidates(self, now: float) -> set[int]:
        """The ranks whose first line may be due: all, where none can join any more."""
        doubtful, self._doubtful = self._doubtful, set()
        if not self._silent:
            return self._speaking.copy()
        self._forget_shown()
        for _, rank, since in self._ages:
            if now < since + self._hold:
                break
            doubtful.add(rank)
        return doubtful & self._speaking

    def _forget_shown(self) -> None:
        while self._ages:
            order, rank, _ = self._ages[0]
            queue = self._queues[rank]
            if queue and queue[0].order <= order:
                break
            self._ages.popleft()

    def _must_wait(self, rank: int, head: _Waiting, now: float) -> bool:
        if not self._silent or head.alone or now >= head.since + self._hold:
            return False
        counts = self._shown.get(hash(head.key))
        if counts is None:
            return True
        mine = counts.get(rank, 0)
        return any(counts.get(other, 0) <= mine for other in self._silent)

    def _bring_up(self, rank: int, shown: list[Merged], moved: set[int], fixed: frozenset[int]) -> None:
        """Show the head of ``rank``, after the lines that other ranks print before their copy of it.

        Ranks in ``fixed`` stay: a caller further up waits with their heads. That ends cycles.
        """
        head = self._queues[rank][0]
        key = head.key
        holders = [] if head.alone or len(fixed) >= _DEPTH else sorted(self._near[key])
        if len(holders) > 1:
            fixed |= {other for other in holders if self._queues[other][0].key == key}
            for other in holders:
                if other in fixed:
                    continue
                queue = self._queues[other]
                while self._queues[rank] and self._queues[rank][0] is head and other in self._near.get(key, ()):
                    if queue[0].key == key:
                        break
                    self._bring_up(other, shown, moved, fixed)
        if self._queues[rank] and self._queues[rank][0] is head:
            self._show(rank, head, shown, moved)

    def _show(self, rank: int, head: _Waiting, shown: list[Merged], moved: set[int]) -> None:
        key = head.key
        joined = [rank]
        if not head.alone and len(self._near[key]) > 1:
            joined = sorted(
                other for other in self._near[key] if (first := self._queues[other][0]).key == key and not first.alone
            )
        for other in joined:
            self._pop(other)
        moved.update(joined)
        last = self._last
        same = last is not None and last[0] == key and last[1].isdisjoint(joined) and not head.alone
        if same and last is not None:
            last[1].update(joined)
        else:
            self._last = (key, set(joined))
        if not head.alone:
            self._remember(key, joined)
        shown.append(Merged(tuple(joined), key[0], key[1], same))

    def _pop(self, rank: int) -> None:
        queue = self._queues[rank]
        key = queue.popleft().key
        near = self._near[key]
        near[rank] -= 1
        if not near[rank]:
            del near[rank]
            if not near:
                del self._near[key]
        if len(queue) >= LOOK:
            self._see(rank, queue[LOOK - 1].key)
        elif not queue:
            self._speaking.discard(rank)
            if rank not in self._idle:
                self._silent.add(rank)

    def _see(self, rank: int, key: _Key) -> None:
        near = self._near.setdefault(key, {})
        near[rank] = near.get(rank, 0) + 1

    def _remember(self, key: _Key, joined: list[int]) -> None:
        token = hash(key)
        counts = self._shown.pop(token, None)
        if counts is None:
            if len(joined) + len(self._idle.difference(joined)) == len(self._queues):
                return  # every rank that can print it has: no rank is ahead
            counts = {}
        # Ranks that printed a line together are level from then on, even if one of them had printed it more often.
        level = 1 + max(counts.get(rank, 0) for rank in joined)
        for rank in joined:
            counts[rank] = level
        if len(counts) >= len(self._queues) - len(self._idle):
            least = min((counts.get(rank, 0) for rank in self._queues if rank not in self._idle), default=level)
            counts = {rank: count - least for rank, count in counts.items() if count > least}
        if counts:
            self._shown[token] = counts
            if len(self._shown) > REMEMBERED:
                self._shown.popitem(last=False)
