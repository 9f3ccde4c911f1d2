"""Programs on the nodes of a job: steps that srun starts, each through the sealed pipe of :mod:`.gate`.

Worlds have their watches in such steps, and the examination before a start its probes. A step gets the variables that
ranks have, and its program, in a credential of munge; only the same user can open it.

Under failure: nothing raises for a node. :func:`explain` finds reason and cure in the words of the gate, munge or srun.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import StartFailed

from .. import local
from ..programs import Answer, Kind, Unreached
from . import queue

FAILED: Final = 255
"""The exit code of a gate whose pipe has failed. The gate itself has the number, too: nothing here imports it."""
_NOT_THERE: Final = re.compile(r"ModuleNotFoundError|ImportError|No such file or directory")
"""The words of a node on which Python or the package is missing."""
SEE_NODES: Final = "`sinfo -R` says why nodes are down."
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
OF_A_STEP: Final = tuple(
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


class Steps(msgspec.Struct, frozen=True):
    """The steps of one kind in a job. It is a :class:`..programs.Carrier`, too."""

    job: str
    """The number of the job."""
    munge: list[str]
    """The options for munge's programs: see :func:`munge_options`."""
    name: str
    """The name of each step."""
    environment: dict[str, str]
    """The variables of their programs; on a node, Slurm's own count."""
    cwd: str
    beat: str = ""
    """The file that keeps a job of our own, which the steps touch."""

    def told(self, node: str, program: Sequence[str]) -> bytes:
        """The line with which the gate starts ``program`` on ``node``. No command line may show it."""
        unmunge = shutil.which("unmunge") or "unmunge"
        srun = ["srun", f"--jobid={self.job}", "--overlap", "--unbuffered", "--export=NONE", "--mem=0"]
        srun += ["--cpu-bind=none", "--kill-on-bad-exit=0", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
        told = {
            "srun": [*srun, f"--job-name={self.name}"],
            "python": sys.executable,
            "munge": ["munge", f"--restrict-uid={os.getuid()}", "--cipher=aes128", *self.munge],
            "unmunge": [unmunge, "--numeric", "--keys=UID", *self.munge],
            "far": {
                "command": list(program),
                "environment": self.environment,
                "cwd": self.cwd,
                "beat": self.beat,
            },
        }
        return json.dumps(told).encode() + b"\n"

    def command(self, host: str, program: Sequence[str]) -> list[str]:  # noqa: ARG002 — the gate reads both
        """A gate; it starts srun."""
        return local.program("jupyter_dtrain.launch.slurm.gate")

    def opening(self, host: str, program: Sequence[str]) -> str:
        """The line for the gate."""
        return self.told(host, program).decode()

    def explain(self, answer: Answer, host: str, program: str) -> Answer | Unreached:  # noqa: ARG002 — it is in srun's
        """``answer``, or why the step did not run, or not to its end."""
        if answer.code != FAILED:
            return answer
        reason, cure = explain(host, answer.errors)
        reason = reason or f"{host}: srun ended without a word"
        return Unreached(_kind(reason), f"{reason.rstrip('.')}.", cure or SEE_NODES, answer.errors)


def _kind(reason: str) -> Kind:
    if "No such file or directory" in reason:
        return "no program"
    return "timed out" if "has not answered" in reason else "failed"


def explain(node: str, log: str) -> tuple[str, str]:
    """Reason and cure where a step on ``node`` failed; two empty texts if nothing is known. ``log``: its words."""
    lines = [line for line in log.splitlines() if line.strip() and "lacks support for cpu binding" not in line]
    if not lines:
        return "", ""
    cure = SEE_NODES
    if _NOT_THERE.search(lines[-1]):
        cure = f"The nodes need this package and its interpreter under the paths of this machine: {sys.executable}."
    return f"{node}: {lines[-1].strip()}", cure


def munge_options() -> list[str]:
    """The options that lead munge's programs to the munge of Slurm. Raises :class:`StartFailed`."""
    try:
        socket = queue.munge_socket()
    except queue.Unanswered as error:
        raise StartFailed(f"Slurm: {error}", "See whether `scontrol show config` works in a terminal.") from None
    return [f"--socket={socket}"] if socket else []


def node_environment() -> dict[str, str]:
    """The variables of this process that go along to the nodes."""
    return {name: value for name, value in local.plain_environment().items() if not name.startswith(_HERE)}


def mpiexec_environment(job: str, nodes: Mapping[str, int], more: Mapping[str, str]) -> dict[str, str]:
    """The variables of an ``mpiexec``: those that it needs, ``more``, and ``nodes`` of a job with their ranks."""
    env = {name: value for name, value in os.environ.items() if name.startswith(_FOR_MPIEXEC)}
    return {
        **env,
        **more,
        "SLURM_JOBID": job,
        "SLURM_JOB_ID": job,
        "SLURM_NODELIST": ",".join(nodes),
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_TASKS_PER_NODE": ",".join(map(str, nodes.values())),
        "SLURM_OVERLAP": "1",
        "SLURM_CPU_BIND": "none",
    }
