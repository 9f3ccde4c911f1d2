"""Run the measurements and write one JSON file each to ``build/bench``.

    python -m benchmarks              all
    python -m benchmarks start cell   only these
    python -m benchmarks --quick      one start of each and some cells, printed in three lines; no files, no exit status

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

from . import cell, fan_out, gpu, objects, output, scaling, start, training
from .report import Measurement

MEASUREMENTS = {
    "start": start.measure,
    "cell": cell.measure,
    "objects": objects.measure,
    "bytes": output.measure_bytes,
    "first-line": output.measure_first_line,
    "flood": output.measure_flood,
    "training": training.measure,
    "scaling": scaling.measure,
    "fan-out": fan_out.measure,
    "gpu": gpu.measure,
}
DEVICES = {"gpu": 1}
"""The measurements that need CUDA devices, and how many; where they are missing, a line says so instead."""


def main() -> int:
    """Measure, print, write; 0 if every promise held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], help="which (default: all)")
    parser.add_argument("--quick", action="store_true", help="tell how a start and an empty cell compare, in 30 s")
    wanted = parser.parse_args()
    if wanted.quick:
        for told in (start.measure(rounds=1), cell.measure(rounds=30)):
            for promise in told.promises:
                print(f"  {promise.name}: {promise.found:.2f}, promised at most {promise.at_most:g}", flush=True)
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
