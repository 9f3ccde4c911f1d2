"""Arrays sent to 4 ranks and brought back, and how much memory that takes on both sides.

The limits are MPI: a first Bcast into fresh memory, and a Gather; and shared memory, into which one process writes once
and out of which each of the others copies.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from .page import figure
from .players import DidNotEnd, Player, program
from .result import Entry, Row
from .speed import in_turns, worlds

RANKS = 4
SIZES = {"1 kB": 1_000, "1 MB": 1_000_000, "100 MB": 100_000_000, "256 MB": 256_000_000}
LARGE = {"1 GB": 1_000_000_000}
"""Only with ``--large``: the pull needs 5 GB here."""
SECONDS = {"1 kB": 2.0, "1 MB": 2.0, "100 MB": 10.0, "256 MB": 14.0, "1 GB": 60.0}
"""For all tools together, and each way."""

SET_UP = """import time, numpy
def taken(what):
    began = time.perf_counter()
    what()
    print("seconds", time.perf_counter() - began)
"""
PUSH = {
    "jupyter-dtrain": 'session.push({"x": x})',
    "ipyparallel": 'view.push({"x": x}, block=True)',
}
PULL = {
    "jupyter-dtrain": 'session.pull("x")',
    "ipyparallel": 'view.pull("x", block=True)',
}
OPEN = {"jupyter-dtrain": "import jupyter_dtrain\nsession = jupyter_dtrain.current()", "ipyparallel": "pass"}

MPI = """
import json, sys, time
import numpy
from mpi4py import MPI
from multiprocessing import shared_memory
comm = MPI.COMM_WORLD
size = {size}
found = {{"bcast": [], "gather": [], "shared": []}}
x = numpy.random.default_rng(0).integers(0, 256, size, dtype="u1")
for _ in range({rounds}):
    into = x if comm.rank == 0 else numpy.empty(size, "u1")
    comm.Barrier()
    began = time.perf_counter()
    comm.Bcast(into)
    comm.Barrier()
    found["bcast"].append(time.perf_counter() - began)
    del into
    into = numpy.empty(size * comm.size, "u1") if comm.rank == 0 else None
    comm.Barrier()
    began = time.perf_counter()
    comm.Gather(x, into)
    comm.Barrier()
    found["gather"].append(time.perf_counter() - began)
    del into
    comm.Barrier()
    began = time.perf_counter()
    if comm.rank == 0:
        shared = shared_memory.SharedMemory(create=True, size=size)
        numpy.frombuffer(shared.buf, "u1", size)[:] = x
    name = comm.bcast(shared.name if comm.rank == 0 else None)
    if comm.rank:
        # Its tracker would take the memory away when the first of them ends.
        import multiprocessing.resource_tracker as tracker
        tracker.register = lambda *_: None
        shared = shared_memory.SharedMemory(name=name)
        copied = numpy.frombuffer(shared.buf, "u1", size).copy()
    comm.Barrier()
    found["shared"].append(time.perf_counter() - began)
    copied = None
    if comm.rank == 0:
        shared.unlink()
    # Views of it may still live: the memory goes with the process.
    shared._buf = None
    comm.Barrier()
if comm.rank == 0:
    print("found", json.dumps(found))
"""


def objects(*, large: bool = False) -> list[Row]:
    """Both ways, in turns, at each size; then each once more with an eye on memory."""
    rows: list[Row] = []
    with contextlib.ExitStack() as alive:
        players, missing = worlds(alive, list(PUSH), RANKS)
        for name, player in players.items():
            player.local(SET_UP + OPEN[name])
            player.cell("import numpy")
        for size, count in (SIZES | (LARGE if large else {})).items():
            rows += _size(players, missing, size, count)
    return rows


def _size(players: dict[str, Player], missing: dict[str, Entry], size: str, count: int) -> list[Row]:
    for player in players.values():
        player.local(f'x = numpy.random.default_rng(0).integers(0, 256, {count}, dtype="u1")')
    rows = []
    limits = _limits(count, 3 if count >= 10**8 else 20)
    for way, lines, limit in (("push", PUSH, "bcast"), ("pull", PULL, "gather")):
        contestants = {name: _moved(player, lines[name]) for name, player in players.items()}
        found = in_turns(contestants, SECONDS[size], most=20, enough=lambda values: len(values) >= 2)
        title = f"push {size} to {RANKS} ranks" if way == "push" else f"pull {size} from each of {RANKS} ranks"
        row = Row(f"objects-{way}-{size.replace(' ', '')}", title, "s", found | missing)
        row.entries["mpiexec"] = limits.get(limit, Entry(missing="it failed"))
        shared = limits.get("shared")
        row.note = "mpiexec: a Bcast into fresh memory" if way == "push" else "mpiexec: a Gather into fresh memory"
        if shared and way == "push":
            row.note += f"; through shared memory, a copy out of it included, {figure(shared.median or 0.0, 's')}"
        rows.append(row)
        if count >= 10**8:
            rows += _memory(players, missing, way, size, count, lines)
    return rows


def _moved(player: Player, line: str) -> Callable[[], float]:
    def run() -> float:
        text = player.local(f"taken(lambda: {line})", 90).text
        return float(text.split("seconds", 1)[1].split()[0])

    return run


def _limits(count: int, rounds: int) -> dict[str, Entry]:
    with contextlib.suppress(DidNotEnd):
        _, printed = program("mpiexec", RANKS + 1, MPI.format(size=count, rounds=rounds))
        found = json.loads(next(line for line in printed.splitlines() if line.startswith("found"))[5:])
        return {way: Entry(values) for way, values in found.items()}
    return {}


def _memory(
    players: dict[str, Player], missing: dict[str, Entry], way: str, size: str, count: int, lines: dict[str, str]
) -> list[Row]:
    """The peaks of the notebook's process and of the rank that takes most, over what each had, in arrays."""
    rows = [
        Row(
            f"objects-{way}-{size.replace(' ', '')}-memory-{side}",
            f"{way} {size}: peak memory of {'the notebook' if side == 'here' else 'a rank'}, in arrays of {size}",
            "",
            dict(missing),
        )
        for side in ("here", "rank")
    ]
    for name, player in players.items():
        try:
            # The rank has no such array yet, and the notebook keeps nothing of what it pulled before.
            if way == "push":
                player.cell("x = None")
            here = _number(player.local("import os\nprint('pid', os.getpid())").text)
            ranks = _numbers(player.cell("import os\nprint('pid', os.getpid())").text)
            before = {pid: _reset_peak(pid) for pid in (here, *ranks)}
            player.local(f"kept = {lines[name]}", 90)
            peaks = {pid: max(0.0, round((_status(pid, "VmHWM") - before[pid]) / count, 2)) for pid in before}
            player.local("kept = None")
        except Exception as problem:  # noqa: BLE001 — the other tool goes on
            for row in rows:
                row.entries[name] = Entry(missing=f"it failed: {str(problem)[:200]}")
            continue
        rows[0].entries[name] = Entry([peaks[here]])
        rows[1].entries[name] = Entry([max(peaks[pid] for pid in ranks)])
    for row in rows:
        row.note = "Resident memory at its peak, less what the process had just before; the array itself counts."
    return rows


def _numbers(text: str) -> list[int]:
    return sorted({int(part.split()[0]) for part in text.split("pid")[1:]})


def _number(text: str) -> int:
    return _numbers(text)[0]


def _reset_peak(pid: int) -> int:
    """Forget the peak so far; bytes that the process has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])
