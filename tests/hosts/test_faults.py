"""Hosts over ssh that fail: a dead rank, a lost host, a bad network, and hosts on which no rank can start."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from jupyter_dtrain import DistributedError, StartFailed
from jupyter_dtrain.core.errors import BadRequest, WorldLost
from jupyter_dtrain.launch.mpi import find_mpiexec
from jupyter_dtrain.preflight.doctor import doctor
from tests.hosts.launching import PATIENCE, controllers, left, start, values
from tests.hosts.network import Network
from tests.pace import slack
from tests.steward.until import child_named, state_of, steward_of, until

LOST = 10.0
"""Seconds within which a host that is cut off is known to be lost."""


def test_a_rank_that_dies_on_another_host_leaves_the_others(network: Network) -> None:
    """Its last words come, the others are released and keep their variables; a restart gives fresh ranks."""
    session = start(network)
    code = (
        "import os\nfrom mpi4py import MPI\nkept = int(os.environ['RANK'])\n"
        "if kept == 3: os.write(1, b'last words'); os.kill(os.getpid(), 9)\n"
        "MPI.COMM_WORLD.allreduce(1)"
    )
    with pytest.raises(DistributedError, match="rank 3 was killed"):
        session.run(code, view=None)
    said = session.last_run.text(3)
    dead = [rank.rank for rank in session.world.dead]
    kept = values(session.run("kept", ranks=[0, 1, 2], view=None))
    session.restart()
    again = session.run("1 + 1", view=None).outcome
    session.stop()

    assert said.strip() == "last words"
    assert (dead, kept, again) == ([3], {0: 0, 1: 1, 2: 2}, "ok")
    until(lambda: left(network) == [])


def test_a_host_that_is_cut_off_is_named_within_seconds(network: Network) -> None:
    """The world ends as lost, with the line that starts one on the others; nothing stays there, nor here."""
    session = start(network)
    code = "import time\nfor k in range(100_000): print('line', k, time.time(), flush=True); time.sleep(0.02)"
    run = session.run(code, wait=False, view=None)
    until(lambda: all(totals.lines > 20 for totals in run.totals.values()))
    seen = {rank: totals.lines for rank, totals in run.totals.items()}
    gpu2 = network["gpu2"]
    began, at = time.monotonic(), time.time()
    gpu2.cut()
    try:
        assert run.wait(PATIENCE)
        seconds = time.monotonic() - began
        with pytest.raises(WorldLost):
            session.run("1", view=None)
        until(lambda: not [line for line in left(network) if line.startswith("gpu1")])
    finally:
        gpu2.join()

    missing = {rank: at - float(run.text(rank).rpartition("\n")[0].split()[-1]) for rank in (2, 3)}
    print(f"the host was named after {seconds:.1f} s; seconds of output that are missing: {missing}")
    assert seconds < LOST + slack()
    assert set(run.outcomes.values()) == {"lost"}
    assert all("the host gpu2 was lost" in words and "--hosts gpu1:2" in words for words in run.lost.values())
    assert all("Its last second of output may be gone." in words for words in run.lost.values())
    assert all(len(run.text(rank).splitlines()) >= seen[rank] for rank in run.ranks)
    assert max(missing.values()) < 1.0 + slack()
    # As soon as the host is back, its watch hears that the steward is gone.
    until(lambda: left(network) == [])


@pytest.mark.slow
def test_a_firewall_is_one_finding(network: Network) -> None:
    """A host that lets ssh in and nothing else: MPI would wait for it without a word."""
    network["gpu2"].impair(closed=True)
    began = time.monotonic()
    try:
        with pytest.raises(StartFailed) as caught:
            start(network)
        seconds = time.monotonic() - began
        alone = start(network, "gpu2:1")
        ranks = values(alone.run("1 + 1", view=None))
        alone.stop()
    finally:
        network["gpu2"].restore()

    address = network["gpu2"].address
    print(f"refused after {seconds:.1f} s: {caught.value}")
    assert caught.value.reason.startswith(f"gpu2 ({address}) cannot be reached from gpu1: no answer within 3 s")
    assert "firewall" in caught.value.fix
    # From this machine nothing but ssh has to reach a host.
    assert ranks == {0: 2}
    until(lambda: left(network) == [])


OLD = ("torch", "numpy", "jupyter-dtrain")
"""Distributions of which one host has another version."""


@pytest.fixture
def fault(request: pytest.FixtureRequest, network: Network) -> Iterator[tuple[dict[str, Any], str]]:
    """Something that is wrong with one host or with all: the start options that meet it, and the finding's words."""
    gpu2 = network["gpu2"]
    with contextlib.ExitStack() as stack:
        match request.param:
            case "host key":
                known = network.known_hosts.read_text()
                stack.callback(network.known_hosts.write_text, known)
                network.known_hosts.write_text(known.replace(gpu2.public_key, network["gpu1"].public_key))
                yield {}, "The key of gpu2 is not the one that ssh knows.*ssh-keygen"
            case "interpreter":
                yield {"python": "/opt/none/python"}, "/opt/none/python cannot be run there.*--python"
            case "package":
                bare = shutil.which("python3", path="/usr/bin")
                if bare is None:
                    pytest.skip("this machine has no Python without the package at /usr/bin/python3")
                yield (
                    {"python": bare},
                    "The package jupyter_dtrain is missing on gpu1, gpu2.*pip install jupyter-dtrain",
                )
            case name:
                metadata = metadata_of(name)
                text = re.sub(r"(?m)^Version: .*$", "Version: 0.0.1", metadata.read_text(), count=1)
                gpu2.replace(metadata, text)
                stack.callback(gpu2.run, ["umount", str(metadata)])
                package = name.replace("-", "_")
                yield {}, rf"The machines have different versions of {package}: .*; 0\.0\.1 on gpu2\..*{name}==\d"


