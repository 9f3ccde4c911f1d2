"""What the values of arguments may be, as it is offered to who types.

Each raises a ``DtrainError`` where it cannot say.
"""

from __future__ import annotations

from typing import Final

from IPython.core.getipython import get_ipython

from ..lifecycle import current
from ..worlds import list_worlds

MOST_RANKS: Final = 16
"""Of a larger world not every rank is offered."""
MOST_RUNS: Final = 20


def some_ranks(_start: str) -> list[str]:
    """Ranks of the current world, in the ways that they can be named."""
    size = current().request.size
    numbers = [str(rank) for rank in range(min(size, MOST_RANKS))]
    return ["all", *numbers, *([f"0-{size - 1}"] if size > 1 else []), "-1"]


def rank_names(start: str) -> list[str]:
    """Variables that live on the ranks."""
    return list(current().names.complete(start))


def notebook_names(_start: str) -> list[str]:
    """Variables of the notebook."""
    shell = get_ipython()
    if shell is None:
        return []
    return sorted(name for name in shell.user_ns if name[:1] != "_" and name not in shell.user_ns_hidden)


def world_names(_start: str) -> list[str]:
    """Worlds of this user on this machine."""
    return [world.name for world in list_worlds()]


def stored_runs(_start: str) -> list[str]:
    """The newest runs of the store."""
    from ..store import Store

    return [f"#{run.id}" for run in Store.open().runs(MOST_RUNS, None)]
