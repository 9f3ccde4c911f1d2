"""MPI itself: revoking a communicator frees the ranks that wait in it, and the living ranks make the world again.

This needs an MPI with ULFM (Open MPI 5 started with ``--with-ft ulfm``). With any other MPI this plug-in releases no
rank, and says so. Even with ULFM some waits in a window cannot be ended, see :data:`.communicators.ENDLESS`. The
plug-in replaces only the attribute of the Python module, so a C library that keeps its own ``MPI_COMM_WORLD`` does not
get the new one.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import threading
import time
from concurrent.futures import BrokenExecutor
from types import FrameType, ModuleType
from typing import Any, TypeVar

from jupyter_dtrain.core.frames import frames_of_threads
from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package
from jupyter_dtrain.plugins.framework import Doing, Framework, locals_of, user_names
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.plugins.sources import called_in
from jupyter_dtrain.rank.healing import THREAD, WORLD

from .calls import MpiCall, calls_in
from .communicators import ENDLESS, hidden_of
from .holders import c_libraries
from .progress import MpiProgress
from .rounds import Round

TESTED = "4.1"
"""The version of mpi4py that the tests run with."""

_LOG = "OSC UCX component priority set inside component query failed"
"""A part of the line that Open MPI writes for each window where there is no UCX, before it takes another way."""

POOL_PATIENCE = 2.0
"""Seconds in which the thread of a pool ends once its communicator is revoked; it takes a few milliseconds."""

POOLS = Patch(
    "mpi4py.futures._core",
    calls=("Pool.broken(message)",),
    reads=("_pool",),
    why="A pool whose communicator is revoked ends its thread, and leaves its tasks to wait for ever.",
    lost="tasks of an MPIPoolExecutor may wait for ever after a rank has failed",
)

T = TypeVar("T")

OTHERS_FIRST = 0.05
"""Seconds by which a rank that waits in MPI revokes before one that does not. A send ends with an error only if its own
rank has revoked first; otherwise it ends as if it had arrived."""


class Mpi(Framework):
    """The plug-in for MPI in one rank."""

    name = "mpi"

    def __init__(self) -> None:
        self._revoked: list[Any] = []
        """This rank's revoked communicators, kept alive until :meth:`recover` has reported them."""
        self._left: list[Any] = []
        """Revoked communicators of the worlds before the last heal."""
        self._in_log = False
        """Whether the last line belonged to a log message."""
        self._known: Any = None
        """The world that the user's names may hold: that of the last :meth:`recover`."""
        self._broken: list[Any] = []
        """The communicators inside windows and files that :meth:`recover` has reported."""
        self._progress = MpiProgress()
        self._run = 0
        self._round: Round | None = None
        """The round that this rank has begun, and whose result it has not seen."""

    def prepare(self) -> None:
        """Register this plug-in for the frameworks that wait in MPI's world: see :func:`release_world`."""
        global _of_rank  # noqa: PLW0603 — a process is one rank
        _of_rank = self
        self._known = getattr(_module(), "COMM_WORLD", None)

    def before_cell(self, run: int) -> None:
        """Stop driving MPI from a thread: while a cell runs, its own calls do that."""
        self._run = run
        self._progress.begin_cell()

    def after_cell(self) -> None:
        """Note that the cell has ended, so that a release may have to drive MPI from a thread."""
        self._progress.end_cell()

    def describe(self) -> FrameworkReport:
        """Describe the library beneath mpi4py, which every rank has imported, and whether it can free waiting ranks."""
        return facts_of_package("MPI", "mpi4py", TESTED, lambda _: _details())

    def in_use(self) -> str:
        """MPI is in use when a name of the user holds it or a communicator; every rank has imported it."""
        mpi = _module()
        used = mpi is not None and any(value is mpi or issubclass(type(value), mpi.Comm) for _, value in user_names())
        return "MPI" if used else ""

    def needs_regroup(self) -> bool:
        """Whether :meth:`recover` has something to replace, or has been cut. Any rank may have revoked the world."""
        mpi = _module()
        if mpi is not None and _can_revoke(mpi) and not self._revoked and mpi.COMM_WORLD.Is_revoked():
            self._revoked.append(mpi.COMM_WORLD)
        return bool(self._revoked) or self._round is not None

    def waits(self, frame: FrameType, call: ast.Call | None) -> str:
        """The method of a communicator, request, window or file that a thread is in, idle or not: MPI spins."""
        mpi = _module()
        if mpi is None or not (calls := calls_in(mpi, frame, call)):
            return ""
        found, method = calls[0], calls[0].method or "MPI"
        return f"{found.kind}.{method}" if found.kind in ("Win", "File") else method

    def part_at(self, frame: FrameType, call: ast.Call | None) -> Doing | None:
        """Name the method, as a rank that is in one waits there."""
        found = self.waits(frame, call)
        return Doing("communication", found) if found else None

    def can_release(self, call: str) -> bool:
        """Without ULFM no wait can be ended; with it, all waits can but some of a window's."""
        mpi = _module()
        return mpi is not None and _can_revoke(mpi) and call not in ENDLESS

    def is_released(self, exception: BaseException) -> bool:
        """A revoked communicator says so; where a window is being made, Open MPI calls the window invalid instead.

        It does the same where a rank has died.
        """
        mpi = _module()
        if mpi is None or not _can_revoke(mpi) or not issubclass(type(exception), mpi.Exception):
            return False
        kind = exception.Get_error_class()  # type: ignore[attr-defined]  # mpi4py's, which has no types here
        world = mpi.COMM_WORLD
        gone = kind == mpi.ERR_WIN and (world.Is_revoked() or world.Get_failed().Get_size())
        return bool(kind == mpi.ERR_REVOKED or gone)

    def is_log(self, line: str) -> bool:
        """Open MPI tries UCX for each window, and logs so where there is no UCX before it takes another way.

        The message ends with a line of blanks.
        """
        continues, self._in_log = self._in_log, _LOG in line
        return self._in_log or (continues and line.isspace())

    def release(self) -> None:
        """Revoke every communicator that user code may be waiting in. The control thread calls it."""
        mpi = _module()
        if mpi is None or not _can_revoke(mpi):
            return
        calls = _calls_in_use(mpi)
        pools = _pools()
        owners = [call.owner for call in calls if call.owner is not None]
        inner = [comm for one in owners if isinstance(one, mpi.Win | mpi.File) for comm in hidden_of(mpi, one)]
        comms = self._communicators(mpi)
        for owner in owners:
            # One that the user keeps in a list or a dictionary is found only by the call that waits in it.
            if issubclass(type(owner), mpi.Comm) and owner not in (*comms, mpi.COMM_NULL, mpi.COMM_SELF):
                comms.append(owner)
        if calls and all(comm in self._revoked for comm in comms):
            # The steward asks again, so an earlier release has not ended the wait.
            _wake(mpi)
        self._revoked += [comm for comm in comms if comm not in self._revoked]
        if not calls:
            # Nothing is looked up after this: the next cell may have made a new world by then.
            time.sleep(OTHERS_FIRST)
        # Each revocation wakes every wait, which begins anew if it is not meant. One that does so just as its own
        # communicator is revoked does not see that: so those in which this rank waits come first.
        comms.sort(key=lambda comm: comm not in owners)
        for comm in [*inner, *comms]:
            # It may fail where another rank's revocation has arrived already.
            with contextlib.suppress(mpi.Exception):
                comm.Revoke()
        for pool, begun in pools:
            threading.Thread(target=_end_pool, args=(pool, begun), name="dtrain-mpi-pool", daemon=True).start()
        self._progress.drive(mpi)

    def recover(self, bound: frozenset[str], *, again: bool) -> list[str]:
        """Make a new ``MPI.COMM_WORLD`` of the living ranks, all of which take part.

        A name that the cell binds anew needs no note. ``again``: an earlier try has failed on this rank. Raises
        :class:`TimeoutError` when a rank does not arrive.
        """
        mpi: Any = _module()
        if mpi is None or not _can_revoke(mpi):
            return []
        old = self._known
        if again:
            # A plug-in may have left something in this world that only some ranks have begun.
            self._revoke_world(mpi)
        while not self._go_round(mpi):
            pass
        if mpi.COMM_WORLD is old:
            return []
        self._known = mpi.COMM_WORLD
        revoked, self._revoked, self._left = [*self._left, *self._revoked], [], []
        found = [(name, value) for name, value in user_names() if issubclass(type(value), mpi.Comm)]
        names = {name: value for name, value in found if value in (old, *revoked) and name not in bound}
        of_world = sorted(name for name, value in names.items() if value == old)
        others = sorted(names.keys() - set(of_world))
        windows = [name for name in self._broken_windows(mpi, revoked) if name not in bound]
        notes = []
        if of_world:
            notes.append(
                f"{', '.join(of_world)} is MPI's previous world, which can no longer send: "
                f"`{' = '.join(of_world)} = MPI.COMM_WORLD`"
            )
        if others:
            notes.append(f"{', '.join(others)}: made from MPI's previous world. Make it again from MPI.COMM_WORLD.")
        if windows:
            notes.append(f"{', '.join(windows)}: ranks were released there. Make it again from MPI.COMM_WORLD.")
        return notes

    def rejoin(self) -> None:
        """MPI has a new world of all ranks already: no round makes it, and the old one's belong to the past."""
        self._left += self._revoked
        self._revoked, self._round = [], None

    def cannot_heal(self) -> str:
        """C libraries hold MPI's own world, which has no place for a new process."""
        holders = c_libraries()
        if not holders:
            return ""
        return (
            f"{', '.join(holders)} {'use' if len(holders) > 1 else 'uses'} MPI's own world from C, and that cannot be "
            f"made whole: its calls need %distributed restart"
        )

    def _go_round(self, mpi: Any) -> bool:
        """Make the world again with all ranks; whether all of them did so for the cell that comes."""
        if self._round is None:
            # Some ranks may not have revoked: native code there may have kept the interpreter lock.
            self._round = Round(mpi, mpi.COMM_WORLD, self._run, whole=not self._revoked)
        try:
            new, together = self._round.wait(self._run)
        except mpi.Exception:
            self._round = None
            raise
        if new is not None:
            WORLD.put(mpi, "COMM_WORLD", new)
        self._round = None  # at last: an interrupt before this loses nothing
        return together

    def _revoke_world(self, mpi: Any) -> None:
        """End whatever only some ranks have begun in the world, after the round that this rank may still be in."""
        if self._round is not None:
            self._go_round(mpi)
        if mpi.COMM_WORLD not in self._revoked:
            self._revoked.append(mpi.COMM_WORLD)
        with contextlib.suppress(mpi.Exception):
            mpi.COMM_WORLD.Revoke()

    def _broken_windows(self, mpi: ModuleType, revoked: list[Any]) -> list[str]:
        """The user's names of windows and files from which ranks were released; ``revoked``: the user's own comms."""
        found = [(name, value) for name, value in user_names() if isinstance(value, mpi.Win | mpi.File)]
        broken: dict[str, list[Any]] = {}
        for name, value in found:
            inner = [comm for comm in hidden_of(mpi, value) if comm.Is_revoked()]
            if inner := [comm for comm in inner if comm not in revoked and comm not in self._broken]:
                broken[name] = inner
        self._broken += [comm for inner in broken.values() for comm in inner if comm not in self._broken]
        return sorted(broken)

    def _communicators(self, mpi: ModuleType) -> list[Any]:
        """The world, and every communicator that has a name in the user's code."""
        found = [mpi.COMM_WORLD]
        values = [value for _, value in user_names()]
        for innermost in _frames():
            frame: FrameType | None = innermost
            while frame is not None:
                values += list(locals_of(frame).values())
                frame = frame.f_back
        # The user's own objects may hold communicators too.
        values += [held for value in values if type(value).__module__ == "__main__" for held in _held(value)]
        for value in values:
            # Not isinstance(), which may run code of the value's class.
            if issubclass(type(value), mpi.Comm) and value not in (mpi.COMM_NULL, mpi.COMM_SELF, *found):
                found.append(value)
        return found


