"""The ranks of a large world in few lines: the odd ones first, the others by host.

Plain functions of plain data; nothing here fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from jupyter_dtrain.core.metrics import Slow

MANY: Final = 64
"""With more ranks, a table has a row for each host in place of one for each rank."""

ODD: Final = 32
"""The most ranks that are shown one by one because they are odd."""

_GRAVE: Final = (
    "dead",
    "error",
    "released",
    "interrupted",
    "unreachable",
    "stopped",
    "asking",
    "held",
    "waiting",
    "sent",
)
"""States of a rank, the gravest first; a state that is not among them comes last."""


class Standing(NamedTuple):
    """How the ranks of a large world are shown: the odd ones one by one, the others by host."""

    odd: list[int]
    """The odd ranks that are shown one by one, the gravest first; at most :data:`ODD`."""
    more: int
    """How many further ranks are odd."""
    common: str
    """The state that most ranks share."""
    hosts: list[tuple[str, list[int]]]
    """All ranks by host, in the order of their lowest ranks; odd ones are among them."""


def standing(states: Mapping[int, str], hosts: Mapping[int, str], slow: Slow | None = None) -> Standing:
    """Tell odd ranks from the rest: those not in the most common state, and the ``slow`` one.

    ``states`` names all ranks.
    """
    common = Counter(states.values()).most_common(1)[0][0] if states else ""
    odd = [rank for rank, state in states.items() if state != common]
    odd.sort(key=lambda rank: (_gravity(states[rank]), rank))
    if slow is not None and slow.rank not in odd:
        odd.insert(min(len(odd), ODD - 1), slow.rank)
    by_host: dict[str, list[int]] = {}
    for rank in sorted(states):
        by_host.setdefault(hosts.get(rank, ""), []).append(rank)
    return Standing(odd[:ODD], len(odd[ODD:]), common, list(by_host.items()))


def counted(words: Sequence[str]) -> str:
    """Count equal words, the rarest first: ``1 error, 7 ok``."""
    counts = sorted(Counter(words).items(), key=lambda item: item[1])
    return ", ".join(f"{count} {word}" for word, count in counts)


def _gravity(state: str) -> int:
    return _GRAVE.index(state) if state in _GRAVE else len(_GRAVE)
