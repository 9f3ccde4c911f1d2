"""The parent process of the ranks of one host.

The steward starts one watch on each host of a world, and sends it the world's specification over a pipe. The watch
imports the engine once, takes the slots that ``mpiexec`` hands over (:mod:`jupyter_dtrain.rank.slots`), forks a rank
for each (:mod:`.rank_process`), and stays. It

* knows each rank's true exit status, and writes the ``Finished`` event of a rank that died during a run, after the
  rank's last output;
* reads the ranks' descriptors 1 and 2, see :mod:`.descriptors`;
* delivers signals, also to a rank that is stopped or holds the interpreter lock;
* knows when a rank is stopped (SIGSTOP), and reads the stack of a rank that cannot answer, see :mod:`.native_stack`;
* has the stacks of a rank sampled for a flame graph, see :mod:`.sampling`;
* is subreaper of the ranks' children and ends them when their rank has ended, see :mod:`.orphans`;
* ends a rank whose slot ``mpiexec`` ends;
* ends all its ranks when its lease runs out, when the steward closes the pipe or sends SIGTERM, and (by the kernel's
  parent-death signal) when it is killed itself.

The watch writes its reports, one JSON object a line, to its standard output: the pipe to the steward. Requests come to
it, signed, over ipyparallel's control channel.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import msgspec
import psutil
import zmq
from jupyter_client.session import Session

from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.errors import OtherVersion, Refused
from jupyter_dtrain.core.gpus import count_gpus
from jupyter_dtrain.plugins.left_out import import_ipyparallel
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank import slot_holder
from jupyter_dtrain.rank.connectivity import NetworkInterface, interface_to
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.slots import Slot, Slots
from jupyter_dtrain.wire.agent_messages import AnyWatchRequest, InspectRank, RenewWatch, SampleRank, SendSignal
from jupyter_dtrain.wire.messages import REPLY_MESSAGE, Done, accepted, from_content, refused
from jupyter_dtrain.wire.orders import Connect, End, read_order
from jupyter_dtrain.wire.reports import Died, Paused, Reached, Ready, Report, WatchReady
from jupyter_dtrain.wire.requests import RankSpec

from . import own_folders
from .orphans import Orphans, end_all
from .rank_process import TERMINATE, RankProcess, raise_limit
from .report_pipe import ReportPipe

import_ipyparallel()
from ipyparallel import util  # noqa: E402 — without its launchers

IN_EACH_RANK: Final = (
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "executing.executing",
    "pynvml",
    "sqlite3",
    "tornado.platform.asyncio",
    "wrapt",
)
"""Modules that a rank's start imports, late: a fifth of its processor time."""
LAST_WORDS: Final = 5.0
"""Seconds in which the steward must have read the last reports."""
LONGEST: Final = 30.0
"""Seconds without an event after which the loop looks around."""

MESSAGES = Patch(
    "ipyparallel.util",
    calls=("_disable_session_extract_dates()",),
    why="jupyter_client looks for dates in each message, and ipyparallel's own nanny has it leave that out.",
    lost="ranks cannot be interrupted and inspected from outside",
)

_PR_SET_CHILD_SUBREAPER = 36


