"""The nodes of a job of Slurm, for as long as an examination takes: of the job around this process, or of a new one.

Under failure: Slurm's reason is a :class:`~jupyter_dtrain.core.errors.StartFailed`, and then there is no job. A job of
our own is cancelled however the examination ends; where this process is killed, the job's script ends it, as no step
renews its file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.variables import values_of
from jupyter_dtrain.launch import local
from jupyter_dtrain.launch.hostlist import Host
from jupyter_dtrain.launch.networks import route, shared_network
from jupyter_dtrain.launch.programs import SIDE_BY_SIDE
from jupyter_dtrain.launch.slurm import queue
from jupyter_dtrain.launch.slurm.allocation import Held, job_name, own_job
from jupyter_dtrain.launch.slurm.options import SlurmOptions, place
from jupyter_dtrain.launch.slurm.steps import Steps, mpiexec_environment, munge_options, node_environment

from .facts import Facts
from .findings import SRUN
from .reach import MpiJob

TIME: Final = "5"
"""Minutes that a job of our own asks for: a short one starts sooner, and an examination takes less."""


class BySrun:
    """A :class:`.reach.Reach` by steps of a job."""

    cures = SRUN
    python = sys.executable

    def __init__(self, steps: Steps, nodes: Sequence[str], stopped: threading.Event | None = None) -> None:
        """Asks Slurm for the addresses of ``nodes``, and looks them up, for some seconds. Raises :class:`StartFailed`.

        ``stopped``: default one that is never set.
        """
        self.carrier = steps
        self.stopped = stopped or threading.Event()
        try:
            addresses = queue.node_addresses(nodes)
        except queue.Unanswered as error:
            raise StartFailed(f"Slurm: {error}", "See whether `scontrol show node` works in a terminal.") from None
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="route") as pool:
            self._routes = dict(zip(addresses, pool.map(route, addresses.values()), strict=True))

    def local_address(self, host: str) -> str:
        """The address of this machine on the route to the node."""
        return self._routes[host][0] or ""

    def address(self, host: str, facts: Facts) -> str:  # noqa: ARG002 — Slurm knows it
        """The address by which Slurm reaches the node."""
        return self._routes[host][1] or ""

    def mpi_job(self, hosts: Sequence[str], mpiexec: str, python: str, folder: Path) -> MpiJob:  # noqa: ARG002 — one path
        """As the ranks of a world: ``mpiexec`` finds the nodes in its environment, and starts its daemons by srun."""
        addresses = [self._routes[host][1] or "" for host in hosts]
        network = shared_network(self.local_address(hosts[0]), addresses)
        options = ["--prtemca", "prte_if_include", network, "--mca", "btl_tcp_if_include", network] if network else []
        nodes = dict.fromkeys(hosts, 1)
        return MpiJob(options, mpiexec_environment(self.carrier.job, nodes, values_of(local.ROOT_VARIABLES)))


@contextlib.contextmanager
def slurm_nodes(options: SlurmOptions, say: Callable[[str], None]) -> Iterator[tuple[list[Host], BySrun]]:
    """The nodes that a world with these ``options`` would get, with their ranks, and the way to them.

    ``say`` shows how far a job is that waits; there is no deadline for that, since a queue may take hours. An interrupt
    ends the wait. Raises :class:`~jupyter_dtrain.core.errors.BadRequest` and :class:`StartFailed`.
    """
    size = place(None, options).size
    munge = munge_options()
    inside = own_job(os.environ)
    if not inside and options.time is None:
        options = msgspec.structs.replace(options, time=TIME)
    name = job_name(f"doctor-{secrets.token_hex(4)}")
    # Every node has this folder; this machine's folder for temporary files may be another one.
    beat = f"/tmp/{name}.beat"  # noqa: S108 — the job's script makes it, with a name that nobody can guess
    held = Held(options, size, name, beat, inside)
    try:
        held.get(say, threading.Event())
        steps = Steps(held.job.id, munge, "dtrain-doctor", node_environment(), os.getcwd(), beat)  # noqa: PTH109
        yield [Host(node, ranks) for node, ranks in held.hosts.items()], BySrun(steps, list(held.hosts))
    finally:
        held.give_back()
