"""The steward's view of ranks that get other numbers in a resize: which rank a report is about, and what follows.

A rank takes its number as it takes the new world, and has its watch know first. The steward follows when all ranks have
been asked to take that world. So for some milliseconds a report may bear a number that the steward does not use yet, or
no longer uses: the process id says which rank is meant. That holds where all ranks are on this machine, as they are in
every resize.

Pure functions; nothing here waits or fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from jupyter_dtrain.core.numbering import renamed
from jupyter_dtrain.core.world import Rank


def number_of(ranks: Iterable[Rank], rank: int, pid: int) -> int | None:
    """The number under which the steward knows process ``pid``, which reports as ``rank``; None where it is no rank.

    ``pid`` 0 stands for whatever process has the number.
    """
    known = list(ranks)
    if any(one.rank == rank and pid in (0, one.pid) for one in known):
        return rank
    return next((one.rank for one in known if pid and one.pid == pid and not one.has_ended), None)


def renumber(ranks: Iterable[Rank], numbers: Mapping[int, int], local_ranks: Mapping[int, int]) -> dict[int, Rank]:
    """Those of ``ranks`` that stay, by their later ``numbers``; their processes and devices stay.

    ``local_ranks``: by the number until now; a rank without one keeps its own.
    """
    return {
        numbers[rank.rank]: msgspec.structs.replace(
            rank,
            rank=numbers[rank.rank],
            local_rank=local_ranks.get(rank.rank, rank.local_rank),
            words=renamed(rank.words, rank.rank, numbers[rank.rank]),
        )
        for rank in ranks
        if rank.rank in numbers
    }
