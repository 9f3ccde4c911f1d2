"""Faults of the product itself, for the storm to find: ``make mutants``.

    python -m tests.faults.mutants [--seed 1] [--only NAMES]

A mutant is a copy of the package with one change that breaks a promise. The storm plays its draws in it until the check
that was made for that promise finds one broken, at most :data:`DRAWS` of them; then it plays the same draw in the
package as it is, where that check must find nothing. A mutant that lives shows what the storm is blind to.

Each verdict is a line of ``build/mutants.jsonl``, and draws that a copy has survived are kept with it in
``build/mutants/``: what is begun again goes on, if neither the package nor the storm has changed. The exit status is 0
only if every mutant was caught.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.faults.__main__ import ROOT, keep, lines
from tests.faults.storm import storm_digest

DRAWS: Final = 50
"""How many draws may pass before a mutant is caught."""
LONGEST: Final = 120.0
"""Seconds that a draw may take on average, on a busy machine too."""
VERDICTS = ROOT / "build" / "mutants.jsonl"
COPIES = ROOT / "build" / "mutants"
LEFT_OUT = shutil.ignore_patterns("__pycache__", "static", "labextension", "node_modules", ".pytest_cache")


class Mutant(NamedTuple):
    """A change of one place in one file of the package."""

    name: str
    breaks: str
    """What it does, in words."""
    file: str
    before: str
    after: str
    checks: tuple[str, ...]
    """The checks of the storm that see it."""


class CodeGone(Exception):
    """The code that a mutant changes is not there, or more than once."""


MUTANTS: Final = (
    Mutant(
        "release-late",
        "ranks that wait are released 9 s after the failure in place of 2 s",
        "steward/release.py",
        "_Run(run, self._clock() + self._grace)",
        "_Run(run, self._clock() + self._grace + 7.0)",
        ("release", "end"),
    ),
    Mutant(
        "consequence-first",
        "the ranks that were released stand above the error that they were released for",
        "core/causes.py",
        "return _Causes(roots, late, interrupts, echoes)",
        "return _Causes([*echoes, *roots], late, interrupts, [])",
        ("cause",),
    ),
    Mutant(
        "wrong-rank",
        "an error names the next rank",
        "core/causes.py",
        'on = f" on {count_ranks(cause.ranks)}" if run.size > 1 else ""',
        'on = f" on {count_ranks([(rank + 1) % run.size for rank in cause.ranks])}" if run.size > 1 else ""',
        ("rank", "cause"),
    ),
    Mutant(
        "variables-lost",
        "a rank that was released loses its variables",
        "rank/agent.py",
        "self._running, self._released = None, False  # it works on no run",
        "self._released and self._shell.reset(); self._running, self._released = None, False  # it works on no run",
        ("variables",),
    ),
    Mutant(
        "child-left",
        "Stop leaves a process that the cell has started",
        "rank/process_tree.py",
        "            runs, self._runs = self._runs, False\n",
        "            runs, self._runs = False, False\n",
        ("left behind",),
    ),
    Mutant(
        "exit-swallowed",
        "a rank whose cell calls sys.exit counts as one that ended well",
        "rank/cell_end.py",
        "if exception is None or issubclass(type(exception), CellEnds):",
        "if exception is None or issubclass(type(exception), (CellEnds, SystemExit)):",
        ("rank", "outcome", "end"),
    ),
    Mutant(
        "stored-wrong",
        "a run is stored with the outcome of its lowest rank",
        "store/writer.py",
        "        outcome, remark = fold.end\n",
        '        outcome, remark = fold.outcomes[min(fold.outcomes)], ""\n',
        ("store",),
    ),
    Mutant(
        "text-lost",
        "printed text is dropped when much of it waits",
        "rank/recorder.py",
        "            self._pending.append((stream, text, descriptor, log))\n",
        "            len(self._pending) > 99 or self._pending.append((stream, text, descriptor, log))\n",
        ("output",),
    ),
    Mutant(
        "hang-untold",
        "no notice says that no rank moves",
        "core/hangs.py",
        "due = max(self._since[rank] for rank in ranks) + self._limit",
        "due = max(self._since[rank] for rank in ranks) + self._limit * 1000",
        ("hang",),
    ),
    Mutant(
        "dead-alive",
        "a client takes a dead rank for one that is stopped",
        "client/link.py",
        'self._set_rank(rank, state="dead", words=words)',
        'self._set_rank(rank, state="stopped", words=words)',
        ("dead", "error"),
    ),
)


def mutated(mutant: Mutant) -> str:
    """The text of its file, changed. Raises :class:`CodeGone`."""
    text = (ROOT / "jupyter_dtrain" / mutant.file).read_text()
    if (found := text.count(mutant.before)) != 1:
        raise CodeGone(f"{mutant.name}: jupyter_dtrain/{mutant.file} has {found} times, not once: {mutant.before!r}")
    return text.replace(mutant.before, mutant.after)


def copy_of(mutant: Mutant | None, stamp: str) -> Path:
    """A folder with the package, changed, and with the tests; one of before that is the same goes on."""
    folder = COPIES / (mutant.name if mutant is not None else "as-it-is")
    mark = folder / "stamp"
    if mark.exists() and mark.read_text() == stamp:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("jupyter_dtrain", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=LEFT_OUT)
    if mutant is not None:
        (folder / "jupyter_dtrain" / mutant.file).write_text(mutated(mutant))
    mark.write_text(stamp)
    return folder


def play(folder: Path, *options: str) -> None:
    """Have the storm play in a copy. Raises :class:`subprocess.TimeoutExpired` when it takes far too long."""
    where = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": where, "PYTHONDONTWRITEBYTECODE": "1"}
    ask = "import jupyter_dtrain, pathlib; print(pathlib.Path(jupyter_dtrain.__file__).parents[1])"
    found = subprocess.run(
        [sys.executable, "-c", ask], cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert Path(found.stdout.strip()) == folder, f"the package of {found.stdout.strip()} would be played"
    with open(folder / "storm.log", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.storm", *options],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(timeout=DRAWS * LONGEST)
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its worlds
                process.wait(timeout=LONGEST)


def judge(mutant: Mutant, seed: int, code: str) -> dict[str, Any]:
    """Play it until it is caught; the verdict."""
    began = time.monotonic()
    stamp = f"{code} {hashlib.sha256(repr(mutant).encode()).hexdigest()[:8]}"
    folder = copy_of(mutant, stamp)
    checks = ",".join(mutant.checks)
    played = folder / "build" / "storm.jsonl"
    play(folder, "--seed", str(seed), "--draws", str(DRAWS), "--until", checks)
    draws = {line["draw"]: line for line in lines(played)}
    caught = [line for line in draws.values() if {*mutant.checks} & {*line["checks"]}]
    verdict = {"code": code, "mutant": mutant.name, "stamp": stamp, "seed": seed, "draws": len(draws)}
    if caught:
        number = caught[0]["draw"].partition(":")[0].partition("/")[2]
        whole = copy_of(None, code)
        play(whole, "--seed", str(seed), "--only", number)
        again = lines(whole / "build" / "storm.jsonl")[-1]
        check = next(check for check in caught[0]["checks"] if check in mutant.checks)
        verdict |= {"check": check, "draw": caught[0]["draw"], "false": check in again["checks"]}
        verdict["words"] = next(words for words in caught[0]["problems"] if words.startswith(f"{check}: "))[:300]
    return verdict | {"seconds": round(time.monotonic() - began)}


def words_of(verdict: dict[str, Any]) -> str:
    """What became of a mutant."""
    if "check" not in verdict:
        return "LIVES"
    return f"the draw is broken without it, too: {verdict['check']}" if verdict["false"] else verdict["check"]


def main() -> int:
    """Judge the mutants that have no verdict yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="which draws (default: 1)")
    parser.add_argument("--only", default="", help="mutants, with commas between them; default: all")
    wanted = parser.parse_args()
    names = [mutant.name for mutant in MUTANTS]
    only = [name for name in wanted.only.split(",") if name]
    if unknown := sorted({*only} - {*names}):
        parser.error(f"no mutants: {', '.join(unknown)}; there are {', '.join(names)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for mutant in MUTANTS:
        mutated(mutant)
    code = storm_digest()
    before = {line["mutant"]: line for line in lines(VERDICTS) if line["code"] == code and line["seed"] == wanted.seed}
    alive = 0
    print(f"{'mutant':18} {'draws':>5} {'seconds':>7}  caught by", flush=True)
    for mutant in MUTANTS:
        if only and mutant.name not in only:
            continue
        verdict = before.get(mutant.name)
        if verdict is None or "check" not in verdict or verdict["false"]:
            verdict = judge(mutant, wanted.seed, code)
            keep(VERDICTS, verdict)
        alive += "check" not in verdict or verdict["false"]
        print(f"{mutant.name:18} {verdict['draws']:5} {verdict['seconds']:7}  {words_of(verdict)}: {mutant.breaks}")
        print(f"{'':34}{verdict.get('words', '')[:160]}", flush=True)
    print(f"{alive} live" if alive else "All were caught.")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
