"""The parent process of a rank.

``mpiexec`` starts one watch per rank; the watch imports the engine, forks the rank from itself, and stays. It

* knows the rank's true exit status, and writes the ``Finished`` event of a rank that died during a run, after the
  rank's last output;
* reads the rank's descriptors 1 and 2, see :mod:`.descriptors`;
* delivers signals, also to a rank that is stopped or holds the interpreter lock;
* knows when the rank is stopped (SIGSTOP), and reads the stack of a rank that cannot answer, see :mod:`.native_stack`;
* is subreaper of the rank's children and ends them when the rank has ended;
* ends its rank when its lease runs out, when ``mpiexec`` sends SIGTERM, and (by the kernel's parent-death signal) when
  it is killed itself;
* kills itself with SIGKILL when its rank ended with anything but 0: a process that calls ``_exit`` leaves the other
  ranks' ``Shrink`` stuck (Open MPI 5.0), a killed one does not.

The watch writes its reports, one JSON object a line, to its standard output: ``mpiexec`` carries them to the steward
from any host. Requests come to it, signed, over ipyparallel's control channel.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil
import zmq
from ipyparallel import util
from jupyter_client.session import Session

from jupyter_dtrain.core.errors import OtherVersion, Refused
from jupyter_dtrain.core.events import Body, Event, Finished, Output, encode
from jupyter_dtrain.core.exits import describe_exit
from jupyter_dtrain.core.stacks import Stack
from jupyter_dtrain.wire.agent_messages import InspectRank, RenewWatch, SendSignal, read_watch_request
from jupyter_dtrain.wire.messages import REPLY_MESSAGE, Done, accepted, refused, watch_identity
from jupyter_dtrain.wire.reports import Died, Paused, Reached, Ready, Report, rank_in, read_report, write_report
from jupyter_dtrain.wire.requests import RankSpec
from jupyter_dtrain.wire.spool import descriptor_counts, file_ends, last_outputs

from . import app
from .descriptors import STREAMS, Holder, Stream, make_channel
from .native_stack import Look

LAST_WORDS = 16 << 10
"""Characters of a dead rank's unread output that go into the report."""

