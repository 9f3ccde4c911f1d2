"""Run the measurements and write one JSON file each to ``build/bench``.

    python -m benchmarks              all
    python -m benchmarks start cell   only these
    python -m benchmarks --quick      one start of each, some cells and steps, beside the last release; writes no file

Every figure that carries a promise is a ratio of two things measured in turn in this run; the promise stands beside it
in the file and decides the exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from tests import devices

from . import cell, fan_out, gpu, objects, output, scaling, start, step_time, training
from .report import Measurement

MEASUREMENTS = {
    "start": start.measure,
    "cell": cell.measure,
    "objects": objects.measure,
    "bytes": output.measure_bytes,
    "first-line": output.measure_first_line,
    "flood": output.measure_flood,
    "training": training.measure,
    "step-time": step_time.measure,
    "scaling": scaling.measure,
    "fan-out": fan_out.measure,
    "gpu": gpu.measure,
}
RELEASE = Path(__file__).with_name("release.json")
"""The figures of the last release, on the machine that its file names."""
DEVICES = {"gpu": 1}
"""The measurements that need CUDA devices, and how many; where they are missing, a line says so instead."""


def tell() -> None:
    """Print the figures of a start, an empty cell and training beside those of the last release, a line for each."""
    before = json.loads(RELEASE.read_text())
    for measure in (
        lambda: start.measure(rounds=1),
        lambda: cell.measure(rounds=30),
        lambda: training.measure(["1 ms"], pairs=40),
    ):
        for promise in measure().promises:
            bound = f"at most {promise.at_most:g}" if promise.at_most is not None else f"at least {promise.at_least:g}"
            was = before["figures"].get(promise.name)
            release = "" if was is None else f" ({before['release']}: {was:g})"
            print(f"  {promise.name}: {promise.found:.3g}{release}, promised {bound}", flush=True)


def main() -> int:
    """Measure, print, write; 0 if every promise held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], help="which (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="tell how a start, an empty cell and training compare, in a minute"
    )
    wanted = parser.parse_args()
    if wanted.quick:
        tell()
        return 0
    names = wanted.names or list(MEASUREMENTS)
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    machine: dict[str, object] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    good = True
    for name in names:
        if missing := devices.why_not(DEVICES[name]) if name in DEVICES else "":
            print(f"\n{name}: not measured, it {missing}.", flush=True)
            continue
        began = time.monotonic()
        found: Measurement = MEASUREMENTS[name]()
        seconds = time.monotonic() - began
        if name in DEVICES:
            machine["devices"] = list(devices.look().names)
        record = {"name": name, "machine": machine, "seconds": round(seconds, 1), **found.record()}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
        print(f"\n{name} ({seconds:.0f} s)\n{found.text()}", flush=True)
        good = good and found.good
    return 0 if good else 1


sys.exit(main())
