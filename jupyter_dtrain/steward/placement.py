"""Where the new ranks of a heal or a resize run: on which host, and which watch forks them.

A dead rank is replaced on its own host, so that its local rank and its GPU stay what they were. Further ranks run on
this machine: a world on other hosts gets none (:mod:`.obstacles`). Only a host whose watch lives can take a rank.

Under failure: :meth:`Seats.choose` raises :class:`~jupyter_dtrain.core.errors.Refused` with the reason, a clause.
Thread-safe: it reads what others own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.world import count_ranks

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Rank
    from jupyter_dtrain.launch.launcher import Launcher


class Seat(NamedTuple):
    """The place of one new rank."""

    host: str
    """The host's name for ``mpiexec``; empty for this machine."""
    watch: str
    """The routing identity of its watch."""


class Seats:
    """Chooses where the new ranks of one world run."""

    def __init__(self, launcher: Launcher, watches: Callable[[], dict[str, str]]) -> None:
        """``watches``: the identities of the watches that live, by the host's name; empty for this machine."""
        self._launcher = launcher
        self._watches = watches

    @property
    def command(self) -> list[str]:
        """The command that starts a rank's place beneath ``mpiexec``, see :meth:`.Launcher.slot_command`."""
        return self._launcher.slot_command()

    def choose(self, ranks: Iterable[Rank], numbers: Collection[int]) -> dict[int, Seat]:
        """The seats of new ranks with these ``numbers``, in a world that has ``ranks``, those that stay dead included.

        Raises :class:`Refused` where a host has lost its watch.
        """
        known = {rank.rank: rank for rank in ranks}
        watches = self._watches()
        hosts = {watch: host for host, watch in watches.items()}
        seats: dict[int, Seat] = {}
        for number in numbers:
            if number not in known:
                continue
            if (watch := known[number].watch) not in hosts:
                where = f" on {known[number].host}" if known[number].host else ""
                raise Refused(f"the process{where} that starts ranks has ended with {count_ranks([number])}")
            seats[number] = Seat(hosts[watch], watch)
        if added := [number for number in numbers if number not in known]:
            if not watches:
                raise Refused("the process that starts ranks has ended")
            here = Seat(*next(iter(watches.items())))
            seats |= dict.fromkeys(added, here)
        return seats
