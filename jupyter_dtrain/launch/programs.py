"""Programs on other machines: run side by side, with one deadline, by whatever carries them there.

A :class:`Carrier` is the way to the hosts, such as ssh (:mod:`.ssh`) or srun (:mod:`.slurm.steps`). It brings
the vocabulary of failures (:data:`Kind`), and its own words for them.

Under failure: nothing raises for a host. :func:`run_on` gives an :class:`Unreached` with reason and fix for each
host that cannot be used, and returns at its deadline, with no process of the carrier left here. A remote program may
outlive the connection, so each one that this package sends has a deadline of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, Literal, Protocol

import msgspec
import psutil

SIDE_BY_SIDE: Final = 64
"""The most connections at a time."""
MOST_WORDS: Final = 600
"""Characters of a program's words that a reason shows."""
_FRAMES: Final = re.compile("-{40,}")
LAST_WORDS: Final = 1.0
"""Seconds in which a killed process must be gone."""
LOOK: Final = 0.1
"""Seconds between two looks at whether all programs are to end."""
NOT_RUN: Final = (126, 127)
"""The exit codes of a shell that cannot run a program."""


Kind = Literal[
    "no ssh",
    "bad options",
    "unknown host",
    "refused",
    "no route",
    "timed out",
    "host key changed",
    "host key unknown",
    "permission denied",
    "closed",
    "no program",
    "no package",
    "failed",
]


class Stopped(Exception):
    """Raised where the programs were ended because nobody waits for their answers any more."""


class Unreached(msgspec.Struct, frozen=True):
    """A host on which the program could not be run."""

    kind: Kind
    reason: str
    """A sentence."""
    fix: str
    """A sentence."""
    said: str = ""
    """The words of the carrier, or of the shell there."""


class ProgramAnswer(msgspec.Struct, frozen=True):
    """The end of a program that ran."""

    output: str
    errors: str
    code: int
    sent: float = 0.0
    """This machine's clock before the connection was made, in seconds since the epoch."""
    received: float = 0.0
    """The same after the program had ended."""


class Carrier(Protocol):
    """The way to the hosts, and its words where it fails."""

    def command(self, host: str, program: Sequence[str]) -> tuple[list[str], str]:
        """The command that runs ``program`` on ``host``, with its input, output, errors and exit code.

        Beside it is the text that this command reads first, before the program's own input; often empty.
        """

    def explain(self, answer: ProgramAnswer, host: str, program: str) -> ProgramAnswer | Unreached:
        """``answer``, or why ``program`` did not run on ``host`` at all."""


def run_on(
    hosts: Sequence[str],
    program: Sequence[str],
    *,
    carrier: Carrier,
    timeout: float,
    stdin: Mapping[str, str] = {},
    stopped: threading.Event | None = None,
) -> dict[str, ProgramAnswer | Unreached]:
    """Run ``program`` on all ``hosts`` side by side, and wait at most ``timeout`` seconds for all of them together.

    ``stdin``: the text that a program reads, by host. The result has every host, in order. ``stopped`` ends all of them
    as soon as it is set; then this raises :class:`Stopped`.
    """
    deadline = time.monotonic() + timeout
    open_ones = _Processes()

    def run(host: str) -> ProgramAnswer | Unreached:
        command, opening = carrier.command(host, program)
        done = open_ones.run(command, opening + stdin.get(host, ""), deadline, timeout)
        return carrier.explain(done, host, program[0]) if isinstance(done, ProgramAnswer) else done

    pool = ThreadPoolExecutor(min(SIDE_BY_SIDE, max(len(hosts), 1)), thread_name_prefix="hosts")
    try:
        answers = [pool.submit(run, host) for host in hosts]
        _await(answers, stopped)
        return {host: answer.result() for host, answer in zip(hosts, answers, strict=True)}
    except BaseException:
        open_ones.kill()  # a person pressed Stop
        raise
    finally:
        pool.shutdown()


