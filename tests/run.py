"""What ``make test`` runs: style, types, then each test directory in a process of its own, against time budgets.

    python -m tests.run                  everything that is not marked slow
    python -m tests.run --all            everything
    python -m tests.run view unit lint   only these

``lint`` stands for style and types, ``typescript`` for those and the tests of the front end, ``unit`` for the test
files that lie in ``tests`` itself. The exit status is 0 only if all passed within their budgets. The last line is
``N passed, N failed, N skipped``, over all tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
REPORTS = ROOT / "build" / "tests"

BUDGETS = {
    "lint": 15,
    "typescript": 30,
    "unit": 15,
    "core": 10,
    "wire": 10,
    "client": 10,
    "view": 25,
    "engine": 15,
    "faults": 230,
    "steward": 300,
    "session": 380,
    "magics": 230,
    "store": 110,
    "frameworks": 420,
    "server": 120,
    "browser": 260,
    "examples": 150,
    "horovod": 20,
}
"""Seconds that each part may take on a machine with 2 cores, in the order in which they run."""
TOTAL = 25 * 60
"""Seconds that all parts together may take: less than the sum of what each may, since no run is slow in all of them."""

WORDS = 200
"""Characters of a failure's message that the summary repeats."""

NO_TESTS = 5
"""Exit status of pytest when it had nothing to run."""

FRONT_END = ROOT / "labextension"
TYPESCRIPT = ["check", "test"]
"""npm's scripts, in the order in which they run."""

COUNT = re.compile(r"^ *Tests +(?:(\d+) failed)?[ |]*(?:(\d+) passed)?[ |]*(?:(\d+) skipped)?", re.MULTILINE)
"""What vitest says in the end."""

LINT = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]


