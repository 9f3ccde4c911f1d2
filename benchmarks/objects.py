"""The cost of arrays on their way to 4 ranks and back, compared with ``MPI.Bcast`` and ipyparallel's ``DirectView``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import ipyparallel
import numpy as np

from jupyter_dtrain import Session

from .report import Measurement, summary

RANKS = 4
ROUNDS = 5
PUSHED = 256 << 20
"""Bytes of the array that all ranks get."""
PULLED = 100_000_000
"""Bytes of the array that each rank sends."""
SMALL = 1000
"""Bytes of an array that costs what a request costs."""

BCAST = f"""
import time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
array = np.empty({PUSHED // 8}) if comm.rank else np.ones({PUSHED // 8})
comm.Barrier()
began = time.perf_counter()
comm.Bcast(array)
took = float(comm.allreduce(time.perf_counter() - began, MPI.MAX))
del array
took
"""
FILL = f"import numpy as np\nhave = np.random.rand({PULLED // 8})\nsmall = np.zeros({SMALL // 8})"


def measure(rounds: int = ROUNDS) -> Measurement:
    """Alternate them, both sets of ranks alive; the first round of each does not count."""
    array, small = np.random.default_rng(0).random(PUSHED // 8), np.zeros(SMALL // 8)
    cluster = ipyparallel.Cluster(n=RANKS, log_level=40)
    view = cluster.start_and_connect_sync()[:]
    try:
        with Session.start(RANKS) as session:
            session.run(FILL, view=None)
            view.execute(FILL, block=True)
            ways: dict[str, Callable[[], float]] = {
                "push": lambda: _timed(lambda: session.push({"got": array})),
                "first Bcast": lambda: float(session.run(BCAST, view=None).results[0].data["text/plain"]),
                "push, ipyparallel": lambda: _timed(lambda: view.push({"got": array}, block=True)),
                "pull": lambda: _timed(lambda: session.pull("have")),
                "pull, ipyparallel": lambda: _timed(lambda: view.pull("have", block=True)),
                "push of 1 kB": lambda: _timed(lambda: session.push({"small": small})),
                "push of 1 kB, ipyparallel": lambda: _timed(lambda: view.push({"small": small}, block=True)),
                "pull of 1 kB": lambda: _timed(lambda: session.pull("small")),
                "pull of 1 kB, ipyparallel": lambda: _timed(lambda: view.pull("small", block=True)),
            }
            took: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds + 1):
                for name, way in ways.items():
                    if "1 kB" not in name:
                        _warm_memory()
                    took[name].append(way())
                # What was pushed is replaced, not kept twice.
                session.run("del got", view=None)
                view.execute("del got", block=True)
    finally:
        cluster.stop_cluster_sync()
    medians = {name: statistics.median(times[1:]) for name, times in took.items()}
    found = Measurement({f"{name}, ms": summary(times[1:], 1000) for name, times in took.items()})
    for name, peer, at_most in (
        ("push", "first Bcast", 1.5),
        ("push", "push, ipyparallel", 0.4),
        ("pull", "pull, ipyparallel", 0.6),
    ):
        found.promise(f"{name} / {peer}", medians[name] / medians[peer], at_most)
    return found


def _warm_memory() -> None:
    """Have this machine own free memory: a virtual one gives it back to its host in seconds, and gets it slowly."""
    np.ones(8 * PUSHED // 8)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
