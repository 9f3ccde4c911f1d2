"""One thing that a firewall drops between the machines of a world: one direction, or one port."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from jupyter_dtrain import DistributedError, Session, StartFailed
from jupyter_dtrain.launch.mpi import find_mpiexec
from jupyter_dtrain.preflight.doctor import doctor
from tests.hosts.launching import PATIENCE, controllers, left, start
from tests.hosts.network import Network
from tests.steward.until import steward_of, until

pytestmark = pytest.mark.slow


class Rule(NamedTuple):
    """A host, and the address that it may not call, though it may call all others and is called by all."""

    host: str
    address: Callable[[Network], str]
    words: str


RULES = {
    "between ranks": Rule("gpu1", lambda network: network["gpu2"].address, "gpu2 ({}) cannot be reached from gpu1"),
    "back to mpiexec": Rule("gpu2", lambda network: network.address, "this machine ({}) cannot be reached from gpu2"),
}
INIT = "import torch.distributed as dist\ndist.init_process_group('gloo')"
INIT_JAX = "import jax\njax.distributed.initialize()\njax.process_count()"


@pytest.mark.parametrize("rule", RULES)
def test_one_direction_that_is_blocked_is_one_finding(network: Network, rule: str) -> None:
    """The doctor and a start name both ends, and leave no process on any machine."""
    host, address_of, words = RULES[rule]
    address = address_of(network)
    network[host].impair(target=address)
    try:
        found = doctor("gpu1:1,gpu2:1", ssh_args=f"-F {network.ssh_config}", quick=True)
        with pytest.raises(StartFailed) as caught:
            start(network, "gpu1:1,gpu2:1")
    finally:
        network[host].restore()

    [error] = found.errors
    assert error.what.startswith(f"{words.format(address)}: no answer within 3 s")
    assert "firewall" in error.fix
    assert (caught.value.reason, caught.value.fix) == (f"{error.what} {error.why}", error.fix)
    until(lambda: left(network) == [])


def test_the_doctors_mpi_job_needs_no_folder_that_the_hosts_share_with_this_machine(network: Network) -> None:
    """Each host has a /tmp of its own: the script that calls ssh with our options is on this machine alone."""
    found = doctor("gpu1:1,gpu2:1", ssh_args=f"-F {network.ssh_config}")

    assert not isinstance(found.speeds, str), found.speeds
    assert found.timed == ["gpu1", "gpu2"]
    until(lambda: [one for one in left(network) if "process" in one] == [])


def error_without(network: Network, session: Session, code: str, ports: tuple[int, ...]) -> str:
    """The error of a cell while gpu2 reaches none of these ports here. Afterwards the same cell runs, and all ends."""
    network["gpu2"].impair(target=network.address, block=ports)
    try:
        with pytest.raises(DistributedError) as caught:
            session.run(code, view=None, timeout=2 * PATIENCE)
    finally:
        network["gpu2"].restore()
    again = session.run(code, view=None, timeout=2 * PATIENCE)
    session.stop()

    assert (caught.value.run.outcome, again.outcome) == ("error", "ok")
    return str(caught.value)


def test_the_stores_port_alone_is_named_by_the_rank_that_does_not_reach_it(network: Network) -> None:
    """No examination knows that port, and a start needs it for nothing. The other rank is released; both go on."""
    pytest.importorskip("torch")
    session = start(network, "gpu1:1,gpu2:1")
    run = session.run("import os; print(os.environ['MASTER_PORT'])", view=None)
    port = int(run.text(1))
    error = error_without(network, session, INIT, (port,))

    place = f"{network.address}:{port} (no answer within 5 s)"
    assert f"this host does not reach the world's store at {place}. A firewall may drop" in error
    until(lambda: left(network) == [])


def test_the_port_of_jaxs_meeting_alone_is_named_by_the_rank_that_does_not_reach_it(network: Network) -> None:
    """The other rank is released; both go on."""
    pytest.importorskip("jaxlib")
    session = start(network, "gpu1:1,gpu2:1")
    # The steward listens for each server that it starts when the first rank calls.
    listeners = [one for one in steward_of(session).net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    ports = tuple(one.laddr.port for one in listeners if one.laddr.ip == network.address)
    error = error_without(network, session, INIT_JAX, ports)

    places = "|".join(f"{network.address}:{port}" for port in ports)
    words = (
        rf"this host does not reach the process that keeps JAX's coordinator at ({places}) \(no answer within 5 s\)\."
    )
    assert re.search(words, error)
    until(lambda: left(network) == [])


@pytest.mark.parametrize("socket", ["registration", "iopub"])
def test_one_of_the_controllers_ports_is_named_by_the_rank_that_does_not_reach_it(
    network: Network, tmp_path: Path, socket: str
) -> None:
    """An examination comes before the controller is there. A start is over before its deadline, and says what to do."""
    begun, blocked, mpiexec = tmp_path / "begun", tmp_path / "blocked", tmp_path / "mpiexec"
    wait = f'[ "$1" = --version ] || touch {begun}; until [ "$1" = --version ] || [ -e {blocked} ]; do sleep 0.02; done'
    mpiexec.write_text(f'#!/bin/sh\n{wait}\nexec {find_mpiexec(None)} "$@"\n')
    mpiexec.chmod(0o755)
    name = f"no-way-{os.getpid()}"
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start, network, "gpu1:1,gpu2:1", mpiexec=str(mpiexec), name=name)
        until(begun.exists)
        controller, *_ = controllers(name)
        [folder] = [word.partition("=")[2] for word in controller.cmdline() if word.startswith("--profile-dir=")]
        port = json.loads((Path(folder) / "security" / "ipcontroller-engine.json").read_text())[socket]
        network["gpu2"].impair(target=network.address, block=(port,))
        try:
            blocked.touch()
            with pytest.raises(StartFailed) as caught:
                starting.result(PATIENCE)
        finally:
            network["gpu2"].restore()

    place = f"{network.address}:{port} (no answer within 5 s)"
    assert f"this host does not reach ipyparallel's controller at {place}. A firewall may" in caught.value.reason
    until(lambda: left(network) == [])
