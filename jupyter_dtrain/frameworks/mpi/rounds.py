"""The rounds in which the living ranks make MPI's world again.

In a round all living ranks agree whether they need a new communicator, and make it. Neither has a timeout, so a thread
of its own takes part. An interrupt or a deadline may end a rank's wait for the round, but not the round: the rank looks
at its result when it tries again. Others may have seen that result before. So each rank says in a round for which run
it makes the world; where these differ, all ranks go on to another round.

Under failure: a wait raises :class:`TimeoutError` after :data:`PATIENCE`, and a later try waits for the same round.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

PATIENCE: Final = 10.0
"""Seconds in which all living ranks must arrive."""
POLL: Final = 0.001
_BITS: Final = 15
"""How much of a run's number a round carries, twice: as it is, and with each bit turned over."""
_MASK: Final = (1 << _BITS) - 1

T = TypeVar("T")


class Pending(Generic[T]):
    """A call of MPI that waits for all living ranks, on a thread of its own; it begins with the first :meth:`wait`."""

    def __init__(self, call: Callable[[], T]) -> None:
        """Keep ``call`` for :meth:`wait`: whoever has this object can find the call again after any interrupt.

        ``Ishrink``, which could be polled, fails with an internal error where the communicator is revoked (Open MPI
        5.0).
        """
        self._call = call
        self._taken = threading.Lock()
        self._found: list[T | Exception] = []
        self.at = ""
        """The step that the call is in, where it has several."""

    def _work(self) -> None:
        if not self._taken.acquire(blocking=False):
            return  # an interrupt came while the thread began, so a second one was started
        try:
            self._found.append(self._call())
        except Exception as error:  # noqa: BLE001 — the waiting caller raises it
            self._found.append(error)

    def wait(self) -> T:
        """The call's result, or its exception. Raises :class:`TimeoutError` when a rank does not arrive."""
        if not self._taken.locked():
            threading.Thread(target=self._work, name="dtrain-mpi", daemon=True).start()
        deadline = time.monotonic() + PATIENCE
        while not self._found:
            if time.monotonic() > deadline:
                where = f" (this rank waits in {self.at})" if self.at else ""
                raise TimeoutError(
                    f"Some ranks did not arrive to make MPI's world again{where}: %distributed restart makes a new one."
                )
            time.sleep(POLL)
        found = self._found[0]
        if isinstance(found, Exception):
            raise found
        return found


class Round:
    """One round of this rank with all others that live. It begins when the rank first waits for it."""

    def __init__(self, mpi: ModuleType, world: Any, run: int, *, whole: bool) -> None:
        """``world``: the present communicator of all ranks; ``whole``: whether this rank needs no other."""
        flags = int(whole) | (run & _MASK) << 1 | (~run & _MASK) << 1 + _BITS

        def work() -> tuple[int, Any]:
            self._pending.at = "Agree"
            agreed = world.Agree(flags)  # the bits that all ranks have set
            return agreed, None if agreed & 1 else self._shrunk(mpi, world)

        self._pending: Pending[tuple[int, Any]] = Pending(work)

    def wait(self, run: int) -> tuple[Any, bool]:
        """The new communicator, or None where the present one stays; and whether all ranks meant ``run``."""
        agreed, new = self._pending.wait()
        runs = agreed >> 1 & _MASK, agreed >> 1 + _BITS & _MASK
        return new, runs == (run & _MASK, ~run & _MASK)

    def _shrunk(self, mpi: ModuleType, world: Any) -> Any:
        """A communicator of the living ranks of ``world``, when all of them have it.

        A rank that still makes a communicator crashes if another one revokes that (Open MPI 5.0), as its next cell may
        do.
        """
        self._pending.at = "Shrink"
        new = world.Shrink()
        self._pending.at = "Barrier"
        # A rank may have died since, or have left here and revoked it.
        with contextlib.suppress(mpi.Exception):
            new.Barrier()
        return new
