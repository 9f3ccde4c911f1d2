"""Run the measurements and write one JSON file each to ``build/bench``.

    python -m benchmarks              all
    python -m benchmarks start cell   only these

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

from . import cell, output, start, training
from .report import Measurement

MEASUREMENTS = {
    "start": start.measure,
    "cell": cell.measure,
    "bytes": output.measure_bytes,
    "first-line": output.measure_first_line,
    "flood": output.measure_flood,
    "training": training.measure,
}


def main() -> int:
    """Measure, print, write; 0 if every promise held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], help="which (default: all)")
    names = parser.parse_args().names or list(MEASUREMENTS)
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    good = True
    for name in names:
        began = time.monotonic()
        found: Measurement = MEASUREMENTS[name]()
        seconds = time.monotonic() - began
        record = {"name": name, "machine": machine, "seconds": round(seconds, 1), **found.record()}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
        print(f"\n{name} ({seconds:.0f} s)\n{found.text()}", flush=True)
        good = good and found.good
    return 0 if good else 1


sys.exit(main())
