"""``make gpu``: the tests that need CUDA devices, the measurement of a CUDA loop, and one summary at the end.

    python -m tests.gpu

The environment must have PyTorch for CUDA, this package and pytest. Without a device, a line says what is missing, and
the exit status is 0. Else it is 0 only if no test failed and every promise of the measurement held. Tests for more
devices than there are get listed as skipped. The output of both goes to ``build/tests/gpu.log`` and to the terminal.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests import devices
from tests.run import REPORTS, ROOT, Part, read

LIMIT = 480.0
"""Seconds that all of it should take on one device."""
HUNG = 900.0
"""Seconds after which one of the two is interrupted."""
BENCH = ROOT / "build" / "bench" / "gpu.json"


def call(command: list[str], log: Path) -> int:
    """Run a command; its output goes to the terminal and into ``log``."""
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    with (
        log.open("a") as kept,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        end = threading.Timer(HUNG, process.send_signal, [signal.SIGINT])  # pytest then says where it was
        end.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            kept.write(line)
        end.cancel()
        return process.wait()


def promises() -> list[tuple[bool, str]]:
    """The promises of the measurement, each with whether it held."""
    found = json.loads(BENCH.read_text())["promises"]
    return [(one["held"], f"{one['name']}: {one['found']:.4g}") for one in found]


def main() -> int:
    """Run both; print the summary."""
    missing = devices.why_not(1) or ("" if importlib.util.find_spec("pytest") else "needs pytest: it is not installed")
    if missing:
        print(f"Nothing was run: this {missing}.")
        return 0
    REPORTS.mkdir(parents=True, exist_ok=True)
    log, report = REPORTS / "gpu.log", REPORTS / "gpu.xml"
    for old in (log, report, BENCH):
        old.unlink(missing_ok=True)
    began = time.monotonic()
    part = Part("gpu")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--durations=10",
        f"--junitxml={report}",
        str(ROOT / "tests" / "gpu"),
    ]
    status = call(command, log)
    if report.exists():
        read(report, part)
    tested = time.monotonic() - began
    measured = call([sys.executable, "-m", "benchmarks", "gpu"], log)
    seconds = time.monotonic() - began
    return summary(part, status, measured, tested, seconds)


def summary(part: Part, status: int, measured: int, tested: float, seconds: float) -> int:
    """Print what a person should know of it; the exit status."""
    names = devices.look().names
    print(f"\n{len(names)} x {names[0]}, torch {devices.look().torch}, CUDA {devices.look().cuda}")
    for name, reason in part.skipped:
        print(f"  skipped: {name}: {reason}")
    for line in part.failed:
        print(f"  FAILED: {line}")
    held = promises() if BENCH.exists() else []
    for good, words in held:
        print(f"  {'holds' if good else 'BROKEN'}: {words}")
    if measured and not held:
        print("  FAILED: python -m benchmarks gpu has measured nothing")
    over = f", over its {LIMIT:.0f} s" if seconds > LIMIT else ""
    print(f"{tested:.0f} s of tests, {seconds - tested:.0f} s of measurement{over}")
    print(f"{part.passed} passed, {len(part.failed)} failed, {len(part.skipped)} skipped", flush=True)
    return 0 if status == 0 and measured == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
