"""PBS, Grid Engine and LSF as their own commands show them: what submits a job, how it is, and on which hosts.

ipyparallel's launchers know the commands that submit and delete a job, the form of its number and the form of a script
(:class:`ipyparallel.cluster.launcher.BatchSystemLauncher`). They cannot tell how a job is, so this module asks.

Sources: the manuals of qstat (OpenPBS 23, Torque 6), qstat (Grid Engine 8.1) and bjobs (LSF 10).

Under failure: :func:`run` raises :class:`Unanswered` with the scheduler's words, after :data:`PATIENCE` seconds at
most. A job that a scheduler no longer knows is over.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

import msgspec

from jupyter_dtrain.core.errors import DtrainError

PATIENCE: Final = 30.0
"""Seconds that a scheduler may take for an answer."""


class Unanswered(DtrainError):
    """A scheduler has refused a question, or given no answer."""


class Job(msgspec.Struct, frozen=True):
    """A job as its scheduler shows it."""

    state: str
    """``waits``, ``runs`` or ``over``."""
    hosts: dict[str, int] = {}
    """The slots of each host, in order, once it runs."""
    reason: str = ""
    """Why it waits or has ended, in the scheduler's words; without a full stop."""
    ends: float = 0.0
    """When its time is over, in seconds since the epoch; 0 where the scheduler does not say."""


class Scheduler(NamedTuple):
    """One kind of scheduler."""

    title: str
    launcher: str
    """The name of ipyparallel's launcher."""
    header: str
    """The lines of a script that are for the scheduler; ``{name}`` stands for the job's name."""
    ask: Callable[[str], Job]
    """How the job of this number is. Raises :class:`Unanswered`."""
    slots: Callable[[], dict[str, int]]
    """The slots of each host of the job in which this process runs; empty outside of one."""
    example: str
    """Options that ask for two hosts with eight slots."""


def run(command: Sequence[str], stdin: bytes = b"") -> str:
    """Run a command, and return its output. Raises :class:`Unanswered` with its words."""
    try:
        ended = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE, check=False)
    except FileNotFoundError:
        raise Unanswered(f"This machine has no {command[0]}.") from None
    except OSError as error:
        raise Unanswered(f"{command[0]} cannot be run: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{command[0]} has given no answer for {PATIENCE:g} s.") from None
    if ended.returncode:
        words = " ".join(ended.stderr.decode(errors="replace").split())
        raise Unanswered(words or f"{command[0]} has ended with {ended.returncode}.")
    return ended.stdout.decode(errors="replace")


def ask_pbs(job: str) -> Job:
    """By ``qstat -f``, whose long lines go on after a tab."""
    try:
        said = run(["qstat", "-f", job])
    except Unanswered as error:
        if re.search(r"unknown job id|has finished|has moved", str(error), re.IGNORECASE):
            return Job("over", reason="PBS no longer knows it")
        raise
    facts = dict(line.strip().split(" = ", 1) for line in re.sub(r"\n\t", "", said).splitlines() if " = " in line)
    state = facts.get("job_state", "")
    if state in ("Q", "H", "W", "T", "S"):
        return Job("waits", reason=facts.get("comment", "").rstrip("."))
    if state not in ("R", "B", "U"):
        return Job("over", reason=facts.get("comment", "").rstrip(".") or "its script has ended")
    hosts: Counter[str] = Counter()
    for part in facts.get("exec_host", "").split("+"):
        # OpenPBS: gpu1/0*8; Torque: gpu1/0 for each slot, or gpu1/0-7.
        found = re.fullmatch(r"([^/]+)/(\d+)(?:-(\d+))?(?:\*(\d+))?", part.strip())
        if found:
            host, first, last, times = found.groups()
            hosts[host] += int(times) if times else int(last or first) - int(first) + 1
    limit, used = (_seconds(facts.get(f"{name}.walltime", "")) for name in ("Resource_List", "resources_used"))
    return Job("runs", dict(hosts), ends=time.time() + limit - used if limit else 0.0)


