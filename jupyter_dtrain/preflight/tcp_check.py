"""Tries TCP connections between machines, on ports that the system chooses, as MPI and frameworks do.

Each machine listens on the address of its chosen interface, and the others connect to it. :func:`main` is the program
that runs on the machines. To listen, it takes a free port, tells it, greets whoever connects, and ends with its input.
To connect, it tries addresses side by side and tells which of them greeted it rightly.

Under failure: a machine that cannot listen or cannot be reached is a :class:`~.findings.Connection` with the reason in
the words of Linux. All of it ends at one deadline, and no listener outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from jupyter_dtrain.launch.programs import LAST_WORDS, LOOK, Stopped, Unreached, end, start

from .findings import HERE, Chosen, Connection
from .networks import LISTEN_FAILED
from .reach import Program, Reach, ask_all

PATIENCE: Final = 3.0
"""Seconds that a connection may take: twice Linux's first retry."""
MOST_TARGETS: Final = 16
"""With more machines, each tries the next ones in the order of the hosts, and the first."""


def main(text: str) -> None:
    """Do as ``text`` asks, a JSON object: ``task`` (``listen`` or ``connect``), ``nonce``, ``seconds``, arguments."""
    asked = json.loads(text)
    # By default the signal ends the process, wherever it is.
    signal.alarm(max(int(asked["seconds"]), 1))
    if asked["task"] == "listen":
        _listen(asked)
    else:
        _answer(asked, {"failures": connect(asked["targets"], asked["patience"])})


def _answer(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{asked['nonce']} {json.dumps(answer)}\n")
    sys.stdout.flush()


def _listen(asked: dict[str, Any]) -> None:
    """Greet all who connect, until the input ends. Nothing that they say is read."""
    try:
        family = socket.AF_INET6 if ":" in asked["address"] else socket.AF_INET
        server = socket.create_server((asked["address"], 0), family=family, backlog=128)
    except OSError as error:
        _answer(asked, {"port": 0, "failure": os.strerror(error.errno) if error.errno else str(error)})
        return
    _answer(asked, {"port": server.getsockname()[1], "failure": ""})
    while True:
        ready = select.select([server, sys.stdin], [], [])[0]
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 1024):
            return
        if server in ready:
            one, _ = server.accept()
            with one, contextlib.suppress(OSError):  # whoever it was may have gone
                one.settimeout(1)
                one.sendall(asked["greeting"].encode())


def connect(targets: list[list[Any]], patience: float) -> list[str]:
    """Why each of ``targets`` (address, port, greeting) cannot be reached; empty where it greeted rightly."""
    deadline = time.monotonic() + patience

    def attempt(target: list[Any]) -> str:
        address, port, greeting = target
        heard = b""
        try:
            with socket.create_connection((address, port), patience) as one:
                while len(heard) < len(greeting):
                    one.settimeout(max(deadline - time.monotonic(), 0.001))
                    said = one.recv(1024)
                    if not said:
                        break
                    heard += said
        except OSError as error:
            if error.errno:
                return os.strerror(error.errno)
            return f"no answer within {patience:g} s (a firewall drops the packets, or the host is off)"
        return "" if heard == greeting.encode() else "another program answers there"

    with ThreadPoolExecutor(len(targets)) as pool:
        return list(pool.map(attempt, targets))


class Tried(msgspec.Struct, frozen=True):
    """The attempts of one machine."""

    failures: list[str]
    """By target; empty where the connection was made."""


def try_connections(chosen: Mapping[str, Chosen], reach: Reach, *, timeout: float) -> list[Connection]:
    """Connect each host in ``chosen`` to the other machines, within ``timeout`` seconds.

    This machine is :data:`~.facts.HERE`. It only listens: ranks and MPI's daemons connect to it and to each other,
    and ssh or srun is all that leads from here to a host. Raises :class:`~jupyter_dtrain.launch.programs.Stopped`.
    """
    deadline = time.monotonic() + timeout
    listeners = {
        name: _Listener(name, one.address, timeout, None if name == HERE else reach) for name, one in chosen.items()
    }
    try:
        for one in listeners.values():
            one.await_port(max(min(deadline - time.monotonic(), timeout / 2), 0.0), reach.stopped)
        found = [
            Connection(one.name, one.name, one.address, f"{LISTEN_FAILED}: {one.failure}", tried=not one.late)
            for one in listeners.values()
            if one.failure
        ]
        ready = [one for one in listeners.values() if not one.failure]
        return found + _connect(ready, reach, deadline)
    finally:
        for one in listeners.values():
            one.release()
        end_by = time.monotonic() + LAST_WORDS
        for one in listeners.values():
            one.close(end_by)


