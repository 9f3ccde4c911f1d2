"""Programs of a world that have imported what they need, and wait to be told which world is theirs.

Imports take most of a start. So ``%load_ext`` starts a steward that imports everything, and has a controller and a
watch beneath it do the same (:class:`PreparedPrograms`). The next start of this kernel takes them over (:func:`take`):
each gets what would be in its command, had it only been started now (:class:`StartOrder`). They hold no GPU, no port
and no file. While they import, Linux gives them the processors that others leave.

A prepared program is used only where it is what a new one would be: where limits, processors and umask of the kernel
are still the same, and so are the variables that count only while a process starts (:data:`AT_START`). Another start
takes its usual time.

Under failure: programs that wait end with the kernel, whose end closes their pipe, and after
:attr:`.Settings.warm_start` seconds. A start that finds none that waits starts its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.processes import show_variable
from jupyter_dtrain.core.structs import readable

from .leftovers import MARK
from .local import program

STEWARD: Final = "jupyter_dtrain.steward.__main__"
CONTROLLER: Final = "jupyter_dtrain.launch.controller"
WATCH: Final = "jupyter_dtrain.watch.watch"
AT_START: Final = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "TMP", "HOME", "XDG_"),
    *("JUPYTER", "IPYTHON", "ZMQ_", "MPI4PY_"),
)
"""The beginnings of variables that only a process that starts looks at, or a module that is imported."""
ROOM: Final = 400
"""Bytes for the id of a world in the environment of a program that waits."""
MARGIN: Final = 15.0
"""Seconds before their end in which programs that wait are no longer taken over."""
AUTOGROUP: Final = "/proc/self/autogroup"
"""The file with the niceness of a session. Unlike a process's own, its user may lower it again."""
_LENGTH: Final = 8
"""Bytes of the number before a part of the input."""


class StartOrder(msgspec.Struct, frozen=True):
    """What a program that waits has to become."""

    arguments: list[str]
    world: str
    """The id of the world."""
    environment: dict[str, str]
    cwd: str
    log: str
    """The file for its error stream."""
    output: bool = False
    """Whether the file is for its standard output too."""

    def to_bytes(self) -> bytes:
        """For the program's standard input."""
        return part(msgspec.json.encode(self))

    def follow(self) -> None:
        """Become the program of that world. Raises :class:`OSError` where a file or folder is not there."""
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for number in (1, 2) if self.output else (2,):
            os.dup2(log, number)
        os.close(log)
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.cwd)
        show_variable(MARK, self.world)
        sys.argv[1:] = self.arguments


def read_order(seconds: float | None = None) -> StartOrder | None:
    """The order in the standard input, and no byte more; None where that is closed, or after so many ``seconds``."""
    if not select.select([0], [], [], seconds)[0] or not (data := read_part()):
        return None
    return msgspec.json.decode(data, type=readable(StartOrder))


def part(data: bytes) -> bytes:
    """``data`` for the standard input of a program that reads it by :func:`read_part`.

    With its length: the end of the input may never come, since children of the sender may hold the pipe open.
    """
    return b"%0*d" % (_LENGTH, len(data)) + data


def read_part() -> bytes:
    """What :func:`part` has made, from the standard input; empty where that is closed."""
    return _read(int(head)) if (head := _read(_LENGTH)) else b""


def _read(length: int) -> bytes:
    data = b""
    while len(data) < length and (more := os.read(0, length - len(data))):
        data += more
    return data


