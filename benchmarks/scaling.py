"""The cost of more ranks on this one machine: start, an empty cell, a 1 MB broadcast, stop, processes and memory.

Each world is started by a fresh process. The exponent of a cost is the slope of log(seconds) over log(ranks), fitted
to the larger worlds, where the part that all sizes share no longer rules. Linear cost gives at most 1.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from .report import Measurement

SIZES = (2, 8, 32, 64, 128)
FITTED = 32
"""Ranks from which on worlds count for the exponents."""
MARGIN = 0.1
"""An exponent may be wrong by this: three sizes, each measured a few times on two cores."""
ROUNDS = 2
PATIENCE = 600.0

WORLD = """
import json, os, statistics, sys, time
from pathlib import Path
import psutil
import jupyter_dtrain
from jupyter_dtrain.launch.worlds import list_worlds

ranks, busy = int(sys.argv[1]), sys.argv[2] == "busy"
found = {}

def timed(what):
    began = time.perf_counter()
    what()
    return time.perf_counter() - began

began = time.perf_counter()
session = jupyter_dtrain.Session.start(n=ranks)
found["start"] = time.perf_counter() - began
try:
    cells = [timed(lambda: session.run("pass", view=None)) for _ in range(13)]
    found["cell"] = statistics.median(cells[3:])
    values = {"value": os.urandom(1_000_000)}
    found["broadcast"] = statistics.median(timed(lambda: session.push(values)) for _ in range(3))
    session.run("del value", view=None)
    time.sleep(3)
    listing = next(one for one in list_worlds() if one.id == session.id)
    steward = psutil.Process(listing.steward)
    guard = steward.parent()
    own = [steward, *steward.children(recursive=True)]
    if guard is not None and guard.pid not in (1, os.getpid()) and len(guard.children()) == 1:
        own.append(guard)
    found["processes"] = len(own)
    found["pss"] = sum(
        int(line.split()[1])
        for process in own
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    )
    if busy:
        session.run("begun = True\\nwhile True: sum(range(100_000))", wait=False, view=None)
        time.sleep(2)
finally:
    found["stop"] = timed(session.stop)
print("found", json.dumps(found))
"""


def measure(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS) -> Measurement:
    """Every size in turn, some rounds, each once with idle ranks at its stop and once with ranks that compute.

    The smallest of each time is taken, since other work on the machine only adds to it.
    """
    began = os.getloadavg()[0]
    every: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            for stop in ("idle", "busy"):
                world = _world(size, stop)
                world[f"stop, {stop}"] = world.pop("stop")
                every[size].append(world)
    found = {size: _best(worlds) for size, worlds in every.items()}
    result = Measurement({f"{size} ranks": _figures(size, one) for size, one in found.items()})
    result.figures["load average before and after"] = [round(began, 2), round(os.getloadavg()[0], 2)]
    large = [size for size in sizes if size >= FITTED]
    for cost in ("start", "cell", "broadcast", "stop, idle", "stop, busy"):
        if len(large) > 1:
            slope = exponent(large, [found[size][cost] for size in large])
            result.promise(f"exponent of {cost} from {large[0]} to {large[-1]} ranks", slope, 1.0 + MARGIN)
    if 64 in found:
        at = found[64]
        result.promise("start of 64 ranks, s", at["start"], 12.0)
        result.promise("an empty cell on 64 ranks, ms", 1000 * at["cell"], 200.0)
        result.promise("stop of 64 idle ranks, s", at["stop, idle"], 5.0)
        result.promise("stop of 64 ranks that compute, s", at["stop, busy"], 5.0)
        result.promise("memory of an idle rank, of 64, MiB", at["pss"] / 1024 / 64, 75.0)
        result.promise("processes a rank, of 64", at["processes"] / 64, 2.1)
    return result


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log(``seconds``) over log(``sizes``), by least squares. Both have at least two different values."""
    across = [math.log(size) for size in sizes]
    up = [math.log(value) for value in seconds]
    middle, height = statistics.fmean(across), statistics.fmean(up)
    both = sum((x - middle) * (y - height) for x, y in zip(across, up, strict=True))
    return both / sum((x - middle) ** 2 for x in across)


def _best(worlds: list[dict[str, float]]) -> dict[str, float]:
    return {what: min(world[what] for world in worlds if what in world) for world in worlds for what in world}


def _figures(size: int, one: dict[str, float]) -> dict[str, Any]:
    return {
        "start, s": round(one["start"], 2),
        "empty cell, ms": round(1000 * one["cell"], 1),
        "broadcast of 1 MB, ms": round(1000 * one["broadcast"], 1),
        "stop, idle, s": round(one["stop, idle"], 2),
        "stop, busy, s": round(one["stop, busy"], 2),
        "processes": one["processes"],
        "processes a rank": round(one["processes"] / size, 2),
        "memory a rank, MiB": round(one["pss"] / 1024 / size, 1),
    }


def _world(ranks: int, stop: str) -> dict[str, float]:
    """The figures of one world."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORLD, str(ranks), stop], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, complained = process.communicate(timeout=PATIENCE)
    except BaseException:
        process.send_signal(signal.SIGINT)  # it stops its world first
        process.communicate(timeout=60)
        raise
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(complained)
    line = next(line for line in said.splitlines() if line.startswith("found "))
    found: dict[str, float] = json.loads(line.removeprefix("found "))
    return found