_of_rank: Mpi | None = None


def release_world() -> None:
    """Release the waits in MPI, for a framework that waits there for its ranks. The control thread calls it."""
    if _of_rank is not None:
        _of_rank.release()


def _wake(mpi: ModuleType) -> None:
    """Have the waits of this rank look again whether their communicator is revoked.

    A wait looks before it enters Open MPI's list of waits, and once more whenever any communicator is revoked (5.0.11).
    A revocation that comes between a look and the entry is lost on it, and revoking that communicator again wakes
    nobody; another one's revocation does. :meth:`Mpi.release` leaves that moment to other ranks' revocations alone.
    """
    with contextlib.suppress(mpi.Exception):
        own = mpi.COMM_SELF.Dup()
        own.Revoke()
        own.Free()


def _frames() -> list[FrameType]:
    """The innermost frames of all threads but this one, and but those that heal the world beside the cell."""
    frames = frames_of_threads()
    for thread in threading.enumerate():
        if thread.name == THREAD:
            frames.pop(thread.ident or 0, None)
    return list(frames.values())


def _calls_in_use(mpi: ModuleType) -> list[MpiCall]:
    """The calls of MPI that this rank's threads are in now."""
    return [call for frame in _frames() for call in calls_in(mpi, frame, called_in(frame))]