def metadata_of(name: str) -> Path:
    """The file that says which version of a distribution is installed; skips where it is not."""
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    return Path(str(next(file for file in files if file.name == "METADATA").locate()))


@pytest.mark.parametrize(
    "fault",
    ["host key", "interpreter", "package", *(pytest.param(name, marks=pytest.mark.slow) for name in OLD)],
    indirect=True,
)
def test_a_host_that_cannot_start_ranks_is_one_finding(network: Network, fault: tuple[dict[str, Any], str]) -> None:
    """The doctor and a start name it alike, with its reason and fix, before any process is started there."""
    options, words = fault
    found = doctor("gpu1:2,gpu2:2", ssh_args=f"-F {network.ssh_config}", quick=True, **options)
    with pytest.raises(StartFailed, match=words) as caught:
        start(network, **options)
    print(caught.value)

    [error] = found.errors
    assert re.search(words, f"{error.what} {error.fix}")
    # A start puts the hosts before a finding that names none.
    assert caught.value.reason.endswith(f"{error.what.rstrip('.')}. {error.why}")
    until(lambda: left(network) == [])


@pytest.mark.slow
def test_an_mpiexec_that_cannot_be_started_is_the_reason(network: Network, tmp_path: Path) -> None:
    """It tells its version, and nobody may execute it when the watches are ready."""
    once = tmp_path / "once"
    once.write_text(f'#!/bin/sh\nchmod a-x "$0"\nexec {find_mpiexec(None)} "$@"\n')
    once.chmod(0o755)
    with pytest.raises(StartFailed, match=r"mpiexec cannot be started: .*Permission denied.*/once") as caught:
        start(network, "gpu1:1,gpu2:1", mpiexec=str(once))

    assert "ended with" not in str(caught.value)
    until(lambda: left(network) == [])