def _await(answers: Sequence[Future[ProgramAnswer | Unreached]], stopped: threading.Event | None) -> None:
    while wait(answers, None if stopped is None else LOOK).not_done:
        if stopped is not None and stopped.is_set():
            raise Stopped


def run_here(
    program: Sequence[str],
    *,
    timeout: float,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    farewell: float = 0.0,
) -> ProgramAnswer | Unreached:
    """Run ``program`` on this machine, in the manner of :func:`run_on`.

    ``env``: default this process's. ``farewell``: seconds that it gets after a SIGTERM, when its time is over.
    """
    return _Processes().run(list(program), stdin, time.monotonic() + timeout, timeout, env, farewell)


class _Processes:
    """Runs processes, and kills them at a deadline, or all at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[subprocess.Popen[str]] = set()
        self._killed = False

    def run(
        self,
        command: list[str],
        stdin: str,
        deadline: float,
        timeout: float,
        env: Mapping[str, str] | None = None,
        farewell: float = 0.0,
    ) -> ProgramAnswer | Unreached:
        """Run one command to its end or the deadline. ``timeout``: the seconds to name when it comes too late."""
        late = _late(timeout, "")
        if self._killed or time.monotonic() >= deadline:
            return late
        sent = time.time()
        try:
            process = start(command, env)
        except OSError as error:
            return _not_started(command[0], error)
        with self._lock:
            self._open.add(process)
        try:
            if self._killed:
                return late
            output, errors = process.communicate(stdin, timeout=max(deadline - time.monotonic(), 0.0))
            return ProgramAnswer(output, errors, process.returncode, sent, time.time())
        except subprocess.TimeoutExpired as error:
            # Bytes, whatever the pipes are. What it says after it was asked to end is no reason.
            late = _late(timeout, (error.stderr or b"").decode(errors="replace"))
            if farewell:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    process.terminate()
                    process.communicate(timeout=farewell)
            return late
        finally:
            end(process)
            with self._lock:
                self._open.discard(process)

    def kill(self) -> None:
        """Kill all processes that run, and let none start later."""
        self._killed = True
        with self._lock:
            left = list(self._open)
        for process in left:
            _kill_session(process.pid)


def start(command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command in a session of its own, with pipes. ``env``: default this process's.

    Without a terminal, ssh and the programs that it starts (a jump, a proxy) cannot ask for a password.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**(os.environ if env is None else env), "SSH_ASKPASS_REQUIRE": "never"},
    )


def end(process: subprocess.Popen[str]) -> None:
    """End a process that :func:`start` started, with all of its session, and close its pipes."""
    if process.poll() is None:
        _kill_session(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError, ValueError):
            if pipe is not None:
                pipe.close()


def _kill_session(session: int) -> None:
    """Kill all processes of a session, whatever their groups: mpiexec gives each ssh a group of its own.

    Its first process must not have been waited for yet: the session's id is that process's.
    """
    for pid in psutil.pids():
        # One that has ended meanwhile.
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)


def first_words(said: str) -> str:
    """The first :data:`MOST_WORDS` characters of what a program said, as one line.

    MPI draws frames around its messages, and puts NUL characters into them.
    """
    words = _FRAMES.sub(" ", said)
    return " ".join("".join(one if one.isprintable() else " " for one in words).split())[:MOST_WORDS]


def _late(timeout: float, said: str) -> Unreached:
    words = first_words(said)
    return Unreached(
        "timed out",
        f"There was no answer within {timeout:g} s.{f' Until then the program said: {words}' if words else ''}",
        "See whether that host is on and not overloaded, then try again.",
    )


def _not_started(program: str, error: OSError) -> Unreached:
    if program == "ssh" and shutil.which("ssh") is None:
        return Unreached(
            "no ssh", "This machine has no ssh program.", "Install OpenSSH's client (Debian: openssh-client)."
        )
    return Unreached("no program", f"{program} cannot be run: {error.strerror}.", "Check that path.")
