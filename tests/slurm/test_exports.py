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
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CHOICE")
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
    notebook = Notebook("lesson.ipynb", cells, JobWorld(4, 2, env=("CHOICE",)))
    made = export_notebook(notebook, "slurm", folder / "train.sbatch", settings={"time": "5"})
    monkeypatch.setenv("CHOICE", "s3cret")
    # The nodes may write into their own /tmp only.
    words = made.command.replace("sbatch ", "sbatch --wait --output=/tmp/train.out ").split()
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
    first = site.network.hosts[0]
    said = first.run(["cat", "/tmp/train.out"], capture_output=True).stdout
    first.run(["rm", "/tmp/train.out"])

    assert ended.returncode == 0, ended.stderr + said
    assert re.findall(r"^\d .*$", said, re.MULTILINE) == [
        "0 0 2 0 s3cret gpu1",
        "1 1 2 0 s3cret gpu1",
        "2 0 2 1 s3cret gpu2",
        "3 1 2 1 s3cret gpu2",
    ]
    assert "s3cret" not in (folder / "train.sbatch").read_text() + (folder / "train.py").read_text()
    site.check_empty()
