"""Cells for half an hour, with a random fault in every tenth: ``make soak``.

    python -m tests.faults.soak [--minutes 30] [--ranks 3]

One world lives through all of it: faults that end a world are left out, and after a rank's death it is restarted. After
each ten cells, memory and open files of the client, the steward, the controller and the ranks are noted, with the bytes
that the cells have spooled, as a line of ``build/soak.jsonl``; a soak that is begun again goes on with the minutes that
are missing. The exit status is 0 only if every outcome was right and nothing grows: the medians of the last third are
at most a tenth, and 8 MB or 4 files, above those of the second third. In the first, imports still count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from jupyter_dtrain import Session
from tests.faults.__main__ import ROOT, digest
from tests.faults.plans import LIBRARIES, ROWS, Plan, frameworks_of, modes_of
from tests.faults.stage import Stage
from tests.steward.until import child_named, steward_of

LINES = ROOT / "build" / "soak.jsonl"
TENTH = 10
"""One cell in so many has a fault."""
KEEPS = ("whole", "busy", "dead")
"""States of the world after faults that it survives."""
GROWS = 1.1
MEGABYTES = 8.0
FILES = 4
TRAIN = """
for step in range(50):
    jupyter_dtrain.log(x=step)
    print("step", step)
t = torch.ones(1000)
dist.all_reduce(t)
float(t.sum()), MPI.COMM_WORLD.allreduce(rank)
"""


def faults(ranks: int) -> list[Plan]:
    """The plans that a world survives."""
    return [
        Plan(name, framework, ranks, victim, mode)
        for name, row in ROWS.items()
        if row.after in KEEPS and row.interrupted in KEEPS and name != "no-ulfm" and not name.startswith("kernel")
        for framework in frameworks_of(name)
        if framework not in LIBRARIES  # the first import of one is growth
        for mode in modes_of(name)
        if mode != "alone"  # the client is to be the same, too
        for victim in (0, ranks - 1)
    ]


def measure(session: Session, spool: Path) -> dict[str, float]:
    """Megabytes and open files by process, megabytes of the spool."""
    steward = steward_of(session)
    processes = {
        "client": [psutil.Process()],
        "steward": [steward],
        "controller": [child_named(session, "controller")],
        "ranks": [psutil.Process(rank.pid) for rank in session.world.ranks],
    }
    found: dict[str, float] = {}
    for name, members in processes.items():
        found[f"{name} MB"] = sum(process.memory_info().rss for process in members) / 1e6
        found[f"{name} files"] = sum(process.num_fds() for process in members)
    found["spool MB"] = sum(path.stat().st_size for path in spool.rglob("*") if path.is_file()) / 1e6
    return found


def train(session: Session, ranks: int) -> list[str]:
    """An ordinary cell; what was wrong with it."""
    run = session.run(f"import jupyter_dtrain\n{TRAIN}", view=None, timeout=60)
    wanted = repr((1000.0 * ranks, sum(range(ranks))))
    found = {result.data["text/plain"] for result in run.results.values()}
    points = [len(run.metrics["x"][rank].values) for rank in range(ranks)]
    wrong = [] if found == {wanted} else [f"an ordinary cell gave {found}, not {wanted}"]
    return wrong if points == [50] * ranks else [*wrong, f"points came: {points}"]


def growth(lines: list[dict[str, Any]]) -> list[str]:
    """The resources that have grown since this client began, in words."""
    lines = [line for line in lines if line["client"] == lines[-1]["client"]]
    third = len(lines) // 3
    if not third:
        return []
    second, last = lines[third : 2 * third], lines[2 * third :]
    words = []
    for name in lines[0]["measured"]:
        if name.startswith("spool"):
            continue
        before, after = (median(line["measured"][name] for line in part) for part in (second, last))
        room = max(before * (GROWS - 1), MEGABYTES if name.endswith("MB") else FILES)
        print(f"{name:18} {before:9.1f} {after:9.1f}")
        if after > before + room:
            words.append(f"{name} grows: {before:.1f}, {after:.1f}")
    each = [line["spooled"] for line in lines]
    first, end = median(each[: len(each) // 2]), median(each[len(each) // 2 :])
    print(f"{'spooled in 9 cells':18} {first:9.3f} {end:9.3f}  MB")
    return words if end <= first * GROWS else [*words, f"what a cell spools grows: {first:.3f} MB, {end:.3f} MB"]


def main() -> int:
    """Go on until the minutes are over."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=3)
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    code = digest()
    LINES.parent.mkdir(exist_ok=True)
    lines = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    lines = [line for line in lines if line["code"] == code]
    rest = 60 * wanted.minutes - sum(line["seconds"] for line in lines)
    print(f"{max(rest, 0) / 60:.1f} minutes to go", flush=True)
    client = f"{os.getpid()}-{time.time():.0f}"
    chance = random.Random(len(lines))  # noqa: S311 — which fault comes next
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("RUNTIME", "DATA", "CONFIG"):
            os.environ[f"JUPYTER_{kind}_DIR"] = f"{folder}/{kind.lower()}"
        stage = Stage(Path(folder))
        try:
            while rest > 0:
                began = time.monotonic()
                session = stage.world(wanted.ranks, old_mpi=False).session
                spool = Path(session.request.spool)
                before = measure(session, spool)["spool MB"]
                problems = [words for _ in range(TENTH - 1) for words in train(session, wanted.ranks)]
                measured = measure(session, spool)
                played = stage.play(chance.choice(faults(wanted.ranks)))
                seconds = time.monotonic() - began
                rest -= seconds
                line = {
                    "code": code,
                    "client": client,
                    "seconds": seconds,
                    "fault": str(played.plan),
                    "problems": [*problems, *played.problems],
                    "measured": measured,
                    "spooled": measured["spool MB"] - before,
                }
                lines.append(line)
                with open(LINES, "a") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{played.plan!s:52} {'; '.join(line['problems']) or 'good'}", flush=True)
        finally:
            left = stage.close()
    bad = [words for line in lines for words in line["problems"]] + left + growth(lines)
    cells_run = TENTH * len(lines)
    print(
        f"{cells_run} cells, {len(lines)} faults of {len({line['fault'] for line in lines})} kinds, {len(bad)} problems"
    )
    print(*bad, sep="\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
