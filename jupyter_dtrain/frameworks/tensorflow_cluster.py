"""TensorFlow's cluster in one rank: ``TF_CONFIG``, from which every strategy of several processes learns of the others.

Each rank takes a port before user code and keeps it: bound and not listening, so that no other process is given it and
TensorFlow's own server, which shares, can listen there whenever the first strategy asks for one. Ranks tell each other
their addresses in the exchange of the world's start; on one host they meet on loopback.

Under failure: a rank that finds no port gives no address, and then no rank has a ``TF_CONFIG`` of ours. What the user
has set himself stays as it is.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Final

from ..variables import Variable
from . import Framework

if TYPE_CHECKING:
    from ..launch.request import RankSpec
    from ..world import Placement

TF_CONFIG: Final = "TF_CONFIG"
LOOPBACK: Final = "127.0.0.1"
WORKER: Final = "worker"
"""TensorFlow's role of ranks that are alike."""


class TensorFlowCluster(Framework):
    """TensorFlow's view of the world, in one rank."""

    name = "tensorflow_cluster"

    def __init__(self) -> None:
        self._port: socket.socket | None = None
        """Holds the port of this rank until the process ends."""
        self._addresses: list[str] = []

    def introduce(self) -> str:
        """``host:port``, where TensorFlow's server of this rank will be; empty where no port is free."""
        try:
            self._port = hold_port()
        except OSError:
            return ""
        return f"{socket.gethostname()}:{self._port.getsockname()[1]}"

    def meet(self, introductions: list[str]) -> None:
        """The addresses of all ranks."""
        self._addresses = introductions

    def environment(self, place: Placement, spec: RankSpec) -> dict[str, Variable]:
        """``TF_CONFIG``: all ranks are workers, but for those that have another role."""
        if not all(self._addresses):
            return {}
        addresses = self._addresses if place.nodes > 1 else [on_loopback(address) for address in self._addresses]
        config = cluster_config(addresses, spec.roles, place.rank)
        return {TF_CONFIG: Variable(json.dumps(config), "TensorFlow's name for the ranks: its strategies span them")}


def hold_port() -> socket.socket:
    """A socket on a free port of all addresses, kept for a server that sets ``SO_REUSEADDR``, as gRPC does."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
    except OSError:
        held.close()
        raise
    return held


def on_loopback(address: str) -> str:
    """The same port, as it is reached from this host."""
    return f"{LOOPBACK}:{address.rpartition(':')[2]}"


def cluster_config(addresses: list[str], roles: list[str], rank: int) -> dict[str, object]:
    """What ``TF_CONFIG`` says to ``rank``. ``roles``: by rank; empty for workers only.

    TensorFlow counts the tasks of each role from 0, here in the order of the ranks.
    """
    roles = roles or [WORKER] * len(addresses)
    cluster: dict[str, list[str]] = {}
    for role, address in zip(roles, addresses, strict=True):
        cluster.setdefault(role, []).append(address)
    return {"cluster": cluster, "task": {"type": roles[rank], "index": roles[:rank].count(roles[rank])}}
