"""The ways to the hosts of an examination, by ssh or by srun in a job of Slurm, and the programs that run there.

A way gives commands, addresses and the sentences of fixes. It runs nothing by itself but ``ssh -G``, which connects to
nothing, and Slurm's own questions. A *program* is a module of this package that a host runs from its own copy; its
arguments travel over standard input, so that no command line shows them.

Under failure: a machine whose Python or package is missing, too old or broken is an
:class:`~jupyter_dtrain.launch.programs.Unreached` with the last words of that Python. An address that cannot be found
is empty, and a finding says so. Where Slurm gives no job, its reason is a
:class:`~jupyter_dtrain.core.errors.StartFailed`. A job of our own is cancelled however the examination ends; where this
process is killed, the job's script ends it, as no step renews its file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.framework_report import installed_version
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.variables import values_of
from jupyter_dtrain.launch.mpi import ROOT_VARIABLES, plain_environment
from jupyter_dtrain.launch.networks import local_address, route, shared_network
from jupyter_dtrain.launch.programs import SIDE_BY_SIDE, Carrier, ProgramAnswer, Unreached, run_on
from jupyter_dtrain.launch.slurm import queue
from jupyter_dtrain.launch.slurm.allocation import Held, job_name
from jupyter_dtrain.launch.slurm.options import SlurmOptions, place
from jupyter_dtrain.launch.slurm.steps import Steps, mpiexec_environment, munge_options, node_environment
from jupyter_dtrain.launch.ssh import Ssh

from .probe import Facts

TIME: Final = "5"
"""Minutes that a job of our own asks for: a short one starts sooner, and an examination takes less."""
OWN: Final = "jupyter_dtrain"
OWN_DISTRIBUTION: Final = "jupyter-dtrain"
MARGIN: Final = 2.0
"""Seconds that an answer has to arrive after the program has ended itself."""
_RUN: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from {module} import main; main(sys.stdin.readline())"
)
"""Runs a program with the first line of the input; the rest is the program's own.

Without the home on ``sys.path``: a ``random.py`` there must not break the program.
"""
_MISSING: Final = re.compile(rf"No module named '{OWN}(?:\.\w+)?'")
"""The last words of a Python without the package. An empty folder of that name counts as a package for Python, whose
parts are missing then; of an older version a smaller part may be missing."""


class Fixes(msgspec.Struct, frozen=True):
    """The sentences of findings that differ between the ways to the hosts: by ssh, or by srun in a job of Slurm."""

    program: str
    """The program that reaches the hosts."""
    python: str
    """The way to another interpreter."""
    or_other_python: str
    """The same as the end of a sentence that has named a fix; empty where there is no other."""
    interface: str
    """The way to another network interface."""
    unknown_interface: tuple[str, str]
    """Why the interface that leads to a host may be unknown and why that matters; and the fix."""
    limit: str
    """The way to a higher limit, with ``{name}``, or ``{unit}`` in systemd's words, and ``{value}``."""
    files: str
    """The way in which code and data get to hosts that share no file system."""
    mpi: str
    """The line that shows whether MPI jobs work, with ``{hosts}``."""

    def raise_limit(self, name: str, value: str) -> str:
        """The fix for a limit that is too low; ``name`` and ``value`` as in limits.conf."""
        words = self.limit.format(name=name, unit=name.rsplit(maxsplit=1)[-1].upper(), value=value)
        return words.replace("=unlimited", "=infinity")  # the word of systemd


