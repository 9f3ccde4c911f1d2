"""Runs the parts of ``make test`` and ``make check``: style, types, then each test directory in its own process.

    python -m tests.run                  everything that is not marked slow
    python -m tests.run --all            everything
    python -m tests.run view unit lint   only these

``lint`` stands for style, types and imports between folders, ``typescript`` for the same and the tests of the front
end, ``unit`` for the test files that lie in ``tests`` itself, in ``core``, ``wire``, ``plugins``, ``watch``, ``client``
and ``launch``. Two parts run side by side, since most of them wait more than they compute; a line every few seconds
names them. A part's output goes to ``build/tests/PART.log``, and here once the part has ended.

After a run of everything, ratios follow: a start and an empty cell against ipyparallel's, training against torchrun,
each beside that of the last release. They are shown and not judged, so that a change that costs speed is seen on its
day.

The exit status is 0 only if all tests passed. A part that takes longer than its budget gets a warning, and one that
takes several times its budget is ended as hung, which counts as failed. The last line is ``N passed, N failed, N
skipped``, over all tests.
"""

from __future__ import annotations

import argparse
import heapq
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import IO
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
REPORTS = ROOT / "build" / "tests"

BUDGETS = {
    "lint": 16,
    "typescript": 46,
    "unit": 48,
    "view": 22,
    "rank": 28,
    "faults": 80,
    "steward": 140,
    "session": 240,
    "magics": 165,
    "store": 60,
    "frameworks": 375,
    "server": 76,
    "preflight": 28,
    "browser": 208,
    "examples": 40,
    "jobs": 28,
    "docs": 42,
    "horovod": 6,
    "hosts": 108,
    "slurm": 34,
    "gpu": 5,
}
"""Seconds that each part should take on a machine with 2 cores, beside another part."""
ON_HOSTS = ("test_behaviour_environment.py",)
"""Files of the behaviour suite that the part ``hosts`` runs again, on hosts; `make test-hosts` runs all of them."""
UNIT = ("core", "wire", "plugins", "watch", "client", "launch")
"""Directories whose tests start no world: they are in the part ``unit``."""
LANES = min(2, len(os.sched_getaffinity(0)))
"""Parts that run side by side."""
HUNG = 5
"""A part that takes so many times its budget is ended."""
SHORTEST_CAP = 900.0
"""Seconds that every part has before it counts as hung, however small its budget."""
SLOW_CAP = 7200.0
"""The same for a part with its slow tests, which have limits of their own."""
LAST_WORDS = 60.0
"""Seconds that a part has to write its report after it was interrupted."""
EVERY = 10.0
"""Seconds between two lines that name the parts at work."""

RATIOS = [sys.executable, "-m", "benchmarks", "--quick"]
"""The comparison with peers."""
RATIOS_CAP = 180.0
"""Seconds that it may take; it takes about 60."""

WORDS = 200
"""Characters of a failure's message that the summary repeats."""

NO_TESTS = 5
"""Exit status of pytest when it had nothing to run."""

FRONT_END = ROOT / "labextension"
TYPESCRIPT = ["check", "test"]
"""npm's scripts, in the order in which they run."""

COUNT = re.compile(r"^ *Tests +(?:(\d+) failed)?[ |]*(?:(\d+) passed)?[ |]*(?:(\d+) skipped)?", re.MULTILINE)
"""The counts that vitest prints at its end."""

LINT = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    # It has no module that runs.
    "lint-imports": ["-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"],
}
"""Commands of Python's, by what people call them."""


class Hung(Exception):
    """A command was ended because its part had taken too long."""


@dataclass
class Part:
    """A part, and what came of it."""

    name: str
    slow: bool = False
    """Whether its slow tests run too."""
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    problem: str = ""
    """Why the part did not pass, other than by failed tests."""
    began: float = 0.0
    """A time on the monotonic clock; 0 before it begins."""
    seconds: float = 0.0
    """How long it took, once it has ended."""

    @property
    def good(self) -> bool:
        return not self.failed and not self.problem

    @property
    def cap(self) -> float:
        """Seconds after which it counts as hung."""
        return SLOW_CAP if self.slow else max(SHORTEST_CAP, HUNG * BUDGETS[self.name])

    @property
    def log(self) -> Path:
        return REPORTS / f"{self.name}.log"


def parts() -> list[str]:
    """The names of all parts that exist. A part without a budget comes last, and is an error later."""
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")} - set(UNIT)
    found |= {"unit"} if any(TESTS.glob("test_*.py")) else set()
    known = [name for name in BUDGETS if name in {"lint", "typescript"} or name in found]
    return known + sorted(found - set(BUDGETS))


