"""Copies that end with their node or their job, in a real Slurm, and a copy from inside of a job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_dtrain.files.sync import sync_by, sync_world
from jupyter_dtrain.files.transports import OverSrun
from tests.hosts.network import Network
from tests.slurm.launching import PATIENCE, start
from tests.slurm.site import Site
from tests.slurm.test_sync import BIG, goes_on, here, outcomes, programs, read
from tests.steward.until import until


@pytest.fixture(scope="module", autouse=True)
def rsync() -> None:
    """Skip where the tests' machine, and so its nodes, lack it."""
    if shutil.which("rsync") is None:
        pytest.skip("needs rsync")


@pytest.mark.slow
def test_a_node_that_is_lost_while_it_copies_is_named(tmp_path: Path) -> None:
    """The other node gets its files. In a job without a world, which would end with its node."""
    with Network(hosts=2) as network, Site(network) as site:
        _lose_a_node(site, tmp_path)


def _lose_a_node(site: Site, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(BIG))
    gpu2 = site.network["gpu2"]
    gpu2.impair(delay=0.1)

    def cut(words: str) -> None:
        if goes_on(words.partition("gpu2")[2]):
            gpu2.impair(loss=1.0)

    with site.occupied() as job:
        try:
            found = sync_by(big, ["gpu1", "gpu2"], OverSrun(job), progress=cut)
            remaining = here()
        finally:
            gpu2.restore()
    for node in site.network.hosts:
        until(lambda node=node: "rsync" not in " ".join(programs(node)), PATIENCE)
        node.run(["rm", "-rf", f"/tmp/{tmp_path.parts[2]}"])
    site.check_empty()

    assert outcomes(found)[0] == ("gpu1", 1, "copied")
    assert found.hosts[1].reason == "The node has not answered for 7 s."
    assert remaining == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "delay", "why"),
    [(BIG, 0.1, "it was cancelled, as scancel does"), (4 * BIG, 0.5, "it has reached its time limit")],
)
def test_a_job_that_is_over_is_the_reason(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, delay: float, why: str
) -> None:
    """In the middle of a copy, on all nodes. Nothing is left."""
    (tmp_path / "big").write_bytes(os.urandom(size))
    monkeypatch.chdir(tmp_path)
    session = start(ntasks_per_node=1, time="1")
    request, lent = session.request, session._lent
    cancelled: list[str] = []

    def cancel(words: str) -> None:
        if "cancelled" in why and goes_on(words) and not cancelled:
            cancelled.append(words)
            subprocess.run(["scancel", lent.job], check=True)

    for node in site.network.hosts:
        node.impair(delay=delay)
    try:
        found = sync_world(request, lent, "big", progress=cancel)
        again = sync_world(request, lent, "big")
        remaining = here()
    finally:
        for node in site.network.hosts:
            node.restore()
        session.stop()
    halves: list[str] = []
    for node in site.network.hosts:
        until(lambda node=node: "rsync" not in " ".join(programs(node)), PATIENCE)
        halves += node.run(["find", str(tmp_path), "-name", ".big*"]).stdout.split()
        node.run(["rm", "-rf", f"/tmp/{tmp_path.parts[2]}"])
    site.check_empty()

    assert halves == []
    for one in [*found.hosts, *again.hosts]:
        assert one.reason == f"Slurm's job {lent.job} is over: {why}."
        assert one.fix == "Start a world in a new job, then sync again."
    assert remaining == []


INSIDE = """
import os, sys, tempfile

def play():
    from jupyter_dtrain import Session, Settings

    with Session.start(slurm=True, settings=Settings(start_timeout=60)) as session:
        os.chdir("/tmp/to")
        print(session.upload("note.py"))

with tempfile.TemporaryDirectory(prefix="notebook-") as home:
    os.environ |= {name: f"{home}/{name}" for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    play()
"""
"""A notebook in a job, with a home that ends with it."""


@pytest.mark.slow
def test_a_notebook_on_a_node_of_its_job_copies_to_the_others(site: Site) -> None:
    """Its own node sees the file already."""
    gpu1, gpu2 = site.network.hosts
    gpu1.run(["mkdir", "-p", "/tmp/to"])
    gpu1.run(["tee", "/tmp/to/note.py"], input="VALUE = 1")
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--time=10", "srun", "--overlap", "--nodes=1"]
    words += ["--ntasks=1", "--nodelist=gpu1", sys.executable, "-c", INSIDE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    there = read(gpu2, "/tmp/to/note.py")
    for node in site.network.hosts:
        node.run(["rm", "-rf", "/tmp/to"])

    assert re.search(r"gpu1 +0 +0 bytes +shares this machine's files: left alone", done.stdout), done.stderr
    assert re.search(r"gpu2 +1 +9 bytes +copied", done.stdout)
    assert there == "VALUE = 1"
    site.check_empty()
