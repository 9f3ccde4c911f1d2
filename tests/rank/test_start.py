"""The start of a rank: what it costs those that start after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Final

import pytest

from jupyter_dtrain.core.variables import values_of
from jupyter_dtrain.launch.mpi import ROOT_VARIABLES, find_mpiexec, probe_mpi
from jupyter_dtrain.rank.app import await_written

WAITS: Final = """
import os, resource, time
from jupyter_dtrain.rank.app import long_naps
late = os.environ["OMPI_COMM_WORLD_RANK"] == "0"
if late:
    time.sleep(3)
with long_naps():
    from mpi4py import MPI
looks = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
naps = []
for _ in range(50):
    began = time.monotonic()
    time.sleep(0.0001)
    naps.append(time.monotonic() - began)
told = MPI.COMM_WORLD.gather((looks, min(naps)))
if late:
    print("told", *told[1])
"""
LOOKS: Final = 1500
"""The most times that a rank may give its processor away in three seconds of waiting; it was 10,000 and more."""


def test_a_rank_that_waits_for_others_to_start_leaves_them_the_processors() -> None:
    """Open MPI looks every tenth of a millisecond by itself; afterwards short sleeps are short again."""
    mpi = probe_mpi(find_mpiexec(None))
    if not mpi.modern:
        pytest.skip("Open MPI 5 is not installed")
    done = subprocess.run(
        [mpi.path, "-n", "2", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", sys.executable, "-c", WAITS],
        env=os.environ | values_of(ROOT_VARIABLES),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    looks, nap = next(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("told"))

    assert int(looks) < LOOKS
    assert float(nap) < 0.005


def test_a_file_that_its_writer_has_begun_is_awaited(tmp_path):
    """A rank that reads the controller's file in that moment would end, and its world with it."""
    path = tmp_path / "ipcontroller-engine.json"
    path.write_text("")
    writer = threading.Timer(0.2, path.write_text, ['{"key": "one"}'])
    writer.start()
    await_written(path, 20)
    writer.join()

    assert json.loads(path.read_text()) == {"key": "one"}
    path.write_text("{")
    await_written(path, 0.05)
