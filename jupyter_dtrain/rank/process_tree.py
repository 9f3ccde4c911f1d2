"""The processes beneath a rank that its cells start, and how they end when a cell is interrupted.

An interrupt reaches them as it reaches the children of a program in a terminal: each gets SIGINT once, while the cell
runs. When an interrupted cell has ended, the rank ends the processes that are left, by SIGINT, then SIGTERM, then
SIGKILL. A cell that ends in any other way leaves its processes alone, and so do all cells that come later. Workers of
pools that earlier cells have made get SIGINT, too, if they are still busy with tasks of the interrupted cell: tasks of
the next cell would wait for these. The watch ends what a dead rank leaves (:mod:`jupyter_dtrain.watch.orphans`).

A cell's processes are those of the rank's Linux session that began while its code ran: also orphans, and those that a
thread of the cell started. These stay until the rank ends:

* processes that an earlier cell started, and those that they start in turn;
* processes that were started to stay: in a session of their own (``start_new_session=True``, ``setsid``), or by
  ``nohup``, whose commands ignore SIGHUP;
* services that a library starts at first need and counts on in later cells: multiprocessing's resource tracker and fork
  server, and those that frameworks name.

Under failure: every wait has a deadline. The cell names processes that none of the signals ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from jupyter_dtrain.plugins.patches import Patch

ENDING: Final = ((signal.SIGINT, 2.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 1.0))
"""The signals that end a process, and the seconds that it then has. A process gets no signal that it ignores."""
LOOK: Final = 0.02
POOL_PATIENCE: Final = 0.5
"""Seconds in which a multiprocessing pool ends its workers itself, or is done with the tasks of a cell."""
EXECUTOR_PATIENCE: Final = 2.0
"""Seconds in which an executor's workers must come to their next tasks, to be interrupted there."""
TAKEN: Final = 0.1
"""Seconds in which a worker has taken the next task, or waits for one."""

POOLS = Patch(
    "multiprocessing.pool",
    reads=("_finalizer_registry", "_weakref", "_cache", "_pool", "_taskqueue", "_inqueue", "_reader", "_rlock"),
    why="Workers of a pool go on with the tasks of an interrupted cell, and the next cell's wait for them.",
    lost="workers of multiprocessing pools go on after an interrupt",
)
EXECUTORS = Patch(
    "concurrent.futures.process",
    calls=("_threads_wakeups",),
    reads=("_pending_work_items", "_processes"),
    why="Workers of an executor go on with the tasks of an interrupted cell, and the next cell's wait for them.",
    lost="workers of a ProcessPoolExecutor go on after an interrupt",
)

_TICKS = os.sysconf("SC_CLK_TCK")
_SERVICES = re.compile(r"from [\w.]+\.(resource_tracker|forkserver) import main")
"""Command lines of services: multiprocessing's, and those of libraries modelled on it, such as loky."""
_HOSTS = re.compile(r"from [\w.]+\.forkserver import main")
"""Command lines of services whose children belong to the code that uses the service."""