class Watch:
    """The loop of the watch: it waits for descriptors, deadlines and signals, and serves them in turn."""

    def __init__(
        self, spec: RankSpec, slots: Slots, interface: NetworkInterface, orders: bytes, instead: str = ""
    ) -> None:
        """``interface``: the network interface that reaches the steward, where that is another host.

        ``orders``: the orders that came with the specification; ``instead``: the folder in which ranks work, where it
        is not the world's.
        """
        self._instead = instead
        self._spec = spec
        self._interface = interface
        self._slots = slots
        self._identity = f"watch-{secrets.token_hex(8)}"
        self._ranks: dict[int, RankProcess] = {}
        """The living ranks, by process id."""
        self._due: dict[int, float] = {}
        """When each rank needs a turn (monotonic), by process id."""
        self._leaving: list[tuple[Orphans, list[RankProcess]]] = []
        """Ranks that have ended, with what they have left behind: their ends are reported when that is gone."""
        self._touched: set[int] = set()
        """The process ids of the ranks that had an event in this round."""
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, dict[int, int]] = {}
        """The events that are awaited for each rank, by process id and descriptor."""
        self._reports = ReportPipe(1, spec.spool if spec.remote else "")
        self._reports_awaited = False
        self._orders = orders
        self._alone = False
        """Whether the steward is gone, or out of reach."""
        self._daemons: set[psutil.Process] = set()
        """The processes of ``mpiexec`` that have started the slots' processes."""
        self._kept: list[int] = []
        """The output of all processes that held slots: while it is open, MPI's daemon counts none as ended."""
        self._asked_to_end = False
        self._ending = False
        # No client renews the lease before the world is up.
        self._lease_end = time.monotonic() + max(spec.settings.keep_alive, spec.settings.longest_step)
        self._socket: zmq.Socket[bytes] | None = None
        self._session: Session | None = None

    def run(self) -> NoReturn:
        """Serve until the world ends; never returns."""
        wake, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._ask_to_end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(wake, selectors.EVENT_READ, lambda: _empty(wake))
        self._selector.register(0, selectors.EVENT_READ, self._hear_owner)
        self._selector.register(self._slots.socket, selectors.EVENT_READ, self._take_slots)
        os.write(1, b"\n")  # ends what a sitecustomize may have printed while Python started
        self._reports.send(
            WatchReady(socket.gethostname(), os.getpid(), count_gpus(), self._identity, *self._interface, self._instead)
        )
        self._follow_orders(b"")
        while not (self._ending and not self._ranks and not self._leaving):
            for key, _ in self._selector.select(self._patience()):
                key.data()
            if self._asked_to_end and not self._ending:
                self._terminate()
            self._serve()
            self._reap()
            self._see_off()
            self._give_turns()
            self._reports.copy_spools()
            self._await_pipe()
        while self._kept:
            os.close(self._kept.pop())
        end_all()
        self._finish()

    def _finish(self) -> NoReturn:
        """Send the rest, and leave nothing on a host of its own."""
        self._reports.finish(time.monotonic() + LAST_WORDS)
        if self._spec.remote:
            if self._alone:
                self._end_daemons()
            own_folders.remove(self._spec)
        os._exit(0)

    def _end_daemons(self) -> None:
        """Without the steward no ``mpiexec`` ends its daemon on this host, which would wait for its connection."""
        for daemon in self._daemons:
            with contextlib.suppress(psutil.Error):
                daemon.kill()  # it looks at the time of creation first

    def _await_pipe(self) -> None:
        """Wait until the steward has read, while there is more for it."""
        if self._reports_awaited == (not self._reports.free):
            return
        self._reports_awaited = not self._reports_awaited
        if self._reports_awaited:
            self._selector.register(1, selectors.EVENT_WRITE, self._reports.flush)
        else:
            self._selector.unregister(1)

    def _patience(self) -> float:
        if self._has_request():
            return 0.0
        leaving = [] if self._ending and self._ranks else [orphans.look_at for orphans, _ in self._leaving]
        moments = [*self._due.values(), *leaving, self._lease_end, time.monotonic() + LONGEST]
        if (copies_at := self._reports.copies_at(living=bool(self._ranks))) is not None:
            moments.append(copies_at)
        return max(0.0, min(moments) - time.monotonic())

    def _give_turns(self) -> None:
        """Let the ranks that had an event, or whose time has come, go on."""
        now = time.monotonic()
        if now >= self._lease_end:
            self._ending = self._alone = True
            for process in self._ranks.values():
                process.signal(signal.SIGKILL)
            self._lease_end = math.inf
        self._touched.update(pid for pid, due in self._due.items() if now >= due)
        for pid in self._touched & self._ranks.keys():
            self._due[pid] = self._ranks[pid].turn(now)
            self._listen(pid)
        self._touched.clear()

    def _listen(self, pid: int) -> None:
        """Have the loop wait for the descriptors that the rank needs now."""
        awaited = self._watched[pid]
        wanted: dict[int, tuple[int, Callable[[], None]]] = {}
        for fd, events, serve in self._ranks[pid].interests():
            wanted[fd] = events, serve
        for fd in awaited.keys() - wanted.keys():
            self._forget(awaited, fd)
        for fd, (events, serve) in wanted.items():
            if awaited.get(fd) == events:
                continue
            handle = self._touching(pid, serve)
            if fd in awaited:
                self._selector.modify(fd, events, handle)
            else:
                self._selector.register(fd, events, handle)
            awaited[fd] = events

    def _touching(self, pid: int, serve: Callable[[], None]) -> Callable[[], None]:
        def handle() -> None:
            self._touched.add(pid)
            serve()

        return handle

    def _forget(self, awaited: dict[int, int], fd: int) -> None:
        if awaited.pop(fd, None) is not None:
            self._selector.unregister(fd)

    # Slots and ranks.

    def _take_slots(self) -> None:
        for slot in self._slots.accept():
            self._selector.register(slot.socket, selectors.EVENT_READ, lambda slot=slot: self._read_slot(slot))

    def _read_slot(self, slot: Slot) -> None:
        try:
            if not slot.read():
                return
        except (OSError, EOFError):
            self._selector.unregister(slot.socket)
            slot.close()
            return
        self._selector.unregister(slot.socket)
        if self._ending:
            slot.end(well=False)
            return
        number = slot.rank
        with contextlib.suppress(psutil.Error):
            if (daemon := psutil.Process(slot.holder).parent()) is not None:
                self._daemons.add(daemon)
        awaited: dict[int, int] = {}
        try:
            process = RankProcess(slot, number, self._spec, self._report, lambda fd: self._forget(awaited, fd))
        except OSError as error:
            # No memory, no process id, no descriptor: the ranks that live go on.
            sys.stderr.write(f"Rank {number} cannot be started: {error}\n")
            slot.end(well=False)
            return
        self._kept += slot.output
        slot.output = []
        self._ranks[process.pid] = process
        self._watched[process.pid] = awaited
        self._touched.add(process.pid)
        self._report(Reached(number, "started", process.pid))

    def _report(self, report: Report) -> None:
        if isinstance(report, Ready) and self._socket is None:
            self._connect()
        if isinstance(report, Reached | Ready | Paused | Died):
            report = msgspec.structs.replace(report, watch=self._identity)
        self._reports.send(report)

    def _reap(self) -> None:
        """Collect what has ended beneath this process."""
        ended: list[RankProcess] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    break
                process = self._ranks.get(pid)
                if process is None:
                    continue
                self._touched.add(pid)
                process.changed(status)
                if process.status is not None:
                    ended.append(process)
        if not ended:
            return
        for process in ended:
            del self._ranks[process.pid]
            self._due.pop(process.pid, None)
            awaited = self._watched.pop(process.pid)
            for fd in tuple(awaited):
                self._forget(awaited, fd)
        if self._ending:
            # One look at the machine's processes for all of them: with a look for each, a stop grew with their square.
            ended = [*(process for _, earlier in self._leaving for process in earlier), *ended]
            self._leaving = []
        self._leaving.append((Orphans({process.pid: process.number for process in ended}), ended))

    def _see_off(self) -> None:
        """Report the ends of the ranks of which nothing is left; end more of what is left of others."""
        if self._ending and self._ranks:
            return
        now = time.monotonic()
        waiting = [one for one in self._leaving if now < one[0].look_at or not one[0].end(self._ranks.keys())]
        gone = [one for one in self._leaving if one not in waiting]
        self._leaving = waiting
        for _, ended in gone:
            for process in ended:
                process.end()

    def _ask_to_end(self) -> None:
        """Note the signal; the loop does the rest."""
        self._asked_to_end = True

    def _terminate(self, seconds: float = TERMINATE) -> None:
        """End all ranks, which have these seconds, then this process."""
        self._ending = True
        for pid, process in self._ranks.items():
            process.terminate(seconds)
            self._touched.add(pid)

    def _hear_owner(self) -> None:
        """Follow the steward's orders. It closes the pipe when it ends."""
        data = os.read(0, 1 << 16)
        if not data:
            self._selector.unregister(0)
            self._alone = True
            self._terminate()
        self._follow_orders(data)

    def _follow_orders(self, data: bytes) -> None:
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            match read_order(line):
                case Connect(info):
                    own_folders.put_private(self._spec.engine_file, info)
                case End(seconds):
                    self._terminate(seconds)

    # Requests.

    def _connect(self) -> None:
        info = json.loads(Path(self._spec.engine_file).read_text())
        util._disable_session_extract_dates()  # noqa: SLF001 — as ipyparallel's own nanny
        self._session = Session(
            key=info["key"].encode(),
            signature_scheme=info["signature_scheme"],
            packer=info["pack"],
            unpacker=info["unpack"],
        )
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.IDENTITY, self._identity.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        if server := info.get("curve_serverkey"):
            public, secret = zmq.curve_keypair()
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        protocol, address = info["interface"].split("://")
        host = util.disambiguate_ip_address(address, info["location"])
        self._socket.connect(f"{protocol}://{host}:{info['control']}")
        # ZeroMQ's descriptor reports a change, not a state: _serve looks in each round.
        self._selector.register(cast("int", self._socket.FD), selectors.EVENT_READ, lambda: None)

    def _has_request(self) -> bool:
        """Whether a request waits. The descriptor does not say: an answer that was sent can have taken its signal."""
        return self._socket is not None and bool(cast("int", self._socket.EVENTS) & zmq.POLLIN)

    def _serve(self) -> None:
        while self._has_request():
            self._serve_one()

    def _serve_one(self) -> None:
        assert self._socket is not None
        assert self._session is not None
        try:
            idents, message = self._session.recv(self._socket)
        except Exception:  # noqa: BLE001 — not signed with this world's key, or no message at all
            return
        if message is None:
            return

        def answer(content: dict[str, Any]) -> None:
            assert self._socket is not None
            assert self._session is not None
            self._session.send(self._socket, REPLY_MESSAGE, content, message, ident=idents)

        try:
            request: AnyWatchRequest = from_content(message["content"], AnyWatchRequest)
            match request:
                case RenewWatch():
                    self._lease_end = time.monotonic() + self._spec.settings.keep_alive
                case SendSignal():
                    self._rank(request.rank, request.pid).signal(request.signal, request.reason)
                case InspectRank():
                    self._rank(request.rank).look(lambda found: answer(accepted(found)))
                    return
                case SampleRank():
                    rank = self._rank(request.rank, request.pid)
                    rank.sample(request.number, request.seconds, lambda found: answer(accepted(found)))
                    return
        except Refused as error:
            answer(refused(error))
        else:
            answer(accepted(Done()))

    def _rank(self, number: int, wanted: int = 0) -> RankProcess:
        """The living rank ``number``, or the one whose process is ``wanted``. Raises :class:`Refused` without one."""
        for pid, process in self._ranks.items():
            if pid == wanted or (process.number == number and not wanted):
                self._touched.add(pid)
                return process
        raise Refused(f"Rank {number} has ended, or it is on another host.")