def longest_first(names: Iterable[str]) -> list[str]:
    """The order in which parts begin: the last ones are short, so that the lanes end at about the same time."""
    return sorted(names, key=lambda name: -BUDGETS.get(name, 0))


def planned(names: Iterable[str], lanes: int) -> int:
    """Seconds that these parts take together when each takes its budget: what their budgets add up to."""
    free = [0] * lanes
    for name in longest_first(names):
        heapq.heappush(free, heapq.heappop(free) + BUDGETS.get(name, 0))
    return max(free)


class Runner:
    """Runs parts, each on a thread that waits for its processes."""

    def __init__(self, *, slow: bool) -> None:
        self._slow = slow
        self._interrupted = Event()

    def run(self, names: list[str]) -> list[Part]:
        """Run them all; what came of each, in the order of ``names``."""
        began = time.monotonic()
        of = {name: Part(name, slow=self._slow) for name in names}
        lanes = ThreadPoolExecutor(LANES)
        waiting = {lanes.submit(self._play, of[name]): of[name] for name in longest_first(names)}
        try:
            while waiting:
                done, _ = wait(waiting, timeout=EVERY, return_when=FIRST_COMPLETED)
                for future in done:
                    self._show(waiting.pop(future), future)
                at_work = [part for part in waiting.values() if part.began]
                if at_work and not done:
                    now = time.monotonic()
                    minutes, seconds = divmod(int(now - began), 60)
                    words = ", ".join(f"{part.name} {now - part.began:.0f} s" for part in at_work)
                    ended = len(of) - len(waiting)
                    print(f"{minutes:02}:{seconds:02} {words}; {ended} of {len(of)} parts done", flush=True)
        except KeyboardInterrupt:
            self._interrupted.set()
            raise
        finally:
            lanes.shutdown(cancel_futures=True)
        return list(of.values())

    def _show(self, part: Part, future: Future[None]) -> None:
        """Print what a part that has ended wrote."""
        print(f"\n== {part.name}, {part.seconds:.0f} s", flush=True)
        if part.log.exists():
            print(part.log.read_text(errors="replace").rstrip(), flush=True)
        future.result()

    def _play(self, part: Part) -> None:
        part.began = time.monotonic()
        part.log.unlink(missing_ok=True)
        if part.name not in BUDGETS:
            part.problem = "has no budget: give it one in tests/run.py"
            return
        kinds = {"lint": self._lint, "typescript": self._typescript}
        try:
            kinds.get(part.name, self._tests)(part)
        except Hung:
            part.problem = f"hung: it was ended after {part.cap:.0f} s"
        if part.problem and not part.failed:
            part.failed.append(part.name)  # what did not run has not passed
        part.seconds = time.monotonic() - part.began

    def _lint(self, part: Part) -> None:
        """Style and types."""
        broken = [name for name, command in LINT.items() if self._call(part, [sys.executable, *command], ROOT) != 0]
        part.problem = " and ".join(broken) + " did not pass" if broken else ""

    def _typescript(self, part: Part) -> None:
        """Style, types and tests of the front end, with npm."""
        npm = shutil.which("npm")
        if npm is None:
            part.skipped.append((part.name, "needs Node with npm"))
            return
        if self._call(part, [sys.executable, "scripts/front_end_types.py", "--check"], ROOT) != 0:
            part.problem = "labextension/src/generated.ts is out of date: run python scripts/front_end_types.py"
            return
        commands = [["run", script] for script in TYPESCRIPT]
        if not (FRONT_END / "node_modules").exists():
            commands.insert(0, ["ci", "--no-audit", "--no-fund"])
        for command in commands:
            if self._call(part, [npm, *command], FRONT_END) != 0:
                part.problem = f"npm {' '.join(command)} did not pass"
                break
        for failed, passed, skipped in COUNT.findall(part.log.read_text(errors="replace")):
            part.passed += int(passed or 0)
            part.failed += [f"{part.name}: a test of vitest"] * int(failed or 0)
            part.skipped += [(part.name, "vitest skipped a test")] * int(skipped or 0)
        if not part.passed and not part.problem:
            part.problem = "vitest ran no test"

    def _tests(self, part: Part) -> None:
        """One run of pytest."""
        report = REPORTS / f"{part.name}.xml"
        report.unlink(missing_ok=True)
        where = [str(TESTS / part.name)]
        if part.name == "unit":
            where = [str(path) for path in (*sorted(TESTS.glob("test_*.py")), *map(TESTS.joinpath, UNIT))]
        choice = [] if part.slow else ["-m", "not slow"]
        if part.name == "hosts":
            where += ["--on-hosts", *(str(TESTS / "session" / name) for name in ON_HOSTS)]
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *choice, *where]
        try:
            status = self._call(part, command, ROOT)
        finally:
            if report.exists():
                try:
                    read(report, part)
                except ET.ParseError as error:
                    part.problem = f"pytest left a report that cannot be read: {error}"
        if status == NO_TESTS and not part.slow:
            part.skipped.append((part.name, "all of its tests are marked slow"))
        elif status not in {0, 1}:
            part.problem = f"pytest ended with status {status}"
        elif status == 1 and not part.failed:
            part.problem = part.problem or "pytest ended with status 1 and reported no failed test"

    def _call(self, part: Part, command: list[str], folder: Path) -> int:
        """Run a command, its output into the part's log; its exit status. :class:`Hung` when the part's time is up."""
        with part.log.open("a") as log:
            process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, "NO_COLOR": "1"}, stdout=log, stderr=subprocess.STDOUT
            )
            while True:
                try:
                    return process.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    if self._interrupted.is_set():
                        end(process, log, interrupt=False)  # the terminal has interrupted it too
                        raise KeyboardInterrupt from None
                    if time.monotonic() - part.began > part.cap:
                        end(process, log, interrupt=True)
                        raise Hung from None


