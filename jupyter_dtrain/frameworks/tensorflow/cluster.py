"""TensorFlow's cluster in one rank: ``TF_CONFIG``, where every strategy of several processes finds the others.

Each rank takes a port before user code runs, and keeps it: bound but not listening. No other process can get that
port, and TensorFlow's own server, which shares it, can listen there whenever the first strategy asks for one. Ranks
exchange their addresses when the world starts; on one host they meet on loopback.

Under failure: a rank that finds no port gives no address, and then this module sets ``TF_CONFIG`` on no rank. A value
that the user has set stays as it is.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package
from jupyter_dtrain.core.variables import Variable, given
from jupyter_dtrain.plugins.framework import Framework

from .servers import SERVING, TF_CONFIG, TensorFlowServers, hold_port, keep_here

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.rank.metrics import MetricBuffer
    from jupyter_dtrain.wire.requests import RankSpec

TESTED = "2.21"
"""The version that the tests run with."""
LOOPBACK: Final = "127.0.0.1"
WORKER: Final = "worker"
"""TensorFlow's role for ranks that are all alike."""


class TensorFlowCluster(Framework):
    """The plug-in for TensorFlow's cluster in one rank: ``TF_CONFIG`` and the server behind it."""

    name = "tensorflow_cluster"

    def __init__(self) -> None:
        self._port: socket.socket | None = None
        """Holds the port of this rank until the process ends."""
        self._addresses: list[str] = []
        self._made_for: tuple[Placement, RankSpec] | None = None
        """The place and the world for which ``TF_CONFIG`` was made."""
        self._task = (WORKER, 0)
        self._servers: TensorFlowServers | None = None
        self._serves = False
        """Whether this rank should run a server that works for a chief."""

    def introduce(self) -> str:
        """``host:port`` of this rank's future TensorFlow server; empty where no port is free."""
        try:
            self._port = hold_port()
        except OSError:
            return ""
        return f"{socket.gethostname()}:{self._port.getsockname()[1]}"

    def meet(self, introductions: list[str]) -> None:
        """Take the addresses of all ranks."""
        self._addresses = introductions

    def environment(self, place: Placement, spec: RankSpec) -> dict[str, Variable]:
        """``TF_CONFIG``: every rank is a worker unless it has another role."""
        if not all(self._addresses):
            return {}
        self._made_for = place, spec
        addresses = self._addresses
        if place.nodes == 1:
            addresses = [on_loopback(address) for address in addresses]
            keep_here(int(addresses[place.rank].rpartition(":")[2]))
        self._task = task_of(spec.roles, place.rank)
        config = json.dumps(cluster_config(addresses, spec.roles, place.rank))
        self._servers = TensorFlowServers(config, addresses)
        variables = {TF_CONFIG: Variable(config, "TensorFlow's addresses of all ranks, and the task of this rank")}
        if "ps" in spec.roles:
            variables["GRPC_FAIL_FAST"] = Variable("use_caller", "a chief gets an error for each rank that has died")
        return variables

    def prepare(self, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Wait for TensorFlow to be imported, where this rank or another has a server then."""
        self._serves = "ps" in spec.roles and self._task[0] in SERVING
        if self._servers is not None and "ps" in spec.roles:
            self._servers.install(metrics.shield)

    def rejoin(self) -> None:
        """Have ``TF_CONFIG`` name the ranks that there are now; not one that the user's code has set.

        No server runs yet: :meth:`.TensorFlow.forbids_heal`. Roles stay as they were.
        """
        if self._servers is None or self._made_for is None or self._made_for[1].roles:
            return
        if os.environ.get(TF_CONFIG) == self._servers.config:
            given.put(self.environment(*self._made_for), self.name)

    def worked(self) -> int:
        """Return how many steps workers have made for a chief's loop: the chief's main thread only waits for them."""
        return 0 if self._servers is None else self._servers.steps

    def describe(self) -> FrameworkReport:
        """The task of this rank, and whether its server runs."""
        return facts_of_package("TensorFlow's cluster", "tensorflow", TESTED, lambda _: self._details())

    def _details(self) -> dict[str, str]:
        kind, index = self._task
        details = {"task": f"{kind} {index}"}
        if self._serves:
            running = self._servers is not None and self._servers.running
            details["server"] = "listening: it works for the chief beside the cells" if running else "none"
        return details


def on_loopback(address: str) -> str:
    """Return the address of the same port on this host's loopback."""
    return f"{LOOPBACK}:{address.rpartition(':')[2]}"


def task_of(roles: list[str], rank: int) -> tuple[str, int]:
    """Type and index of the task of ``rank``. TensorFlow counts the tasks of each type from 0, here by rank."""
    return (roles[rank], roles[:rank].count(roles[rank])) if roles else (WORKER, rank)


def cluster_config(addresses: list[str], roles: list[str], rank: int) -> dict[str, object]:
    """The content of ``TF_CONFIG`` for ``rank``. ``roles``: by rank; empty for workers only."""
    cluster: dict[str, list[str]] = {}
    for role, address in zip(roles or [WORKER] * len(addresses), addresses, strict=True):
        cluster.setdefault(role, []).append(address)
    kind, index = task_of(roles, rank)
    return {"cluster": cluster, "task": {"type": kind, "index": index}}