class Child(NamedTuple):
    """A process that the rank, or a process beneath it, started."""

    pid: int
    parent: int
    started: int
    """Clock ticks since the machine started."""
    name: str

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the process: Linux may give the id alone to another one."""
        return self.pid, self.started


class CellProcesses:
    """Knows, interrupts and ends the processes that the cells of this rank start. Any thread may call."""

    def __init__(self, services: Collection[str] = ()) -> None:
        """``services``: words in the command lines of processes that outlive the cell that started them."""
        self._services = tuple(services)
        self._lock = threading.Lock()
        self._began = 0
        self._newest = 0
        """The newest process when the cell began. Linux notes a start to 10 ms, too coarse to tell which came first."""
        self._runs = False
        self._sent: dict[tuple[int, int], int] = {}
        """How many of the signals of :data:`ENDING` a process of this cell has had."""
        self._pools: dict[Any, set[int]] = {}
        """The pools that earlier cells have made, each with the tasks that it had when the cell began."""

    def begin(self) -> None:
        """A cell's code is about to run."""
        with self._lock:
            self._began, self._runs = _now(), True
            self._newest = _newest_process()
            self._sent.clear()
            self._pools = {pool: _tasks(pool) for pool in (*_pools(), *_executors())}

    def interrupt(self, *, force: bool = False) -> None:
        """Send SIGINT to the processes of the running cell, once; ``force``: send each the next of the signals."""
        with self._lock:
            if self._runs:
                for child in self._find():
                    if force:
                        self._send_next(child)
                    elif child.key not in self._sent and not _ignored(child.pid) & _bit(signal.SIGINT):
                        self._send(child, 0)

    def leave(self) -> None:
        """The cell has ended and leaves its processes alone."""
        with self._lock:
            self._runs = False

    def end(self) -> tuple[set[int], list[Child]]:
        """End the cell's processes, after its code. Returns the ids of those that ended, and those that go on."""
        with self._lock:
            runs, self._runs = self._runs, False
        if not runs:
            return set(), []
        until = _now()
        found = {pid for pid, _ in self._sent}
        _end_pools([pool for pool in _pools() if pool not in self._pools])
        left: list[Child] = []
        for step, (_, patience) in enumerate(ENDING, 1):
            deadline = time.monotonic() + patience
            while left := self._find(until):
                found.update(child.pid for child in left)
                for child in left:
                    if self._sent.get(child.key, 0) < step:
                        self._send_next(child)
                if time.monotonic() > deadline or all(self._sent[child.key] > step for child in left):
                    break
                time.sleep(LOOK)
        return found - {child.pid for child in left}, left

    def interrupt_pools(self) -> None:
        """Interrupt the workers of earlier cells that are still busy with tasks of this cell, which was interrupted."""
        pools, self._pools = self._pools, {}
        deadline = time.monotonic() + POOL_PATIENCE
        while (busy := [pool for pool in pools if _tasks(pool) - pools[pool]]) and time.monotonic() < deadline:
            time.sleep(LOOK)
        for pool in busy:
            (_interrupt_pool if hasattr(pool, "_cache") else _interrupt_executor)(pool, pools[pool])

    def _send_next(self, child: Child) -> None:
        """Send the next signal that the process does not ignore."""
        ignored = _ignored(child.pid)
        step = self._sent.get(child.key, 0)
        while step < len(ENDING) - 1 and ignored & _bit(ENDING[step][0]):
            step += 1
        self._send(child, min(step, len(ENDING) - 1))

    def _send(self, child: Child, step: int) -> None:
        self._sent[child.key] = step + 1
        number, _ = ENDING[step]
        with contextlib.suppress(OSError):
            os.kill(child.pid, number)

    def _find(self, until: int | None = None) -> list[Child]:
        """The processes of the cell that are alive. ``until``: when its code ended.

        Processes that the rank itself starts later are not the cell's: those of a thread that keeps up workers, say.
        """
        me = os.getpid()
        session = {child.pid: child for child in _session(me) if child.pid != me}
        kept: dict[int, bool] = {}

        def stays(pid: int) -> bool:
            """Whether the process, or one above it, is there to stay."""
            child = session.get(pid)
            if child is None:
                return False  # the rank, or the watch above it, which adopts orphans
            if pid not in kept:
                kept[pid] = self._is_earlier(child) or _is_detached(pid) or self._is_service(pid)
                above = child.parent
                kept[pid] |= stays(above) and not _HOSTS.search(_command(above))
            return kept[pid]

        return [
            child
            for child in session.values()
            if not stays(child.pid) and not (until is not None and child.parent == me and child.started > until)
        ]

    def _is_earlier(self, child: Child) -> bool:
        """Whether the process started before the cell began."""
        if child.started != self._began:
            return child.started < self._began
        # Linux gives out ids in turn, and begins again after the last.
        most = int(_read("/proc/sys/kernel/pid_max") or 1 << 22)
        return (self._newest - child.pid) % most < most // 2

    def _is_service(self, pid: int) -> bool:
        return _serves(pid, self._services)


def workers(services: Collection[str], known: dict[tuple[int, int], bool]) -> list[int]:
    """The processes that cells of this rank have started, without services.

    ``known`` keeps from call to call which processes are services: their command lines are read once.
    """
    me = os.getpid()
    found = [child for child in _session(me) if child.pid != me]
    judged = {child.key: known.get(child.key) for child in found}
    known.clear()
    known.update((key, _serves(key[0], services) if one is None else one) for key, one in judged.items())
    return [child.pid for child in found if not known[child.key]]


def _serves(pid: int, services: Collection[str]) -> bool:
    command = _command(pid)
    return bool(_SERVICES.search(command)) or any(words in command for words in services)


