"""The ways to the hosts, as an examination needs them: by ssh here, by srun in :mod:`.nodes`.

A reach gives commands and addresses, and runs nothing but ``ssh -G``, which connects to nothing.

Under failure: an address that cannot be found is empty, and a finding says so.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from jupyter_dtrain.core.variables import values_of
from jupyter_dtrain.launch import local
from jupyter_dtrain.launch.networks import PATIENCE, local_address
from jupyter_dtrain.launch.programs import Carrier
from jupyter_dtrain.launch.ssh import Ssh

from .facts import Facts
from .findings import SSH, Cures

FROM_A_JOB: Final = ("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_")
"""Variables of another MPI job that this process may be part of."""


class MpiJob(NamedTuple):
    """The part of an ``mpiexec`` that puts one rank on each host."""

    options: list[str]
    environment: dict[str, str]


class Asking(Protocol):
    """One way to the hosts, as far as it carries programs and their answers."""

    @property
    def carrier(self) -> Carrier:
        """The program that runs others there."""

    @property
    def stopped(self) -> threading.Event:
        """Set where nobody waits for an answer any more: all programs end, and the examination raises ``Stopped``."""

    @property
    def cures(self) -> Cures:
        """The sentences of findings."""

    @property
    def python(self) -> str:
        """The interpreter on the hosts."""


class Reach(Asking, Protocol):
    """One way to the hosts."""

    def local_address(self, host: str) -> str:
        """The address of this machine that leads to ``host``; empty where that is not known."""

    def address(self, host: str, facts: Facts) -> str:
        """The address of ``host`` itself, by which it is reached; empty where that is not known."""

    def mpi_job(self, hosts: Sequence[str], mpiexec: str, python: str, folder: Path) -> MpiJob:
        """One rank on each of ``hosts``. ``python``: the path of the interpreter there.

        ``folder``: an empty one on this machine, for its files.
        """


class BySsh:
    """A :class:`Reach` over the ssh of this machine."""

    cures = SSH

    def __init__(self, args: str | Ssh = "", python: str | None = None, stopped: threading.Event | None = None) -> None:
        """``args``: options for ssh, as in a shell, or checked already.

        ``python``: default the path of this interpreter. ``stopped``: default one that is never set. Raises
        :class:`~jupyter_dtrain.core.errors.BadRequest`.
        """
        self.carrier = args if isinstance(args, Ssh) else Ssh.parse(args)
        self.stopped = stopped or threading.Event()
        self.python = python or sys.executable

    def local_address(self, host: str) -> str:
        """Unknown where a jump host or a proxy stands in between. It takes at most twice :data:`PATIENCE`."""
        config = self.carrier.ask_config(host, PATIENCE)
        if any(config.get(name, "none") != "none" for name in ("proxyjump", "proxycommand")):
            return ""
        return local_address(config.get("hostname", "")) or ""

    def address(self, host: str, facts: Facts) -> str:  # noqa: ARG002 — the host itself knows better
        """The address at which sshd took the connection: ``facts.ssh`` has ssh's address and port here, then there."""
        return facts.ssh[2] if len(facts.ssh) > 2 else ""  # noqa: PLR2004

    def mpi_job(self, hosts: Sequence[str], mpiexec: str, python: str, folder: Path) -> MpiJob:
        """Return the part of an ``mpiexec`` whose daemons start over the same ssh."""
        # MPI splits the command of its agent at blanks, and knows no quotes: so the options are in a file.
        agent = folder / "ssh"
        agent.write_text(f'#!/bin/sh\nexec {shlex.join(self.carrier.call())} "$@"\n')
        agent.chmod(0o700)
        options = ["--host", ",".join(f"{host}:1" for host in hosts), "--prtemca", "plm_ssh_agent", str(agent)]
        # Without it each host looks for that file at its own start, even where it starts no other.
        options += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
        if Path(mpiexec).parent == Path(sys.executable).parent:  # pip's MPI lies beside Python, on the hosts as well
            options += ["--prefix", str(Path(python).parent.parent)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(FROM_A_JOB)}
        return MpiJob(options, env | values_of(local.ROOT_VARIABLES))
