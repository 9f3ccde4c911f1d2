"""A pipe to the watch on a node of Slurm, by srun, of which the network sees nothing but sealed lines.

srun carries a program's input and output in clear. So a gate stands at both ends: the near one is a process of this
machine between the steward and srun, the far one stands between srun and the watch. Steward and watch see a plain pipe.

The near gate makes a key for this one pipe. The key crosses the network in a credential of munge, as does the watch's
environment: Slurm's own daemons trust munge, and only a process of the same user can open that credential. Each later
line is a Fernet token (AES and HMAC) with its direction and its number in it, so no line can be read, changed,
repeated or left out unnoticed.

This file imports nothing of the package: the far gate gets its text in the credential, and runs it before it knows
where the package is.

Under failure: each gate hears the other every :data:`BEAT` seconds. The near one ends when it has heard nothing for
:data:`NEAR_PATIENCE` seconds, or nothing that it can open; the far one then ends the watch, after
:data:`FAR_PATIENCE` seconds. No process of either outlives its gate.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from cryptography.fernet import Fernet, InvalidToken

BEAT: Final = 2.0
NEAR_PATIENCE: Final = 7.0
FAR_PATIENCE: Final = 30.0
FAREWELL: Final = 25.0
"""Seconds in which the watch has ended its ranks once its input has ended."""
PIECE: Final = 1 << 16
FAILED: Final = 255
"""The exit code of a near gate whose pipe has failed."""
INPUT, OUTPUT, ERRORS, ALIVE, ENDED, CODE = (bytes([number]) for number in range(6))
"""The kinds of lines: for the watch; from it, of two kinds; a sign of life; no more input; the watch's exit code."""

BOOTSTRAP: Final = """
import json, os, subprocess, sys
data = b""
while b"\\n" not in data:
    more = os.read(0, 65536)
    if not more:
        sys.exit("The main process of the world is gone.")
    data += more
line, _, rest = data.partition(b"\\n")
opened = subprocess.run(sys.argv[1:], input=line, capture_output=True)
known, _, text = opened.stdout.partition(b"\\n\\n")
if opened.returncode or known.split() != [b"UID:", str(os.getuid()).encode()]:
    said = opened.stderr.decode(errors="replace").strip() or "another user has made it"
    sys.exit(f"munge does not open the credential of the world's main process: {said}")
told = json.loads(text)
names = {"__name__": "gate"}
exec(told["program"], names)
names["serve_far"](told, rest)
"""
"""The program of a far gate until it has its text. Its arguments are the command that opens the credential."""

OWN: Final = (
    "CUDA_VISIBLE_",
    "GPU_DEVICE_",
    "HIP_VISIBLE_",
    "ROCR_VISIBLE_",
    "SLURMD_NODENAME",
    "SLURM_CLUSTER_",
    "SLURM_CONF",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS",
    "SLURM_JOB_",
    "TMPDIR",
    "ZE_AFFINITY_",
)
"""How the variables begin that Slurm sets on a node for the whole job, which the steward's do not override."""


class Broken(Exception):
    """The other end cannot have sent this line."""


class Seal:
    """Closes the lines of one direction, and opens those of the other. Not locked."""

    def __init__(self, key: bytes, mine: bytes, theirs: bytes) -> None:
        """``mine`` and ``theirs``: one byte for each direction."""
        self._fernet = Fernet(key)
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0

    def close(self, kind: bytes, data: bytes = b"") -> bytes:
        """Seal the next line to the other end."""
        plain = self._mine + self._sent.to_bytes(8, "big") + kind + data
        self._sent += 1
        return self._fernet.encrypt(plain) + b"\n"

    def open(self, line: bytes) -> tuple[bytes, bytes]:
        """Open the next line from the other end; its kind and its content. Raises :class:`Broken`."""
        try:
            plain = self._fernet.decrypt(line.rstrip(b"\n"))
        except InvalidToken:
            raise Broken("it is not sealed with this pipe's key") from None
        if plain[:1] != self._theirs or int.from_bytes(plain[1:9], "big") != self._received:
            raise Broken("it is not the next line")
        self._received += 1
        return plain[9:10], plain[10:]


class Wire:
    """One end of the sealed pipe: sends from any thread, reads on one."""

    def __init__(self, seal: Seal, reads: int, writes: int, begun: bytes = b"") -> None:
        """``begun``: what was read already."""
        self._seal = seal
        self._reads, self._writes = reads, writes
        self._begun = begun
        self._lock = threading.Lock()

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send a line; nothing happens where the reader is gone."""
        with self._lock, contextlib.suppress(OSError):
            line = self._seal.close(kind, data)
            while line:
                line = line[os.write(self._writes, line) :]

    def send_all(self, kind: bytes, reads: int, end: bytes | None = None) -> None:
        """Send what can be read from a descriptor, to its end; then a line of the kind ``end``."""
        with contextlib.suppress(OSError):
            while data := os.read(reads, PIECE):
                self.send(kind, data)
        if end is not None:
            self.send(end)

    def beat(self) -> None:
        """Send a sign of life every :data:`BEAT` seconds, without end."""
        while True:
            self.send(ALIVE)
            time.sleep(BEAT)

    def lines(self, patience: float | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the lines of the other end, to the last.

        ``patience``: seconds for which none may come, after the first. Raises :class:`TimeoutError` and
        :class:`Broken`.
        """
        heard = False
        while True:
            *lines, self._begun = self._begun.split(b"\n")
            for line in lines:
                heard = True
                yield self._seal.open(line)
            # Only time in which this end waits counts: it may have been stopped, or its reader slow.
            if not select.select([self._reads], [], [], patience if heard else None)[0]:
                raise TimeoutError
            if not (data := os.read(self._reads, PIECE)):
                return
            self._begun += data


