"""Ranks on the nodes of a job in Slurm: a watch on each, started by srun, and one ``mpiexec``, which uses srun too.

Nothing needs ssh between nodes, nor files that they share, but for the package itself under the same path. A watch
gets its specification, and gives its reports, over srun's pipe, sealed (:mod:`.sealed_pipe`). The rest is as with hosts
over ssh: ipyparallel's controller listens on TCP, encrypted; what ranks say to each other in MPI crosses in clear.

The ranks have the variables of this process, as sbatch would give them to a job; on a node, Slurm's own count.

Under failure: see :mod:`.allocation` for the job, and :mod:`.sealed_pipe` for a node that does not answer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

from jupyter_dtrain.core.declarations import load
from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.variables import Variable, values_of
from jupyter_dtrain.launch import local
from jupyter_dtrain.wire.requests import ADDRESS, WorldRequest

from ..hostlist import fill
from ..launcher import Allocation, LauncherDeclaration, NodesLook, WatchCommand
from ..leftovers import MARK
from ..mpi import DAEMON_ENVIRONMENT, DAEMON_OPTIONS, WITHOUT_GUARD, MpiProgram, launched_variables, network_options
from ..networks import local_address
from . import queue
from .allocation import Held, job_name
from .options import SlurmOptions, place, share_gpus
from .steps import OF_A_STEP, Steps, explain, mpiexec_environment, munge_options, node_environment

EXAMINATION: Final = "jupyter_dtrain.preflight.doctor:check_nodes"
"""``module:NAME`` of the function that examines the nodes. No import: that room stands above this one."""


class Slurm:
    """A launcher; see :class:`..launcher.Launcher`."""

    remote = True

    def __init__(self, request: WorldRequest) -> None:
        self._request = request
        self._options = request.options_of_launcher(SlurmOptions)
        self.scratch = f"{request.scratch}-node"
        """Another folder than the steward's own, as the steward may run on a node of the job."""
        self.address = ADDRESS
        self.hosts: dict[str, int] = {}
        self.slots: dict[str, int] = {}
        self._beat = f"{request.scratch}.beat"
        self._held = Held(self._options, request.size, job_name(request.id), self._beat, queue.own_job())
        self._munge: list[str] = []

    # Its nodes.

    @property
    def allocation(self) -> Allocation:
        """The launcher itself, which asks Slurm for the nodes."""
        return self

    def get(self, say: Callable[[str], None], stopped: threading.Event) -> None:
        """Wait until the job runs, and find the address at which its nodes reach this machine.

        Raises :class:`StartFailed`.
        """
        self._munge = munge_options()
        self._held.get(say, stopped)
        if stopped.is_set():
            return
        self.hosts = self.slots = self._held.hosts
        try:
            first, *_ = queue.node_addresses([next(iter(self.hosts))]).values()
            address = local_address(first)
        except queue.Unanswered:
            address = None
        if address is None or ":" in address:
            self.give_back()
            raise StartFailed(
                f"No route of this machine leads to {next(iter(self.hosts))} by IPv4.",
                "See whether `ping` reaches that node from here.",
            )
        self.address = address

    def examine(self, stopped: threading.Event) -> None:
        """Have the doctor examine the nodes, by steps with the variables of ranks.

        Raises :class:`StartFailed` with the findings.
        """
        try:
            load(EXAMINATION)(self.hosts, self._steps("dtrain-doctor"), stopped)
        except StartFailed:
            if over := self.look(ending=True).over:
                raise StartFailed(f"{over}.", "Start the world again.") from None
            raise

    def look(self, *, ending: bool = False) -> NodesLook:
        """The end of the job's time, and the reason where the job is over."""
        return self._held.look(ending=ending)

    def give_back(self) -> None:
        """Cancel the world's own job."""
        self._held.give_back()

    def remains(self) -> list[list[str]]:
        """The command that cancels the world's own job; none where the world uses the job around this process."""
        return self._held.remains()

    # Its commands.

    def controller_command(self, incarnation: int) -> list[str]:  # noqa: ARG002 — its ports are new ones each time
        """The controller, encrypted, as with hosts over ssh."""
        return local.remote_controller_command(self._request, self.address)

    def watches(self) -> list[WatchCommand]:
        """The near gate of a sealed pipe for each node. The gate starts srun, and srun the watch."""
        steps, watch = self._steps("dtrain-watch"), local.watch_command()
        commands = {node: steps.command(node, watch) for node in self.hosts}
        return [WatchCommand(node, gate, first.encode()) for node, (gate, first) in commands.items()]

    def _steps(self, name: str) -> Steps:
        return Steps(self._held.job.id, self._munge, name, self._forwarded(), self._request.cwd, self._beat)

    def ranks_command(self, mpi: MpiProgram, network: str) -> list[str]:
        """``mpiexec`` finds the nodes in its environment, and starts its daemons by srun."""
        request = self._request
        command = [mpi.path, "-n", str(request.size), "--bind-to", "none", "--wdir", "/"]
        command += network_options(network)
        if mpi.modern:
            command += ["--with-ft", "ulfm", "--prtemca", "prte_local_tmpdir_base", request.scratch]
            command += ["--prtemca", "prte_remote_tmpdir_base", self.scratch, *DAEMON_OPTIONS]
        return [*command, *self.slot_command()]

    def slot_command(self) -> list[str]:
        """The slot holder, without the variables of the step that started MPI's daemon."""
        forget = [word for name in OF_A_STEP for word in ("-u", name)]
        slot = [sys.executable, "-I", "-S", f"{self.scratch}/slot_holder.py", self.scratch]
        return [*WITHOUT_GUARD, *forget, *slot]

    def resize(self, request: WorldRequest) -> None:
        """Use ``request`` for all later commands; its ranks fill the nodes in order, and the job stays as it is."""
        self._request, self.hosts = request, fill(self.slots, request.size)

    def environment(self) -> dict[str, str]:
        """The variables that ``mpiexec`` needs, with the job's nodes, and no others."""
        variables = {name: one for name, one in self._launched().items() if name.startswith(("OMPI_", "PRTE_"))}
        return mpiexec_environment(self._held.job.id, self.hosts, values_of(variables) | DAEMON_ENVIRONMENT)

    def _launched(self) -> dict[str, Variable]:
        return launched_variables(self._request, self.scratch)

    def _forwarded(self) -> dict[str, str]:
        return node_environment() | values_of(self._launched()) | self._request.options.env | {MARK: self._request.id}

    def start_without(self, host: str) -> str:  # noqa: ARG002 — Slurm chooses the nodes
        """An empty text: a new job gets other nodes."""
        return ""

    def explain(self, host: str, code: int, log: str) -> tuple[str, str]:  # noqa: ARG002 — exit codes of srun lie
        """Reason and fix from the words of the gate, munge or srun."""
        return explain(host, log)


DECLARATION: Final = LauncherDeclaration(
    "slurm", "Slurm", place, Slurm, share_gpus, options=SlurmOptions, chosen_by=("slurm",)
)
