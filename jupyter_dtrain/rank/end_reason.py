"""The reason for which a watch asks its rank to end, in memory that both share: a signal carries no words.

The watch makes the memory just before it forks the rank, so that the rank has it as :data:`own`.

Under failure: nothing here fails, and a rank whose watch wrote no reason has none.
"""

from __future__ import annotations

import mmap
from typing import Final

SIZE: Final = mmap.PAGESIZE
"""Bytes of a reason; the rest is cut off."""


class EndReason:
    """Words that one process writes, once, and that the processes which it forks afterwards read."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SIZE)

    def write(self, words: str) -> None:
        """Write the reason, before the signal is sent: the rank reads it once the signal has come."""
        data = words.encode()[:SIZE]
        self._memory[: len(data)] = data

    @property
    def words(self) -> str:
        """The reason; empty where there is none."""
        return self._memory[:].rstrip(b"\0").decode(errors="ignore")


own = EndReason()
"""In a rank: the reason for its own end."""


def renew() -> EndReason:
    """Make the memory for the reason of the rank that is forked next, and return it."""
    global own  # noqa: PLW0603 — the rank inherits it through the fork, before it has any object of ours
    own = EndReason()
    return own