def ask_sge(job: str) -> Job:
    """By ``qstat -g t -xml``, which has an entry for each slot of a parallel job."""
    try:
        root = ET.fromstring(run(["qstat", "-g", "t", "-xml", "-u", "*"]))  # noqa: S314 — the scheduler's own words
    except ET.ParseError as error:
        raise Unanswered(f"qstat has printed no XML: {error}.") from None
    entries = [one for one in root.iter("job_list") if one.findtext("JB_job_number") == job]
    if not entries:
        return Job("over", reason="Grid Engine no longer knows it")
    if any("E" in one.findtext("state", "") for one in entries):
        return Job("over", reason="it is in error: `qstat -j` says why")
    placed = [one for one in entries if "@" in one.findtext("queue_name", "")]
    if not placed:
        return Job("waits", reason="")
    slaves = [one for one in placed if one.findtext("master", "").strip() == "SLAVE"]
    hosts: Counter[str] = Counter()
    for one in slaves or placed:
        hosts[one.findtext("queue_name", "").partition("@")[2]] += int(one.findtext("slots", "1"))
    return Job("runs", dict(hosts))


def ask_lsf(job: str) -> Job:
    """By ``bjobs -o``."""
    fields = "stat exec_host time_left pend_reason exit_reason delimiter='^'"
    try:
        said = run(["bjobs", "-noheader", "-o", fields, job])
    except Unanswered as error:
        if "is not found" in str(error):
            return Job("over", reason="LSF no longer knows it")
        raise
    state, where, left, pending, ended = (
        ("" if word.strip() == "-" else word.strip()) for word in (said.strip().split("^") + [""] * 5)[:5]
    )
    if state in ("PEND", "PSUSP", "WAIT", "PROV", ""):
        return Job("waits", reason=pending.rstrip(".;"))
    if state not in ("RUN", "USUSP", "SSUSP", "UNKWN"):
        return Job("over", reason=ended.rstrip(".") or f"its state is {state}")
    hosts: Counter[str] = Counter()
    for part in where.split(":"):
        times, star, host = part.partition("*")
        if part:
            hosts[host if star else times] += int(times) if star else 1
    hours = re.match(r"(\d+):(\d+)", left)
    return Job("runs", dict(hosts), ends=time.time() + 60 * (60 * int(hours[1]) + int(hours[2])) if hours else 0.0)


def _seconds(clock: str) -> int:
    """``36:00:00`` in seconds; 0 for anything else."""
    found = re.fullmatch(r"(\d+):(\d\d):(\d\d)", clock.strip())
    return 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3]) if found else 0


def _slots_pbs() -> dict[str, int]:
    """PBS_NODEFILE names a file with a line for each slot."""
    return dict(Counter(_lines("PBS_NODEFILE")))


def _slots_sge() -> dict[str, int]:
    """PE_HOSTFILE names a file with lines of host, slots, queue and processors."""
    words = [line.split() for line in _lines("PE_HOSTFILE")]
    return {host: int(slots) for host, slots, *_ in words}


def _slots_lsf() -> dict[str, int]:
    """LSB_MCPU_HOSTS has hosts and slots in turn."""
    words = os.environ.get("LSB_MCPU_HOSTS", "").split()
    return {host: int(slots) for host, slots in zip(words[::2], words[1::2], strict=False)}


def _lines(variable: str) -> list[str]:
    try:
        with open(os.environ[variable]) as file:
            return [line.strip() for line in file if line.strip()]
    except (KeyError, OSError):
        return []


SCHEDULERS: Final = {
    "pbs": Scheduler(
        "PBS",
        "PBSLauncher",
        "#PBS -N {name}\n#PBS -j oe\n#PBS -o /dev/null\n#PBS -r n",
        ask_pbs,
        _slots_pbs,
        "-l select=2:ncpus=8:mpiprocs=8 -l walltime=1:00:00",
    ),
    "sge": Scheduler(
        "Grid Engine",
        "SGELauncher",
        "#$ -N {name}\n#$ -S /bin/sh\n#$ -j y\n#$ -o /dev/null\n#$ -r n",
        ask_sge,
        _slots_sge,
        "-pe mpi 16 -l h_rt=1:00:00",
    ),
    "lsf": Scheduler(
        "LSF",
        "LSFLauncher",
        "#BSUB -J {name}\n#BSUB -o /dev/null\n#BSUB -rn",
        ask_lsf,
        _slots_lsf,
        '-n 16 -R "span[ptile=8]" -W 60',
    ),
}
"""All kinds, by the value of the option."""