SSH: Final = Fixes(
    program="ssh",
    python="--python names an interpreter for the hosts.",
    or_other_python=", or name the right interpreter with --python",
    interface="Name another interface with --interface.",
    unknown_interface=(
        "ssh may go through a jump host or a tunnel, and ranks connect without it.",
        "Name an interface that all hosts reach with --interface.",
    ),
    limit="Raise it: `* {name} {value}` in /etc/security/limits.conf there, then log in again.",
    files="`%distributed upload PATH` copies code and data to each host, to the same path.",
    mpi="See whether `mpiexec --host {hosts} hostname` works in a terminal.",
)
SRUN: Final = Fixes(
    program="srun",
    python="Nodes use the interpreter that has this notebook's path.",
    or_other_python="",
    interface="Let NodeAddr in slurm.conf lead to a network that all of them share.",
    unknown_interface=(
        "Ranks connect to this machine, and no route leads from it to the nodes' addresses in Slurm.",
        "See whether `ping` reaches those nodes from here.",
    ),
    limit="Raise it: Limit{unit}={value} for slurmd's service there; see PropagateResourceLimits in slurm.conf, too.",
    files="`%distributed upload PATH` copies code and data to each node, to the same path.",
    mpi="See whether `mpiexec hostname` works in a job on these nodes: `salloc --nodelist={hosts}`.",
)


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
    def fixes(self) -> Fixes:
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

    fixes = SSH

    def __init__(self, args: str | Ssh = "", python: str | None = None) -> None:
        """``args``: options for ssh, as in a shell, or checked already.

        ``python``: default the path of this interpreter. Raises :class:`~jupyter_dtrain.core.errors.BadRequest`.
        """
        self.carrier = args if isinstance(args, Ssh) else Ssh.parse(args)
        self.stopped = threading.Event()
        self.python = python or sys.executable

    def local_address(self, host: str) -> str:
        """Unknown where a jump host or a proxy stands in between. It takes 5 s at most."""
        config = self.carrier.ask_config(host)
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
        return MpiJob(options, plain_environment() | values_of(ROOT_VARIABLES))


class BySrun:
    """A :class:`Reach` by steps of a job."""

    fixes = SRUN
    python = sys.executable

    def __init__(self, steps: Steps, nodes: Sequence[str], stopped: threading.Event | None = None) -> None:
        """Asks Slurm for the addresses of ``nodes``, and looks them up, for some seconds. Raises :class:`StartFailed`.

        ``stopped``: default one that is never set.
        """
        self.carrier = steps
        self.stopped = stopped or threading.Event()
        try:
            addresses = queue.node_addresses(nodes)
        except queue.Unanswered as error:
            raise StartFailed(f"Slurm: {error}", "See whether `scontrol show node` works in a terminal.") from None
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="route") as pool:
            self._routes = dict(zip(addresses, pool.map(route, addresses.values()), strict=True))

    def local_address(self, host: str) -> str:
        """The address of this machine on the route to the node."""
        return self._routes[host][0] or ""

    def address(self, host: str, facts: Facts) -> str:  # noqa: ARG002 — Slurm knows it
        """The address by which Slurm reaches the node."""
        return self._routes[host][1] or ""

    def mpi_job(self, hosts: Sequence[str], mpiexec: str, python: str, folder: Path) -> MpiJob:  # noqa: ARG002 — one path
        """As the ranks of a world: ``mpiexec`` finds the nodes in its environment, and starts its daemons by srun."""
        addresses = [self._routes[host][1] or "" for host in hosts]
        network = shared_network(self.local_address(hosts[0]), addresses)
        nodes = dict.fromkeys(hosts, 1)
        options = ["--prtemca", "prte_if_include", network] if network else []
        return MpiJob(options, mpiexec_environment(self.carrier.job, nodes, values_of(ROOT_VARIABLES)))


