"""The examination of a job's nodes in a real Slurm: from the login node, in a job, and each thing that can be wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from jupyter_dtrain import StartFailed, doctor
from jupyter_dtrain.launch.leftovers import MARK
from jupyter_dtrain.launch.programs import Unreached
from jupyter_dtrain.preflight.doctor import Examination, examine, named_machines
from jupyter_dtrain.preflight.findings import HERE
from jupyter_dtrain.preflight.probe import Facts
from tests.hosts.network import ROOT, Host
from tests.slurm.launching import PATIENCE
from tests.slurm.site import Site
from tests.steward.until import until

HERE_ALONE = [sys.executable, "-c", "from jupyter_dtrain.cli import main; raise SystemExit(main())", "doctor"]
COMMAND = [*HERE_ALONE, "--slurm"]
WAITS = "waits in partition main: not enough nodes, processors or GPUs are free (Resources)"


def look(nodes: int = 2) -> Examination:
    """A quick examination of a new job's nodes."""
    return doctor(slurm=True, nodes=nodes, quick=True)


def test_the_nodes_of_a_new_job_are_examined(site: Site) -> None:
    """All of the check, from the login node: all-reduces too. Its job is gone at its end."""
    said: list[str] = []
    found = doctor(slurm=True, nodes=2, ntasks_per_node=2, progress=said.append)
    what = [one.what for one in found.findings]

    assert found.errors == []
    assert (found.hosts, list(found.machines)) == (["gpu1", "gpu2"], [HERE, "gpu1", "gpu2"])
    assert {one.hostname for name, one in found.machines.items() if isinstance(one, Facts) and name != HERE} == {
        "gpu1",
        "gpu2",
    }
    assert "srun reaches gpu1, gpu2." in what
    assert "TCP works from each host to all machines (4 connections tried)." in what
    assert any(one.startswith("All-reduce over all hosts: ") for one in what)
    (told,) = [one for one in what if one.startswith("Machines reach each other by ")]
    for address in (site.network.address, *(host.address for host in site.network.hosts)):
        assert f"({address})" in told
    assert any("waits in partition main" in words for words in said)
    site.check_empty()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["login node", "node"])
def test_a_job_is_examined_from_its_inside(site: Site, where: str) -> None:
    """It goes on as it was, and no step stays. Options for a new job are refused."""
    command = [*COMMAND, "--quick"]
    if where == "node":
        command = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu1", *command]
    script = '"$@" --json; "$@" --time 5; echo "exit $?"; squeue -h -j $SLURM_JOB_ID -o "job %T"; squeue -h -s -o "%j"'
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "--time=10", "sh", "-c", script, "sh", *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    data, end = json.JSONDecoder().raw_decode(done.stdout)

    assert data["ok"], done.stdout + done.stderr
    assert data["hosts"] == ["gpu1", "gpu2"]
    assert "--time would be for a new job" in done.stderr
    assert re.search(r"exit 1\njob RUNNING\n", done.stdout[end:])
    assert "dtrain-doctor" not in done.stdout[end:]
    site.check_empty()


@pytest.mark.slow
def test_a_broken_node_has_one_finding(site: Site) -> None:
    """Without the package, without the interpreter, and without a cable."""
    node = site.network["gpu2"]
    found: dict[str, list[str]] = {}
    for name, path in (("package", ROOT / "jupyter_dtrain"), ("interpreter", Path(sys.executable).parent)):
        node.hide(path)
        try:
            found[name] = [f"{one.what} {one.fix}" for one in look().errors if one.where == ["gpu2"]]
        finally:
            node.run(["umount", str(path)])
    with named_machines({"slurm": True, "nodes": 2}, print) as (hosts, reach):
        node.cut()
        try:
            cut = examine(hosts, reach, quick=True)
        finally:
            node.join()
    site.check_empty()

    (package,), (interpreter,) = found["package"], found["interpreter"]
    assert package.startswith("The package jupyter_dtrain is missing on gpu2. Install it there: `")
    assert "--python" not in package
    assert interpreter.startswith(f"The Python interpreter is missing: {sys.executable}: No such file or directory.")
    assert interpreter.endswith(
        f"The nodes need this package and its interpreter under the paths of this machine: {sys.executable}."
    )
    assert [one.where for one in cut.errors if "gpu2" in one.where] == [["gpu2"]]
    assert isinstance(cut.machines["gpu2"], Unreached)
    assert cut.seconds < 20


