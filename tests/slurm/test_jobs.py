"""Worlds and their jobs in a real Slurm: nothing in clear, nothing left, and the job in which a notebook runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.launching import PATIENCE, start, values
from tests.slurm.site import Site

pytestmark = pytest.mark.slow


def test_nothing_crosses_the_network_in_clear(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell, output, result, folder, variable of --env or key: looked for in all frames of a node's cable."""
    path = tmp_path / "frames"
    (tmp_path / "zebra-folder").mkdir()
    monkeypatch.chdir(tmp_path / "zebra-folder")
    with site.network["gpu2"].captured(path):
        session = start(ntasks_per_node=1, env={"SECRET": "zebra-variable"})
        session.run(
            "zebra = 'zebra' + '-value'\nprint('zebra' + '-text')\nimport os\nos.write(1, b'zebra-native')\nzebra",
            view=None,
        )
        keys = json.loads(
            (Path(session.request.folder) / "profile" / "security" / "ipcontroller-engine.json").read_text()
        )
        run = session.run("os.write(1, b'zebra-last'); os.kill(os.getpid(), 9)", ranks=[1], wait=False, view=None)
        assert run.wait(PATIENCE)
        session.stop()
    frames = path.read_bytes()
    secrets = [value for name, value in keys.items() if name == "key" or "curve" in name]

    assert len(frames) > 10_000
    assert re.findall(rb"zebra[-\w]*", frames) == []
    assert secrets
    assert not any(secret.encode() in frames for secret in secrets)


INSIDE = """
import os, tempfile

def play():
    from jupyter_dtrain import BadRequest, Session, Settings

    for wrong in ({"time": "5"}, {"nodes": 3}, {"n": 5}, {"ntasks_per_node": 100}):
        try:
            Session.start(slurm=True, **wrong)
        except BadRequest as error:
            print("refused:", error)
    with Session.start(slurm=True, settings=Settings(start_timeout=60)) as session:
        code = "import os, socket\\nos.environ['RANK'], socket.gethostname(), os.environ['SLURM_JOB_ID']"
        run = session.run(code, view=None)
        print("values:", {rank: result.data["text/plain"] for rank, result in sorted(run.results.items())})

with tempfile.TemporaryDirectory(prefix="notebook-") as home:
    os.environ |= {name: f"{home}/{name}" for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    play()
"""
"""A notebook in a job, with a home that ends with it."""


@pytest.mark.parametrize("where", ["login node", "node"])
def test_a_world_uses_the_job_in_which_its_notebook_runs(site: Site, where: str) -> None:
    """With the ranks that the job asked for; options for a new job are refused. The job goes on as it was."""
    command = [sys.executable, "-c", INSIDE]
    if where == "node":
        command = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu1", *command]
    after = ["sh", "-c", '"$@"; echo job $SLURM_JOB_ID; squeue -h -j $SLURM_JOB_ID -s -o "step %i %j"', "sh", *command]
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "--time=10", *after]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    job = re.findall(r"^job (\d+)$", done.stdout, re.MULTILINE)
    refused = re.findall("^refused: (.*)$", done.stdout, re.MULTILINE)

    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(4):
        assert f"\"('{rank}', 'gpu{rank // 2 + 1}', '{job[0]}')\"" in done.stdout
    assert "--time would be for a new job" in refused[0]
    assert "has 2 nodes, not 3. Ask for at most 2 with -N." in refused[1]
    assert "has 2 nodes with 2 ranks each, too few for 5 ranks" in refused[2]
    assert "has room for 2 ranks on a node, not for 100" in refused[3]
    assert "dtrain-watch" not in done.stdout
    site.check_empty()
    assert not os.environ.get("SLURM_JOB_ID")


def test_the_gpus_of_a_job_are_those_that_its_ranks_see(site: Site) -> None:
    """As many ranks as GPUs; each sees those of its node that Slurm gave the job, and no others."""
    session = start(nodes=2, ntasks_per_node=None, gres="gpu:2")
    run = session.run("import os\nos.environ['LOCAL_RANK'], os.environ.get('CUDA_VISIBLE_DEVICES')", view=None)
    session.stop()

    assert values(run) == {rank: (str(rank % 2), "0,1") for rank in range(4)}
    site.check_empty()


def test_processors_and_memory_of_a_job_are_those_asked_for(site: Site) -> None:
    """A rank has as many threads as its job has processors for it; a person's own number goes first."""
    session = start(nodes=1, cpus_per_task=3, sbatch="--mem=200")
    job = site.jobs()[0].split()[0]
    shown = subprocess.run(
        ["scontrol", "show", "job", job], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    run = session.run("import os\nos.environ['OMP_NUM_THREADS']", view=None)
    session.stop()
    own = start(nodes=1, cpus_per_task=3, env={"OMP_NUM_THREADS": "2"})
    given = own.run("import os\nos.environ['OMP_NUM_THREADS']", view=None)
    own.stop()

    assert values(run) == {0: "3", 1: "3"}
    assert values(given) == {0: "2", 1: "2"}
    assert "CPUs/Task=3" in shown.stdout
    assert "MinMemoryNode=200M" in shown.stdout
    site.check_empty()
