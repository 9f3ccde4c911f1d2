"""The ranks of a large world in few lines: the odd ones first, the others by host.

Plain functions of plain data; nothing here fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

MANY: Final = 64
"""With more ranks, a table has a row for each host in place of one for each rank."""

ODD: Final = 32
"""The most ranks that are shown one by one because they are odd."""

_SLOW: Final = 0.1
"""The share by which a step must be longer than the others' median to make its rank the odd one."""

_NOTICED: Final = 1e-4
"""Seconds. A smaller difference between two steps has no cause that a person could mend."""

_GRAVE: Final = ("dead", "error", "released", "interrupted", "unreachable", "stopped", "waiting", "sent")
"""States of a rank, the gravest first; a state that is not among them comes last."""


class Standing(NamedTuple):
    """Ranks by how they are to be shown."""

    odd: list[int]
    """One by one, the gravest first; at most :data:`ODD`."""
    more: int
    """How many others are odd, too."""
    common: str
    """The state that most ranks share."""
    hosts: list[tuple[str, list[int]]]
    """All ranks by host, in the order of their lowest ranks; odd ones are among them."""


def standing(states: Mapping[int, str], hosts: Mapping[int, str], paces: Mapping[int, float]) -> Standing:
    """Tell odd ranks from the rest: those not in the most common state, and the slowest one.

    ``states`` names all ranks; ``paces``: seconds per step, as far as known.
    """
    common = Counter(states.values()).most_common(1)[0][0] if states else ""
    odd = [rank for rank, state in states.items() if state != common]
    odd.sort(key=lambda rank: (_gravity(states[rank]), rank))
    slow = slowest(paces)
    if slow is not None and slow not in odd:
        odd.insert(min(len(odd), ODD - 1), slow)
    by_host: dict[str, list[int]] = {}
    for rank in sorted(states):
        by_host.setdefault(hosts.get(rank, ""), []).append(rank)
    return Standing(odd[:ODD], len(odd[ODD:]), common, list(by_host.items()))


def slowest(paces: Mapping[int, float]) -> int | None:
    """The rank whose steps take over 10 % longer than the others' median; None if there is none."""
    known = {rank: pace for rank, pace in paces.items() if pace > 0}
    if len(known) < 2:  # noqa: PLR2004 — slower than another
        return None
    worst = max(known, key=known.__getitem__)
    usual = median(pace for rank, pace in known.items() if rank != worst)
    return worst if known[worst] > max((1 + _SLOW) * usual, usual + _NOTICED) else None


def counted(words: Sequence[str]) -> str:
    """Equal words once, with their numbers, the rarest first: ``1 error, 7 ok``."""
    counts = sorted(Counter(words).items(), key=lambda item: item[1])
    return ", ".join(f"{count} {word}" for word, count in counts)


def _gravity(state: str) -> int:
    return _GRAVE.index(state) if state in _GRAVE else len(_GRAVE)
