"""Runs the tools, each in the way of its documentation, and leaves nothing behind.

All that a player starts inherits one variable with a random value of its own. Whatever still carries it when the
player is closed is killed: a rank of a world whose kernel has hung as well as a daemon that left its session.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.notebook import Kernel, Sent, kernel
from jupyter_dtrain.launch.mpi import find_mpiexec

from .tools import TOOLS, Notebook

if TYPE_CHECKING:
    from typing_extensions import Self

MARK = "BENCHMARKS_RACE"
"""The variable by which what a player has started is found."""
HOMES = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR")
START = 90.0
"""Seconds that a start may take."""
CELL = 60.0
"""Seconds that a cell may take where the measurement says nothing else."""


class DidNotEnd(Exception):
    """A tool took longer than it may, or failed where it should not."""


@contextlib.contextmanager
def marked(**more: str) -> Iterator[dict[str, str]]:
    """An environment for processes that may not outlive the block, with a home of their own.

    In a block within a block the mark begins with the outer one: that of a section of the race finds all of it.
    """
    mark = f"{os.environ.get(MARK, '')}{secrets.token_hex(8)}."
    with tempfile.TemporaryDirectory(prefix="race-", ignore_cleanup_errors=True) as folder:
        # nbdistributed ends processes by parts of their command lines, other people's too: it gets a pkill that finds
        # nothing.
        tools = Path(folder, "bin")
        tools.mkdir()
        Path(folder, "ipythondir").mkdir()
        (tools / "pkill").write_text("#!/bin/sh\nexit 1\n")
        (tools / "pkill").chmod(0o755)
        home = {name: str(Path(folder, name.lower())) for name in HOMES}
        env = {
            **os.environ,
            **home,
            MARK: mark,
            "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            **{f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")},
            **more,
        }
        try:
            yield env
        finally:
            sweep(mark)


def carrying(mark: str) -> list[psutil.Process]:
    """The processes that have inherited a mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK, "").startswith(mark):
                found.append(process)
    return found


def sweep(mark: str) -> None:
    """Kill what is left, until nothing is."""
    for _ in range(50):
        left = carrying(mark)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=2)


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Player:
    """A notebook in which a tool's ranks live, or in which its function launcher is called."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        self.ranks = ranks
        self._tool = TOOLS[name]
        self._way = self._tool.notebook or Notebook(cell="")
        self._open = contextlib.ExitStack()
        self._kernel: Kernel | None = None
        self._env: dict[str, str] = {}

    def __enter__(self) -> Self:
        more = {name: value.format(n=self.ranks) for name, value in self._way.env.items()}
        self._env = self._open.enter_context(marked(**more))
        if not self._kernel_is_world:
            self._open_kernel()
        return self

    def __exit__(self, *args: object) -> None:
        with contextlib.suppress(Exception):
            if self._kernel and self._way.stop:
                self._kernel.send(self._way.stop).wait(5)
        if self._kernel:
            # What hangs is not asked to end: the mark finds it.
            for process in carrying(self.mark):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        with contextlib.suppress(Exception):
            self._open.close()

    @property
    def _kernel_is_world(self) -> bool:
        return bool(self._tool.notebook) and not self._way.start

    @property
    def mark(self) -> str:
        """What its processes carry."""
        return self._env[MARK]

    def _open_kernel(self) -> None:
        # In a folder of its own: some tools write logs where they are.
        folder = self._open.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self._kernel = self._open.enter_context(
            kernel(self._way.module, self._env, interrupt_mode=self._way.interrupt_mode, cwd=folder)
        )

    def prepare(self) -> None:
        """Do what can be done before ranks are asked for."""
        lines = self._way.prepare if self._tool.notebook else self._tool.imports.format(n=self.ranks)
        if lines:
            self.local(lines, START)

    def start(self) -> None:
        """Start the ranks."""
        if self._kernel_is_world:
            self._open_kernel()
        elif self._way.start:
            self.local(self._way.start.format(n=self.ranks), START)

    def variables(self) -> None:
        """Give the ranks what ``init_process_group`` needs, where the tool does not."""
        if self._way.variables:
            self.local(self._way.variables.format(n=self.ranks, port=free_port()))

    def replace(self, *, dead: bool) -> bool:
        """Do what the documentation says of a rank that is dead, or does not answer; False where it says nothing."""
        for line in [self._way.replace] if dead else [self._way.kill, self._way.replace]:
            if line:
                self.local(line, 15)
        return bool(self._way.replace)

    def send(self, code: str) -> Sent:
        """A cell on all ranks."""
        assert self._kernel
        if self._tool.notebook:
            return self._kernel.send(self._way.cell.replace("{code}", code))
        launch = self._tool.function.format(n=self.ranks, port=free_port())
        return self._kernel.send(f"def cell():\n{textwrap.indent(code, '    ')}\n\n{launch}")

    def send_local(self, code: str) -> Sent:
        """A cell in the notebook's own process."""
        assert self._kernel
        return self._kernel.send(code)

    def cell(self, code: str, timeout: float = CELL) -> Sent:
        """A cell on all ranks that must end well."""
        return _well(self.name, self.send(code), timeout)

    def local(self, code: str, timeout: float = CELL) -> Sent:
        """A cell in the notebook's own process that must end well."""
        return _well(self.name, self.send_local(code), timeout)

    def interrupt(self) -> None:
        """Press Stop."""
        assert self._kernel
        self._kernel.interrupt()

    def up(self) -> None:
        """Prepare and start the ranks, and run a first cell."""
        self.prepare()
        self.start()
        self.cell("pass", START)


def _well(name: str, sent: Sent, timeout: float) -> Sent:
    if not sent.wait(timeout):
        raise DidNotEnd(f"{name}: a cell did not end within {timeout:g} s; {sent.text[-300:]}")
    if sent.failed:
        raise DidNotEnd(f"{name}: a cell failed: {sent.text[-500:]}")
    return sent


def program(name: str, ranks: int, code: str, timeout: float = START) -> tuple[float, str]:
    """Run a script to its end under torchrun or mpiexec: seconds, and what it printed."""
    with marked() as env:
        script = Path(env["IPYTHONDIR"]).with_name("script.py")
        script.write_text(code)
        if name == "torchrun":
            command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script)]
        else:
            command = [str(script)]
        command = [sys.executable, *command]
        if name == "mpiexec":
            command = [
                find_mpiexec(None),
                "-n",
                str(ranks),
                "--map-by",
                ":OVERSUBSCRIBE",
                "--bind-to",
                "none",
                *command,
            ]
        began = time.perf_counter()
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=True)
        except subprocess.TimeoutExpired:
            raise DidNotEnd(f"{name}: a script did not end within {timeout:g} s") from None
        except subprocess.CalledProcessError as error:
            raise DidNotEnd(f"{name}: a script failed: {error.stderr[-500:]}") from None
        return time.perf_counter() - began, done.stdout
