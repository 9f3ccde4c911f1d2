"""A world's place in the queue of a real Slurm: why it waits, how it is given up, and why a job cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any

import pytest

from jupyter_dtrain import BadRequest, Settings, StartFailed
from tests.hosts.network import ROOT
from tests.slurm.launching import start, values
from tests.slurm.site import Site
from tests.steward.until import until

SHORT = Settings(start_timeout=20)
"""Less than a job waits in these tests, and enough for ranks on a busy machine."""
WAITS = "waits in partition main: not enough nodes, processors or GPUs are free (Resources)"


@pytest.mark.slow
def test_a_job_waits_for_nodes_and_then_starts(site: Site) -> None:
    """The start shows the reason while it waits, for longer than a start may take without progress."""
    said: list[str] = []
    with site.occupied() as other:
        late = threading.Timer(SHORT.start_timeout + 2, lambda: subprocess.run(["scancel", other], check=True))
        late.start()
        session = start(ntasks_per_node=1, settings=SHORT, progress=said.append)
        late.join()
        found = values(session.run("1 + 1", view=None))
        session.stop()

    assert found == {0: 2, 1: 2}
    assert any(WAITS in words for words in said)
    site.check_empty()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the person who waits", "scancel"])
def test_a_job_is_cancelled_while_it_waits(site: Site, who: str) -> None:
    """Nothing is left of it, and the start ends at once."""
    done: list[str] = []

    def say(words: str) -> None:
        if WAITS not in words or done:
            return
        done.append(words)
        if who == "scancel":
            subprocess.run(["scancel", "--state=PENDING", f"--user={os.getuid()}"], check=True)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    with site.occupied():
        expected = StartFailed if who == "scancel" else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            start(ntasks_per_node=1, progress=say)
        until(lambda: [job for job in site.jobs() if "other" not in job] == [])

    assert who != "scancel" or "did not start: it was cancelled, as scancel does." in str(caught.value)
    site.check_empty()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nope"}, "Slurm refuses the job: .*[Ii]nvalid partition"),
        pytest.param({"gres": "gpu:1"}, "Slurm refuses the job: .*gres", marks=pytest.mark.slow),
        pytest.param({"sbatch": "--bogus=1"}, "Slurm refuses the job: .*--bogus=1", marks=pytest.mark.slow),
        pytest.param(
            {"nodes": 5},
            r"cannot start: it asks for more nodes .*\(PartitionNodeLimit\)\. Ask for fewer nodes with -N",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"partition": "short", "time": "5"},
            r"cannot start: it asks for more time .*\(PartitionTimeLimit\)\.",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"ntasks_per_node": 64},
            r"cannot start: .*the processors or memory of a node.*\(PartitionConfig\)\.",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_the_reason(site: Site, options: dict[str, Any], words: str) -> None:
    """In Slurm's words where it refuses, and in ours where it would wait for ever."""
    with pytest.raises(StartFailed, match=words):
        start(**({"ntasks_per_node": 1} | options))

    site.check_empty()


def test_more_ranks_than_slots_are_refused(site: Site) -> None:
    """Before anything is submitted."""
    with pytest.raises(BadRequest, match=r"2 nodes with 2 ranks each, too few for 5 ranks\. Ask for at most 4 with -n"):
        start(n=5)

    assert site.jobs() == []


@pytest.mark.slow
def test_a_node_that_loses_the_package_is_named_at_a_restart(site: Site) -> None:
    """A restart examines nothing: its watch says what the node needs, and the job is gone."""
    package = str(ROOT / "jupyter_dtrain")
    node = site.network["gpu2"]
    session = start(ntasks_per_node=1)
    node.hide(package)
    try:
        with pytest.raises(StartFailed, match=r"gpu2: ModuleNotFoundError: .*jupyter_dtrain") as caught:
            session.restart()
    finally:
        node.run(["umount", package])

    assert caught.value.fix.startswith("The nodes need this package and its interpreter under the paths")
    site.check_empty()
