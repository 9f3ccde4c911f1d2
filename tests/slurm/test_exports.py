"""An exported job in a real Slurm: its ranks know their places, and meet on the first node."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dtrain.jobs import JobWorld, Notebook, NotebookCell, export_notebook
from tests.slurm.site import Site

PATIENCE = 120
BUILD = Path(__file__).parents[2] / "build"
MEET = """
import os, socket, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CHOICE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
mine = " ".join([str(rank), *(os.environ[name] for name in names), socket.gethostname()])
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        met = [mine]
        while len(met) < size:
            met.append(server.accept()[0].makefile().read())
else:
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(place) as other:
                other.sendall(mine.encode())
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the nodes see, too: they have a home and a /tmp of their own."""
    BUILD.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="slurm-", dir=BUILD))
    yield made
    shutil.rmtree(made)


def test_an_exported_job_runs_in_slurm_and_its_ranks_meet(
    site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        NotebookCell(1, MEET, on_ranks=True),
        NotebookCell(2, "print(*sorted(met), sep='\\n')", on_ranks=True, ranks="0"),
    ]
    notebook = Notebook("lesson.ipynb", cells, JobWorld(4, 2, env=("CHOICE",), gpus=True))
    settings = {"time": "5", "cpus_per_task": "3", "mem": "200M"}
    made = export_notebook(notebook, "slurm", folder / "train.sbatch", settings=settings)
    monkeypatch.setenv("CHOICE", "s3cret")
    # The nodes may write into their own /tmp only.
    words = made.command.replace("sbatch ", "sbatch --wait --output=/tmp/train.out ").split()
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
    first = site.network.hosts[0]
    said = first.run(["cat", "/tmp/train.out"], capture_output=True).stdout
    first.run(["rm", "/tmp/train.out"])

    assert ended.returncode == 0, ended.stderr + said
    assert re.findall(r"^\d .*$", said, re.MULTILINE) == [
        "0 0 2 0 s3cret 0,1 3 gpu1",
        "1 1 2 0 s3cret 0,1 3 gpu1",
        "2 0 2 1 s3cret 0,1 3 gpu2",
        "3 1 2 1 s3cret 0,1 3 gpu2",
    ]
    assert "s3cret" not in (folder / "train.sbatch").read_text() + (folder / "train.py").read_text()
    site.check_empty()


SHARE = """
import os, subprocess

step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
said = subprocess.run(["scontrol", "show", "step", step], capture_output=True, text=True, check=True).stdout
cpus = next(word for word in said.split() if word.startswith("CPUs="))
print(cpus, "threads", os.environ["OMP_NUM_THREADS"], "gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sbatch": "--exclusive"}, "CPUs=8 threads 4 gpus None"),
        ({}, "CPUs=2 threads 1 gpus None"),
        ({"sbatch": "-c 3", "gpus_per_node": "2"}, "CPUs=6 threads 3 gpus 0,1"),
        ({"gres": "gpu:3"}, "CPUs=2 threads 1 gpus 0,1,2"),
    ],
)
def test_the_ranks_of_a_job_share_all_that_it_has(
    site: Site, folder: Path, settings: dict[str, str], said: str
) -> None:
    """The step has the CPUs of its job, also where sbatch was asked for no number of each rank."""
    cell = NotebookCell(1, SHARE, on_ranks=True, ranks="0")
    notebook = Notebook("lesson.ipynb", [cell], JobWorld(2))
    made = export_notebook(notebook, "slurm", folder / "train.sbatch", settings={"time": "5", **settings})
    words = made.command.replace("sbatch ", "sbatch --wait --output=/tmp/train.out ").split()
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
    found = "".join(
        host.run(["sh", "-c", "cat /tmp/train.out; rm -f /tmp/train.out"], capture_output=True).stdout
        for host in site.network.hosts
    )

    assert ended.returncode == 0, ended.stderr + found
    assert said in found
    site.check_empty()


def test_slurm_itself_accepts_all_that_a_script_can_ask_for(site: Site, folder: Path) -> None:
    """And refuses a script that asks for more GPUs than a node has: it has read these lines."""
    settings = {"cpus_per_task": "2", "mem": "500M", "gpus_per_node": "4", "partition": "main", "time": "0-2"}
    notebook = Notebook("lesson.ipynb", [NotebookCell(1, "1", on_ranks=True)], JobWorld(4, 2))

    def accepts(**more: str) -> subprocess.CompletedProcess[str]:
        place = folder / "train.sbatch"
        export_notebook(notebook, "slurm", place, settings=settings | more, force=True)
        words = ["sbatch", "--test-only", str(place)]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE)

    accepted, refused = accepts(), accepts(gpus_per_node="5")
    assert accepted.returncode == 0, accepted.stderr
    assert "using 8 processors on nodes gpu[1-2] in partition main" in accepted.stderr
    assert refused.returncode != 0
    assert "node configuration is not available" in refused.stderr
