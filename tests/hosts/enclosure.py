"""A set of namespaces with processes in it: network, mounts, processes, host name, shared memory.

Its first process reads a pipe whose other end this process holds. So it ends with this process, however that ends, and
the kernel then kills everything in it, and removes its mounts and its links.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

Found = TypeVar("Found")
KINDS = ("--net", "--mount", "--uts", "--ipc", "--pid")
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
"""Where tools are; the PATH of a user often leaves out the folders of the system's."""
PATIENCE = 20.0
"""Seconds that a step may take."""


class Enclosure:
    """Namespaces set up by the lines of a shell script, ``setup``, which runs inside them."""

    def __init__(self, setup: Sequence[str] = ()) -> None:
        script = "\n".join([*setup, "echo ready", "cat > /dev/null"])
        self._outer = subprocess.Popen(
            ["unshare", *KINDS, "--fork", "--kill-child", "--mount-proc", "sh", "-euc", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PATH": PATH},
            start_new_session=True,  # an interrupt from the keyboard is for the tests, which then take this down
        )
        assert self._outer.stdout is not None
        assert self._outer.stderr is not None
        if self._outer.stdout.readline() != b"ready\n":
            words = self._outer.stderr.read().decode()
            self.close()
            raise RuntimeError(f"The namespaces could not be set up: {words}")
        (first,) = psutil.Process(self._outer.pid).children()
        self.pid = first.pid
        """The first process, by its number outside; all others end with it."""
        self._namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        (lifeline,) = wait_for(first.children, "The first process reads nothing")
        self.own = {self.pid, lifeline.pid}
        """The processes that make this an enclosure."""

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words inside, in the root folder, when it is run outside."""
        return ["nsenter", f"--target={self.pid}", *KINDS, "env", "--chdir=/", f"PATH={PATH}", *words]

    def run(self, words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end; raises where it fails, unless ``check=False``."""
        options = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": True} | options
        return subprocess.run(self.command(words), **options)  # noqa: PLW1510 — it is among the options

    def link(self, name: str, other: Enclosure, far: str) -> None:
        """Lay a cable to another enclosure, whose end is named ``far``; process ids are those outside."""
        words = ["ip", "link", "add", "name", name, "type", "veth", "peer", "name", far, "netns", str(other.pid)]
        env = os.environ | {"PATH": PATH}
        subprocess.run(["nsenter", f"--target={self.pid}", "--net", *words], env=env, check=True, timeout=PATIENCE)

    def popen(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command inside; it ends with the namespaces at the latest."""
        return subprocess.Popen(self.command(words), text=True, **options)

    def processes(self) -> list[int]:
        """The process ids, as seen from outside, of everything that runs inside, zombies aside."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                inside = Path(f"/proc/{process.pid}/ns/pid").readlink() == self._namespace
                if inside and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    def kill(self) -> None:
        """End everything inside at once, as when the power fails."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        self._outer.wait(PATIENCE)

    def close(self) -> None:
        """End everything inside, and wait until it is gone."""
        for stream in (self._outer.stdin, self._outer.stdout, self._outer.stderr):
            if stream is not None:
                stream.close()
        self._outer.wait(PATIENCE)


def wait_for(condition: Callable[[], Found], words: str, patience: float = PATIENCE) -> Found:
    """The first true value of ``condition()``; raises with these words where there is none in time."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{words}, for {patience:.0f} s.")
        time.sleep(0.02)
    return value
