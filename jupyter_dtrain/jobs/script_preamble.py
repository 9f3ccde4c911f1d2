"""The set-up of an exported script. Its functions go into the script as they are written here, so they stand alone.

They need Python's own library and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import zlib


def join_world() -> None:
    """Set the variables that torchrun sets, from those of the launcher that started this process; else a world of 1."""
    env = os.environ
    if "RANK" in env:
        # torchrun, or another launcher that speaks its language.
        place = [env["RANK"], env.get("WORLD_SIZE", "1"), env.get("LOCAL_RANK", "0"), env.get("LOCAL_SIZE", "")]
        local_size = env.get("LOCAL_WORLD_SIZE", place[3] or place[1])
        rank, size, local_rank = place[:3]
    elif "OMPI_COMM_WORLD_RANK" in env:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        rank, size, local_rank, local_size = (env[f"OMPI_COMM_WORLD_{name}"] for name in names)
    elif "PMI_RANK" in env and "MPI_LOCALRANKID" in env:
        rank, size = env["PMI_RANK"], env["PMI_SIZE"]
        local_rank, local_size = env["MPI_LOCALRANKID"], env["MPI_LOCALNRANKS"]
    elif "SLURM_STEP_NUM_TASKS" in env and "SLURM_PROCID" in env:
        rank, size, local_rank = env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"], env["SLURM_LOCALID"]
        groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"])
        sizes = [count for count, times in groups for _ in range(int(times or 1))]
        local_size = sizes[int(env["SLURM_NODEID"])]
    elif "TF_CONFIG" in env:
        config = json.loads(env["TF_CONFIG"])
        tasks = [(kind, index) for kind, hosts in config["cluster"].items() for index in range(len(hosts))]
        rank = str(tasks.index((config["task"]["type"], config["task"]["index"])))
        size, local_rank, local_size = str(len(tasks)), "0", "1"
    else:
        rank, size, local_rank, local_size = "0", "1", "0", "1"
    node = env.get("SLURM_NODEID") or str(int(rank) // int(local_size))
    found = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    found |= {"NODE_RANK": env.get("GROUP_RANK", node)}
    for name, value in found.items():
        env.setdefault(name, value)
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        meet_at(int(size), int(local_size))


def meet_at(size: int, local_size: int) -> None:
    """Set where ranks meet: the same place on every rank, without asking any."""
    env = os.environ
    if size == local_size:
        address = "127.0.0.1"
    elif nodes := env.get("SLURM_STEP_NODELIST"):
        # The first of n1,n2 or n[01-04,7].
        first = re.match(r"([^\[,]+)(?:\[(\w+))?", nodes)
        address = "".join(filter(None, first.groups())) if first else nodes
    elif "TF_CONFIG" in env:
        return
    else:
        try:
            from mpi4py import MPI
        except ImportError:
            sys.exit(
                "The ranks are on several nodes: set MASTER_ADDR to rank 0's node, and MASTER_PORT to a free port."
            )
        address = MPI.COMM_WORLD.bcast(socket.gethostname())
    env.setdefault("MASTER_ADDR", address)
    if size == 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            env.setdefault("MASTER_PORT", str(free.getsockname()[1]))
    # Every job has its own number, below the ports that a kernel gives away by itself.
    job = env.get("PMIX_NAMESPACE") or env.get("SLURM_JOB_ID") or str(os.getppid())
    env.setdefault("MASTER_PORT", str(20000 + zlib.crc32(job.encode()) % 12000))


def take_gpus(each: int) -> None:
    """Show this process so many GPUs of its node as its own, as --gpus-per-rank did in the notebook."""
    env = os.environ
    first = int(env["LOCAL_RANK"]) * each
    visible = env.get("CUDA_VISIBLE_DEVICES")
    found = [str(one) for one in range(first + each)] if visible is None else visible.split(",")
    if visible is not None and len(found) == each:
        return  # the launcher has given each rank its own
    if len(found) < first + each:
        sys.exit(f"CUDA_VISIBLE_DEVICES={visible} has too few GPUs: each rank takes {each}.")
    env["CUDA_VISIBLE_DEVICES"] = ",".join(found[first : first + each])


def check_variables(names: tuple[str, ...]) -> None:
    """End unless the variables are set that the notebook's world was given: an export has names, never values."""
    if missing := [name for name in names if name not in os.environ]:
        sys.exit(
            f"Set {' and '.join(missing)}: --env gave the notebook's world a value, and the export has names only."
        )


def show(value: object) -> None:
    """Print a value as a notebook shows the last one of a cell."""
    if value is not None:
        print(repr(value), flush=True)  # noqa: T201


def display(*values: object) -> None:
    """Print values: there is no notebook to display them in."""
    for value in values:
        print(value, flush=True)  # noqa: T201