def _pools() -> list[tuple[Any, dict[int, Any]]]:
    """The pools of mpi4py.futures that some thread knows, each with the tasks that other ranks have begun.

    The thread of such a pool may not have come to MPI yet.
    """
    core: Any = sys.modules.get("mpi4py.futures._core")
    found: dict[int, tuple[Any, dict[int, Any]]] = {}
    for innermost in _frames() if core is not None else ():
        frame: FrameType | None = innermost
        begun: dict[int, Any] = {}
        while frame is not None:
            names = locals_of(frame)
            if frame.f_code.co_filename == core.__file__:
                begun = names.get("pending", begun)
            for value in names.values():
                if type(value).__module__ == "mpi4py.futures.pool":
                    value = getattr(value, "_pool", None)  # noqa: PLW2901 — an executor's
                if type(value) is getattr(core, "Pool", None):
                    found[id(value)] = value, begun or found.get(id(value), (value, {}))[1]
            frame = frame.f_back
    return list(found.values())


def _end_pool(pool: Any, begun: dict[int, Any]) -> None:
    """Fail the tasks of a pool whose thread ends, as its communicator is revoked: nobody else would (mpi4py 4.1)."""
    why = "A rank of this pool has failed."
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # mpi4py's own parts, which may change
        pool.thread.join(POOL_PATIENCE)
        if not pool.thread.is_alive():
            pool.broken(why)
            for future, _ in list(begun.values()):
                if not future.done():
                    future.set_exception(BrokenExecutor(why))


def _held(value: Any) -> list[Any]:
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except BaseException:  # noqa: BLE001 — it has none, or a user's class replaces it
        return []


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
