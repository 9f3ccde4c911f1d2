"""The numbers of ranks when some of them leave a world: those that stay are numbered anew, in their order.

Client, steward and ranks use these functions, so that all of them agree without a message. Nothing here fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Final

ONE_BY_ONE: Final = 4
"""The most ranks with another number that :func:`describe_moves` names one by one."""


def numbers_without(leaving: Collection[int], size: int) -> dict[int, int]:
    """The later number of each rank that stays, by its number now, where ``leaving`` leave a world of ``size``."""
    staying = [rank for rank in range(size) if rank not in leaving]
    return {rank: number for number, rank in enumerate(staying)}


def moves(numbers: Mapping[int, int]) -> dict[int, int]:
    """The entries of ``numbers`` in which a rank gets another number."""
    return {rank: number for rank, number in numbers.items() if rank != number}


def describe_moves(moved: Mapping[int, int]) -> str:
    """The moves as a clause: ``rank 2 is rank 1 now, rank 3 is rank 2``; empty where there are none."""
    if len(moved) <= ONE_BY_ONE:
        said = [f"rank {rank} is rank {number}" for rank, number in sorted(moved.items())]
    else:
        # Ranks that follow one another, and move equally far.
        runs = [
            [rank for _, (rank, _) in group]
            for _, group in groupby(
                enumerate(sorted(moved.items())), lambda one: (one[1][0] - one[0], one[1][1] - one[0])
            )
        ]
        said = [
            f"ranks {run[0]}-{run[-1]} are ranks {moved[run[0]]}-{moved[run[-1]]}"
            if len(run) > 1
            else f"rank {run[0]} is rank {moved[run[0]]}"
            for run in runs
        ]
    return ", ".join([f"{said[0]} now", *said[1:]]) if said else ""


def renamed(words: str, rank: int, number: int) -> str:
    """``words`` that begin with ``rank``, such as those on its end, for the same rank under its later ``number``."""
    beginning = f"rank {rank} "
    return f"rank {number} {words.removeprefix(beginning)}" if words.startswith(beginning) else words