PIPE_BYTES = 1 << 20
HELD = 1.0
"""Seconds in which a rank resumes that py-spy held when py-spy was killed."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61


class Watch:
    """The loop of the parent."""

    def __init__(
        self, pid: int, spec: RankSpec, pipes: dict[Stream, int], channel: socket.socket, reports: int
    ) -> None:
        self._pid = pid
        self._spec = spec
        self._pipes = pipes
        self._holder = Holder(pipes, channel, psutil.Process(pid))
        self._reports = reports
        self._report_begun = b""
        self._told: Ready | None = None
        self._reason = ""
        """The sender of the last signal, and why, in words."""
        # No client renews the lease before the world is up.
        self._lease_end = time.monotonic() + max(spec.settings.lease, spec.settings.longest_step)
        self._socket: zmq.Socket[bytes] | None = None
        self._session: Session | None = None
        self._status: int | None = None
        self._stopped = False
        self._look: Look | None = None
        """The look that is under way."""
        self._lookers: list[Callable[[Stack], None]] = []
        """The functions that take its result."""
        self._held_until = 0.0
        """Until then, a stop of the rank comes from a py-spy that was killed while it held the rank."""
        self._terminating: float | None = None

    def run(self) -> NoReturn:
        """Serve until the rank has ended; never returns."""
        wake, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._terminate())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        poller = zmq.Poller()
        poller.register(wake, zmq.POLLIN)
        poller.register(self._reports, zmq.POLLIN)
        while self._status is None:
            patience = self._patience()
            self._listen(poller)
            events = dict(poller.poll(math.ceil(1000 * patience)))
            if wake in events:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            if self._reports in events:
                self._pass_on_reports(poller)
            if self._socket is not None and self._socket in events:
                self._serve()
            self._pass_on_words(events)
            self._finish_look(poller, events)
            self._check_deadlines()
            self._reap()
        self._end()

    def _listen(self, poller: zmq.Poller) -> None:
        """Poll for the rank's output, as far as there is room for it."""
        holder = self._holder
        for stream, fd in self._pipes.items():
            poller.register(fd, zmq.POLLIN if holder.reads and stream in holder.pipes else 0)
        if self._look is not None:
            poller.register(self._look.fd, zmq.POLLIN)
        poller.register(holder.channel.fileno(), zmq.POLLIN | (zmq.POLLOUT if holder.sends else 0))

    def _pass_on_words(self, events: dict[Any, int]) -> None:
        holder = self._holder
        if holder.channel.fileno() in events:
            holder.hear()
        for stream in tuple(holder.pipes):
            if self._pipes[stream] in events:
                holder.read(stream)
        holder.send()

    def _patience(self) -> float:
        deadline = self._lease_end
        if self._terminating is not None:
            deadline = min(deadline, self._terminating)
        if self._look is not None:
            deadline = min(deadline, self._look.deadline)
        patience = min(deadline - time.monotonic(), 30.0)
        room = self._holder.make_room()
        return max(0.0, patience if room is None else min(patience, room))

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if now >= self._lease_end or (self._terminating is not None and now >= self._terminating):
            self._signal(signal.SIGKILL)

    def _terminate(self) -> None:
        """Ask the rank to end; it is killed if it has not done so within a second."""
        if self._terminating is None:
            self._terminating = time.monotonic() + 1.0
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self._pid:
                continue
            if os.WIFSTOPPED(status) and time.monotonic() < self._held_until:
                self._signal(signal.SIGCONT)
            elif os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self._stopped = os.WIFSTOPPED(status)
                if self._told is not None:
                    _report(Paused(self._told.rank, self._stopped))
            else:
                self._status = status

    def _pass_on_reports(self, poller: zmq.Poller) -> None:
        """Pass the rank's own reports on to the steward."""
        data = os.read(self._reports, 1 << 16)
        if not data:
            poller.unregister(self._reports)
            return
        *lines, self._report_begun = (self._report_begun + data).split(b"\n")
        for line in lines:
            report = read_report(line)
            if report is not None:
                _report(report)
            if isinstance(report, Ready):
                self._told = report
                self._connect(report)
                poller.register(self._socket, zmq.POLLIN)

    def _connect(self, ready: Ready) -> None:
        info = json.loads(Path(self._spec.engine_file).read_text())
        util._disable_session_extract_dates()  # noqa: SLF001 — as ipyparallel's own nanny
        self._session = Session(
            key=info["key"].encode(),
            signature_scheme=info["signature_scheme"],
            packer=info["pack"],
            unpacker=info["unpack"],
        )
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.IDENTITY, watch_identity(ready.engine).encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        protocol, address = info["interface"].split("://")
        host = util.disambiguate_ip_address(address, info["location"])
        self._socket.connect(f"{protocol}://{host}:{info['control']}")

    def _serve(self) -> None:
        assert self._socket is not None
        assert self._session is not None
        try:
            idents, message = self._session.recv(self._socket)
        except Exception:  # noqa: BLE001 — not signed with this world's key, or no message at all
            return
        if message is None:
            return
        try:
            request = read_watch_request(message["content"])
        except Refused as error:
            self._answer(refused(error), message, idents)
            return
        match request:
            case SendSignal():
                self._signal(request.signal)
                self._reason = request.reason
            case RenewWatch():
                self._lease_end = time.monotonic() + self._spec.settings.lease
            case InspectRank():
                self._look_for(lambda found: self._answer(accepted(found), message, idents))
                return
        self._answer(accepted(Done()), message, idents)

    def _answer(self, answer: dict[str, Any], message: Any, idents: Any) -> None:
        assert self._socket is not None
        assert self._session is not None
        self._session.send(self._socket, REPLY_MESSAGE, answer, message, ident=idents)

    def _look_for(self, looker: Callable[[Stack], None]) -> None:
        """Read the rank's stack, once for all requests that come meanwhile."""
        if self._stopped:
            looker(Stack("stopped"))
            return
        try:
            self._look = self._look or Look(self._pid, self._spec.spool)
        except Exception as error:  # noqa: BLE001 — the loop must go on
            looker(Stack("silent", f"py-spy cannot be started: {error}"))
            return
        self._lookers.append(looker)

    def _finish_look(self, poller: zmq.Poller, events: dict[Any, int]) -> None:
        look = self._look
        if look is None:
            return
        late = time.monotonic() > look.deadline
        if not late and not (look.fd in events and look.read()):
            return
        with contextlib.suppress(KeyError):
            poller.unregister(look.fd)
        found = look.end()
        if late:
            # A py-spy that is killed while it holds the rank may leave the rank stopped.
            self._held_until = time.monotonic() + HELD
            self._signal(signal.SIGCONT)
        self._look, lookers = None, self._lookers
        self._lookers = []
        for looker in lookers:
            looker(found)

    def _end(self) -> NoReturn:
        assert self._status is not None
        self._end_children()
        rank = self._told.rank if self._told else rank_in(os.environ)
        status, reason = self._status, self._reason
        words, run, events, last_words = self._finish_run(lambda said: describe_exit(rank, status, reason, said))
        asked = bool(reason) and os.WIFSIGNALED(status)
        _report(Died(rank, self._pid, self._status, words, run, events, last_words, asked))
        code = os.waitstatus_to_exitcode(self._status)
        if code == 0 or self._terminating is not None:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def _end_children(self) -> None:
        """Kill the processes that the rank left behind, until none is left."""
        me = psutil.Process()
        deadline = time.monotonic() + 2.0
        while (children := me.children(recursive=True)) and time.monotonic() < deadline:
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()
            psutil.wait_procs(children, timeout=0.2)

    def _finish_run(self, describe: Callable[[str], str]) -> tuple[str, int | None, list[Event], str]:
        """Write the last events of the run that the rank was working on, if any.

        Returns the end of the rank in words, which ``describe`` finds from its last output; the run; those events; and
        the output that no event had yet.
        """
        found = self._unfinished()
        if found is None:
            left = _shortened(self._holder.rest({}))
            unread = "".join(text for _, text in left)
            return describe(unread), None, [], unread
        run, path, first, last, size = found
        outputs = last_outputs(path)
        left = _shortened(self._holder.rest(descriptor_counts(outputs)))
        unread = "".join(text for _, text in left)
        words = describe(_said(outputs, left))
        now = time.time()
        bodies: list[Body] = [Output(stream, text) for stream, text in left]
        bodies.append(Finished("lost", now - first.time, words, regroup=True))
        events = [Event(run, last.rank, last.seq + index, now, body) for index, body in enumerate(bodies, 1)]
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(b"".join(encode(event) for event in events))
        return words, run, events, unread

    def _unfinished(self) -> tuple[int, Path, Event, Event, int] | None:
        """The run that this rank was working on: number, spool, first and last event, and the bytes up to the last."""
        if self._told is None:
            return None
        folders = Path(self._spec.spool).glob("run-*")
        found = [(int(folder.name[4:]), folder / f"rank-{self._told.rank}.jsonl") for folder in folders]
        runs = sorted((run, path) for run, path in found if path.exists())
        if not runs:
            return None
        run, path = runs[-1]
        ends = file_ends(path)
        if ends is None or isinstance(ends[1].body, Finished):
            return None
        return run, path, *ends


