"""The start options of a world in Slurm, and where they put its ranks.

Under failure: :func:`place` raises :class:`~jupyter_dtrain.core.errors.BadRequest` or
:class:`~jupyter_dtrain.core.errors.StartFailed` with the fix. It asks Slurm only where this process is in a job.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from jupyter_dtrain.core.errors import BadRequest, StartFailed
from jupyter_dtrain.core.world import MAX_RANKS, quantity
from jupyter_dtrain.wire.requests import ADDRESS, MAIN, Check, WorldOptions

from ..launcher import WorldPlan
from ..local import share
from . import queue

TOOLS: Final = ("sbatch", "srun", "scontrol", "scancel", "munge")

RESOURCES: Final = (
    "partition",
    "account",
    "qos",
    "time",
    "gres",
    "gpus_per_node",
    "gpus_per_task",
    "cpus_per_task",
    "mem",
)
"""The options that only a new job can have, and that sbatch has under the same names."""
_NOTHING: Final = "That submits nothing."
_NAMED: Final = "The job's name has the world's id in it."
_OURS: Final = {
    "-N": "Give nodes with -N.",
    "--nodes": "Give nodes with -N.",
    "--ntasks-per-node": "Give --ntasks-per-node beside --slurm.",
    "-n": "Give ranks with -n.",
    "--ntasks": "Give ranks with -n.",
    "-J": _NAMED,
    "--job-name": _NAMED,
    "-a": "A world is one job.",
    "--array": "A world is one job.",
    "--wrap": "The job's script is the world's own.",
    "--requeue": "A job that starts again has no ranks.",
    "--test-only": _NOTHING,
    "-W": "The start waits for the job already.",
    "--wait": "The start waits for the job already.",
    "-h": _NOTHING,
    "--help": _NOTHING,
    "--usage": _NOTHING,
    "-V": _NOTHING,
    "--version": _NOTHING,
    "-M": "The world's job belongs to the cluster of this machine.",
    "--clusters": "The world's job belongs to the cluster of this machine.",
    "--export": "The ranks get the variables of this notebook, encrypted.",
}
"""The options of sbatch that --sbatch may not have, and why."""


_SHORT: Final = {"cpus_per_task": ("-c",)}
"""The short names that sbatch has for options."""


def _check_sbatch(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadRequest(f"The options for sbatch, {text!r}, cannot be split: {error}.", option="sbatch") from None
    if words and not words[0].startswith("-"):
        raise BadRequest(f"{words[0]!r} is no option of sbatch; a script has no place here.", option="sbatch")
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if why := _OURS.get(name):
            raise BadRequest(f"The options for sbatch may not have {name}. {why}", option="sbatch")
    return text


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The start options of worlds in Slurm."""

    slurm: Annotated[
        bool,
        Meta(
            title="In Slurm",
            description="run in this notebook's Slurm job, or in a new job if it has none (default: not in Slurm)",
            extra_json_schema=MAIN,
        ),
    ] = False
    nodes: (
        Annotated[
            int,
            Meta(
                title="Nodes",
                description="number of nodes (default: 1; in a job, all of its nodes)",
                ge=1,
                le=MAX_RANKS,
                extra_json_schema={"short": "-N"} | MAIN,
            ),
        ]
        | None
    ) = None
    ntasks_per_node: (
        Annotated[
            int,
            Meta(
                title="Ranks per node",
                description="ranks on each node (default: one per GPU of a node, or per --gpus-per-task of them, else "
                "as -n needs, else 1)",
                ge=1,
                le=MAX_RANKS,
                extra_json_schema=MAIN,
            ),
        ]
        | None
    ) = None
    partition: Annotated[
        str | None, Meta(title="Partition", description="Slurm's partition (default: the cluster's)")
    ] = None
    account: Annotated[
        str | None, Meta(title="Account", description="the account that Slurm charges (default: yours)")
    ] = None
    time: Annotated[
        str | None,
        Meta(
            title="Time limit",
            description="time limit of the job, as in 90 (minutes), 2:00:00 or 1-0 (default: the partition's)",
            extra_json_schema={"metavar": "TIME", "number": True},
        ),
    ] = None
    gres: Annotated[
        str | None,
        Meta(
            title="GPUs and other resources",
            description="generic resources on each node, as in gpu:8 (default: none)",
            extra_json_schema={"metavar": "LIST"},
        ),
    ] = None
    gpus_per_node: Annotated[
        str | None,
        Meta(
            title="GPUs per node",
            description="GPUs of each node, as in 8 or a100:8 (default: those of --gres)",
            extra_json_schema={"metavar": "[TYPE:]N", "number": True},
        ),
    ] = None
    gpus_per_task: Annotated[
        str | None,
        Meta(
            title="GPUs per task",
            description="GPUs that the job has for each rank, as in 2 or a100:2 (default: Slurm's)",
            extra_json_schema={"metavar": "[TYPE:]N", "number": True},
        ),
    ] = None
    cpus_per_task: (
        Annotated[
            int,
            Meta(
                title="CPUs per rank",
                description="processors that the job has for each rank, which sets its threads (default: Slurm's)",
                ge=1,
            ),
        ]
        | None
    ) = None
    mem: Annotated[
        str | None,
        Meta(
            title="Memory per node",
            description="memory of each node, as in 64G, or 0 for all of it (default: the partition's)",
            extra_json_schema={"metavar": "SIZE", "number": True},
        ),
    ] = None
    qos: Annotated[str | None, Meta(title="Quality of service", description="Slurm's QOS (default: yours)")] = None
    sbatch: Annotated[
        str | None,
        Meta(
            title="More options for sbatch",
            description='more options for sbatch, as in "--exclusive --constraint=a100" (default: none)',
            extra_json_schema={"metavar": "ARGS"},
        ),
        Check(_check_sbatch),
    ] = None

    @property
    def more(self) -> list[str]:
        """The words of ``sbatch``."""
        return shlex.split(self.sbatch or "")

    def wanted(self, n: int | None = None) -> tuple[int, int]:
        """The nodes and the ranks on each that a new job has, for ``n`` ranks; None stands for all of them."""
        nodes = self.nodes or 1
        return nodes, self.ntasks_per_node or self._tasks_by_gpus() or -(-(n or nodes) // nodes)

    @property
    def gpus(self) -> int:
        """The GPUs of each node that the options ask for; 0 where they ask for none."""
        gres = re.findall(r"(?:^|,)(?:gres[:/])?gpu(?::[^,:=]+)?[:=](\d+)", self._said("gres") or "")
        return sum(map(int, gres)) or _gpus(self._said("gpus_per_node"))

    def _tasks_by_gpus(self) -> int:
        """The ranks that have a node's GPUs; 0 where the options ask for no GPUs of a node. Raises `BadRequest`."""
        gpus = self.gpus
        each = _gpus(self._said("gpus_per_task")) or 1
        if 0 < gpus < each:
            raise BadRequest(
                f"--gpus-per-task {each} gives a rank more GPUs than the {gpus} of a node: ask for at most {gpus}.",
                option="gpus_per_task",
            )
        return gpus // each

    @property
    def processors(self) -> int:
        """The processors of each rank; 0 where the options ask for no number."""
        said = self._said("cpus_per_task") or ""
        return int(said) if said.isdecimal() else 0

    def _said(self, option: str) -> str | None:
        """What sbatch is told of ``option``: the last of several counts, and those of ``sbatch`` come last."""
        words, value = self.more, getattr(self, option)
        found = None if value is None else str(value)
        names = (flag_words(option), *_SHORT.get(option, ()))
        for place, word in enumerate(words):
            for name in names:
                if word == name and place + 1 < len(words):
                    found = words[place + 1]
                elif word.startswith(f"{name}=" if name.startswith("--") else name) and word != name:
                    found = word[len(name) :].lstrip("=")
        return found


def share_gpus(world: WorldOptions, options: SlurmOptions) -> tuple[WorldOptions, SlurmOptions]:
    """The options with the ranks of each node that follow from the GPUs of each rank.

    Where no GPUs of a node are asked for, as in a job that runs already, the nodes say later whether they have enough.
    Raises :class:`BadRequest`.
    """
    each = world.gpus_per_rank
    if not each:
        return world, options
    if options.gpus_per_task is not None and _gpus(options.gpus_per_task) != each:
        raise BadRequest(
            f"--gpus-per-rank {each} and --gpus-per-task {options.gpus_per_task} give a rank different numbers of "
            "GPUs: leave one of them out.",
            option="gpus_per_task",
        )
    if not options.gpus:
        return world, options
    tasks = share(options.gpus, each, options.ntasks_per_node, "Each node of the job", "--ntasks-per-node")
    return world, msgspec.structs.replace(options, ntasks_per_node=tasks)


def flag_words(option: str) -> str:
    """``option`` as a word for sbatch."""
    return f"--{option.replace('_', '-')}"


def _gpus(text: str | None) -> int:
    """The number in ``8``, ``a100:8`` or ``a100:4,v100:4``; 0 where there is none."""
    counts = [part.rpartition(":")[2] for part in (text or "").split(",")]
    return sum(int(one) for one in counts if one.isdecimal())


def in_job(job: queue.SlurmJob, options: SlurmOptions) -> tuple[int, int]:
    """The nodes and the ranks on each that a world has in a job that runs already. Raises :class:`BadRequest`."""
    given = [name for name in (*RESOURCES, "sbatch") if getattr(options, name) is not None]
    if given:
        raise BadRequest(
            f"This notebook runs in Slurm's job {job.id}, whose nodes the world uses: "
            f"{', '.join(map(flag_words, given))} would be for "
            "a new job. Leave them out, or start the notebook outside of a job.",
            option=given[0],
        )
    nodes = options.nodes or job.count
    if nodes > job.count:
        raise BadRequest(
            f"Slurm's job {job.id} has {quantity(job.count, 'node')}, not {nodes}. Ask for at most {job.count} with "
            "-N.",
            option="nodes",
        )
    tasks = job.tasks_per_node or -(-job.tasks // max(job.count, 1)) or 1
    most = max(tasks, job.processors // max(job.count, 1))
    if (options.ntasks_per_node or 0) > most:
        raise BadRequest(
            f"Slurm's job {job.id} has room for {quantity(most, 'rank')} on a node, not for {options.ntasks_per_node}.",
            option="ntasks_per_node",
        )
    return nodes, options.ntasks_per_node or tasks


def place(n: int | None, options: SlurmOptions) -> WorldPlan:
    """The number of ranks; Slurm chooses the nodes later. Raises :class:`BadRequest` and :class:`StartFailed`."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise StartFailed(
            f"This machine has no Slurm: {', '.join(missing)} cannot be found.",
            "Start the notebook on a login node or in a job of the cluster, or load its module for Slurm; leave out "
            "--slurm to use this machine.",
            option="slurm",
        )
    if not options.slurm:
        raise BadRequest("Choose Slurm with --slurm.", option="slurm")
    if importlib.util.find_spec("cryptography") is None:
        raise StartFailed(
            "A world in Slurm seals what crosses between its nodes, for which cryptography is not installed.",
            "Install it here and on the nodes: pip install 'jupyter-dtrain[slurm]'.",
            option="slurm",
        )
    if number := queue.own_job():
        job = _own(number)
        nodes, tasks = in_job(job, options)
        where = f"Slurm's job {number} has"
        own = os.environ.get("SLURM_CPUS_PER_TASK", "") if options.ntasks_per_node is None else ""
        processors = int(own) if own.isdecimal() else 0
    else:
        nodes, tasks = options.wanted(n)
        where = "The job would have"
        processors = options.processors
    slots = nodes * tasks
    if n is not None and n > slots:
        raise BadRequest(
            f"{where} {quantity(nodes, 'node')} with {quantity(tasks, 'rank')} each, too few for "
            f"{quantity(n, 'rank')}. Ask for at most {slots} with -n, or for more with -N or --ntasks-per-node.",
            option="n",
        )
    if (n or slots) > MAX_RANKS:
        raise BadRequest(f"A world has at most {MAX_RANKS} ranks, not {n or slots}.", option="nodes")
    return WorldPlan(n or slots, {}, ADDRESS, threads=processors)


def _own(number: str) -> queue.SlurmJob:
    fix = "Start the notebook in a new job, or unset SLURM_JOB_ID for a job of the world's own."
    try:
        job = queue.ask_job(number)
    except queue.Unanswered as error:
        reason = f"This notebook runs in Slurm's job {number}, and Slurm says of it: {error}"
        raise StartFailed(reason, fix, option="slurm") from None
    if not job.runs:
        reason = f"This notebook runs in Slurm's job {number}, which is over: {job.ended}."
        raise StartFailed(reason, fix, option="slurm")
    return job
