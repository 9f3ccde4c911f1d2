"""Slurm's queue, as its own commands show it: the state of a job, and why it waits or has ended, in words.

Exit codes of srun lie: only the job's state says whether it was cancelled, ran out of time, or lost a node.

Under failure: :func:`run` raises :class:`Unanswered` with the words of Slurm, after :data:`PATIENCE` seconds at most.
A busy slurmctld answers late, so one question without an answer says nothing about a job.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import DtrainError

PATIENCE: Final = 10.0
"""Seconds that Slurm may take for an answer."""

WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
RUNNING: Final = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})
_ENDS: Final = {
    "BOOT_FAIL": "a node of it did not boot",
    "CANCELLED": "it was cancelled, as scancel does",
    "COMPLETED": "its script has ended",
    "DEADLINE": "its deadline is over",
    "FAILED": "its script has failed",
    "NODE_FAIL": "a node of it has failed",
    "OUT_OF_MEMORY": "it has used more memory than it had asked for",
    "PREEMPTED": "another job took its place (preemption)",
    "REVOKED": "another cluster runs it",
    "TIMEOUT": "it has reached its time limit",
}
"""The states in which a job has ended, in words."""

_REASONS: Final = {
    "AssocGrpCpuLimit": "your account uses all processors that it may use at a time",
    "AssocGrpGRES": "your account uses all GPUs that it may use at a time",
    "AssocGrpNodeLimit": "your account uses all nodes that it may use at a time",
    "AssocGrpJobsLimit": "your account has as many jobs as it may run at a time",
    "AssocMaxJobsLimit": "you have as many jobs as you may run at a time",
    "BeginTime": "its earliest time of start has not come",
    "Dependency": "it waits for another job",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; `scontrol release` lets it go",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "None": "Slurm has not looked at it yet",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "Priority": "jobs of higher priority come first",
    "Prolog": "the nodes are being prepared",
    "QOSGrpCpuLimit": "all jobs of its quality of service together use as many processors as they may",
    "QOSMaxCpuPerUserLimit": "you use as many processors as its quality of service allows at a time",
    "QOSMaxGRESPerUser": "you use as many GPUs as its quality of service allows at a time",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as its quality of service allows at a time",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "Reservation": "its reservation has not begun",
    "Resources": "not enough nodes, processors or GPUs are free",
}
"""Why a job waits, by the reason that Slurm gives."""

_NEVER: Final = {
    "AccountNotAllowed": ("the partition does not take this account", "Choose another --account or --partition."),
    "AssocMaxWallDurationPerJobLimit": ("your account allows less time for a job", "Ask for less with --time."),
    "BadConstraints": ("no node has all that it asks for", "Ask for less, or change the constraints in --sbatch."),
    "DependencyNeverSatisfied": (
        "the job that it depends on has ended otherwise",
        "Leave out the dependency in --sbatch.",
    ),
    "InvalidAccount": ("Slurm does not know this account for you", "Choose another --account."),
    "InvalidQOS": ("Slurm does not know this quality of service for you", "Choose another --qos in --sbatch."),
    "PartitionConfig": (
        "the partition has not the nodes, the processors or memory of a node, or the time that it asks for",
        "Ask for less with -N, --ntasks-per-node or --time, or choose another --partition.",
    ),
    "PartitionNodeLimit": (
        "it asks for more nodes than the partition has, or gives to one job",
        "Ask for fewer nodes with -N, or choose another --partition.",
    ),
    "PartitionTimeLimit": (
        "it asks for more time than the partition gives to a job",
        "Ask for less time with --time, or choose another --partition.",
    ),
    "QOSMaxWallDurationPerJobLimit": ("its quality of service gives less time to a job", "Ask for less with --time."),
    "QOSNotAllowed": ("the partition does not take this quality of service", "Choose another --partition."),
}
"""Reasons that waiting does not change, with the fix."""
FIRST: Final = "PartitionConfig"
"""The reason that Slurm gives before its scheduler has looked closer."""


class Unanswered(DtrainError):
    """Slurm gave no answer, or refused."""


class NoJob(Unanswered):
    """Slurm does not know the job, or does not know it any more."""


class SlurmJob(msgspec.Struct, frozen=True):
    """A job as Slurm shows it."""

    id: str
    state: str
    reason: str = ""
    partition: str = ""
    ends: float = 0.0
    """When its time is over, in seconds since the epoch; 0 if that is not known, or there is no limit."""
    begins: float = 0.0
    """When Slurm expects it to start; 0 if it expects nothing."""
    nodes: str = ""
    """The names of its nodes, in Slurm's short form."""
    count: int = 0
    """How many nodes it has."""
    processors: int = 0
    tasks: int = 0
    tasks_per_node: int = 0
    """0 if the job asks for no number."""

    @property
    def waits(self) -> bool:
        """Whether the job may still start."""
        return self.state in WAITING

    @property
    def runs(self) -> bool:
        """Whether the job has its nodes."""
        return self.state in RUNNING

    @property
    def waiting(self) -> str:
        """The reason for which the job waits: a sentence, with Slurm's own word for it."""
        known = self.reason.partition(",")[0]
        words = _REASONS.get(known) or _NEVER.get(known, ("",))[0]
        if self.state == "CONFIGURING":
            return "its nodes are being prepared (CONFIGURING)"
        return f"{words} ({self.reason})" if words else self.reason.replace("_", " ")

    @property
    def never(self) -> tuple[str, str] | None:
        """The reason for which the job can never start, and the fix; None where it may start."""
        found = _NEVER.get(self.reason.partition(",")[0]) if self.state == "PENDING" else None
        return None if found is None else (f"{found[0]} ({self.reason})", found[1])

    @property
    def ended(self) -> str:
        """The reason for which the job is over; empty while it is not."""
        if self.waits or self.runs:
            return ""
        return _ENDS.get(self.state, f"its state is {self.state}")


