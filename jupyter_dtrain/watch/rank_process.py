"""One rank as its watch sees it: the process, its descriptors 1 and 2, its stack from outside, and its end.

Under failure: a rank that dies leaves the last events of its run in its spool, after its last output; the report of its
death carries them too. A method that comes too late, to a process that is gone, does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import os
import re
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import psutil

from jupyter_dtrain.core.events import Body, Event, Finished, Output, Started, encode
from jupyter_dtrain.core.exits import SLOT_ENDED, describe_exit
from jupyter_dtrain.core.flames import Sampled
from jupyter_dtrain.core.stacks import Stack
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank import app, end_reason
from jupyter_dtrain.rank.descriptors import STREAMS, DescriptorHolder, Stream, make_channel
from jupyter_dtrain.rank.slots import Slot
from jupyter_dtrain.wire.reports import Died, Paused, Ready, Renumbered, Report, read_report, write_report
from jupyter_dtrain.wire.requests import RankSpec
from jupyter_dtrain.wire.spool import descriptor_counts, file_ends, last_outputs, run_numbers, spool_path

from .native_stack import StackLook
from .sampling import STOPPED, TAKEN, Sampling

LAST_WORDS: Final = 16 << 10
"""Characters of a dead rank's unread output that go into the report."""
CRASHED: Final = 4 << 10
"""Characters of the crashed thread's stack that are kept as well, where it comes before those last words."""
_CRASH: Final = re.compile(r"^Fatal Python error: .*?(?=^Thread 0x|\Z)", re.MULTILINE | re.DOTALL)
PIPE_BYTES: Final = 1 << 20
HELD: Final = 1.0
"""Seconds in which a rank resumes that py-spy held when py-spy was killed."""
TERMINATE: Final = 1.0
"""Seconds that a rank has to end after SIGTERM, where the steward gives it no time."""
ASK_AGAIN: Final = 0.2
"""Seconds after which a rank that is to end gets another SIGTERM."""

EXIT = Patch(
    "atexit",
    calls=("_run_exitfuncs()",),
    why="Python's own end joins threads and finalises MPI, which may wait for other ranks for ever.",
    lost="what libraries register with atexit is not called at the end of a rank",
)

_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)
_HIGH = 200
"""A descriptor's number that no launcher uses."""
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61


