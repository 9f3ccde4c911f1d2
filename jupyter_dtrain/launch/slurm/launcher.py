"""Ranks on the nodes of a job in Slurm: a watch on each, started by srun, and one ``mpiexec``, which uses srun too.

Nothing needs ssh between nodes, nor files that they share, but for the package itself under the same path. A watch
gets its specification, and gives its reports, over srun's pipe, sealed (:mod:`.gate`). The rest is as with hosts over
ssh: ipyparallel's controller listens on TCP, encrypted; what ranks say to each other in MPI crosses in clear.

The ranks have the variables of this process, as sbatch would give them to a job; on a node, Slurm's own count.

Under failure: see :mod:`.allocation` for the job, and :mod:`.gate` for a node that does not answer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Final

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.variables import Variable, values_of
from jupyter_dtrain.wire.requests import ADDRESS, WorldRequest

from .. import local
from ..launcher import Allocation, Capacity, LauncherDeclaration, Look, Mpi, WatchCommand
from ..leftovers import MARK
from ..networks import local_address
from . import queue
from .allocation import Held, job_name, own_job
from .options import SlurmOptions, place

_NOT_THERE: Final = re.compile(r"ModuleNotFoundError|ImportError|No such file or directory")
"""The words of a node on which Python or the package is missing."""
_HERE: Final = (
    "DBUS_",
    "DISPLAY",
    "HOSTNAME",
    "IPYTHONDIR",
    "JPY_",
    "JUPYTER",
    "PMIX_",
    "PRTE_",
    "SLURM",
    "SSH_",
    "SBATCH_",
    "TMPDIR",
    "XAUTHORITY",
    "XDG_",
)
"""How the variables begin that say something about this machine alone."""
_FOR_MPIEXEC: Final = (
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "OPAL_",
    "PATH",
    "PYTHONPATH",
    "SLURM_CONF",
    "USER",
)
"""How the variables begin that ``mpiexec`` needs. srun sends them to its daemons in clear."""
_OF_A_STEP: Final = tuple(
    f"SLURM_{name}"
    for name in [
        "CPU_BIND",
        "CPU_BIND_LIST",
        "CPU_BIND_TYPE",
        "CPU_BIND_VERBOSE",
        "DISTRIBUTION",
        "GTIDS",
        "LAUNCH_NODE_IPADDR",
        "LOCALID",
        "NNODES",
        "NODEID",
        "NODELIST",
        "NPROCS",
        "NTASKS",
        "NTASKS_PER_NODE",
        "OVERLAP",
        "PRIO_PROCESS",
        "PROCID",
        "SRUN_COMM_HOST",
        "SRUN_COMM_PORT",
        "STEPID",
        "STEP_ID",
        "STEP_LAUNCHER_PORT",
        "STEP_NODELIST",
        "STEP_NUM_NODES",
        "STEP_NUM_TASKS",
        "STEP_TASKS_PER_NODE",
        "TASKS_PER_NODE",
        "TASK_PID",
        "TOPOLOGY_ADDR",
        "TOPOLOGY_ADDR_PATTERN",
        "UMASK",
        "WORKING_CLUSTER",
    ]
)
"""The variables by which srun tells a program its rank. In a rank they would tell that of MPI's daemon."""


