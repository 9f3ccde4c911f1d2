"""The ways by which rsync reaches hosts: by ssh, or by srun in the job of a world.

Under failure: a way explains why it broke, in the words of ssh, srun or Slurm's queue.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Final, Protocol

import msgspec

from jupyter_dtrain.launch.programs import ProgramAnswer, Unreached
from jupyter_dtrain.launch.slurm import shell
from jupyter_dtrain.launch.slurm.allocation import look_at
from jupyter_dtrain.launch.slurm.queue import SlurmJob
from jupyter_dtrain.launch.slurm.steps import FAILED, explain, munge_options
from jupyter_dtrain.launch.ssh import SSH_FAILED
from jupyter_dtrain.preflight.reach import SRUN, Asking, BySsh

FRESH: Final = 5.0
"""Seconds for which an answer of Slurm about the job is good: several copies break at once."""


class Way(Asking, Protocol):
    """One way to the hosts."""

    farewell: float
    """Seconds that rsync's connection may take to end the program on a host, when a copy ends early."""

    def call(self) -> list[str]:
        """The command that rsync calls, with a host and a command for a shell there."""

    def unreached(self, found: Unreached) -> Unreached:
        """``found``, or the reason behind it."""

    def broken(self, host: str, answer: ProgramAnswer) -> Unreached | None:
        """Why rsync, which gave ``answer``, lost its connection to ``host``; None where nobody says."""

    def check(self, host: str) -> str:
        """The beginning of a sentence: how a person sees whether the way to ``host`` works."""


class OverSsh(BySsh):
    """A :class:`Way` by ssh."""

    farewell = 0.0

    def call(self) -> list[str]:
        """The command is ssh itself."""
        return self.carrier.call()

    def unreached(self, found: Unreached) -> Unreached:
        """``found``, as ssh's own words are the reason."""
        return found

    def broken(self, host: str, answer: ProgramAnswer) -> Unreached | None:
        """The reason in ssh's words; None where it printed none."""
        found = self.carrier.explain(msgspec.structs.replace(answer, code=SSH_FAILED), host, "rsync")
        return found if isinstance(found, Unreached) and found.kind != "failed" else None

    def check(self, host: str) -> str:
        """A person runs ssh by hand."""
        return f"See whether `{self.carrier.by_hand(host)}` works in a terminal"


class OverSrun:
    """A :class:`Way` by steps of a job of Slurm, each sealed: see :mod:`jupyter_dtrain.launch.slurm.sealed_pipe`."""

    fixes = SRUN
    python = sys.executable
    farewell = 10.0  # a gate gives a node up after 7 s of silence

    def __init__(self, job: str) -> None:
        """``job``: its number. Raises :class:`~jupyter_dtrain.core.errors.StartFailed` where Slurm does not answer."""
        self.carrier = shell.steps_of(job, munge_options())
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._looked = -FRESH
        self._over = ""

    def call(self) -> list[str]:
        """The command is a gate, a program of ours that starts srun."""
        return shell.command(self.carrier)

    def unreached(self, found: Unreached) -> Unreached:
        """The end of the job, if it has ended, else ``found``: srun reports the end only later."""
        return self._ended() or found

    def broken(self, host: str, answer: ProgramAnswer) -> Unreached | None:
        """The end of the job, or the words of gate and srun, which stand among those of rsync."""
        if ended := self._ended():
            return ended
        words = "\n".join(line for line in answer.errors.splitlines() if not line.startswith("rsync"))
        found = self.carrier.explain(msgspec.structs.replace(answer, errors=words, code=FAILED), host, "rsync")
        return found if isinstance(found, Unreached) and explain(host, words)[0] else None

    def check(self, host: str) -> str:
        """A person asks Slurm."""
        return f"See whether `sinfo -R` names {host}"

    def _ended(self) -> Unreached | None:
        with self._lock:
            if time.monotonic() - self._looked > FRESH:
                _, found = look_at(SlurmJob(self.carrier.job, "RUNNING"), ending=True)
                self._over, self._looked = found.over, time.monotonic()
        if not self._over:
            return None
        return Unreached("closed", f"{self._over}.", "Start a world in a new job, then sync again.")