@dataclass
class Part:
    """What came of one part."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    problem: str = ""
    """Why the part did not pass, other than by failed tests."""

    @property
    def good(self) -> bool:
        return not self.failed and not self.problem


def parts() -> list[str]:
    """The names of all parts that exist. A part without a budget comes last, and is an error later."""
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    found |= {"unit"} if any(TESTS.glob("test_*.py")) else set()
    known = [name for name in BUDGETS if name in {"lint", "typescript"} or name in found]
    return known + sorted(found - set(BUDGETS))


def call(command: list[str], limit: float) -> int | None:
    """Run ``python -m command`` and give its exit status, or None when it took longer than ``limit`` and was ended."""
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)
    try:
        return process.wait(timeout=limit)
    except KeyboardInterrupt:
        process.wait(timeout=30)  # the terminal has interrupted it too: let it end what it started
        raise
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest takes its fixtures down, and writes its report
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return None


def lint(part: Part) -> None:
    """Style and types."""
    broken = [" ".join(command) for command in LINT if call(command, 600) != 0]
    part.problem = " and ".join(broken) + " did not pass" if broken else ""


def typescript(part: Part) -> None:
    """Style, types and tests of the front end, with npm."""
    npm = shutil.which("npm")
    if npm is None:
        part.skipped.append((part.name, "needs Node with npm"))
        return
    commands = [["run", script] for script in TYPESCRIPT]
    if not (FRONT_END / "node_modules").exists():
        commands.insert(0, ["ci", "--no-audit", "--no-fund"])
    for command in commands:
        done = subprocess.run(
            [npm, *command],
            cwd=FRONT_END,
            env={**os.environ, "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        counted = COUNT.search(done.stdout)
        if counted:
            failed, passed, skipped = (int(number or 0) for number in counted.groups())
            part.passed += passed
            part.failed += [f"{part.name}: a test of vitest"] * failed
            part.skipped += [(part.name, "vitest skipped a test")] * skipped
        if done.returncode:
            print(done.stdout, flush=True)
            part.problem = f"npm {' '.join(command)} did not pass"
            return
    if not part.passed:
        part.problem = "vitest ran no test"


def tests(part: Part, *, slow: bool) -> None:
    """One run of pytest."""
    report = REPORTS / f"{part.name}.xml"
    report.unlink(missing_ok=True)
    where = sorted(map(str, TESTS.glob("test_*.py"))) if part.name == "unit" else [str(TESTS / part.name)]
    choice = [] if slow else ["-m", "not slow"]
    # Without slow tests a part that hangs is ended at twice its budget; with them, only the tests' own limits count.
    limit = 7200 if slow else 2 * BUDGETS[part.name]
    status = call(["pytest", "-q", f"--junitxml={report}", *choice, *where], limit)
    if report.exists():
        try:
            read(report, part)
        except ET.ParseError as error:
            part.problem = f"pytest left a report that cannot be read: {error}"
    if status is None:
        part.problem = f"hung: it was ended after {limit} s"
    elif status == NO_TESTS and not slow:
        part.skipped.append((part.name, "all of its tests are marked slow"))
    elif status not in {0, 1}:
        part.problem = f"pytest ended with status {status}"
    if part.problem and not part.failed:
        part.failed.append(part.name)  # whatever did not run has not passed


def read(report: Path, part: Part) -> None:
    """Count what pytest reported."""
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 — pytest wrote it
        name = f"{case.get('classname')}::{case.get('name')}"
        skipped = case.find("skipped")
        interrupted = case.get("name") is None
        failure = next((found for tag in ("failure", "error") if (found := case.find(tag)) is not None), None)
        if interrupted or failure is not None:
            words = "" if failure is None else " ".join((failure.get("message") or "").split())
            part.failed.append(f"{name}: {words[:WORDS]}")
        elif skipped is not None:
            part.skipped.append((name, skipped.get("message") or "no reason given"))
        else:
            part.passed += 1


def main() -> int:
    """Run the wanted parts, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description="Run the tests, part by part.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts())}; without any: all")
    parser.add_argument("--all", action="store_true", help="also the tests that are marked slow; budgets are not held")
    wanted = parser.parse_args()
    if unknown := set(wanted.parts) - set(parts()):
        parser.error(f"no such part: {', '.join(sorted(unknown))}. There are: {', '.join(parts())}")

    REPORTS.mkdir(parents=True, exist_ok=True)
    done: list[Part] = []
    for name in (name for name in parts() if not wanted.parts or name in wanted.parts):
        print(f"\n== {name}", flush=True)
        part = Part(name)
        done.append(part)
        if name not in BUDGETS:
            part.problem = "has no budget: give it one in tests/run.py"
            continue
        started = time.monotonic()
        if name == "lint":
            lint(part)
        elif name == "typescript":
            typescript(part)
        else:
            tests(part, slow=wanted.all)
        part.seconds = time.monotonic() - started
        if part.seconds > BUDGETS[name] and not wanted.all and not part.problem:
            part.problem = "took longer than its budget"
    return summary(done, hold=not wanted.all)


def summary(done: list[Part], *, hold: bool) -> int:
    """Print what was skipped, what took how long, and the sums; ``hold`` the budget of all parts together."""
    skipped = [line for part in done for line in part.skipped]
    if skipped:
        print("\nSkipped")
        for name, reason in skipped:
            print(f"  {name}: {reason}")
    print(f"\n{'part':<12}{'seconds':>9}{'budget':>9}{'passed':>8}{'failed':>8}{'skipped':>9}")
    for part in done:
        counts = f"{part.passed:>8}{len(part.failed):>8}{len(part.skipped):>9}" if part.name != "lint" else " " * 25
        words = "" if part.good else f"  FAILED{': ' if part.problem else ''}{part.problem}"
        print(f"{part.name:<12}{part.seconds:>9.1f}{BUDGETS.get(part.name, '-'):>9}{counts}{words}")
    seconds = sum(part.seconds for part in done)
    over = seconds > TOTAL and hold
    print(f"{'all':<12}{seconds:>9.1f}{TOTAL:>9}{'  FAILED: took longer than their budget' if over else ''}")
    bad = [part.name for part in done if not part.good] + (["the time of all"] if over else [])
    print(f"\nNot passed: {', '.join(bad)}" if bad else "\nAll parts passed.")
    for line in (line for part in done for line in part.failed):  # last: of a long log, people see the end
        print(f"  {line}")
    print(
        f"{sum(part.passed for part in done)} passed, "
        f"{sum(len(part.failed) for part in done)} failed, "
        f"{sum(len(part.skipped) for part in done)} skipped",
        flush=True,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
