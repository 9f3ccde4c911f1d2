"""Plays the failure table over and over: ``make faults``.

    python -m tests.faults [--only NAMES] [--shard I/N] [--repeat K] [--sizes 2,4] [--on-hosts]

Every situation, in torch and in MPI, and a rank that raises in each library on PyTorch that is installed, on each
number of ranks; from one repeat to the next another rank is the victim, and a client looks on, is gone, or interrupts.
Then heals and resizes in which something dies. Each play is a line of ``build/faults.jsonl`` once it is over; a run
that is begun again goes on with what is missing there. ``build/faults.md`` sums all lines up. The exit status is 0 only
if no play of this code had a problem.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from jupyter_dtrain.core.failures import situations
from tests.faults.changes import LIMIT
from tests.faults.plans import CHANGES, HERE, PROFILES, ROWS, Plan, all_plans
from tests.faults.stage import Stage
from tests.faults.worlds import HANG
from tests.hosts.network import Network, why_not

ROOT = Path(__file__).resolve().parents[2]
LINES = ROOT / "build" / "faults.jsonl"
TABLE = ROOT / "build" / "faults.md"


def digest() -> str:
    """A digest of the package's code: plays of other code do not count."""
    files = sorted((ROOT / "jupyter_dtrain").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def lines(path: Path = LINES) -> list[dict[str, Any]]:
    """The plays so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep(path: Path, line: dict[str, Any]) -> None:
    """Append it to the file; several processes may do so at once."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(line) + "\n")


def plans(sizes: list[int], repeat: int, only: list[str]) -> list[tuple[int, Plan]]:
    """All plays, or those of the situations ``only``, the first repeat first."""
    every = [(turn, plan) for turn in range(repeat) for size in sizes for plan in all_plans(size, turn)]
    return [(turn, plan) for turn, plan in every if not only or plan.situation in only]


def sum_up(played: Iterable[dict[str, Any]]) -> str:
    """A table: each situation with its plays, on how many ranks and in which framework, and what went wrong."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in played:
        rows.setdefault(line["situation"], []).append(line)
    text = [
        "| situation | plays | good | torch | MPI | libraries | seconds to the end: median, most | the table |",
        "|" + " --- |" * 8,
    ]
    for name in (*ROWS, *CHANGES, *PROFILES):
        row, own = ROWS.get(name), rows.get(name, [])
        if not own:
            text.append(f"| {name} | 0 | | | | | | |")
            continue
        good = [line for line in own if not line["problems"]]
        until_stop = row is not None and row.ends is None
        ended = [line["seconds"] for line in good if line["mode"] != "interrupted" and not until_stop]
        stopped = [line["seconds"] for line in good if line["mode"] == "interrupted" or until_stop]
        each = [
            f"{median(part):.1f}, {max(part):.1f}{words}"
            for part, words in ((ended, ""), (stopped, " after Stop"))
            if part
        ]
        of = [sum(line["framework"] == name for line in own) for name in ("torch", "mpi")]
        counts = " | ".join(map(str, [len(own), len(good), *of, len(own) - sum(of)]))
        limit = f"{LIMIT:g} s" if row is None else "Stop: 10 s" if row.ends is None else f"{row.ends}; Stop: 10 s"
        text.append(f"| {name} | {counts} | {'; '.join(each)} | {limit} |")
    bad = [line for own in rows.values() for line in own if line["problems"]]
    everything = sum(map(len, rows.values()))
    text.append(f"\n{everything} plays, {everything - len(bad)} good, {len(bad)} bad.")
    text += [
        f"\n* {line['play']}: " + "; ".join(words.partition("\n")[0] for words in line["problems"])[:600]
        for line in bad
    ]
    return "\n".join(text) + "\n"


def main() -> int:
    """Play what is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="situations, with commas between them; default: all")
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth play, from the Ith on")
    parser.add_argument("--repeat", type=int, default=1, help="how often everything is played")
    parser.add_argument("--sizes", default="2,4", help="numbers of ranks")
    parser.add_argument("--on-hosts", action="store_true", help="play on two hosts, reached by ssh (needs root)")
    wanted = parser.parse_args()
    if wanted.on_hosts and (reason := why_not()):
        parser.error(reason)
    only = [name for name in wanted.only.split(",") if name]
    if unknown := sorted({*only} - {*ROWS, *CHANGES, *PROFILES}):
        parser.error(f"no situations: {', '.join(unknown)}; there are {', '.join((*ROWS, *CHANGES, *PROFILES))}")
    shard, shards = map(int, wanted.shard.split("/"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that worlds are ended
    code = digest()
    done = {(line["turn"], line["play"]) for line in lines() if line["code"] == code}
    todo = plans([int(size) for size in wanted.sizes.split(",")], wanted.repeat, only)[shard - 1 :: shards]
    place = " on hosts" if wanted.on_hosts else ""
    todo = [(turn, plan) for turn, plan in todo if (turn, f"{plan}{place}") not in done]
    todo = [(turn, plan) for turn, plan in todo if not (wanted.on_hosts and plan.situation in HERE)]
    print(f"{len(todo)} plays to do; nobody moves for {HANG:g} s before it is told", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("RUNTIME", "DATA", "CONFIG"):
            os.environ[f"JUPYTER_{kind}_DIR"] = f"{folder}/{kind.lower()}"
        stack = ExitStack()
        (Path(folder) / "shared").mkdir()
        hosts = stack.enter_context(Network(shared=Path(folder) / "shared")) if wanted.on_hosts else None
        stage = Stage(Path(folder), network=hosts)
        try:
            for turn, plan in todo:
                began = time.monotonic()
                played = stage.play(plan)
                keep(
                    LINES,
                    {"play": f"{plan}{place}", "turn": turn, "code": code, "time": round(time.time())}
                    | plan._asdict()
                    | {"seconds": round(played.seconds, 2), "outcome": played.outcome, "problems": played.problems},
                )
                words = "; ".join(played.problems) or "good"
                print(
                    f"{plan!s:52} {played.seconds:5.1f} s, {time.monotonic() - began:5.1f} s in all: {words}",
                    flush=True,
                )
        finally:
            left = stage.close()
            stack.close()
    mine = [line for line in lines() if line["code"] == code]
    TABLE.write_text(sum_up(mine))
    print(f"{TABLE.relative_to(ROOT)}: {len(mine)} plays of this code, {len(situations())} situations")
    if left:
        print(*left, sep="\n")
    return int(bool(left) or any(line["problems"] for line in mine))


if __name__ == "__main__":
    sys.exit(main())
