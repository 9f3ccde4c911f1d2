"""Targets that run where this machine's files are: the script alone, torchrun, mpirun and Slurm.

Their launch files take the notebook's Python, unless ``PYTHON`` names another, and pass their arguments on to the
script. They give the job the environment that they are started with, so ``JUPYTER_DTRAIN_STORE`` reaches it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest

from .job import GPUS_OF_NODE, Job, Made, Setting, Target, gpus_of_node, number
from .notebook import listed
from .script import torchrun_line

HERE: Final = 'here="$(cd "$(dirname "$0")" && pwd)"'
"""The line after which ``$here`` is the folder of the launch file."""


def program(job: Job, words: str, *lines: str, options: Iterable[str] = ()) -> str:
    """A launch file of ``lines``. ``words`` name the launcher, which reads its ``options`` at the very beginning."""
    # An export has the names of what --env gave the world, never values.
    checks = [f': "${{{name}?Set {name}: an export has names of variables, never values}}"' for name in job.world.env]
    heading = [f"# {words}: {job.world.words}. Exported by jupyter-dtrain.", "set -euo pipefail"]
    return "\n".join(["#!/usr/bin/env bash", *options, *heading, *checks, *lines]) + "\n"


def this_python() -> str:
    """The Python of the notebook, unless ``PYTHON`` names another, as a word of a shell."""
    return f'"${{PYTHON:-{shlex.quote(sys.executable)}}}"'


def make_script(job: Job) -> Made:
    """The script alone."""
    if job.path.suffix != ".py":
        raise BadRequest(f"A script needs a name that ends with .py: {job.path.with_suffix('.py')}.")
    line = f"Run the line on each of the {job.world.nodes} nodes, with the name of one of them as FIRST_NODE."
    notes = (line,) if job.world.nodes > 1 else ()
    return Made({}, torchrun_line(job.world, job.command), notes)


def make_torchrun(job: Job) -> Made:
    """A line for torchrun, on one node or on each of several."""
    world = job.world
    words = [f"exec {this_python()} -m torch.distributed.run"]
    notes: tuple[str, ...] = ()
    if world.nodes == 1:
        words.append(f"--standalone --nproc-per-node {world.per_node}")
    else:
        words.append(
            f'--nnodes {world.nodes} --nproc-per-node {world.per_node} --rdzv-id "${{JOB_ID:-{job.label}}}" '
            f'--rdzv-backend c10d --rdzv-endpoint "${{MASTER_ADDR?Set MASTER_ADDR to one of the nodes}}:'
            f'${{MASTER_PORT:-29400}}"'
        )
        notes = (f"Run the same line on each of the {world.nodes} nodes, with MASTER_ADDR set to one of them.",)
    words.append(f'"$here/{job.script_name}" "$@"')
    text = program(job, "torchrun", HERE, " \\\n  ".join(words))
    return Made({job.path.name: text}, job.command, notes)


def make_mpi(job: Job) -> Made:
    """A line for Open MPI's mpirun."""
    world = job.world
    names = [*world.env, "JUPYTER_DTRAIN_STORE"]
    words = [f'exec "${{MPIRUN:-mpirun}}" -n {world.ranks}', "$binding"]
    passing: list[str] = []
    if world.nodes > 1:
        words.append(f'--host "${{HOSTS?Set HOSTS, such as node1:{world.per_node},node2:{world.per_node}}}"')
        words.append('"${passed[@]}"')
        listed = " ".join(names)
        passing = [
            "# Open MPI gives other nodes only the variables that it is told to.",
            "passed=()",
            f'for name in {listed}; do [ -z "${{!name+set}}" ] || passed+=(-x "$name"); done',
        ]
    words.append(f'{this_python()} "$here/{job.script_name}" "$@"')
    binding = [
        "# Each rank may use all processors of its node: frameworks have threads of their own.",
        'binding="--bind-to none"',
    ]
    text = program(job, "mpirun", HERE, *binding, *passing, " \\\n  ".join(words))
    notes = (f"Set HOSTS to the {world.nodes} nodes first.",) if world.nodes > 1 else ()
    return Made({job.path.name: text}, job.command, notes)