def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process with pipes, which gets a SIGTERM when this process ends. Main thread only."""
    options |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, preexec_fn=_end_with_parent, **options)  # noqa: PLW1509 — no thread runs yet


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def _end_with_parent() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _thread(run: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread


# The far end, on the node.


def serve_far(told: dict[str, Any], rest: bytes) -> NoReturn:
    """Run the watch. ``told``: the content of the credential; ``rest``: what came after it."""
    # Slurm signals all processes of a step at a cancellation; the watch ends the ranks, and this gate waits for it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own = {name: value for name, value in os.environ.items() if name.startswith(OWN)}
    wire = Wire(Seal(told["key"].encode(), b"F", b"N"), 0, 1, rest)
    with contextlib.suppress(OSError):
        os.chdir(told["cwd"])
    watch = start(told["command"], stderr=subprocess.PIPE, env=told["environment"] | own)
    assert watch.stdin is not None
    assert watch.stdout is not None
    assert watch.stderr is not None
    readers = [
        _thread(wire.send_all, OUTPUT, watch.stdout.fileno()),
        _thread(wire.send_all, ERRORS, watch.stderr.fileno()),
    ]
    _thread(wire.beat)
    _thread(_feed, wire, watch, told["beat"])
    code = watch.wait()
    for reader in readers:
        reader.join(BEAT)
    wire.send(CODE, str(code).encode())
    os._exit(0)


def _feed(wire: Wire, watch: subprocess.Popen[bytes], beat: str) -> None:
    """Give the watch its input; end it when there is no more, whatever the reason. ``beat``: a file to touch."""
    assert watch.stdin is not None
    with contextlib.suppress(Broken, OSError):  # TimeoutError is an OSError
        for kind, data in wire.lines(FAR_PATIENCE):
            if kind == INPUT:
                watch.stdin.write(data)
                watch.stdin.flush()
            elif kind == ENDED:
                break
            elif kind == ALIVE:
                # The job's script holds the nodes while this file is new.
                with contextlib.suppress(OSError):
                    os.utime(beat)
    with contextlib.suppress(OSError):
        watch.stdin.close()
    try:
        watch.wait(FAREWELL)
    except subprocess.TimeoutExpired:
        watch.kill()


# The near end, on the steward's machine.


def main() -> NoReturn:
    """Read what to run, as a line of JSON, and be the pipe to it.

    ``srun``: the command that starts a program on the node, without that program. ``python``: the interpreter there.
    ``munge`` and ``unmunge``: the commands that close and open a credential. ``far``: what the far gate gets to know.
    """
    data = b""
    while b"\n" not in data:
        if not (more := os.read(0, PIECE)):
            sys.exit("The main process of the world is gone.")
        data += more
    line, _, rest = data.partition(b"\n")
    serve_near(json.loads(line), rest)


def serve_near(told: dict[str, Any], rest: bytes = b"", *, farewells: tuple[int, ...] = (signal.SIGTERM,)) -> NoReturn:
    """Serve as the near gate of the pipe.

    ``told``: see :func:`main`. ``rest``: the part of the input that was read already and is the program's.
    ``farewells``: the signals that end the program on the node by the end of its input.
    """
    key = Fernet.generate_key()
    with open(__file__, encoding="utf-8") as file:
        program = file.read()
    secret = json.dumps(told["far"] | {"key": key.decode(), "program": program})
    closed = subprocess.run(told["munge"], input=secret.encode(), capture_output=True, check=False)
    if closed.returncode != 0:
        sys.stderr.write(f"munge makes no credential: {closed.stderr.decode(errors='replace').strip()}\n")
        sys.exit(FAILED)
    srun = start([*told["srun"], told["python"], "-I", "-c", BOOTSTRAP, *told["unmunge"]])
    assert srun.stdin is not None
    assert srun.stdout is not None
    wire = Wire(Seal(key, b"N", b"F"), srun.stdout.fileno(), srun.stdin.fileno())
    with contextlib.suppress(OSError):
        srun.stdin.write(closed.stdout.replace(b"\n", b"") + b"\n")
        srun.stdin.flush()
    if rest:
        wire.send(INPUT, rest)
    # Where the steward is gone, too: srun itself would have the watch killed, whose folders would stay. A thread of its
    # own, as a cable that was cut holds up whoever sends, and this thread must see that the node is silent.
    for number in farewells:
        signal.signal(number, lambda *_: _thread(wire.send, ENDED))
    _thread(wire.send_all, INPUT, 0, ENDED)
    _thread(wire.beat)
    code = _pass_on(wire)
    if code is None:
        srun.kill()
        code = FAILED
    with contextlib.suppress(subprocess.TimeoutExpired):
        srun.wait(BEAT)
    sys.stderr.flush()
    os._exit(code)


def _pass_on(wire: Wire) -> int | None:
    """Pass on what the watch says, to its end; its exit code, None where it is not known."""
    try:
        for kind, data in wire.lines(NEAR_PATIENCE):
            if kind == CODE:
                return int(data) if int(data) >= 0 else 128 - int(data)
            if kind in (OUTPUT, ERRORS):
                # Where the reader is gone, the input has ended too, and the watch needs a moment to remove its files.
                with contextlib.suppress(BrokenPipeError):
                    _write(1 if kind == OUTPUT else 2, data)
    except TimeoutError:
        sys.stderr.write(f"The node has not answered for {NEAR_PATIENCE:g} s.\n")
    except Broken as error:
        sys.stderr.write(f"A line from the node cannot be used: {error}.\n")
    except OSError:
        pass  # the steward is gone
    return None


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]