def _empty(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 4096)


def _read_line() -> tuple[bytes, bytes]:
    """The first line of standard input, and what has come after it."""
    data = bytearray()
    while b"\n" not in data and (more := os.read(0, 1 << 16)):
        data += more
    line, _, rest = bytes(data).partition(b"\n")
    return line, rest


def prepare() -> None:
    """Import once what each rank would import after its fork."""
    Plugins.preload()
    for module in IN_EACH_RANK:
        with contextlib.suppress(Exception):
            import_module(module)


def main() -> NoReturn:
    """Read the specification, and watch the ranks of this host."""
    prepare()
    with contextlib.suppress(Exception):  # each rank meets it again, and says so
        find_spec("mpi4py.MPI")  # mpi4py loads MPI's library to see which it is, and starts nothing
    line, rest = _read_line()
    if not line:
        sys.exit("The start failed before this host's part of it began.")
    try:
        spec = RankSpec.from_line(line)
    except OtherVersion as error:
        sys.exit(str(error))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    raise_limit()
    if spec.umask is not None:
        # The steward works under a stricter one, and a login on another host may have any.
        os.umask(spec.umask)
    if not spec.remote:
        Watch(spec, Slots(spec.scratch), NetworkInterface(), rest).run()
    try:
        spec = own_folders.make(spec)
    except OSError as error:
        sys.exit(f"A folder of the world cannot be made here: {error}")
    try:
        own_folders.put_private(f"{spec.scratch}/slot_holder.py", Path(slot_holder.__file__).read_text())
        instead = ""
        try:
            os.chdir(spec.cwd)
        except OSError:
            instead = os.getcwd()  # noqa: PTH109
        interface = interface_to(spec.remote)
        for one in declarations() if interface.name else ():
            for name in one.interface_variables:
                os.environ.setdefault(name, interface.name)
        Watch(spec, Slots(spec.scratch), interface, rest, instead).run()
    finally:
        own_folders.remove(spec)
