"""The options of ``Session.start`` with their types, for type checkers and editors.

Made by scripts/start_options.py from the options of worlds, launchers and frameworks: change those. At run time nothing
reads this module; an option of a plug-in that is not part of this package is checked only when a world starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict


class StartOptions(TypedDict, total=False):
    """What ``Session.start`` takes beside the number of ranks; None stands for the default."""

    gpus_per_rank: int | None
    """Number of GPUs that each rank has for itself (default: each sees all of its host, and a framework that would
    take all uses one, unless the rank is alone on its host)."""

    name: str | None
    """Name of the world (default: world, then world-2, and so on)."""

    profile: str | None
    """Profile of dtrain.toml, beside the notebook or in Jupyter's configuration folder, whose options apply where
    no others are given (default: none)."""

    env: Mapping[str, str] | None
    """Environment variables for the ranks (default: none)."""

    mpiexec: str | os.PathLike[str] | None
    """Path of the mpiexec to use (default: this environment's own)."""

    tensorboard: str | os.PathLike[str] | None
    """Folder for TensorBoard's event files, which get the metrics as well (default: none)."""

    track: str | None
    """Trackers that get the runs as well, such as wandb:PROJECT mlflow:http://host:5000 trackio:PROJECT; with
    ?ranks behind one, also the points of each rank, and with ?offline behind W&B's project a folder for wandb sync
    (default: what the variable JUPYTER_DTRAIN_TRACK says, else none)."""

    snapshot_every: str | None
    """Save variables between steps of cells, such as 10m model opt (default: none)."""

    auto_replace: bool | None
    """Replace ranks that die, as %distributed replace does, once no cell runs (default: no)."""

    hosts: str | Sequence[str] | Mapping[str, int] | None
    """Hosts over ssh and their ranks, as in gpu1:8,gpu2:8 (default: this machine)."""

    hostfile: str | os.PathLike[str] | None
    """File with the hosts, in Open MPI's format or one NAME:RANKS a line; `job`: those of the PBS, Grid Engine or
    LSF job in which this notebook runs (default: none)."""

    ssh_args: str | None
    """Options for ssh to the hosts, as in a shell (default: those of ~/.ssh/config)."""

    python: str | os.PathLike[str] | None
    """Path of the interpreter on the hosts (default: the path of this one)."""

    interface: str | None
    """This machine's network interface to the hosts (default: the one that leads there)."""

    slurm: bool | None
    """Run in this notebook's Slurm job, or in a new job if it has none (default: not in Slurm)."""

    nodes: int | None
    """Number of nodes (default: 1; in a job, all of its nodes)."""

    ntasks_per_node: int | None
    """Ranks on each node (default: one per GPU of a node, or per --gpus-per-task of them, else as -n needs, else
    1)."""

    partition: str | None
    """Slurm's partition (default: the cluster's)."""

    account: str | None
    """The account that Slurm charges (default: yours)."""

    time: str | int | None
    """Time limit of the job, as in 90 (minutes), 2:00:00 or 1-0 (default: the partition's)."""

    gres: str | None
    """Generic resources on each node, as in gpu:8 (default: none)."""

    gpus_per_node: str | int | None
    """GPUs of each node, as in 8 or a100:8 (default: those of --gres)."""

    gpus_per_task: str | int | None
    """GPUs that the job has for each rank, as in 2 or a100:2 (default: Slurm's)."""

    cpus_per_task: int | None
    """Processors that the job has for each rank, which sets its threads (default: Slurm's)."""

    mem: str | int | None
    """Memory of each node, as in 64G, or 0 for all of it (default: the partition's)."""

    qos: str | None
    """Slurm's QOS (default: yours)."""

    sbatch: str | None
    """More options for sbatch, as in "--exclusive --constraint=a100" (default: none)."""

    chief: bool | None
    """Make rank 0 TensorFlow's chief, which gives work to the others (default: no chief)."""

    ps: int | None
    """Make the last N ranks TensorFlow's parameter servers, which need a chief (default: 0)."""

    torch_backend: Literal["auto", "nccl", "gloo"] | None
    """Backend for init_process_group() in cells that name none (default: auto, which is nccl with a GPU per rank,
    else gloo)."""