@contextlib.contextmanager
def slurm_nodes(options: SlurmOptions, say: Callable[[str], None]) -> Iterator[tuple[dict[str, int], BySrun]]:
    """The nodes that a world with these ``options`` would get, with their ranks, and the way to them.

    ``say`` shows how far a job is that waits; there is no deadline for that, since a queue may take hours. An interrupt
    ends the wait. Raises :class:`~jupyter_dtrain.core.errors.BadRequest` and :class:`StartFailed`.
    """
    size = place(None, options).size
    munge = munge_options()
    inside = queue.own_job()
    if not inside and options.time is None:
        options = msgspec.structs.replace(options, time=TIME)
    name = job_name(f"doctor-{secrets.token_hex(4)}")
    # Every node has this folder; this machine's folder for temporary files may be another one.
    beat = f"/tmp/{name}.beat"  # noqa: S108 — the job's script makes it, with a name that nobody can guess
    held = Held(options, size, name, beat, inside)
    try:
        held.get(say, threading.Event())
        steps = Steps(held.job.id, munge, "dtrain-doctor", node_environment(), os.getcwd(), beat)  # noqa: PTH109
        yield held.hosts, BySrun(steps, list(held.hosts))
    finally:
        held.give_back()


class Program:
    """A module of this package, to be run on some machine with arguments of its ``main``."""

    def __init__(self, module: str, seconds: float, **arguments: Any) -> None:
        self.nonce = secrets.token_hex(8)
        """Begins the line of the answer, among the words of a shell's start files."""
        self.text = json.dumps({"nonce": self.nonce, "seconds": seconds, **arguments}) + "\n"
        """For the standard input of :meth:`command`."""
        self._module = module

    def command(self, python: str) -> list[str]:
        """The command that runs it."""
        return [python, "-c", _RUN.format(module=self._module)]

    def answer(self, line: str) -> Any:
        """The value in a line of output; None if the line is something else."""
        begin, _, value = line.partition(" ")
        if begin != self.nonce:
            return None
        try:
            return json.loads(value)
        except ValueError:
            return None

    def read(self, done: ProgramAnswer | Unreached, python: str, kind: Any, fixes: Fixes | None = None) -> Any:
        """The answer in all of the output as a value of ``kind``, or the reason why there is none.

        ``fixes``: the sentences for the way to that machine; None for this one.
        """
        if isinstance(done, Unreached):
            return done
        for line in done.output.splitlines():
            value = self.answer(line)
            if isinstance(value, dict):
                try:
                    return msgspec.convert({**value, "sent": done.sent, "received": done.received}, readable(kind))
                except (msgspec.ValidationError, UnicodeError) as error:
                    return _broken(python, str(error), line, fixes)
        words = done.errors.strip() or done.output.strip()
        return _broken(python, (words.splitlines() or [f"exit code {done.code}, without a word"])[-1], words, fixes)


def ask_all(programs: Mapping[str, Program], reach: Asking, *, kind: Any, timeout: float) -> dict[str, Any]:
    """Run ``programs`` of one module, each by the host's name, and read their answers as ``kind``.

    All of it takes at most ``timeout`` seconds. Raises :class:`~jupyter_dtrain.launch.programs.Stopped` as soon as
    ``reach.stopped`` is set.
    """
    if not programs:
        return {}
    hosts, command = list(programs), next(iter(programs.values())).command(reach.python)
    stdin = {host: program.text for host, program in programs.items()}
    done = run_on(hosts, command, carrier=reach.carrier, timeout=timeout, stdin=stdin, stopped=reach.stopped)
    return {host: programs[host].read(one, reach.python, kind, reach.fixes) for host, one in done.items()}


def requirement(name: str, version: str | None) -> str:
    """What pip is to install: the package ``name`` in this ``version``, or in any where none is known."""
    return f"{name}=={version}" if version else name


def _broken(python: str, words: str, said: str, fixes: Fixes | None) -> Unreached:
    wanted = requirement(OWN_DISTRIBUTION, installed_version(OWN_DISTRIBUTION))
    install = f"Install it there: `{python} -m pip install {wanted}`{fixes.or_other_python if fixes else ''}."
    if _MISSING.search(words):
        return Unreached("no package", f"The package {OWN} is missing; {python} does not find it.", install, said)
    if words.startswith("ModuleNotFoundError"):
        fix = install.replace("it there", "the package there again", 1)
    else:
        fix = f"Python must be 3.10 or newer there. {fixes.python if fixes else ''}".strip()
    return Unreached("failed", f"{python} could not run the check: {words}", fix, said)
