"""How long it takes until 4 ranks have run a cell, against ipyparallel's default cluster of 4 engines and bare MPI."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from jupyter_dtrain.launch.mpi import find_mpiexec

from .report import Measurement, summary

ROUNDS = 5

OURS = """
import time
began = time.monotonic()
import jupyter_dtrain
{prepare}
with jupyter_dtrain.Session.start(n=4) as session:
    session.run("pass", view=None)
    print("seconds", time.monotonic() - began)
"""

PREPARE = """
from jupyter_dtrain.launch import prepared
prepared.prepare(600)  # as %load_ext does
time.sleep(5)
began = time.monotonic()
"""

THEIRS = """
import time
began = time.monotonic()
import ipyparallel
cluster = ipyparallel.Cluster(n=4, log_level=40)
try:
    client = cluster.start_and_connect_sync()
    client[:].execute("pass", block=True)
    print("seconds", time.monotonic() - began)
finally:
    cluster.stop_cluster_sync()
"""


def measure(rounds: int = ROUNDS) -> Measurement:
    """Alternate, each in a fresh process, imports included."""
    ours, warm, theirs, bare = [], [], [], []
    for _ in range(rounds):
        ours.append(_seconds(OURS.format(prepare="")))
        warm.append(_seconds(OURS.format(prepare=PREPARE)))
        theirs.append(_seconds(THEIRS))
        bare.append(_bare())
    found = Measurement(
        {
            "jupyter-dtrain, s": summary(ours),
            "jupyter-dtrain, 5 s after %load_ext, s": summary(warm),
            "ipyparallel, s": summary(theirs),
            "bare mpiexec, s": summary(bare),
        }
    )
    ratio = statistics.median(ours) / statistics.median(theirs)
    found.promise("start of 4 ranks / ipyparallel's default start", ratio, 0.45)
    ratio = statistics.median(warm) / statistics.median(theirs)
    found.promise("start of 4 ranks, 5 s after %load_ext / ipyparallel's default start", ratio, 0.2)
    beyond = statistics.median(ours) - statistics.median(bare)
    found.promise("start of 4 ranks - a bare mpiexec that imports MPI, s", beyond, 1.6)
    return found


def _bare() -> float:
    allowed = {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
    command = [find_mpiexec(None), "-n", "4", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    began = time.monotonic()
    subprocess.run(
        [*command, sys.executable, "-c", "from mpi4py import MPI"], env=os.environ | allowed, timeout=120, check=True
    )
    return time.monotonic() - began


def _seconds(code: str) -> float:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, complained = process.communicate(timeout=120)
    except KeyboardInterrupt:
        # Ctrl-C has reached it too: it stops its world first.
        process.communicate(timeout=30)
        raise
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(complained)
    line = next(line for line in said.splitlines() if line.startswith("seconds"))
    return float(line.split()[1])
