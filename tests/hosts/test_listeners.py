"""The ports that a world on hosts opens, there and here, held against the security page."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator

import psutil
import pytest

from jupyter_dtrain import Session
from tests.frameworks.test_jax import BEGIN, SUM, UP
from tests.frameworks.test_torch_rpc import CALL, DEFINE, INIT
from tests.hosts.launching import left, start
from tests.hosts.network import Host, Network
from tests.steward.until import family, until

pytestmark = pytest.mark.slow

TRAINING = 120.0
"""Seconds that a cell may take which imports a framework."""
ANYWHERE = {"0.0.0.0", "::"}  # noqa: S104 — what Open MPI binds to
LOOPBACK = "127.0.0.1"
HERE = "(here)"
"""Stands for the address of this machine to which the hosts come, and on a host for its own one on that network."""
LISTENERS = {
    # Where ranks meet; encrypted channels, and two ports between the controller's own parts; MPI's daemons call back.
    "steward": {HERE},
    "controller": {HERE, LOOPBACK},
    "prterun": ANYWHERE | {LOOPBACK},
    # Open MPI's transport (btl/tcp), before any cell.
    "rank": ANYWHERE,
    "prted": ANYWHERE | {LOOPBACK},
}
"""The addresses at which processes of a world that has run no cell listen; all others listen at none."""
CELLS = {
    "torch": "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))",
    "rpc": f"{DEFINE}{INIT}{CALL}",
    "jax": f"{BEGIN}{UP}{SUM}",
    "tensorflow": "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    "add = tf.function(lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce('SUM', 1.0)))\n"
    "float(add())",
}
OPENED = {
    "torch": {"rank": {HERE}, "store": {HERE}},
    "rpc": {"rank": {HERE}},
    "jax": {"rank": {HERE}, "jax": {HERE}},
    "tensorflow": {"rank": {"::"}},
}
"""The addresses at which processes listen in addition, once a cell has used the framework."""
LOOK = """
import json, psutil
found = []
for one in psutil.net_connections("inet"):
    if one.status == "LISTEN":
        process = psutil.Process(one.pid)
        found.append([process.name(), " ".join(process.cmdline()), one.laddr.ip, one.laddr.port])
print(json.dumps(found))
"""
"""A program that prints the TCP listeners of a host; a socket that several processes have is one listener."""

Listeners = dict[str, set[tuple[str, int]]]
"""By the role of a process: the addresses and ports at which it listens."""


@pytest.fixture(scope="module")
def world(network: Network) -> Iterator[Session]:
    """One rank on each host. A host's name leads to its loopback there, as on Debian and Ubuntu."""
    for host in network.hosts:
        others = [f"{other.address} {other.name}" for other in network.hosts if other is not host]
        host.replace("/etc/hosts", "\n".join(["127.0.0.1 localhost", f"127.0.1.1 {host.name}", *others, ""]))
    session = start(network, "gpu1:1,gpu2:1", env={"JAX_PLATFORMS": "cpu"})
    yield session
    session.stop()
    until(lambda: [line for line in left(network) if "process" in line] == [])


def on_host(host: Host, address: str) -> Listeners:
    """The listeners of a host, but for its sshd; the host's address on the network is :data:`HERE`."""
    said = host.run([sys.executable, "-c", LOOK], capture_output=True).stdout
    found: Listeners = {}
    for name, line, ip, port in json.loads(said):
        if not name.startswith("sshd"):
            role = name if name == "prted" else "rank" if "watch.watch" in line else line
            found.setdefault(role, set()).add((_named(ip, address), port))
    return found


def on_this_machine(session: Session, address: str) -> Listeners:
    """The listeners of the world here."""
    parts = {"steward.__main__": "steward", "launch.controller": "controller", "torch.store": "store"}
    parts |= {"jax.coordinator": "jax"}
    found: Listeners = {}
    for process in family(session):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            role = next((role for part, role in parts.items() if part in line), process.name())
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    found.setdefault(role, set()).add((_named(one.laddr.ip, address), one.laddr.port))
    return found


def _named(ip: str, own: str) -> str:
    return HERE if ip.removeprefix("::ffff:") == own else ip  # a socket of IPv6 may have an address of IPv4


def look(session: Session, network: Network) -> dict[str, Listeners]:
    """The listeners of all machines of a world."""
    found = {host.name: on_host(host, host.address) for host in network.hosts}
    return found | {"this machine": on_this_machine(session, network.address)}


def addresses(found: Listeners) -> dict[str, set[str]]:
    """Without the ports."""
    return {role: {ip for ip, _ in places} for role, places in found.items() if places}


def test_a_world_listens_where_the_page_says(world: Session, network: Network) -> None:
    """Before any cell. A rank listens as MPI does; its watch and its slot's holder listen nowhere."""
    found = look(world, network)

    for name, listeners in found.items():
        expected = ("steward", "controller", "prterun") if name == "this machine" else ("rank", "prted")
        assert addresses(listeners) == {role: LISTENERS[role] for role in expected}, name


@pytest.mark.parametrize("framework", CELLS)
def test_a_framework_listens_where_the_page_says(world: Session, network: Network, framework: str) -> None:
    """On the interface that leads to the others, but for TensorFlow's servers; what it listens for, it needs there."""
    if importlib.util.find_spec({"rpc": "torch"}.get(framework, framework)) is None:
        pytest.skip(f"{framework} is not installed")
    before = look(world, network)
    world.run(CELLS[framework], view=None, timeout=TRAINING)
    after = look(world, network)
    opened: dict[str, set[str]] = {}
    for name, listeners in after.items():
        new = {role: places - before[name].get(role, set()) for role, places in listeners.items()}
        for role, found in addresses(new).items():
            opened.setdefault(role, set()).update(found)

    assert opened == OPENED[framework]