def starts_alike(mine: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether a process that was started with the variables ``mine`` may go on with the ``other`` ones."""
    return all(mine.get(name) == other.get(name) for name in {*mine, *other} if name.startswith(AT_START))


def main() -> None:
    """``python -c … MODULE``: import the module, wait for the order, and be its program."""
    gc.disable()
    module = import_module(sys.argv.pop(1))
    if prepare := getattr(module, "prepare", None):
        prepare()
    gc.freeze()
    gc.enable()
    if (order := read_order()) is not None:
        order.follow()
        module.main()


# In the steward.


class PreparedPrograms:
    """A controller and a watch that wait. One thread at a time may use it."""

    def __init__(self, preexec: Callable[[], object]) -> None:
        """``preexec``: runs in the new processes, before Python."""
        self._waiting = {
            module: subprocess.Popen(
                [*program(__name__), module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if module == WATCH else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=preexec,  # noqa: PLW1509 — as Cluster starts them
            )
            for module in (WATCH, CONTROLLER)
        }

    def take(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: Path, piped: bool
    ) -> subprocess.Popen[bytes] | None:
        """The process that does what ``command`` says; None where that needs a new one.

        ``piped``: whether its standard input and output are pipes to this process.
        """
        module = next((one for one in self._waiting if command[: len(program(one))] == program(one)), None)
        if module is None:
            return None
        process = self._waiting.pop(module)
        arguments = list(command[len(program(module)) :])
        order = StartOrder(arguments, env[MARK], dict(env), cwd, str(log), output=not piped)
        if starts_alike(os.environ, env) and process.poll() is None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(order.to_bytes())
                process.stdin.flush()
                if not piped:
                    process.stdin.close()
                return process
        _end(process)
        return None

    def end(self) -> None:
        """End those that nobody took."""
        while self._waiting:
            _end(self._waiting.popitem()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def be_nice(niceness: int) -> None:
    """Leave processors to other sessions with a ``niceness`` above 0, where Linux divides them between sessions."""
    for _ in range(30):  # all users of a machine together may set it ten times a second
        try:
            Path(AUTOGROUP).write_text(str(niceness))
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:
            return
        else:
            return


# In the kernel.


class _Surroundings(msgspec.Struct, frozen=True):
    """What a new process takes over from this one, beside the environment."""

    limits: list[tuple[int, int]]
    processors: set[int]
    niceness: int
    umask: str

    @classmethod
    def here(cls) -> _Surroundings:
        numbers = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
        status = Path("/proc/self/status").read_text().splitlines()
        return cls(
            [resource.getrlimit(number) for number in numbers],
            os.sched_getaffinity(0),
            os.getpriority(os.PRIO_PROCESS, 0),
            next((line for line in status if line.startswith("Umask:")), ""),
        )


class _Kept:
    """The steward that waits for this process."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds - MARGIN
        self.environment = steward_environment("-" * ROOM)
        self.surroundings = _Surroundings.here()
        self.process = subprocess.Popen(
            [*program(STEWARD), f"--waits={seconds:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            cwd="/",
            start_new_session=True,
        )
        threading.Thread(target=self._import, name="dtrain-prepared", daemon=True).start()

    def _import(self) -> None:
        """Import here what a start needs, too: ipyparallel's client, which takes a tenth of a second."""
        self.process.wait()  # the steward leaves the process that was started here as soon as it can
        with contextlib.suppress(Exception):  # the start meets it again
            import_module("jupyter_dtrain.wire.channels")

    def fits(self, environment: Mapping[str, str]) -> bool:
        with contextlib.suppress(Exception):  # what cannot be compared does not fit
            return (
                time.monotonic() < self.until
                and len(os.fsencode(environment[MARK])) <= ROOM
                and starts_alike(self.environment, environment)
                and self.surroundings == _Surroundings.here()
                and not self.has_ended()
            )
        return False

    def has_ended(self) -> bool:
        assert self.process.stdout is not None
        pipe = select.poll()  # select takes no descriptor above 1,023
        pipe.register(self.process.stdout, 0)
        return bool(pipe.poll(0))

    def leave(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


_kept: list[_Kept] = []
# A child that keeps the pipe open would keep the programs alive, and it must not take them over.
os.register_at_fork(after_in_child=lambda: discard())  # noqa: PLW0108 — it is defined below


def _take_kept() -> _Kept | None:
    with contextlib.suppress(IndexError):  # another thread may take it as well
        return _kept.pop()
    return None


def steward_environment(world: str) -> dict[str, str]:
    """The variables of a new steward. The id of its ``world`` comes last, as :func:`.show_variable` wants it."""
    left_out = ("JPY_PARENT_PID", "JPY_SESSION_NAME", MARK)
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env.setdefault("HOME", str(Path.home()))  # Open MPI does not start without it
    return env | {MARK: world}


def prepare(seconds: float) -> None:
    """Have programs wait for the next start of this process, so many ``seconds``, unless they do already.

    Returns at once. Does nothing in a rank, where ``seconds`` are too few, and where no process can be started.
    """
    if seconds <= MARGIN or MARK in os.environ:
        return
    if _kept and time.monotonic() < _kept[0].until:
        return
    discard()
    with contextlib.suppress(Exception):  # a start will say it
        _kept.append(_Kept(seconds))


def discard() -> None:
    """End the programs that wait for this process."""
    while (kept := _take_kept()) is not None:
        kept.leave()


def take(order: StartOrder) -> subprocess.Popen[bytes] | None:
    """The steward that has waited for ``order``, which is the first that its standard input must get; None without one.

    The programs that wait are those of the next start only, whether it can use them or not.
    """
    if (kept := _take_kept()) is not None:
        if kept.fits(order.environment):
            return kept.process
        kept.leave()
    return None
