"""The steward's view of ranks that get other numbers in a resize: which rank a report is about, and what follows.

A rank takes its number as it takes the new world, and has its watch know first. The steward follows when all ranks have
been asked to take that world. So for some milliseconds a report may bear a number that the steward does not use yet, or
no longer uses: the process says which rank is meant. Processes of two hosts may share an id, so their watches tell them
apart.

Pure functions; nothing here waits or fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jupyter_dtrain.core.world import Rank, renamed

if TYPE_CHECKING:
    from jupyter_dtrain.wire.reports import Died, Fell, Paused, Reached


class Process(NamedTuple):
    """A process of a rank, or of one that is to be."""

    watch: str
    """The routing identity of the watch that has forked it."""
    pid: int


def process_of(one: Rank | Reached | Died | Fell | Paused) -> Process:
    """The process that ``one``, a report or a rank, is about."""
    return Process(one.watch, one.pid)


def number_of(ranks: Iterable[Rank], report: Died | Fell | Paused) -> int | None:
    """The number under which the steward knows the process that reports; None where it is no rank.

    A report without a process id is about whatever process has the number.
    """
    known, process = list(ranks), process_of(report)
    if any(one.rank == report.rank and (not report.pid or process_of(one) == process) for one in known):
        return report.rank
    return next((one.rank for one in known if process_of(one) == process and not one.has_ended), None)


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