class Slurm:
    """A launcher; see :class:`..launcher.Launcher`."""

    remote = True

    def __init__(self, request: WorldRequest) -> None:
        self._request = request
        self._options = request.options_of_launcher(SlurmOptions)
        self.scratch = f"{request.scratch}-node"
        """Not the steward's own: it may run on a node of the job."""
        self.address = ADDRESS
        self.hosts: dict[str, int] = {}
        self._beat = f"{request.scratch}.beat"
        self._held = Held(self._options, request.size, job_name(request.id), self._beat, own_job(os.environ))
        self._munge_socket: list[str] = []

    # Its nodes.

    @property
    def allocation(self) -> Allocation:
        """Itself."""
        return self

    def get(self, say: Callable[[str], None], stopped: threading.Event) -> None:
        """Have a job that runs. Raises :class:`StartFailed`."""
        try:
            socket = queue.munge_socket()
        except queue.Unanswered as error:
            raise StartFailed(f"Slurm: {error}", "See whether `scontrol show config` works in a terminal.") from None
        self._munge_socket = [f"--socket={socket}"] if socket else []
        self._held.get(say, stopped)
        if stopped.is_set():
            return
        self.hosts = self._held.hosts
        try:
            address = local_address(queue.node_address(next(iter(self.hosts))))
        except queue.Unanswered:
            address = None
        if address is None or ":" in address:
            self.give_back()
            raise StartFailed(
                f"No route of this machine leads to {next(iter(self.hosts))} by IPv4.",
                "See whether `ping` reaches that node from here.",
            )
        self.address = address

    def look(self, *, ending: bool = False) -> Look:
        """The time that is left, and whether the job is over."""
        return self._held.look(ending=ending)

    def give_back(self) -> None:
        """Cancel the world's own job."""
        self._held.give_back()

    def remains(self) -> list[list[str]]:
        """The cancellation of the world's own job."""
        return self._held.remains()

    # Its commands.

    def controller_command(self, incarnation: int) -> list[str]:  # noqa: ARG002 — its ports are new ones each time
        """As with hosts over ssh."""
        return local.remote_controller_command(self._request, self.address)

    def watches(self) -> list[WatchCommand]:
        """A gate for each node; it starts srun."""
        return [
            WatchCommand(node, local.program("jupyter_dtrain.launch.slurm.gate"), self._told(node))
            for node in self.hosts
        ]

    def _told(self, node: str) -> bytes:
        unmunge = shutil.which("unmunge") or "unmunge"
        srun = ["srun", f"--jobid={self._held.job.id}", "--overlap", "--unbuffered", "--export=NONE", "--mem=0"]
        srun += ["--cpu-bind=none", "--kill-on-bad-exit=0", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
        told = {
            "srun": [*srun, "--job-name=dtrain-watch"],
            "python": sys.executable,
            "munge": ["munge", f"--restrict-uid={os.getuid()}", "--cipher=aes128", *self._munge_socket],
            "unmunge": [unmunge, "--numeric", "--keys=UID", *self._munge_socket],
            "far": {
                "command": local.watch_command(),
                "environment": self._forwarded(),
                "cwd": self._request.cwd,
                "beat": self._beat,
            },
        }
        return json.dumps(told).encode() + b"\n"

    def ranks_command(self, mpi: Mpi, network: str) -> list[str]:
        """``mpiexec`` finds the nodes in its environment, and starts its daemons by srun."""
        request = self._request
        command = [mpi.path, "-n", str(request.size), "--bind-to", "none", "--wdir", "/"]
        if network:
            command += ["--prtemca", "prte_if_include", network, "--mca", "btl_tcp_if_include", network]
        if mpi.modern:
            command += ["--with-ft", "ulfm", "--prtemca", "prte_local_tmpdir_base", request.scratch]
            command += ["--prtemca", "prte_remote_tmpdir_base", self.scratch]
        forget = [word for name in _OF_A_STEP for word in ("-u", name)]
        slot = [sys.executable, "-I", "-S", f"{self.scratch}/slot_holder.py", self.scratch]
        return [*command, "/usr/bin/env", *forget, *slot]

    def environment(self) -> dict[str, str]:
        """No more than ``mpiexec`` needs, and the job's nodes."""
        env = {name: value for name, value in os.environ.items() if name.startswith(_FOR_MPIEXEC)}
        variables = {name: one for name, one in self._launched().items() if name.startswith(("OMPI_", "PRTE_"))}
        job = {
            "SLURM_JOBID": self._held.job.id,
            "SLURM_JOB_ID": self._held.job.id,
            "SLURM_NODELIST": ",".join(self.hosts),
            "SLURM_NNODES": str(len(self.hosts)),
            "SLURM_TASKS_PER_NODE": ",".join(map(str, self.hosts.values())),
            "SLURM_OVERLAP": "1",
            "SLURM_CPU_BIND": "none",
        }
        return env | values_of(variables) | job

    def _launched(self) -> dict[str, Variable]:
        return local.launched_variables(self._request, self.scratch)

    def _forwarded(self) -> dict[str, str]:
        env = {name: value for name, value in local.plain_environment().items() if not name.startswith(_HERE)}
        return env | values_of(self._launched()) | self._request.options.env | {MARK: self._request.id}

    def start_without(self, host: str) -> str:  # noqa: ARG002 — Slurm chooses the nodes
        """Nothing: a new job gets other nodes."""
        return ""

    def explain(self, host: str, code: int, log: str) -> tuple[str, str]:  # noqa: ARG002 — exit codes of srun lie
        """The words of the gate, munge or srun."""
        lines = [line for line in log.splitlines() if line.strip() and "lacks support for cpu binding" not in line]
        if not lines:
            return "", ""
        cure = "`sinfo -R` says why nodes are down."
        if _NOT_THERE.search(lines[-1]):
            cure = f"The nodes need this package and its interpreter under the paths of this machine: {sys.executable}."
        return f"{host}: {lines[-1].strip()}", cure


def _capacity() -> Capacity:
    return Capacity(cores=0, gpus=0, default_ranks=0)


DECLARATION: Final = LauncherDeclaration(
    "slurm", "Slurm", place, Slurm, _capacity, options=SlurmOptions, chosen_by=("slurm",)
)
