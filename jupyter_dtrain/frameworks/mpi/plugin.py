"""MPI itself: ranks that wait in a communicator are freed by revoking it, and the world is made again from the living.

Needs an MPI with ULFM (Open MPI 5 started with ``--with-ft ulfm``); with another nothing here does anything, and a
rank that waits stays where it is until the world is restarted. A C library that keeps ``MPI_COMM_WORLD`` of its own
cannot be given the new one: only the attribute of the Python module is replaced.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, TypeVar

from jupyter_dtrain.core.facts import Facts, facts_of_package
from jupyter_dtrain.engine.framework import Framework, user_names, value_of

TESTED = "4.1"
"""The version of mpi4py that the tests run with."""

T = TypeVar("T")

SHRINK_PATIENCE = 10.0
"""Seconds in which all living ranks must have come to make the world again."""
POLL = 0.001


class Mpi(Framework):
    """MPI in one rank."""

    name = "mpi"

    def __init__(self) -> None:
        self._revoked: list[Any] = []
        """The communicators of this rank that were revoked and not yet told of; kept alive until then."""

    def prepare(self) -> None:
        """For what stands on MPI's world: see :func:`release_world`."""
        global _of_rank  # noqa: PLW0603 — a process is one rank
        _of_rank = self

    def describe(self) -> Facts:
        """The library beneath mpi4py; whether ranks that wait in it can be freed. Every rank has imported it."""
        return facts_of_package("MPI", "mpi4py", TESTED, lambda _: _details())

    def in_use(self) -> str:
        """Every rank has imported MPI: what counts is that the user's names hold it, or a communicator."""
        mpi = _module()
        used = mpi is not None and any(value is mpi or issubclass(type(value), mpi.Comm) for _, value in user_names())
        return "MPI" if used else ""

    def needs_regroup(self) -> bool:
        """Whether communicators were revoked that :meth:`recover` has not replaced yet."""
        return bool(self._revoked)

    def waits(self, frame: FrameType, call: ast.Call | None) -> str:
        """The method of a communicator, request, window or file that the main thread is in; idle or not: MPI spins."""
        if call is None or not isinstance(call.func, ast.Attribute):
            return ""
        mpi = _module()
        if mpi is None:
            return ""
        owner = value_of(frame, call.func.value)
        kinds = (mpi.Comm, mpi.Request, mpi.Message, mpi.Win, mpi.File)
        if issubclass(type(owner), kinds) or (issubclass(type(owner), type) and issubclass(owner, kinds)):
            return call.func.attr
        return ""

    def release(self) -> None:
        """Revoke every communicator that user code can be waiting in. The control thread."""
        mpi = _module()
        if mpi is None or not _can_revoke(mpi):
            return
        for comm in self._communicators(mpi):
            # It may fail where another rank's has come already.
            with contextlib.suppress(mpi.Exception):
                comm.Revoke()
            if comm not in self._revoked:
                self._revoked.append(comm)

    def recover(self) -> list[str]:
        """With all living ranks: a new ``MPI.COMM_WORLD`` from those that live.

        Raises :class:`TimeoutError` when a rank does not come.
        """
        mpi: Any = _module()
        if mpi is None or not _can_revoke(mpi):
            return []
        old = mpi.COMM_WORLD
        # Not every rank need have been told: one may have been in native code that keeps the interpreter lock.
        new = with_patience(lambda: None if old.Agree(0 if self._revoked else 1) else old.Shrink())
        if new is None:
            return []
        mpi.COMM_WORLD = new
        revoked, self._revoked = self._revoked, []
        names = {name: value for name, value in user_names() if isinstance(value, mpi.Comm) and value in revoked}
        of_world = sorted(name for name, value in names.items() if value == old)
        others = sorted(names.keys() - set(of_world))
        notes = []
        if of_world:
            notes.append(
                f"{', '.join(of_world)} is MPI's world of before, in which nothing can be sent any more: "
                f"`{' = '.join(of_world)} = MPI.COMM_WORLD`"
            )
        if others:
            notes.append(f"{', '.join(others)}: made from MPI's world of before; make again from MPI.COMM_WORLD.")
        return notes

    def _communicators(self, mpi: ModuleType) -> list[Any]:
        """The world, and every communicator that has a name in the user's code."""
        found = [mpi.COMM_WORLD]
        values = [value for _, value in user_names()]
        main = threading.main_thread().ident or 0
        frame = sys._current_frames().get(main)  # noqa: SLF001 — documented in spite of its name
        while frame is not None:
            values += list(frame.f_locals.values())
            frame = frame.f_back
        # And what the user's own objects hold.
        values += [held for value in values if type(value).__module__ == "__main__" for held in _held(value)]
        for value in values:
            if isinstance(value, mpi.Comm) and value not in (mpi.COMM_NULL, mpi.COMM_SELF, *found):
                found.append(value)
        return found


_of_rank: Mpi | None = None


def release_world() -> None:
    """Release what waits in MPI, for a framework that waits there for its ranks. The control thread."""
    if _of_rank is not None:
        _of_rank.release()


def with_patience(call: Callable[[], T]) -> T:
    """The result of a call that waits for all who live and knows no timeout: so a thread makes it.

    ``Ishrink``, which could be polled, fails with an internal error where the communicator is revoked (Open MPI 5.0).
    """
    found: list[T | Exception] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 — raised where it is waited for
            found.append(error)

    threading.Thread(target=run, name="dtrain-mpi", daemon=True).start()
    deadline = time.monotonic() + SHRINK_PATIENCE
    while not found:
        if time.monotonic() > deadline:
            raise TimeoutError("Not all ranks came to make MPI's world again: %distributed restart makes a new one.")
        time.sleep(POLL)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _held(value: Any) -> list[Any]:
    return list(getattr(value, "__dict__", {}).values())


def _module() -> ModuleType | None:
    return sys.modules.get("mpi4py.MPI")


def _details() -> dict[str, str]:
    mpi = _module()
    if mpi is None:
        return {}
    levels = {getattr(mpi, name): name[7:].lower() for name in dir(mpi) if name.startswith("THREAD_")}
    without = "off: ranks that wait in MPI for one that has failed stay there until %distributed restart"
    library = mpi.Get_library_version().strip("\0 \n").splitlines()[0]
    return {
        "library": library.split(", package:")[0],
        "standard": ".".join(map(str, mpi.Get_version())),
        "ULFM": "on: ranks that wait for one that has failed are released" if _can_revoke(mpi) else without,
        "threads": str(levels.get(mpi.Query_thread(), "unknown")),
    }


def _can_revoke(mpi: ModuleType) -> bool:
    if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
        return False
    try:
        mpi.COMM_SELF.Is_revoked()
    except Exception:  # noqa: BLE001 — NotImplementedError, or an error of MPI's own: no ULFM
        return False
    return True