@pytest.mark.slow
def test_a_controller_that_ends_is_the_reason(network: Network) -> None:
    """Without it the hosts have nobody to connect to; its own words say why."""
    caught: list[StartFailed] = []
    name = f"no-controller-{os.getpid()}"

    def begin() -> None:
        try:
            start(network, "gpu1:1,gpu2:1", name=name)
        except StartFailed as error:
            caught.append(error)

    starting = threading.Thread(target=begin)
    starting.start()
    until(lambda: [process.kill() for process in controllers(name)])
    starting.join(PATIENCE)

    [error] = caught
    assert "ipyparallel's controller was killed (SIGKILL)" in error.reason
    until(lambda: left(network) == [])


@pytest.mark.slow
def test_a_bad_network_loses_nothing(network: Network) -> None:
    """50 ms of delay each way, and one frame of a hundred lost."""
    network["gpu2"].impair(delay=0.05, loss=0.01)
    try:
        session = start(network, "gpu1:1,gpu2:1")
        run = session.run("for k in range(5000): print('line', k)", wait=False, view=None)
        assert run.wait(PATIENCE)
        session.stop()
    finally:
        network["gpu2"].restore()

    assert {run.text(rank) for rank in run.ranks} == {"".join(f"line {k}\n" for k in range(5000))}
    until(lambda: left(network) == [])


def test_a_killed_steward_leaves_nothing_on_the_hosts(network: Network) -> None:
    """Each watch notices the end of its pipe; it ends its ranks, and MPI's daemon, which no mpiexec ends any more."""
    session = start(network)
    run = session.run("while True: pass", wait=False, view=None)
    until(lambda: sorted(run.logs) == run.ranks)
    steward_of(session).kill()
    assert run.wait(PATIENCE)

    until(lambda: left(network) == [])
    assert set(run.outcomes.values()) == {"lost"}


@pytest.mark.slow
def test_a_killed_watch_ends_the_ranks_of_its_host_alone(network: Network) -> None:
    """The others are released and keep their variables; a restart gives the host a watch again."""
    session = start(network)
    code = (
        "import os\nfrom mpi4py import MPI\nkept = int(os.environ['RANK'])\n"
        "if kept == 3: os.kill(os.getppid(), 9)\n"
        "MPI.COMM_WORLD.allreduce(1)"
    )
    with pytest.raises(DistributedError, match="rank 3 ended for an unknown reason: its parent process is gone"):
        session.run(code, view=None)
    until(lambda: [rank.rank for rank in session.world.dead] == [2, 3])
    kept = values(session.run("kept", ranks=[0, 1], view=None))
    session.restart()
    again = values(session.run("1 + 1", view=None))
    session.stop()

    assert kept == {0: 0, 1: 1}
    assert again == dict.fromkeys(range(4), 2)
    until(lambda: left(network) == [])


@pytest.mark.slow
def test_without_mpiexec_the_ranks_of_hosts_end(network: Network) -> None:
    """MPI's daemons end them; a notice says so, and a restart gives fresh ranks."""
    session = start(network)
    child_named(session, "prterun").kill()
    until(lambda: len(session.world.dead) == 4)
    notices = state_of(session).notices
    session.restart()
    again = values(session.run("1 + 1", view=None))
    session.stop()

    assert any("mpiexec has ended (SIGKILL), and so have all ranks." in words for words in notices)
    assert again == dict.fromkeys(range(4), 2)
    until(lambda: left(network) == [])


@pytest.mark.parametrize("bad", ["gpu9:2", "gpu1:2,gpu9:2"])
def test_an_unknown_host_is_named(network: Network, bad: str) -> None:
    """Alone, or beside one that is there."""
    with pytest.raises(StartFailed, match="gpu9"):
        start(network, bad)
    until(lambda: left(network) == [])


def test_more_ranks_than_slots_are_refused(network: Network) -> None:
    """Before any host is asked; the message has the number of slots."""
    with pytest.raises(BadRequest, match="4"):
        start(network, n=5)
    until(lambda: left(network) == [])