def _connect(ready: list[_Listener], reach: Reach, deadline: float) -> list[Connection]:
    """Let each host connect to the others that listen."""
    left = max(deadline - time.monotonic(), 1.0)
    targets = {one.name: _targets(ready, index) for index, one in enumerate(ready)}
    programs = {
        name: Program(
            __name__,
            left,
            task="connect",
            targets=[[one.address, one.port, one.greeting] for one in others],
            patience=min(PATIENCE, left),
        )
        for name, others in targets.items()
        if others and name != HERE
    }
    answers = ask_all(programs, reach, kind=Tried, timeout=left)
    found = []
    for name, answer in answers.items():
        others = targets[name]
        tried = not isinstance(answer, Unreached)
        failures = answer.failures if tried else [answer.reason] * len(others)
        found += [
            Connection(name, one.name, one.address, failure, tried)
            for one, failure in zip(others, failures, strict=True)
        ]
    return found


def _targets(ready: list[_Listener], index: int) -> list[_Listener]:
    """The machines to which one connects: those after it, round to those before it; the first always."""
    others = [*ready[index + 1 :], *ready[:index]]
    first = [] if index == 0 or len(others) <= MOST_TARGETS else [ready[0]]
    return [*others[: MOST_TARGETS - len(first)], *first] if len(others) > MOST_TARGETS else others


class _Listener:
    """A program that listens on one machine."""

    def __init__(self, name: str, address: str, seconds: float, reach: Reach | None) -> None:
        """``reach``: None on this machine."""
        self.name = name
        self.address = address
        self.port = 0
        self.failure = ""
        self.late = False
        """Whether it is :attr:`failure` that nothing was heard of it in time."""
        self.greeting = secrets.token_hex(8)
        """Text by which others know that they reached this machine, and no other one with the same address."""
        self._program = Program(__name__, seconds, task="listen", address=address, greeting=self.greeting)
        self._process: subprocess.Popen[str] | None = None
        try:
            words = self._program.command(sys.executable if reach is None else reach.python)
            command, opening = (words, "") if reach is None else reach.carrier.command(name, words)
            self._process = start(command)
            assert self._process.stdin is not None
            self._process.stdin.write(opening + self._program.text)
            self._process.stdin.flush()
        except OSError as error:
            self.failure = str(error)

    def await_port(self, patience: float, stopped: threading.Event) -> None:
        """Read the port, waiting at most ``patience`` seconds; or else the failure. Raises :class:`Stopped`."""
        if self._process is None or self.failure:
            return
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience
        output = self._process.stdout
        text = ""
        while (left := deadline - time.monotonic()) > 0:
            if stopped.is_set():
                raise Stopped
            if not select.select([output], [], [], min(left, LOOK))[0]:
                continue
            piece = output.buffer.read1(4096).decode(errors="replace")  # type: ignore[attr-defined]  # it is a file
            if not piece:
                break
            text += piece
            for line in text.split("\n")[:-1]:
                answer = self._program.answer(line)
                if isinstance(answer, dict):
                    self.port, self.failure = int(answer["port"]), str(answer["failure"])
                    return
        self.late = True
        self.failure = f"its listener gave no port within {patience:.0f} s"

    def release(self) -> None:
        """Let the listener end, as it does with its input."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def close(self, deadline: float) -> None:
        """Wait for the end. A connection that does not end is cut; its listener then ends by its own deadline."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(deadline - time.monotonic(), 0.0))
            end(self._process)
