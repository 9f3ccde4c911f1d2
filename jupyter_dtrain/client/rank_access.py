"""What a session asks of ranks beside running cells: values, where they are, what they see, which names they have.

Under failure: every question has a deadline. Values are had of all ranks that were asked for, or of none; a stack or
the surroundings of a rank that does not answer are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.world import Ranks, parse_ranks

from .rank_names import RankNames

if TYPE_CHECKING:
    from jupyter_dtrain.core.stacks import Stacks
    from jupyter_dtrain.wire.answers import Surroundings

    from .link import Link
    from .rank_requests import RankRequests


class RankAccess:
    """The part of a :class:`~jupyter_dtrain.session.Session` that asks its ranks; thread-safe."""

    def __init__(self, link: Link, requests: RankRequests, size: int) -> None:
        """``size``: how many ranks the world has."""
        self._link = link
        self._requests = requests
        self._size = size

    def stacks(self, ranks: Ranks = None, timeout: float = 2.0, *, native: bool = False) -> Stacks:
        """Where every rank is now: its main thread's frames from the cell on; None for one that is not known.

        A rank that does not answer within ``timeout`` seconds is looked at from outside, which shows native frames;
        with ``native`` all are.
        """
        chosen = self._choose(ranks)
        return self._requests.stacks(chosen, timeout, native=native)

    def surroundings(self, ranks: Ranks = None, timeout: float = 5.0) -> dict[int, Surroundings | None]:
        """What each of ``ranks`` (default: all) sees: its variables with why they are set, its frameworks.

        Also while a cell runs. None for a rank that is dead, or has not answered within ``timeout`` seconds. Values
        that were given as ``env`` are not in it.
        """
        return self._requests.surroundings(self._choose(ranks), timeout)

    def push(self, values: Mapping[str, Any], ranks: Ranks = None) -> None:
        """Bind ``values`` by name on ``ranks`` (default: all): on all of them or, when one cannot be pickled, on none.

        Raises :class:`TransferFailed`, :class:`RanksBusy`, :class:`RanksDead` and :class:`NotDriver`.
        """
        self._link.check_drives()
        chosen = self._choose(ranks)
        self._link.check_ranks(chosen)
        self._requests.push(values, chosen)

    def pull(self, name: str, ranks: Ranks = None) -> dict[int, Any]:
        """The value of ``name`` on ``ranks`` (default: all), by rank.

        Raises :class:`TransferFailed` naming the ranks where it is missing or cannot be pickled, :class:`RanksBusy` and
        :class:`RanksDead`.
        """
        return self.pull_many([name], ranks)[name]

    def pull_many(self, names: list[str], ranks: Ranks = None) -> dict[str, dict[int, Any]]:
        """Several names at once: ``{name: {rank: value}}``; all or none. Raises as :meth:`pull`."""
        self._link.check_drives()
        chosen = self._choose(ranks)
        self._link.check_ranks(chosen)
        return self._requests.pull(names, chosen)

    def __getitem__(self, name: str) -> dict[int, Any]:
        """``session["x"]``: the value of ``x`` on every rank."""
        return self.pull(name)

    @property
    def names(self) -> RankNames:
        """The names that live on the ranks, as words: where they are defined, how they go on, what they stand for."""
        return RankNames(self._requests, lambda: self._link.world)

    def _choose(self, ranks: Ranks) -> list[int]:
        self._link.check()
        return parse_ranks(ranks, self._size)