def make_slurm(job: Job) -> Made:
    """A batch script for sbatch, whose one step has a task for each rank."""
    world, settings = job.world, job.settings
    options = [
        f"--job-name={job.label}",
        f"--nodes={world.nodes}",
        f"--ntasks-per-node={world.per_node}",
        f"--time={settings['time']}",
        "--output=%x-%j.out",
    ]
    if settings["cpus_per_task"]:
        options.insert(3, f"--cpus-per-task={number(job, 'cpus_per_task')}")
    asked = dict(settings)
    notes: list[str] = []
    if not any(settings[one] for one in ("gpus_per_node", "gpus_per_task", "gres")) and not _GPUS.search(
        settings["sbatch"]
    ):
        asked["gpus_per_node"], notes = gpus_of_node(job)
    if asked["gpus_per_node"] == "0":
        asked["gpus_per_node"] = ""
    options += [f"{one.flag}={asked[one.name]}" for one in _AS_SBATCH if asked[one.name]]
    options += [settings["sbatch"]] if settings["sbatch"] else []  # sbatch reads several options, and quotes, in a line
    folder = job.path.parent.absolute()
    lines = [
        "# The ranks find each other on the first node, at a port that belongs to this job.",
        'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        'export MASTER_PORT="$((20000 + SLURM_JOB_ID % 12000))"',
        "# The ranks of a node share the CPUs that the job has there; srun by itself may give each of them one.",
        'least="$(tr , \'\\n\' <<< "$SLURM_JOB_CPUS_PER_NODE" | sort -n | head -n 1)"',
        'least="${least%%(*}"',
        f'cpus="${{SLURM_CPUS_PER_TASK:-$((least / {world.per_node}))}}"',
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$cpus}"',
        f'exec srun --kill-on-bad-exit=1 --cpus-per-task="$cpus" {this_python()} \\',
        f'  "${{JOB_FOLDER:-{folder}}}/{job.script_name}" "$@"',
    ]
    notes += [
        *_left_to_slurm(settings),
        "The nodes must see the script and the Python environment under the same paths.",
    ]
    text = program(job, "Slurm", *lines, options=[f"#SBATCH {option}" for option in options])
    return Made({job.path.name: text}, f"sbatch {job.command}", tuple(notes))


_GPUS: Final = re.compile(r"(^|\s)(--gres|--gpus|-G)")
_CPUS: Final = re.compile(r"(^|\s)(--cpus-per-|-c|--exclusive)")
_MEMORY: Final = re.compile(r"(^|\s)--mem")


def _left_to_slurm(settings: Mapping[str, str]) -> list[str]:
    """A sentence about what the job asks Slurm for no number of."""
    found = []
    if not settings["cpus_per_task"] and not _CPUS.search(settings["sbatch"]):
        found.append("CPUs (often 1 for each rank: --cpus-per-task 8 asks for 8)")
    if not settings["mem"] and not _MEMORY.search(settings["sbatch"]):
        found.append("memory (--mem 64G asks for 64 GB on each node)")
    return [f"Slurm's defaults decide about {listed(found)}."] if found else []


_AS_SBATCH: Final = (
    Setting("partition", "", "partition (default: Slurm's own)", "partition"),
    Setting("account", "", "account (default: yours)", "account"),
    Setting("qos", "", "quality of service (default: Slurm's own)", "qos"),
    Setting("mem", "", "memory of each node, such as 64G (default: Slurm's own)", "mem"),
    msgspec.structs.replace(GPUS_OF_NODE, asked="gpus_per_node"),
    Setting("gpus_per_task", "", "GPUs of each rank, such as 2 or a100:2 (default: Slurm's own)", "gpus_per_task"),
    Setting("gres", "", "other resources of each node, such as gpu:a100:8", "gres"),
)
"""The settings that are an option of sbatch, with its name."""

TARGETS = (
    Target("script", "one Python file, for torchrun, mpirun or alone", ".py", make_script),
    Target("torchrun", "the script, and a line for torchrun", ".sh", make_torchrun),
    Target("mpi", "the script, and a line for mpirun", ".sh", make_mpi),
    Target(
        "slurm",
        "the script, and a batch script for sbatch",
        ".sbatch",
        make_slurm,
        (
            Setting("time", "01:00:00", "the longest time that the job may take", "time"),
            Setting(
                "cpus_per_task",
                "",
                "CPUs of each rank, for its threads and DataLoader workers (default: the start's, else Slurm's)",
                "cpus_per_task",
                formerly="cpus",
            ),
            *_AS_SBATCH,
            Setting("sbatch", "", "further options of sbatch, in quotes, such as '--exclusive'", "sbatch"),
        ),
    ),
)
