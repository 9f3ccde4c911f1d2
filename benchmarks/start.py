"""How long it takes until 4 ranks can run a cell, against ipyparallel's default cluster of 4 engines."""

from __future__ import annotations

import statistics
import subprocess
import sys

from .report import Measurement, summary

ROUNDS = 5

OURS = """
import time
began = time.monotonic()
import jupyter_dtrain
with jupyter_dtrain.Session.start(n=4) as session:
    session.run("pass", view=None)
    print("seconds", time.monotonic() - began)
"""

THEIRS = """
import time
began = time.monotonic()
import ipyparallel
cluster = ipyparallel.Cluster(n=4, log_level=40)
client = cluster.start_and_connect_sync()
client[:].execute("pass", block=True)
print("seconds", time.monotonic() - began)
cluster.stop_cluster_sync()
"""


def measure() -> Measurement:
    """Alternate, each in a fresh process, imports included."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_seconds(OURS))
        theirs.append(_seconds(THEIRS))
    found = Measurement({"jupyter-dtrain, s": summary(ours), "ipyparallel, s": summary(theirs)})
    ratio = statistics.median(ours) / statistics.median(theirs)
    found.promise("start of 4 ranks / ipyparallel's default start", ratio, 0.5)
    return found


def _seconds(code: str) -> float:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    line = next(line for line in answer.stdout.splitlines() if line.startswith("seconds"))
    return float(line.split()[1])
