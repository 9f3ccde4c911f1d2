"""The examination of the nodes in a start, in a real Slurm: broken nodes, a node that hangs, and the end of a wait."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import StartFailed
from jupyter_dtrain.launch.leftovers import MARK
from jupyter_dtrain.launch.worlds import list_worlds
from jupyter_dtrain.preflight.doctor import QUICK
from tests.hosts.network import Host
from tests.pace import slack
from tests.slurm.launching import start
from tests.slurm.site import Site
from tests.steward.until import until

EXAMINES = "examining the nodes"
OTHER = "8.0.1"
"""A version that no package here has."""
SOON = 8.0
"""Seconds for the end of a wait, and of its job, on a busy machine; the examination would last longer."""

GONE = 20.0
"""Seconds for the end of all that a killed steward has left: the guard, Slurm and the gates see to it."""


@contextlib.contextmanager
def with_other_version(node: Host, package: str) -> Iterator[None]:
    """A node with another version of a package."""
    metadata = Path(str(distribution(package).locate_file(""))) / distribution(package)._path.name / "METADATA"  # type: ignore[attr-defined]
    node.replace(metadata, f"Metadata-Version: 2.1\nName: {package}\nVersion: {OTHER}\n")
    try:
        yield
    finally:
        node.run(["umount", str(metadata)])


@contextlib.contextmanager
def with_hanging_python(node: Host) -> Iterator[None]:
    """A node whose interpreter begins, and says nothing."""
    interpreter = Path(sys.executable).resolve()
    node.replace(interpreter, "#!/bin/sh\nexec sleep 100\n")
    try:
        yield
    finally:
        node.run(["umount", str(interpreter)])


def test_a_broken_node_ends_the_start_with_its_finding(site: Site) -> None:
    """The reason names the node, and says why it matters and what to do. No rank started, and the job is gone."""
    said: list[str] = []
    with site.network["gpu2"].without_package(), pytest.raises(StartFailed) as caught:
        start(ntasks_per_node=1, progress=said.append)

    reason = caught.value.reason
    assert "did not start. The package jupyter_dtrain is missing on gpu2. A rank cannot start without it" in reason
    assert caught.value.fix.startswith("Install it there: `")
    assert caught.value.log == ""
    assert any(EXAMINES in words for words in said)
    assert not any("ranks have" in words for words in said)
    site.check_empty()


@pytest.mark.slow
def test_each_thing_that_is_wrong_is_named(site: Site) -> None:
    """The first as the reason, and the others below it."""
    one, two = site.network["gpu1"], site.network["gpu2"]
    with two.without_package(), with_other_version(one, "mpi4py"), pytest.raises(StartFailed) as caught:
        start(ntasks_per_node=1)
    with with_other_version(two, "ipyparallel"), pytest.raises(StartFailed) as version:
        start(ntasks_per_node=1)

    assert "The package jupyter_dtrain is missing on gpu2." in str(caught.value)
    assert "The machines have different versions of ipyparallel: " in version.value.reason
    assert f"{OTHER} on gpu2. The notebook and the ranks speak its protocol." in version.value.reason
    assert version.value.fix.startswith("Install one version everywhere, such as ipyparallel==")
    site.check_empty()


INSIDE = """
from jupyter_dtrain import Session, StartFailed

try:
    Session.start(slurm=True)
except StartFailed as error:
    print("refused:", error.reason)
"""
"""A notebook in a job."""


@pytest.mark.slow
def test_a_job_outlives_a_start_that_its_nodes_fail(site: Site, tmp_path: Path) -> None:
    """Inside an existing job the finding is the same; no step stays."""
    names = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    env = os.environ | {name: str(tmp_path / name) for name in names}
    after = '"$@"; squeue -h -j $SLURM_JOB_ID -o "job %T"; squeue -h -s -j $SLURM_JOB_ID -o "step %j"'
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--time=10", "sh", "-c", after, "sh"]
    with site.network["gpu2"].without_package():
        done = subprocess.run(
            [*words, sys.executable, "-c", INSIDE], capture_output=True, text=True, timeout=90, check=False, env=env
        )

    assert "refused: World 'world' did not start. The package jupyter_dtrain is missing on gpu2." in done.stdout
    assert "job RUNNING" in done.stdout, done.stdout + done.stderr
    assert "step dtrain" not in done.stdout
    site.check_empty()


@pytest.mark.slow
def test_a_node_that_hangs_has_a_deadline(site: Site) -> None:
    """The examination ends within its seconds, and names the node."""
    began: list[float] = []

    def say(words: str) -> None:
        if EXAMINES in words and not began:
            began.append(time.monotonic())

    with with_hanging_python(site.network["gpu2"]):
        with pytest.raises(StartFailed, match=r"gpu2: .*There was no answer within \d+ s\.") as caught:
            start(ntasks_per_node=1, progress=say)
        seconds = time.monotonic() - began[0]

    assert "gpu1" not in caught.value.reason
    assert seconds < QUICK + SOON + slack()
    site.check_empty()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the person who waits", "scancel"])
def test_a_start_ends_during_the_examination(site: Site, who: str) -> None:
    """At once, with the reason, although a node does not answer."""
    began: list[float] = []

    def say(words: str) -> None:
        if EXAMINES not in words or began:
            return
        began.append(time.monotonic())
        if who == "scancel":
            subprocess.run(["scancel", f"--user={os.getuid()}"], check=True)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    with with_hanging_python(site.network["gpu2"]):
        expected = StartFailed if who == "scancel" else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            start(ntasks_per_node=1, progress=say)
        seconds = time.monotonic() - began[0]
        until(lambda: site.jobs() == [], SOON)

    assert seconds < SOON + slack()
    if who == "scancel":
        assert "is over: it was cancelled" in str(caught.value)
    site.check_empty()


@pytest.mark.slow
def test_a_steward_that_is_killed_during_the_examination_leaves_nothing(site: Site) -> None:
    """No job, and no process on the nodes or here."""
    killed: list[str] = []

    def say(words: str) -> None:
        if EXAMINES in words and not killed:
            (listing,) = [one for one in list_worlds() if one.name == "world-examined"]
            killed.append(listing.id)
            os.kill(listing.steward, signal.SIGKILL)

    with with_hanging_python(site.network["gpu2"]):
        with pytest.raises(StartFailed, match="The main process of world 'world-examined' ended"):
            start(ntasks_per_node=1, name="world-examined", progress=say)
        until(lambda: site.jobs() == [], GONE)
        until(lambda: _processes_of(killed[0]) == [], GONE)
    site.check_empty()


def _processes_of(world: str) -> list[int]:
    """The processes of a world on this machine and its hosts."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == world:
                found.append(process.pid)
    return found