@pytest.mark.slow
def test_an_interrupt_ends_the_wait_for_nodes(site: Site) -> None:
    """The job is gone from the queue."""
    done: list[str] = []

    def say(words: str) -> None:
        if WAITS in words and not done:
            done.append(words)
            os.kill(os.getpid(), signal.SIGINT)

    with site.occupied():
        with pytest.raises(KeyboardInterrupt):
            doctor(slurm=True, nodes=2, progress=say)
        until(lambda: [job for job in site.jobs() if "other" not in job] == [])
    site.check_empty()


@pytest.mark.slow
def test_a_job_that_cannot_be_is_refused_with_the_reason(site: Site) -> None:
    """As at a start."""
    with pytest.raises(StartFailed, match=r"Slurm refuses the job: .*[Ii]nvalid partition"):
        doctor(slurm=True, partition="nope")
    with pytest.raises(StartFailed, match=r"cannot start: it asks for more nodes .*Ask for fewer nodes with -N"):
        look(nodes=5)
    site.check_empty()


@pytest.mark.slow
def test_leftovers_of_a_dead_world_are_ended_on_a_node(site: Site) -> None:
    """Those of another world stay. From another node, since this machine sees the processes of all of them."""
    world = f"preflight-{uuid.uuid4().hex[:8]}"
    node = site.network["gpu2"]
    orphans = [node.popen(["env", f"{MARK}={name}", "sleep", "300"]) for name in (world, f"{world}-other")]
    try:
        until(lambda: len(_sleepers(node)) == 2)
        words = ["salloc", "--quiet", "--nodes=2", "srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu1"]
        words += [*COMMAND, "--quick"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
        ended = node.run([*HERE_ALONE, "--quick", "--remove-leftovers", world], capture_output=True).stdout
        orphans[0].wait(PATIENCE)

        table = " ".join(done.stdout.split())
        assert re.search(rf"Processes of dead worlds \({world}[-\w]*, {world}[-\w]*\) still run on gpu2: pid ", table)
        assert "`jupyter dtrain doctor --remove-leftovers`, in a terminal there, ends them" in table
        assert re.search(r"^this machine: ended process \d+\.$", ended, re.MULTILINE), ended
        assert orphans[1].poll() is None
    finally:
        for pid in _sleepers(node):
            os.kill(pid, signal.SIGKILL)
        for orphan in orphans:
            orphan.wait(PATIENCE)
    site.check_empty()


@pytest.mark.slow
def test_nothing_but_words_of_mpi_crosses_the_network_in_clear(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable of this process, no text of the probe and none of its answer."""
    monkeypatch.setenv("SECRET", "zebra-variable")
    path = tmp_path / "frames"
    with site.network["gpu2"].captured(path):
        assert look().errors == []
    frames = path.read_bytes()

    assert len(frames) > 10_000
    for secret in (b"zebra", b"SSH_CONNECTION", b"ipyparallel", b"leftovers"):
        assert secret not in frames


@pytest.mark.slow
def test_a_killed_examination_leaves_no_job(site: Site) -> None:
    """The job's script ends it, since no step renews its file."""
    code = "from jupyter_dtrain import doctor; doctor(slurm=True, nodes=2)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: any("RUNNING dtrain-doctor-" in job for job in site.jobs()), PATIENCE)
    finally:
        process.kill()
        process.wait(PATIENCE)
    assert site.jobs() != []
    until(lambda: site.jobs() == [], 250)
    site.check_empty()


def _sleepers(node: Host) -> list[int]:
    """The processes of a node that run ``sleep 300``."""
    found = []
    for pid in node.processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00300\x00":
                found.append(pid)
    return found