def end(process: subprocess.Popen[bytes], log: IO[str], *, interrupt: bool) -> None:
    """End a process. An interrupted pytest takes its fixtures down, and writes its report."""
    if interrupt:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=LAST_WORDS)
    except subprocess.TimeoutExpired:
        log.write(f"\n{LAST_WORDS:.0f} s after the interrupt it was killed.\n")
        process.kill()
        process.wait()


def read(report: Path, part: Part) -> None:
    """Count what pytest reported."""
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 — pytest wrote it
        interrupted = case.get("name") is None
        name = f"{part.name}: interrupted" if interrupted else f"{case.get('classname')}::{case.get('name')}"
        skipped = case.find("skipped")
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
    parser.add_argument("--all", action="store_true", help="also the tests that are marked slow; budgets do not apply")
    wanted = parser.parse_args()
    if unknown := set(wanted.parts) - set(parts()):
        parser.error(f"no such part: {', '.join(sorted(unknown))}. There are: {', '.join(parts())}")

    REPORTS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    # Where bytecode is not written, each process of each world would compile what was edited since the installation.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "jupyter_dtrain"], cwd=ROOT, check=False)
    try:
        done = Runner(slow=wanted.all).run([name for name in parts() if not wanted.parts or name in wanted.parts])
        seconds = time.monotonic() - began
        if not wanted.parts:
            print(f"\nAgainst peers\n{ratios()}", flush=True)
    except KeyboardInterrupt:
        print(f"\nInterrupted. The output of the parts is in {REPORTS}/.", flush=True)
        return 130
    return summary(done, seconds)


def ratios() -> str:
    """How a start and an empty cell compare; or why that is not known. An interrupt leaves no world behind."""
    told = REPORTS / "ratios.log"
    with told.open("w") as log:
        process = subprocess.Popen(RATIOS, cwd=ROOT, stdout=log, stderr=log)
        try:
            status = process.wait(timeout=RATIOS_CAP)
        except subprocess.TimeoutExpired:
            end(process, log, interrupt=True)
            return f"  not known after {RATIOS_CAP:.0f} s; see {told}"
        except KeyboardInterrupt:
            end(process, log, interrupt=False)  # the terminal has interrupted it too
            raise
    return f"  not known: the comparison failed, see {told}" if status else told.read_text().rstrip()


def summary(done: list[Part], seconds: float) -> int:
    """Print what was skipped, what took how long, and the sums; the exit status."""
    skipped = [line for part in done for line in part.skipped]
    if skipped:
        print("\nSkipped")
        for name, reason in skipped:
            print(f"  {name}: {reason}")
    print(f"\n{'part':<12}{'seconds':>9}{'budget':>9}{'passed':>8}{'failed':>8}{'skipped':>9}")
    for part in done:
        counts = f"{part.passed:>8}{len(part.failed):>8}{len(part.skipped):>9}" if part.name != "lint" else " " * 25
        words = "" if part.good else f"  FAILED{': ' if part.problem else ''}{part.problem}"
        over = "  over its budget" if part.seconds > BUDGETS.get(part.name, 0) and not part.slow else ""
        print(f"{part.name:<12}{part.seconds:>9.1f}{BUDGETS.get(part.name, '-'):>9}{counts}{words}{over}")
    budget = planned([part.name for part in done], LANES)
    over = "  over its budget" if seconds > budget and not any(part.slow for part in done) else ""
    print(f"{'all':<12}{seconds:>9.1f}{budget:>9}{over}")
    bad = [part.name for part in done if not part.good]
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