class RankProcess:
    """One rank, seen from its watch. Not locked: the watch has one thread."""

    def __init__(
        self,
        slot: Slot,
        number: int,
        spec: RankSpec,
        report: Callable[[Report], None],
        forget: Callable[[int], None],
    ) -> None:
        """Fork the rank ``number`` for ``slot``.

        ``report`` passes reports on to the steward; ``forget`` ends the watch's wait for a descriptor, which is about
        to be closed.
        """
        self.slot = slot
        self.number = number
        """The rank; -1 where ``mpiexec`` gives no numbers and it is not ready yet."""
        self.ready: Ready | None = None
        self.status: int | None = None
        """Its status from :func:`os.waitpid`, once it has ended."""
        self._ended = 0.0
        """When the rank ended, in seconds since the epoch."""
        self._spec = spec
        self._report = report
        self._forget = forget
        self._report_begun = b""
        self._reason = ""
        """The sender of the last signal, and why, in words."""
        self._why = ""
        """Why the watch itself has asked the rank to end."""
        self._end_reason = end_reason.renew()
        self._stopped = False
        self._look: StackLook | None = None
        """The look at the rank's stack that is being taken."""
        self._lookers: list[Callable[[Stack], None]] = []
        """The functions that take the result of that look."""
        self._sampling: Sampling | None = None
        """The sampling of the rank's stacks that goes on, or whose result may be asked for again."""
        self._held_until = 0.0
        """Until then, a stop of the rank comes from a py-spy that was killed while it held the rank."""
        self._terminating: float | None = None
        """When a rank that was asked to end is killed (monotonic)."""
        self._asked_at = 0.0
        self._pipes: dict[Stream, int] = {}
        write_ends: dict[Stream, int] = {}
        for name in STREAMS:
            self._pipes[name], write_ends[name] = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._pipes[name], False)
            with contextlib.suppress(OSError):
                # Native code that prints while it holds the interpreter lock stops once the pipe is full.
                fcntl.fcntl(write_ends[name], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._reports, report_fd = os.pipe2(os.O_CLOEXEC)
        channel, rank_channel = make_channel()
        parent = os.getpid()
        # No handler of the watch may run in the rank.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if self.pid == 0:
            _be_rank(spec, slot, parent, write_ends, rank_channel, report_fd, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for fd in (*write_ends.values(), report_fd):
            os.close(fd)
        rank_channel.close()
        self._holder = DescriptorHolder(self._pipes, channel, psutil.Process(self.pid))

    # Polled by the watch.

    def interests(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """The descriptors to wait for now, each with its events and the method that serves it."""
        holder = self._holder
        for stream in holder.pipes if holder.reads else ():
            yield self._pipes[stream], selectors.EVENT_READ, lambda stream=stream: holder.read(stream)  # type: ignore[misc]
        if holder.hears:
            writes = selectors.EVENT_WRITE if holder.sends else 0
            yield holder.channel.fileno(), selectors.EVENT_READ | writes, holder.hear
        if self._reports >= 0:
            yield self._reports, selectors.EVENT_READ, self._read_reports
        if self._look is not None:
            yield self._look.fd, selectors.EVENT_READ, self._read_look
        if self._sampling is not None and not self._sampling.over:
            yield self._sampling.fd, selectors.EVENT_READ, self._read_sampling
        if self.slot.socket.fileno() >= 0:
            yield self.slot.socket.fileno(), selectors.EVENT_READ, self._slot_ended

    def turn(self, now: float) -> float:
        """Pass text on and meet deadlines; the next moment (monotonic) at which this is due without an event."""
        self._holder.send()
        if self._look is not None and now > self._look.deadline:
            self._finish_look(late=True)
        if self._sampling is not None and self._sampling.turn(now):
            self._finish_sampling()
        if self._sampling is not None and self._sampling.forgotten(now):
            self._sampling = None
        asks: float | None = None
        if self._terminating is not None:
            if now >= self._terminating:
                self.signal(signal.SIGKILL)
            elif now >= self._asked_at + ASK_AGAIN:
                self._ask_to_end()
            asks = now + ASK_AGAIN
        room = self._holder.make_room()
        moments = [
            None if room is None else now + room,
            None if self._look is None else self._look.deadline,
            None if self._sampling is None else self._sampling.due(),
            asks,
        ]
        return min((moment for moment in moments if moment is not None), default=now + 3600.0)

    def _read_reports(self) -> None:
        """Pass the rank's own reports on to the steward."""
        data = os.read(self._reports, 1 << 16)
        if not data:
            self._forget(self._reports)
            os.close(self._reports)
            self._reports = -1
            return
        *lines, self._report_begun = (self._report_begun + data).split(b"\n")
        for line in lines:
            report = read_report(line)
            if isinstance(report, Ready):
                self.ready, self.number = report, report.rank
            if isinstance(report, Renumbered):
                self.number = report.rank
            elif report is not None:
                self._report(report)

    def _slot_ended(self) -> None:
        """``mpiexec`` has ended the slot's process: the rank has no place in MPI any more."""
        self._forget(self.slot.socket.fileno())
        self.slot.close()
        self._why = SLOT_ENDED
        self._end_reason.write(self._why)
        self.terminate()

    # Orders.

    def signal(self, number: int, reason: str | None = None) -> None:
        """Send a signal. ``reason``: why, for the report of its death."""
        if self.status is None:
            # A number that is no signal comes from a client's request.
            with contextlib.suppress(OSError, OverflowError):
                os.kill(self.pid, number)
            if reason is not None:
                self._reason = reason

    def terminate(self, seconds: float = TERMINATE) -> None:
        """Ask the rank to end, again and again; it is killed if it has not done so within ``seconds``."""
        deadline = time.monotonic() + seconds
        if self._terminating is None or deadline < self._terminating:
            self._terminating = deadline
        self._ask_to_end()

    def _ask_to_end(self) -> None:
        """Python notices a SIGTERM that arrives just before a blocking call only when that call ends."""
        self._asked_at = time.monotonic()
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process sees no other signal

    def look(self, looker: Callable[[Stack], None]) -> None:
        """Read the rank's stack, once for all requests that come meanwhile."""
        if self._stopped:
            looker(Stack("stopped"))
            return
        try:
            self._look = self._look or StackLook(self.pid, self._spec.spool)
        except Exception as error:  # noqa: BLE001 — the watch must go on
            looker(Stack("silent", f"py-spy cannot be started: {error}"))
            return
        self._lookers.append(looker)

    def _read_look(self) -> None:
        assert self._look is not None
        if self._look.read():
            self._finish_look(late=False)

    def _finish_look(self, *, late: bool) -> None:
        assert self._look is not None
        self._forget(self._look.fd)
        found = self._look.end()
        if late:
            # A py-spy that is killed while it holds the rank may leave the rank stopped.
            self._held_until = time.monotonic() + HELD
            self.signal(signal.SIGCONT)
        self._look, lookers = None, self._lookers
        self._lookers = []
        for looker in lookers:
            looker(found)

    def sample(self, number: str, seconds: float, answer: Callable[[Sampled], None]) -> None:
        """Sample the rank's stacks for so many ``seconds``, and have ``answer`` called with the result.

        ``number``: the asker's; a question with the same number is the same question. 0 seconds: the asker wants no
        result any more.
        """
        running = self._sampling if self._sampling is not None and not self._sampling.over else None
        if self._sampling is not None and self._sampling.number == number:
            if running is not None and not seconds:
                running.interrupt()
            self._sampling.ask(answer)
        elif running is not None:
            answer(Sampled(words=TAKEN))
        elif not seconds:
            answer(Sampled())
        elif self._stopped:
            answer(Sampled(words=STOPPED))
        else:
            try:
                self._sampling = Sampling(self.pid, self._spec.spool, number, seconds)
            except Exception as error:  # noqa: BLE001 — the watch must go on
                answer(Sampled(words=f"py-spy cannot be started: {error}"))
                return
            self._sampling.ask(answer)

    def _read_sampling(self) -> None:
        assert self._sampling is not None
        if self._sampling.read():
            self._finish_sampling()

    def _finish_sampling(self) -> None:
        assert self._sampling is not None
        self._forget(self._sampling.fd)
        self._sampling.end()

    # Its end.

    def changed(self, status: int) -> None:
        """:func:`os.waitpid` says that the rank was stopped, goes on, or has ended."""
        if os.WIFSTOPPED(status) and time.monotonic() < self._held_until:
            self.signal(signal.SIGCONT)
        elif os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
            self._stopped = os.WIFSTOPPED(status)
            if self.ready is not None:
                self._report(Paused(self.number, self._stopped, self.pid))
        else:
            self.status, self._ended = status, time.time()

    def end(self) -> None:
        """Report the end of the rank, whose process and children are gone, and give its slot back."""
        status, reason = self.status, self._reason
        assert status is not None
        if self._look is not None:
            self._finish_look(late=False)
        if self._sampling is not None and not self._sampling.over:
            self._sampling.end_with_rank()
        if self._reports >= 0:
            os.set_blocking(self._reports, False)
            with contextlib.suppress(BlockingIOError):
                while self._reports >= 0:
                    self._read_reports()
        words, run, events, last_words = self._finish_run(
            lambda said: describe_exit(self.number, status, reason or self._why, said)
        )
        asked = bool(reason) and os.WIFSIGNALED(status)
        self._report(Died(self.number, self.pid, status, words, run, events, last_words, asked))
        self.slot.end(well=os.waitstatus_to_exitcode(status) == 0 or self._terminating is not None)
        for fd in (*self._pipes.values(), self._reports):
            if fd >= 0:
                os.close(fd)
        self._holder.channel.close()

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
        now = self._ended  # others' errors are told apart by it: those of before, and those that the death led to
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
        if self.ready is None:
            return None
        found = [(run, spool_path(self._spec.spool, run, self.number)) for run in run_numbers(self._spec.spool)]
        runs = [(run, path) for run, path in found if path.exists()]
        if not runs:
            return None
        run, path = runs[-1]
        ends = file_ends(path)
        if ends is None or isinstance(ends[1].body, Finished):
            return None
        if isinstance(ends[0].body, Started) and ends[0].body.pid != self.pid:
            return None  # another process had this number then
        return run, path, *ends


def _said(outputs: list[Output], left: list[tuple[Stream, str]]) -> str:
    """The end of a rank's output, as it wrote it: the part in its spool, and the part that is ``left``.

    By stream: one line may lie in both parts, and in several events with others between them.
    """
    said: dict[Stream, list[str]] = {}
    for stream, text in [*((output.stream, output.text) for output in outputs), *left]:
        said.setdefault(stream, []).append(text)
    return "\n".join("".join(texts)[-LAST_WORDS - CRASHED :] for texts in said.values())


def _shortened(left: list[tuple[Stream, str]]) -> list[tuple[Stream, str]]:
    """The end of a dead rank's output, as much as a report may carry, and the stack of the thread that crashed.

    Python writes that one first, before those of all other threads.
    """
    room = LAST_WORDS
    kept: list[tuple[Stream, str]] = []
    for stream, text in reversed(left):
        if room:
            kept.append((stream, text[-room:]))
            room -= len(kept[-1][1])
    lost = sum(len(text) for _, text in left) - LAST_WORDS
    if lost > 0:
        errors = "".join(text for stream, text in left if stream == "stderr")
        errors = errors[: len(errors) - sum(len(text) for stream, text in kept if stream == "stderr")]
        crash = _CRASH.search(errors)
        stack = crash[0][:CRASHED] if crash is not None else ""
        kept.append(("stderr", f"[jupyter-dtrain] {lost - len(stack)} characters before this are missing\n"))
        if stack:
            kept.append(("stderr", f"{stack}\n"))
    return kept[::-1]


def _be_rank(
    spec: RankSpec,
    slot: Slot,
    parent: int,
    write_ends: dict[Stream, int],
    channel: socket.socket,
    report_fd: int,
    signals: set[int | signal.Signals],
) -> NoReturn:
    """The rank's process, from its first line to its end."""
    code = 1
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        _forget_the_watch(signals)
        # On systems where only parents may read a process: allow the watch, and py-spy as its child. Others ignore it.
        libc.prctl(_PR_SET_PTRACER, parent, 0, 0, 0)
        # Linux shares the processors between sessions first (sched_autogroup): ranks of one session wake each other
        # later, which cost an eighth of a small model's speed. Under torchrun each rank has its own session, too.
        os.setsid()
        resource.setrlimit(resource.RLIMIT_NOFILE, _LIMIT)
        if slot.descriptor is not None:
            channel, report_fd = _out_of_the_way(channel, report_fd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(write_ends["stdout"], 1)
        os.dup2(write_ends["stderr"], 2)
        descriptor = set() if slot.descriptor is None else {slot.descriptor}
        _close_all_but({0, 1, 2, channel.fileno(), report_fd} | descriptor)
        slot.take()
        app.run_engine(spec, channel, lambda report: write_report(report_fd, report), slot.replacement)
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


def raise_limit() -> None:
    """Let this process have as many descriptors as it may: each rank needs five. Ranks get the usual limit."""
    _, hard = _LIMIT
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _out_of_the_way(channel: socket.socket, report_fd: int) -> tuple[socket.socket, int]:
    """Move both to high numbers: the launcher's own descriptor needs the number that its variable names."""
    high = socket.socket(fileno=fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH))
    channel.detach()
    return high, fcntl.fcntl(report_fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)


def _forget_the_watch(signals: set[int | signal.Signals]) -> None:
    """Give the signals back their usual meaning. ``signals``: those that the watch had blocked."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # By this signal .children knows what the user's code starts with nohup, even if Jupyter runs under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _close_all_but(kept: set[int]) -> None:
    """Close the descriptors of the watch and of the ranks that it has forked before."""
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)
