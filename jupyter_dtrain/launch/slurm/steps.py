"""Programs on the nodes of a job: steps that srun starts, each through the sealed pipe of :mod:`.sealed_pipe`.

Worlds have their watches in such steps, and the examination before a start its probes. A step gets the variables that
ranks have, and its program, in a credential of munge; only the same user can open it.

Under failure: nothing raises for a node. :func:`explain` finds reason and fix in the words of the gate, munge or srun.
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
from jupyter_dtrain.launch import local

from ..mpi import plain_environment
from ..programs import Kind, ProgramAnswer, Unreached
from . import queue

FAILED: Final = 255
"""The exit code of a gate whose pipe has failed. The gate itself has the number, too: nothing here imports it."""
_NOT_THERE: Final = re.compile(r"ModuleNotFoundError|ImportError|No such file or directory")
"""The words of a node on which Python or the package is missing."""
_EXITED: Final = re.compile(r"task \d+: Exited with exit code")
_SPEAKER: Final = re.compile(r"^(?:srun|slurmstepd)[\w.-]*: (?:error: |fatal: )?(?:execve\(\): )?")
"""The beginning of a line of Slurm's programs."""
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
    """Starts the steps of one kind in a job; a :class:`..programs.Carrier`."""

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

    def first_line(self, node: str, program: Sequence[str]) -> str:
        """The line with which the gate starts ``program`` on ``node``. No command line may show it."""
        unmunge = shutil.which("unmunge") or "unmunge"
        srun = ["srun", f"--jobid={self.job}", "--overlap", "--unbuffered", "--export=NONE", "--mem=0"]
        srun += ["--cpu-bind=none", "--kill-on-bad-exit=0", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
        srun += ["--chdir=/"]  # else srun sends the notebook's folder in clear; the gate changes to it there
        words = {
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
        return json.dumps(words) + "\n"

    def command(self, host: str, program: Sequence[str]) -> tuple[list[str], str]:
        """The near gate of a sealed pipe, which starts srun, and the line that it reads first."""
        return local.program("jupyter_dtrain.launch.slurm.sealed_pipe"), self.first_line(host, program)

    def explain(self, answer: ProgramAnswer, host: str, program: str) -> ProgramAnswer | Unreached:  # noqa: ARG002 — they say enough
        """``answer``, or why the step did not run to its end."""
        if answer.code != FAILED:
            return answer
        words, fix = _explain(answer.errors)
        words = words or "srun ended without a word"
        kind: Kind = "failed"
        if "No such file or directory" in words:
            kind = "no program"
        elif "has not answered" in words:
            kind = "timed out"
        return Unreached(kind, f"{words.rstrip('.')}.", fix, answer.errors)


def explain(node: str, log: str) -> tuple[str, str]:
    """Reason and fix where a step on ``node`` failed; two empty texts if nothing is known. ``log``: its words."""
    words, fix = _explain(log)
    return (f"{node}: {words}", fix) if words else ("", "")


def _explain(log: str) -> tuple[str, str]:
    """The reason in the words of the program that failed, without its name, and the fix."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and "support for cpu binding" not in line]
    # srun gives the exit code before or after the reason.
    telling = [line for line in lines if not _EXITED.search(line)] or lines
    words = _SPEAKER.sub("", telling[-1]) if telling else ""
    if _NOT_THERE.search(words):
        fix = f"The nodes need this package and its interpreter under the paths of this machine: {sys.executable}."
        return words, fix
    return words, "`sinfo -R` says why nodes are down."


def munge_options() -> list[str]:
    """The options that lead munge's programs to the munge of Slurm. Raises :class:`StartFailed`."""
    try:
        socket = queue.munge_socket()
    except queue.Unanswered as error:
        raise StartFailed(f"Slurm: {error}", "See whether `scontrol show config` works in a terminal.") from None
    return [f"--socket={socket}"] if socket else []


def node_environment() -> dict[str, str]:
    """The variables of this process that go along to the nodes."""
    return {name: value for name, value in plain_environment().items() if not name.startswith(_HERE)}


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