def _now() -> int:
    """The time as Linux notes it for a process that starts now."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def _newest_process() -> int:
    """The id that Linux gave out last, here; a list of all processes would cost each rank more with each rank."""
    return int((_read("/proc/loadavg").split() or ["0"])[-1])


def _session(leader: int) -> Iterator[Child]:
    """The living processes in the session of ``leader``.

    Linux is asked for the session of each process, and reads no file for that: where many processes are busy, to read a
    file of each takes so long that interrupts, which come every half second, would leave the rank no time to answer.
    """
    for name in _processes():
        if not name.isdecimal() or not _is_in(leader, int(name)) or not (stat := _read(f"/proc/{name}/stat")):
            continue
        head, _, tail = stat.rpartition(")")
        state, parent, _, session, *rest = tail.split()
        if int(session) == leader and state not in "ZX":
            # See proc(5): `rest` begins with field 7, and field 22 is the time.
            yield Child(int(name), int(parent), int(rest[15]), head.partition("(")[2])


def _is_in(session: int, pid: int) -> bool:
    try:
        return os.getsid(pid) == session
    except OSError:
        return False  # it has ended


def _processes() -> list[str]:
    with contextlib.suppress(Exception):
        return [entry.name for entry in os.scandir("/proc")]
    return []  # user code has called os.chroot, or has an audit hook that refuses


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except Exception:  # noqa: BLE001 — it has ended; or an audit hook of the user's refuses, by any exception
        return ""


def _command(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ")


def _ignored(pid: int) -> int:
    """The signals that a process ignores, as a mask."""
    found = re.search(r"^SigIgn:\s*([0-9a-f]+)", _read(f"/proc/{pid}/status"), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _bit(number: int) -> int:
    return 1 << (number - 1)


def _is_detached(pid: int) -> bool:
    """Whether ``nohup`` started it. The rank does not ignore SIGHUP, so other children inherit no such setting."""
    return bool(_ignored(pid) & _bit(signal.SIGHUP))


def _pools() -> list[Any]:
    """The multiprocessing pools of this process. A pool replaces workers that end, and gives them work that is left."""
    found = []
    for name in ("multiprocessing", "multiprocess"):
        pool, util = sys.modules.get(f"{name}.pool"), sys.modules.get(f"{name}.util")
        if pool is None or util is None:
            continue
        # Python keeps no public list of pools; each has registered a function that ends it.
        for finalizer in list(getattr(util, "_finalizer_registry", {}).values()):
            reference = getattr(finalizer, "_weakref", None)
            one = reference() if reference is not None else None
            if isinstance(one, pool.Pool):
                found.append(one)
    return found


def _end_pools(pools: list[Any]) -> None:
    """End ``pools``, on threads of their own: a pool may wait for a worker that ignores its signal."""
    threads = [threading.Thread(target=pool.terminate, name="dtrain-pool-end", daemon=True) for pool in pools]
    deadline = time.monotonic() + POOL_PATIENCE
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _executors() -> list[Any]:
    """The executors of this process that run their tasks in processes."""
    # Python keeps no public list of them, but one of the threads that serve them.
    threads = list(getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ()))
    return [one for thread in threads if (one := getattr(thread, "executor_reference", lambda: None)()) is not None]


def _tasks(pool: Any) -> set[int]:
    """The numbers of the tasks that ``pool`` has not done."""
    return set(pool._cache if hasattr(pool, "_cache") else pool._pending_work_items or ())  # noqa: SLF001 — no public way


def _interrupt_pool(pool: Any, earlier: set[int]) -> None:
    """Interrupt the workers of a multiprocessing pool, which replaces those that end by it.

    Tasks that wait are dropped first, or a new worker would begin them; unless some of the tasks are ``earlier`` ones,
    which cells that were not interrupted have given.
    """
    workers = [getattr(worker, "pid", None) for worker in list(pool._pool)]  # noqa: SLF001
    if None in workers:
        return  # its workers are threads
    tasks, reader, until = pool._taskqueue, pool._inqueue._reader, time.monotonic() + POOL_PATIENCE  # noqa: SLF001
    while not _tasks(pool) & earlier and time.monotonic() < until and (not tasks.empty() or reader.poll(TAKEN)):
        with contextlib.suppress(queue.Empty):
            tasks.get_nowait()
        lock = pool._inqueue._rlock  # noqa: SLF001
        if lock.acquire(timeout=TAKEN):
            try:
                if reader.poll():
                    reader.recv_bytes()
            finally:
                lock.release()
    _interrupt(workers)
    for job in _tasks(pool) - earlier:
        pool._cache.pop(job, None)  # noqa: SLF001 — it is never done, and close() would wait for it


def _interrupt_executor(executor: Any, earlier: set[int]) -> None:
    """Interrupt the workers of an executor while each of them has a task, which then raises KeyboardInterrupt.

    An idle worker would end by the signal, and the executor would count as broken.
    """
    items, until = executor._pending_work_items, time.monotonic() + EXECUTOR_PATIENCE  # noqa: SLF001
    for number, item in list(items.items()):
        if number not in earlier:
            item.future.cancel()
    while time.monotonic() < until:
        workers = list(executor._processes or ())  # noqa: SLF001
        begun = [number for number, item in list(items.items()) if item.future.running()][: len(workers)]
        if not workers or len(begun) < len(workers) or earlier.issuperset(begun):
            return
        _interrupt(workers)
        while not items.keys().isdisjoint(begun) and time.monotonic() < until:
            time.sleep(LOOK)
        time.sleep(TAKEN)


def _interrupt(pids: list[Any]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGINT)