def _said(outputs: list[Output], left: list[tuple[Stream, str]]) -> str:
    """The end of a rank's output, as it wrote it: the part in its spool, and the part that is ``left``.

    By stream: one line may lie in both parts, and in several events with others between them.
    """
    said: dict[Stream, list[str]] = {}
    for stream, text in [*((output.stream, output.text) for output in outputs), *left]:
        said.setdefault(stream, []).append(text)
    return "\n".join("".join(texts)[-LAST_WORDS:] for texts in said.values())


def _shortened(left: list[tuple[Stream, str]]) -> list[tuple[Stream, str]]:
    """The end of a dead rank's output, as much as a report may carry."""
    room = LAST_WORDS
    kept: list[tuple[Stream, str]] = []
    for stream, text in reversed(left):
        if room:
            kept.append((stream, text[-room:]))
            room -= len(kept[-1][1])
    lost = sum(len(text) for _, text in left) - LAST_WORDS
    if lost > 0:
        kept.append(("stderr", f"[jupyter-dtrain] {lost} characters before this are missing\n"))
    return kept[::-1]


def _report(report: Report) -> None:
    with contextlib.suppress(OSError):
        write_report(1, report)


def main() -> NoReturn:
    """Fork the rank and watch it."""
    try:
        spec = RankSpec.from_environment()
    except OtherVersion as error:
        sys.exit(str(error))
    _report(Reached(rank_in(os.environ), "started"))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    read_ends: dict[Stream, int] = {}
    write_ends: dict[Stream, int] = {}
    for name in STREAMS:
        read_ends[name], write_ends[name] = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_ends[name], False)
        with contextlib.suppress(OSError):
            # Native code that prints while it holds the interpreter lock stops once the pipe is full.
            fcntl.fcntl(write_ends[name], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    reports, tell = os.pipe2(os.O_CLOEXEC)
    channel, rank_channel = make_channel()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for fd in (*read_ends.values(), reports):
            os.close(fd)
        channel.close()
        _be_rank(spec, libc, parent, write_ends, rank_channel, tell)
    for fd in (*write_ends.values(), tell):
        os.close(fd)
    rank_channel.close()
    Watch(pid, spec, read_ends, channel, reports).run()


def _be_rank(
    spec: RankSpec,
    libc: ctypes.CDLL,
    parent: int,
    write_ends: dict[Stream, int],
    channel: socket.socket,
    tell: int,
) -> NoReturn:
    code = 1
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        # On systems where only parents may read a process: allow the watch, and py-spy as its child. Others ignore it.
        libc.prctl(_PR_SET_PTRACER, parent, 0, 0, 0)
        # Linux shares the processors between sessions first (sched_autogroup): ranks of one session wake each other
        # later, which cost an eighth of a small model's speed. Under torchrun each rank has its own session, too.
        os.setsid()
        # By this signal .children knows what the user's code starts with nohup, even if Jupyter runs under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(write_ends["stdout"], 1)
        os.dup2(write_ends["stderr"], 2)
        app.run_engine(spec, channel, lambda report: write_report(tell, report))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 — the end of the process: say why, then go
        traceback.print_exc(file=sys.__stderr__)
    finally:
        with contextlib.suppress(BaseException):
            # The only part of Python's own end: MPI_Finalize and joining threads may wait for other ranks for ever.
            atexit._run_exitfuncs()  # noqa: SLF001 — no public name
        with contextlib.suppress(Exception):
            sys.__stderr__.flush()  # type: ignore[union-attr]
        os._exit(code)