def run(command: Sequence[str], *, stdin: str = "") -> str:
    """Run a command of Slurm, and return its output. Raises :class:`Unanswered` with its own words where it fails."""
    env = os.environ | {"TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command, input=stdin, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{command[0]} gave no answer within {PATIENCE:g} s.") from None
    except OSError as error:
        raise Unanswered(f"{command[0]} cannot be run: {error.strerror}.") from None
    if done.returncode != 0:
        raise Unanswered(_said(done.stderr or done.stdout) or f"{command[0]} ended with {done.returncode}.")
    return done.stdout


def _said(text: str) -> str:
    """The words of a command of Slurm, without its name before each line."""
    lines = (re.sub(r"^\w+: (?:error: |fatal: )?", "", line).strip() for line in text.splitlines())
    return "; ".join(line for line in lines if line)


def own_job() -> str:
    """The number of the job in which this process runs; empty outside of one."""
    return os.environ.get("SLURM_JOB_ID", "")


def ask_job(job: str) -> SlurmJob:
    """The job as it is now. Raises :class:`NoJob`, and :class:`Unanswered` where Slurm does not say."""
    try:
        return read_job(run(["scontrol", "show", "job", "-o", job]))
    except Unanswered as error:
        if "Invalid job id" in str(error):
            raise NoJob(f"Slurm knows no job {job}.") from None
        raise


def read_job(line: str) -> SlurmJob:
    """A line of ``scontrol show job -o``, with times in UTC. Raises :class:`Unanswered` where it is none."""
    fields = dict(re.findall(r"(?:^|\s)([A-Za-z/:.]+)=(\S*)", line))
    if "JobId" not in fields or "JobState" not in fields:
        raise Unanswered(f"scontrol gave an answer that cannot be read: {line[:200]!r}")
    per_node = fields.get("NtasksPerN:B:S:C", "").partition(":")[0]
    return SlurmJob(
        fields["JobId"],
        fields["JobState"],
        fields.get("Reason", ""),
        fields.get("Partition", ""),
        _time(fields.get("EndTime", "")) if fields.get("TimeLimit", "UNLIMITED") != "UNLIMITED" else 0.0,
        _time(fields.get("StartTime", "")),
        "" if fields.get("NodeList") == "(null)" else fields.get("NodeList", ""),
        _number(fields.get("NumNodes", "")),
        _number(fields.get("NumCPUs", "")),
        _number(fields.get("NumTasks", "")),
        _number(per_node),
    )


def _time(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def _number(text: str) -> int:
    """The number in a field of Slurm's: ``2`` and ``2-2`` both mean 2."""
    first = text.partition("-")[0]
    return int(first) if first.isdecimal() else 0


def node_names(short: str) -> list[str]:
    """The names in Slurm's short form, such as ``gpu[1-2]``. Raises :class:`Unanswered`."""
    return run(["scontrol", "show", "hostnames", short]).split()


def node_addresses(names: Sequence[str]) -> dict[str, str]:
    """The address or name by which Slurm reaches each node. Raises :class:`Unanswered`."""
    said = run(["scontrol", "show", "node", "-o", ",".join(names)])
    found = dict(re.findall(r"^NodeName=(\S+).*? NodeAddr=(\S+)", said, re.MULTILINE))
    return {name: found.get(name, name) for name in names}


def munge_socket() -> str:
    """The socket of munge that Slurm is configured to use; empty for munge's own choice. Raises :class:`Unanswered`.

    Raises it too where Slurm does not use munge.
    """
    told = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", run(["scontrol", "show", "config"]), re.MULTILINE))
    kind = told.get("AuthType", "auth/munge")
    if kind != "auth/munge":
        raise Unanswered(f"This Slurm does not use munge but {kind}, and only munge can carry the world's keys.")
    found = re.search(r"(?:^|,)socket=([^,]+)", told.get("AuthInfo", ""))
    return found[1] if found else ""
