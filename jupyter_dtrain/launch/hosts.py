"""Ranks on several hosts, reached by ssh: a watch on each, started over ssh, and one ``mpiexec`` on this machine.

Nothing assumes one file system. A watch gets its specification over ssh's pipe, its program and environment too; it
writes its reports and its ranks' spools there. ipyparallel's controller listens on TCP, encrypted (CurveZMQ), on the
address that the hosts reach. MPI's own traffic, and the words of ``mpiexec`` to its daemons, cross the network in
clear: no key, no cell and no output is among them.

Under failure: ssh may ask nothing, and a connection that answers nothing for 9 s is over. The watch of a host that is
cut off ends its ranks when its lease runs out, or as soon as it notices the end of its pipe.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from jupyter_dtrain.core.declarations import declarations, load
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.variables import values_of
from jupyter_dtrain.wire.requests import MAIN, Check, WorldRequest

from . import local
from .hostlist import fill, named_hosts, place
from .launcher import Allocation, LauncherDeclaration, WatchCommand, WorldPlan
from .leftovers import MARK
from .mpi import (
    DAEMON_ENVIRONMENT,
    DAEMON_OPTIONS,
    WITHOUT_GUARD,
    MpiProgram,
    launched_variables,
    network_options,
    ranks_environment,
)
from .networks import address_to
from .programs import ProgramAnswer, Unreached
from .ssh import Ssh

FORWARDED: Final = (
    "ACCELERATE_",
    "HF_",
    "JAX_",
    "LANG",
    "LC_",
    "MKL_",
    "MLFLOW_",
    "NUMEXPR_",
    "OMP_",
    "OPENBLAS_",
    "PL_",
    "PYTHON",
    "TOKENIZERS_",
    "TRANSFORMERS_",
    "TZ",
    "WANDB_",
)
"""How the variables begin that go along to other hosts, beside those that declarations name. All others are as the
host's login sets them; a person adds variables with ``--env``."""

_START: Final = (
    "import json, os, sys; "
    "asked = json.loads(sys.stdin.buffer.raw.readline()); "
    "os.environ.update(asked['environment']); "
    "os.execv(sys.executable, [sys.executable, *asked['words']])"
)
"""Reads no byte beyond the first line: the rest is for the program."""

EXAMINATION: Final = "jupyter_dtrain.preflight.doctor:check_before_start"
"""``module:NAME`` of the function that examines the hosts. No import: that room stands above this one."""


def _check_ssh_args(text: str) -> str:
    if any(" " in word for word in Ssh.parse(text).args):
        raise BadRequest(
            "mpiexec divides the options of ssh at every space, also within quotes: put such an option into "
            "~/.ssh/config, or into a file that `-F FILE` names.",
            option="ssh_args",
        )
    return text


class HostsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The start options of worlds on hosts over ssh."""

    hosts: Annotated[
        str | None,
        Meta(
            title="Hosts",
            description="hosts over ssh and their ranks, as in gpu1:8,gpu2:8 (default: this machine)",
            extra_json_schema={"metavar": "HOST:RANKS,..."} | MAIN,
        ),
    ] = None
    hostfile: Annotated[
        str | None,
        Meta(
            title="Hostfile",
            description="file with the hosts, in Open MPI's format or one NAME:RANKS a line; `job`: those of the PBS, "
            "Grid Engine or LSF job in which this notebook runs (default: none)",
            extra_json_schema={"metavar": "PATH"},
        ),
    ] = None
    ssh_args: Annotated[
        str | None,
        Meta(
            title="Options for ssh",
            description="options for ssh to the hosts, as in a shell (default: those of ~/.ssh/config)",
            extra_json_schema={"metavar": "ARGS"},
        ),
        Check(_check_ssh_args),
    ] = None
    python: Annotated[
        str | None,
        Meta(
            title="Python on the hosts",
            description="path of the interpreter on the hosts (default: the path of this one)",
            extra_json_schema={"metavar": "PATH"},
        ),
    ] = None
    interface: Annotated[
        str | None,
        Meta(
            title="Network interface",
            description="this machine's network interface to the hosts (default: the one that leads there)",
        ),
    ] = None

    @property
    def ssh(self) -> Ssh:
        """The options with which ssh is called."""
        return Ssh.split(self.ssh_args or "")


class Hosts:
    """A launcher; see :class:`.launcher.Launcher`."""

    remote = True
    allocation: Allocation | None = None

    def __init__(self, request: WorldRequest) -> None:
        self._request = request
        self._options: HostsOptions = request.options_of_launcher(HostsOptions)
        self._ssh = self._options.ssh
        self._python = self._options.python or sys.executable
        self.address = request.address
        self.hosts = request.hosts
        self.slots = request.slots or request.hosts
        self.scratch = request.scratch

    def controller_command(self, incarnation: int) -> list[str]:  # noqa: ARG002 — its ports are new ones each time
        """The controller, encrypted, at the address that the hosts reach."""
        return local.remote_controller_command(self._request, self.address)

    def watches(self) -> list[WatchCommand]:
        """The watch of each host: ssh starts an interpreter there, which reads the program that it is to run."""
        _, *words = local.watch_command()
        first = json.dumps({"words": words, "environment": self._forwarded()}).encode() + b"\n"
        # Isolated: a json.py in the home there must not break a start. The watch itself has all variables.
        program = [self._python, "-I", "-c", _START]
        return [WatchCommand(host, self._ssh.command(host, program)[0], first) for host in self.hosts]

    def ranks_command(self, mpi: MpiProgram, network: str) -> list[str]:
        """``mpiexec``, whose daemons start over the same ssh. MPI uses one ``network`` where all hosts share it."""
        request = self._request
        places = ",".join(f"{host}:{ranks}" for host, ranks in self.hosts.items())
        # Our own connection to a lost host ends first, so its reason is the one that people read.
        _, *words = self._ssh.call("-o", "ServerAliveInterval=5")
        command = [mpi.path, "-n", str(request.size), "--host", places, "--bind-to", "none", "--wdir", "/"]
        # Daemons that start further ones would get these words cut at their last "=" (Open MPI 5.0.11).
        command += ["--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "plm_ssh_args", shlex.join(words)]
        command += network_options(network)
        if mpi.modern:
            command += ["--with-ft", "ulfm", "--prtemca", "prte_tmpdir_base", request.scratch, *DAEMON_OPTIONS]
        return [*command, *self.slot_command()]

    def slot_command(self) -> list[str]:
        """The slot holder, which the interpreter there runs from the file that the watch has put beside its socket."""
        python = [self._python]
        if self._python.startswith("~/"):
            # Only a shell there knows the home.
            python = ["/bin/sh", "-c", f'exec ~/{shlex.quote(self._python[2:])} "$@"', "slot"]
        slot = ["-I", "-S", f"{self.scratch}/slot_holder.py", self.scratch]
        return [*WITHOUT_GUARD, *python, *slot]

    def resize(self, request: WorldRequest) -> None:
        """Use ``request`` for all later commands; its ranks fill the hosts in order, as in a start."""
        self._request, self.hosts = request, fill(self.slots, request.size)

    def environment(self) -> dict[str, str]:
        """The variables of ``mpiexec``, which sends those of Open MPI on to the hosts by itself, and no others."""
        return ranks_environment(self._request) | DAEMON_ENVIRONMENT

    def _forwarded(self) -> dict[str, str]:
        request = self._request
        wanted = FORWARDED + tuple(begin for one in declarations() for begin in one.forwards)
        env = {name: value for name, value in os.environ.items() if name.startswith(wanted)}
        launched = values_of(launched_variables(request, self.scratch))
        return env | launched | request.options.env | {MARK: request.id}

    def start_without(self, host: str) -> str:
        """The line has the same options for ssh, the interpreter and the network."""
        left = [f"{name}:{ranks}" for name, ranks in self.hosts.items() if name != host]
        if not left:
            return ""
        options = self._options
        more = {"ssh-args": options.ssh_args, "python": options.python, "interface": options.interface}
        words = ["--hosts", ",".join(left), *(f"--{name}={value}" for name, value in more.items() if value is not None)]
        return f"%distributed start {shlex.join(words)}"

    def explain(self, host: str, code: int, log: str) -> tuple[str, str]:
        """Reason and fix where ssh itself failed, from the words of ssh."""
        found = self._ssh.explain(ProgramAnswer("", log, code), host, self._python)
        return (f"{host}: {found.reason}", found.fix) if isinstance(found, Unreached) else ("", "")


def _place(n: int | None, options: HostsOptions) -> WorldPlan:
    hosts = named_hosts(options.hosts, options.hostfile)
    if not hosts:
        raise BadRequest("Name the hosts and their ranks, such as gpu1:8,gpu2:8.", option="hosts")
    ranks = place(hosts, n)
    return WorldPlan(sum(ranks.values()), ranks, "", hosts)


def _examine(options: HostsOptions, plan: WorldPlan) -> WorldPlan:
    load(EXAMINATION)(options, plan.slots)
    # A host that ssh does not know has no route either: the examination names the reason, so it comes first.
    return plan._replace(address=address_to(list(plan.hosts), options.ssh, options.interface))


DECLARATION: Final = LauncherDeclaration(
    "hosts",
    "Hosts over ssh",
    _place,
    Hosts,
    options=HostsOptions,
    chosen_by=("hosts", "hostfile"),
    examination=_examine,
)
