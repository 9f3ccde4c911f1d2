"""Worlds on the hosts of a :class:`~tests.hosts.network.Network`, and the search for what they leave there."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import psutil

from jupyter_dtrain import Session, Settings
from tests.hosts.network import Network

PATIENCE: Final = 30.0
SETTINGS: Final = Settings(start_timeout=60)


def start(network: Network, hosts: str = "gpu1:2,gpu2:2", **options: Any) -> Session:
    """A world on these hosts."""
    return Session.start(hosts=hosts, ssh_args=f"-F {network.ssh_config}", settings=SETTINGS, **options)


def options_on(network: Network | None) -> dict[str, Any]:
    """The start options of worlds of any size on two hosts, or with ``None`` here; few ranks are on both hosts."""
    return {} if network is None else {"hosts": "gpu1:2,gpu2:62", "ssh_args": f"-F {network.ssh_config}"}


def process_at(network: Network | None, session: Session, number: int, pid: int | None = None) -> psutil.Process:
    """The process that has this id where the rank is, by default the rank's own; with ``None`` for hosts, here."""
    rank = session.world.ranks[number]
    pid = rank.pid if pid is None else pid
    return psutil.Process(pid if network is None else network[rank.host].pid_here(pid))


def left(network: Network) -> list[str]:
    """All that is left on the hosts: processes, and files among the temporary ones and in memory."""
    found = []
    for host in network.hosts:
        found += [f"{host.name}: process {pid}" for pid in host.processes()]
        found += [f"{host.name}: {name}" for name in host.temporary_files()]
    return found


def values(run: Any) -> dict[int, Any]:
    """The value of the last expression, by rank."""
    return {rank: eval(result.data["text/plain"]) for rank, result in run.results.items()}


def controllers(world: str) -> list[psutil.Process]:
    """The controllers of worlds with this name, on this machine."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if any("launch.controller" in word for word in words) and any(f"/{world}-" in word for word in words):
                found.append(process)
    return found
