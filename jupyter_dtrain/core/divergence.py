"""The first step at which the replicas of a model are no longer alike, found in the digests that ranks report.

Each rank reports the digests of its model's parts at the same steps, and waits for no other rank. A step is judged once
all ranks have reported it.

Under failure: only :data:`OPEN` steps are kept open, so a rank that falls far behind, or dies, costs no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from .events import Checked
from .world import count_ranks

OPEN: Final = 64
"""Steps that some rank has not reported yet."""
_SIZE: Final = 8
"""Bytes of a digest."""


class Divergence(msgspec.Struct, frozen=True):
    """The first difference between the replicas of a model."""

    name: str
    """The model's variable."""
    step: int
    """The first step after which they differed."""
    part: str
    """The first part that differed, in the order of the model."""
    parts: int
    """How many parts differed."""
    ranks: list[int]
    """The ranks that differ from the lowest rank of the largest group that agrees."""
    since: int
    """The last step before it after which they were alike; -1 if there was none."""

    @property
    def words(self) -> str:
        """The divergence in one sentence, for a person."""
        more = f" and {self.parts - 1} more" if self.parts > 1 else ""
        after = f"; after step {self.since} all ranks agreed" if self.since >= 0 else ""
        return (
            f"{self.name} is no longer the same on all ranks after step {self.step}: "
            f"{self.part}{more} on {count_ranks(self.ranks)}{after}"
        )


class Divergences:
    """Folds the digests of one run."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = list(ranks)
        self._parts: dict[int, list[str]] = {}
        self._open: dict[int, dict[int, bytes]] = {}
        self._agreed = -1
        self.checked = 0
        """How many steps all ranks have reported, so that they were compared."""
        self.first: Divergence | None = None
        """The first divergence; later ones follow from it."""

    def take(self, rank: int, said: Checked) -> bool:
        """Take the digests that ``rank`` reported; return whether they reveal the first divergence."""
        if said.parts:
            self._parts[rank] = said.parts
        if self.first is not None:
            return False
        here = self._open.setdefault(said.step, {})
        here[rank] = said.digests
        if len(here) < len(self._ranks):
            while len(self._open) > OPEN:
                del self._open[min(self._open)]
            return False
        del self._open[said.step]
        self.checked += 1
        apart = self._apart(here)
        if not apart:
            self._agreed = max(self._agreed, said.step)
            return False
        part = next(iter(apart))
        ranks = sorted({rank for ranks in apart.values() for rank in ranks})
        self.first = Divergence(said.name, said.step, part, len(apart), ranks, self._agreed)
        return True

    def _apart(self, digests: dict[int, bytes]) -> dict[str, list[int]]:
        """Parts that differ, with the ranks that differ. Parts of the same name are the same piece."""
        if len(set(digests.values())) == 1 and len({tuple(names) for names in self._parts.values()}) == 1:
            return {}
        found: dict[str, dict[bytes, list[int]]] = {}
        for rank, row in sorted(digests.items()):
            for place, name in enumerate(self._parts.get(rank, ())):
                digest = row[place * _SIZE : (place + 1) * _SIZE]
                if digest:
                    found.setdefault(name, {}).setdefault(digest, []).append(rank)
        apart = {}
        for name, groups in found.items():
            if len(groups) > 1:
                most = max(groups.values(), key=lambda group: (len(group), -group[0]))
                apart[name] = sorted(rank for group in groups.values() for rank in group if group is not most)
        return apart
